"""The simulated disk of one machine: its capacity, its delays, and the faults that tests inject.

A failed sync drops what it should have written, and the next sync succeeds (Rebello et al., "Can
Applications Recover from fsync Failures?", ATC '20).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from mqd.testing import threads
from mqd.testing.inodes import Directory, Inode
from mqd.testing.process import Killed, Process
from mqd.testing.scheduler import Trace, VirtualClock

CAPACITY_BYTES = 1 << 40
SYNC_SECONDS = (0.0002, 0.004)
"""The usual duration of an offloaded call. One in a hundred takes ten times as long."""


class PendingFaults:
    """The faults of the next calls of a disk. Each entry of `syncs`, `reads` and `writes` is one
    fault for paths with this part, "" for any path.
    """

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.dead = ""
        """If not "", every call on a path with this part fails with EIO."""

    def take(self, kind: list[str], path: Path) -> bool:
        if kind:
            text = str(path)
            for where in kind:
                if where in text:
                    kind.remove(where)
                    return True
        return False


class MemoryDisk:
    """The disk of one machine; `ProcessDisk` is what a process sees of it."""

    def __init__(self, name: object, clock: VirtualClock, source: random.Random) -> None:
        self.name = name
        self.clock = clock
        self.random = source
        self.root = Directory()
        self.faults = PendingFaults()
        self.capacity = CAPACITY_BYTES
        self.used = 0
        self.boots = 1
        self.slow_by = 0.0
        """Additional seconds of each offloaded call."""
        self.slow_logs_by = 0.0
        """Additional seconds of a sync of partition logs (a call with a limiter), as if the
        metadata were on another device.
        """
        self.locks: dict[Path, Process] = {}
        self.syncs = 0
        self.writes = 0
        self._inodes = 0
        self._process_end: tuple[int, Callable[[], None]] | None = None

    @property
    def trace(self) -> Trace:
        return self.clock.trace

    # -- faults

    def power_cut(self) -> None:
        """Keep synced bytes, and a random part of the others."""
        self.boots += 1
        self.root.lose_power(self.random)
        self.used = self.root.bytes()
        self.locks.clear()
        self._process_end = None

    def wipe(self) -> None:
        """Replace it by an empty disk."""
        self.root = Directory()
        self.used = 0
        self.boots += 1

    def lose_page_cache(self) -> None:
        """Detach and attach the disk: as `power_cut`, but the machine keeps running. No process may
        run.
        """
        self.root.lose_power(self.random)
        self.used = self.root.bytes()
        self._process_end = None

    def copy(self) -> Directory:
        """A copy of all its files, for `roll_back`."""
        return self.root.copy()

    def roll_back(self, copy: Directory) -> None:
        """Replace it by an older copy, while the machine runs. No process may run."""
        self.root = copy.copy()
        self.used = self.root.bytes()
        self._process_end = None

    def fail_sync(self, where: str = "", times: int = 1) -> None:
        """The next sync of a file whose path contains `where` fails with EIO. The data of this sync
        is lost.
        """
        self.faults.syncs += [where] * times

    def fail_read(self, where: str = "", times: int = 1) -> None:
        self.faults.reads += [where] * times

    def fail_write(self, where: str = "", times: int = 1) -> None:
        """The next write to a file whose path contains `where` fails with EIO, after some of its
        bytes.
        """
        self.faults.writes += [where] * times

    def die(self, where: str = "/") -> None:
        """Every call on such a path fails with EIO from now on; `revive` ends it."""
        self.faults.dead = where

    def revive(self) -> None:
        self.faults.dead = ""

    def mend(self) -> None:
        """End all faults: space is free, and calls succeed without delay. Does not restore
        corrupted or lost data.
        """
        self.faults = PendingFaults()
        self.capacity = CAPACITY_BYTES
        self.slow_by = self.slow_logs_by = 0.0
        self._process_end = None

    def fill(self, leaving: int = 0) -> None:
        """Leave only this many bytes free."""
        self.capacity = self.used + leaving

    def free(self) -> None:
        self.capacity = CAPACITY_BYTES

    def cut_in_write(self, after: int, then: Callable[[], None]) -> None:
        """Call `then`, which ends the process, in the middle of a change (write, rename, removal,
        sync): the first one after `after` others.
        """
        self._process_end = (after, then)

    def disarm(self) -> None:
        """Cancel `cut_in_write`: the process has ended."""
        self._process_end = None

    def corrupt(self, path: Path | str, position: int | None = None) -> int:
        """Flip a bit of one byte, at `position` or a random one; returns the position."""
        inode = self.find(Path(path))
        if not isinstance(inode, Inode) or not inode.data:
            raise FileNotFoundError(errno.ENOENT, "no such file, or nothing in it", str(path))
        at = self.random.randrange(len(inode.data)) if position is None else position
        bit = 1 << self.random.randrange(8)
        inode.sync()
        inode.data[at] ^= bit
        inode.durable[at] ^= bit
        self.trace.add(self.name, f"corrupted {path} at {at}")
        return at

    def files(self, where: str = "") -> list[Path]:
        """The paths of all files that contain `where`, sorted."""
        found: list[Path] = []

        def walk(directory: Directory, path: Path) -> None:
            for name in sorted(directory.names):
                entry = directory.names[name]
                if isinstance(entry, Directory):
                    walk(entry, path / name)
                elif where in str(path / name):
                    found.append(path / name)

        walk(self.root, Path("/"))
        return found

    # -- internal

    def find(self, path: Path) -> Inode | Directory | None:
        entry: Inode | Directory | None = self.root
        for name in path.parts[1:]:
            if not isinstance(entry, Directory):
                return None
            entry = entry.names.get(name)
        return entry

    def directory(self, path: Path) -> Directory:
        found = self.find(path)
        if isinstance(found, Directory):
            return found
        code = errno.ENOENT if found is None else errno.ENOTDIR
        raise disk_error(code, path)

    def new_inode(self) -> Inode:
        self._inodes += 1
        return Inode(self._inodes)

    def count_change(self) -> bool:
        """Count a change; returns whether the process ends in the middle of it."""
        self.writes += 1
        if self._process_end is None:
            return False
        after, then = self._process_end
        if after > 0:
            self._process_end = (after - 1, then)
            return False
        return True

    def end_process(self) -> None:
        assert self._process_end is not None
        then, self._process_end = self._process_end[1], None
        threads.call_in_loop(then)
        raise Killed("in the middle of a write")

    def seconds(self) -> float:
        low, high = SYNC_SECONDS
        spread = self.random.random()
        taken = low + (high - low) * spread * spread
        if self.random.random() < 0.01:
            taken *= 10
        return taken + self.slow_by


def disk_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
