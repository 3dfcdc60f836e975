"""A disk in memory that forgets what a real one may forget.

What was written is seen by every later read, and outlives a process that is killed. A power cut
keeps what was synced, and of the rest what chance decides: of a file each write since the last sync
may be lost, kept, torn at any byte, or leave zeros where its bytes belong; of a directory each
entry that was made, renamed or removed since its last sync may be there or not. A new file has a
durable entry only after a sync of its directory. A failed sync drops what it should have written,
and the next one says that all is well (Rebello et al., "Can Applications Recover from fsync
Failures?", ATC '20).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from mqd.testing import threads
from mqd.testing.process import Killed, Process
from mqd.testing.scheduler import Trace, VirtualClock

ResultT = TypeVar("ResultT")
ArgumentsT = TypeVarTuple("ArgumentsT")

CAPACITY_BYTES = 1 << 40
SYNC_SECONDS = (0.0002, 0.004)
"""How long a call takes that is offloaded, mostly; now and then up to ten times as long."""
SPLIT_LIKELIHOOD = 0.25
"""Of an offloaded call to pause at some of its disk calls (threads.py). The others happen at one
moment: when they begin, when they end, or between.
"""


class Inode:
    """The content of one file: as processes see it, and as it is on the platters."""

    __slots__ = ("data", "durable", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Writes (position, bytes) and truncations (size, None) since the last sync."""

    def sync(self) -> None:
        for write in self.pending:
            _apply(self.durable, *write)
        self.pending.clear()

    def lose_power(self, source: random.Random) -> None:
        """Of what was not synced, keep what chance decides."""
        pending = self.pending
        if pending:
            match source.randrange(5):
                case 0:
                    pending = []
                case 1:
                    pass  # all of it
                case 2:  # in order, up to somewhere in the middle of one
                    pending = pending[: source.randrange(len(pending)) + 1]
                    pending[-1] = _torn(pending[-1], source)
                case 3:  # blocks in any order
                    pending = [
                        _torn(write, source) if source.random() < 0.3 else write
                        for write in pending
                        if source.random() < 0.6
                    ]
                case 4:  # the sizes were written, the data of some was not
                    pending = [
                        _zeroed(write, source) if source.random() < 0.5 else write
                        for write in pending
                    ]
            for write in pending:
                _apply(self.durable, *write)
        self.data = bytearray(self.durable)
        self.pending = []


class Directory:
    """Names, as processes see them, and as they are on the platters."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[tuple[tuple[str, Inode | Directory | None], ...]] = []
        """Changes since the last sync, each atomic: names, and what they stand for from then on."""

    def change(self, *changes: tuple[str, Inode | Directory | None]) -> None:
        _change(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def lose_power(self, source: random.Random) -> None:
        pending = self.pending
        if pending:
            match source.randrange(4):
                case 0:
                    pending = []
                case 1:
                    pass
                case 2:  # as journals of file systems do: in order
                    pending = pending[: source.randrange(len(pending) + 1)]
                case 3:
                    pending = [change for change in pending if source.random() < 0.5]
            for changes in pending:
                _change(self.durable, changes)
        self.names = dict(self.durable)
        self.pending = []
        for entry in self.names.values():
            entry.lose_power(source)

    def copy(self) -> Directory:
        """As processes see it, and all of it durable."""
        copied = Directory()
        for name, entry in self.names.items():
            if isinstance(entry, Directory):
                copied.names[name] = entry.copy()
            else:
                inode = copied.names[name] = Inode(entry.number)
                inode.data, inode.durable = bytearray(entry.data), bytearray(entry.data)
        copied.durable = dict(copied.names)
        return copied

    def bytes(self) -> int:
        return sum(
            entry.bytes() if isinstance(entry, Directory) else len(entry.data)
            for entry in self.names.values()
        )


def _change(
    names: dict[str, Inode | Directory], changes: Sequence[tuple[str, Inode | Directory | None]]
) -> None:
    for name, entry in changes:
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


def _apply(data: bytearray, position: int, written: bytes | None) -> None:
    if written is None:
        del data[position:]
        return
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


def _torn(write: tuple[int, bytes | None], source: random.Random) -> tuple[int, bytes | None]:
    position, written = write
    return (position, written[: source.randrange(len(written) + 1)]) if written else write


def _zeroed(write: tuple[int, bytes | None], source: random.Random) -> tuple[int, bytes | None]:
    position, written = write
    if not written:
        return write
    start = source.randrange(len(written)) if source.random() < 0.5 else 0
    return position, written[:start] + bytes(len(written) - start)


class Faults:
    """What goes wrong with a disk next.

    Numbers count down; `where` is a part of the path, "" for any.
    """

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.dead = ""
        """Every call below paths with this part fails with EIO, until it is emptied."""

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
        self.faults = Faults()
        self.capacity = CAPACITY_BYTES
        self.used = 0
        self.boots = 1
        self.slow_by = 0.0
        """Seconds on top of what each offloaded call takes."""
        self.slow_logs_by = 0.0
        """Seconds on top of what a sync of logs takes (a call with a limiter), as if the
        metadata were on another device.
        """
        self.locks: dict[Path, Process] = {}
        self.syncs = 0
        self.writes = 0
        self._inodes = 0
        self._fuse: tuple[int, Callable[[], None]] | None = None

    @property
    def trace(self) -> Trace:
        return self.clock.trace

    # -- what befalls it

    def power_cut(self) -> None:
        """What was synced stays, and of the rest what chance decides."""
        self.boots += 1
        self.root.lose_power(self.random)
        self.used = self.root.bytes()
        self.locks.clear()
        self._fuse = None

    def wipe(self) -> None:
        """An empty disk in its place."""
        self.root = Directory()
        self.used = 0
        self.boots += 1

    def lose_page_cache(self) -> None:
        """The disk is detached and attached again: as a power cut, but the machine runs on.

        No process may be alive.
        """
        self.root.lose_power(self.random)
        self.used = self.root.bytes()
        self._fuse = None

    def copy(self) -> Directory:
        """All that is on it, for `roll_back`."""
        return self.root.copy()

    def roll_back(self, copy: Directory) -> None:
        """An older copy of it in its place, while the machine runs on. No process may be alive."""
        self.root = copy.copy()
        self.used = self.root.bytes()
        self._fuse = None

    def fail_sync(self, where: str = "", times: int = 1) -> None:
        """The next sync of a file whose path contains `where` fails with EIO; what it
        should have written is lost.
        """
        self.faults.syncs += [where] * times

    def fail_read(self, where: str = "", times: int = 1) -> None:
        self.faults.reads += [where] * times

    def fail_write(self, where: str = "", times: int = 1) -> None:
        """The next write to such a file fails with EIO, after some of its bytes."""
        self.faults.writes += [where] * times

    def die(self, where: str = "/") -> None:
        """Every call on such a path fails with EIO from now on; `revive` ends it."""
        self.faults.dead = where

    def revive(self) -> None:
        self.faults.dead = ""

    def mend(self) -> None:
        """No more faults: space is free, calls succeed and are quick.

        What was corrupted or lost stays so.
        """
        self.faults = Faults()
        self.capacity = CAPACITY_BYTES
        self.slow_by = self.slow_logs_by = 0.0
        self._fuse = None

    def fill(self, leaving: int = 0) -> None:
        """Only so many bytes are free from now on."""
        self.capacity = self.used + leaving

    def free(self) -> None:
        self.capacity = CAPACITY_BYTES

    def cut_in_write(self, after: int, then: Callable[[], None]) -> None:
        """In the middle of the change (write, rename, removal, sync) after so many others
        `then` is called, which ends the process.
        """
        self._fuse = (after, then)

    def disarm(self) -> None:
        """Whoever was to die in a write is dead."""
        self._fuse = None

    def corrupt(self, path: Path | str, position: int | None = None) -> int:
        """Flip a bit of one byte, chosen by chance unless `position` says which; returns where."""
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

    # -- inside

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
        raise _error(code, path)

    def new_inode(self) -> Inode:
        self._inodes += 1
        return Inode(self._inodes)

    def about_to_change(self) -> bool:
        """One more change: whether the process ends in the middle of it."""
        self.writes += 1
        if self._fuse is None:
            return False
        after, then = self._fuse
        if after > 0:
            self._fuse = (after - 1, then)
            return False
        return True

    def blow(self) -> None:
        assert self._fuse is not None
        then, self._fuse = self._fuse[1], None
        threads.call_in_loop(then)
        raise Killed("in the middle of a write")

    def seconds(self) -> float:
        low, high = SYNC_SECONDS
        spread = self.random.random()
        taken = low + (high - low) * spread * spread
        if self.random.random() < 0.01:
            taken *= 10
        return taken + self.slow_by


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


class MemoryFile:
    """A File (io/disk.py)."""

    __slots__ = ("_disk", "_inode", "_is_open", "_process", "path")

    def __init__(self, disk: MemoryDisk, process: Process, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._process = process
        self._inode = inode
        self._is_open = True

    def _check(self) -> None:
        threads.step()
        self._process.check()
        if not self._is_open:
            raise _error(errno.EBADF, self.path)
        if self._disk.faults.dead and self._disk.faults.dead in str(self.path):
            raise _error(errno.EIO, self.path)

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(views)
        self._write(len(self._inode.data), data)
        return len(data)

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self._write(position, bytes(data))

    def _write(self, position: int, data: bytes) -> None:
        self._check()
        disk = self._disk
        size = len(data)
        wanted = size
        is_cut = disk.about_to_change()
        fails = bool(disk.faults.writes) and disk.faults.take(disk.faults.writes, self.path)
        if is_cut or fails:
            size = disk.random.randrange(size + 1)
        growth = position + size - len(self._inode.data)
        code = errno.EIO
        if growth > 0:
            free = disk.capacity - disk.used
            if growth > free:
                size = max(size - (growth - max(free, 0)), 0)
                growth = position + size - len(self._inode.data)
                code = errno.ENOSPC
        if size:
            if size < wanted:
                data = data[:size]
            _apply(self._inode.data, position, data)
            self._inode.pending.append((position, data))
            if growth > 0:
                disk.used += growth
        if is_cut:
            disk.blow()
        if size < wanted or fails:
            raise _error(code, self.path)

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        faults = self._disk.faults
        if faults.reads and faults.take(faults.reads, self.path):
            raise _error(errno.EIO, self.path)
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._check()
        disk, data = self._disk, self._inode.data
        is_cut = disk.about_to_change()
        if is_cut and disk.random.random() < 0.5:
            disk.blow()
        if size < len(data):
            disk.used -= len(data) - size
            del data[size:]
            self._inode.pending.append((size, None))
        elif size > len(data):
            self.write_at(len(data), bytes(size - len(data)))
        if is_cut:
            disk.blow()

    def size(self) -> int:
        return len(self._inode.data)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        is_cut = disk.about_to_change()
        if is_cut and disk.random.random() < 0.5:
            disk.blow()
        if disk.faults.syncs and disk.faults.take(disk.faults.syncs, self.path):
            self._inode.pending = [
                write for write in self._inode.pending if disk.random.random() < 0.3
            ]
            self._inode.sync()
            disk.trace.add(disk.name, f"sync failed {self.path}")
            raise _error(errno.EIO, self.path)
        disk.syncs += 1
        disk.trace.add(disk.name, f"sync {self.path} {len(self._inode.data)}")
        self._inode.sync()
        if is_cut:
            disk.blow()

    def fileno(self) -> int:
        raise _error(errno.EBADF, self.path)

    def close(self) -> None:
        self._is_open = False

    def __repr__(self) -> str:
        return f"<MemoryFile {self.path}>"


class _Lock(MemoryFile):
    """Held until it is closed or its process ends."""

    __slots__ = ()

    def close(self) -> None:
        if self._disk.locks.get(self.path) is self._process:
            del self._disk.locks[self.path]
        super().close()


class ProcessDisk:
    """A Disk (io/disk.py): what one process sees of its machine's."""

    def __init__(self, disk: MemoryDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def _check(self, path: Path) -> None:
        threads.step()
        self._process.check()
        dead = self._disk.faults.dead
        if dead and dead in str(path):
            raise _error(errno.EIO, path)

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        return MemoryFile(self._disk, self._process, path, self._inode(path, create))

    def _inode(self, path: Path, create: bool) -> Inode:
        self._check(path)
        found = self._disk.find(path)
        if isinstance(found, Directory):
            raise _error(errno.EISDIR, path)
        if found is None:
            directory = self._disk.directory(path.parent)
            if not create:
                raise _error(errno.ENOENT, path)
            if self._disk.capacity - self._disk.used <= 0:
                raise _error(errno.ENOSPC, path)
            found = self._disk.new_inode()
            self._change(directory, (path.name, found))
        return found

    def _change(self, directory: Directory, *changes: tuple[str, Inode | Directory | None]) -> None:
        """One atomic change of a directory; the process may end before or after it."""
        is_cut = self._disk.about_to_change()
        if is_cut and self._disk.random.random() < 0.5:
            self._disk.blow()
        directory.change(*changes)
        if is_cut:
            self._disk.blow()

    def list(self, path: Path) -> list[str]:
        self._check(path)
        return sorted(self._disk.directory(path).names)

    def exists(self, path: Path) -> bool:
        threads.step()
        self._process.check()
        return self._disk.find(path) is not None

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        self._check(path)
        parent, made = self._disk.root, []
        for depth, name in enumerate(path.parts[1:], start=1):
            entry = parent.names.get(name)
            if isinstance(entry, Inode):
                raise _error(errno.EEXIST, path)
            if entry is None:
                entry = Directory()
                self._change(parent, (name, entry))
                made.append(Path(*path.parts[:depth]))
            parent = entry
        if durable:
            for directory in made:
                self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        self._check(source)
        self._check(target)
        moved = self._disk.find(source)
        if moved is None:
            raise _error(errno.ENOENT, source)
        directory = self._disk.directory(target.parent)
        replaced = directory.names.get(target.name)
        if isinstance(replaced, Directory) and (replaced.names or isinstance(moved, Inode)):
            raise _error(errno.ENOTEMPTY if isinstance(moved, Directory) else errno.EISDIR, target)
        self._disk.trace.add(self._disk.name, f"rename {source} {target}")
        if isinstance(replaced, Inode) and replaced is not moved:
            self._disk.used -= len(replaced.data)
        if source.parent == target.parent:
            self._change(
                directory,
                (target.name, moved),
                *(((source.name, None),) if source.name != target.name else ()),
            )
        else:
            self._change(directory, (target.name, moved))
            self._change(self._disk.directory(source.parent), (source.name, None))
        if durable:
            self.sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        self._check(path)
        found = self._disk.find(path)
        if isinstance(found, Directory):
            raise _error(errno.EISDIR, path)
        if found is not None:
            self._disk.used -= len(found.data)
            self._change(self._disk.directory(path.parent), (path.name, None))

    def remove_tree(self, path: Path) -> None:
        self._check(path)
        found = self._disk.find(path)
        if not isinstance(found, Directory):
            return
        for name in sorted(found.names):
            if isinstance(found.names[name], Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self._change(self._disk.directory(path.parent), (path.name, None))

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        if self._disk.about_to_change():
            self._disk.blow()
        self._disk.directory(path).sync()

    def read_bytes(self, path: Path) -> bytes:
        file = self.open(path)
        return file.read_at(0, file.size())

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
        except OSError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename(temporary, path)

    def free_bytes(self, path: Path) -> int:
        self._check(path)
        return max(self._disk.capacity - self._disk.used, 0)

    def total_bytes(self, path: Path) -> int:
        self._check(path)
        return CAPACITY_BYTES

    def lock(self, path: Path) -> MemoryFile:
        inode = self._inode(path, create=True)
        holder = self._disk.locks.get(path)
        if holder is not None and holder.alive:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        self._disk.locks[path] = self._process
        return _Lock(self._disk, self._process, path, inode)

    def boot_id(self) -> str:
        self._process.check()
        return f"boot-{self._disk.name}-{self._disk.boots}"

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        """The call takes time, and the loop runs meanwhile.

        A caller that waits cannot be cancelled, as with a thread.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if limiter is None:
            return await self._offload(call, *args)
        async with limiter:
            return await self._offload(call, *args, longer=self._disk.slow_logs_by)

    async def _offload(
        self, call: Callable[[*ArgumentsT], ResultT], *args: *ArgumentsT, longer: float = 0.0
    ) -> ResultT:
        chance, process = self._disk.random, self._process
        seconds = self._disk.seconds() + longer
        share = max(0.0, min(1.0, chance.uniform(-0.25, 1.25)))
        if share > 0.0:
            await process.sleep(seconds * share)
        if chance.random() < SPLIT_LIKELIHOOD:
            result = await self._split(partial(call, *args), seconds)
        else:
            result = call(*args)
        if share < 1.0:
            await process.sleep(seconds * (1 - share))
        return result

    async def _split(self, call: Callable[[], ResultT], seconds: float) -> ResultT:
        """The call in a thread that pauses now and then.

        A process that dies meanwhile ends it at its next call of the disk.
        """
        chance = self._disk.random
        work: threads.Work[ResultT] = threads.Work(call, chance)
        try:
            work.resume()
            while not work.ended:
                await self._process.sleep(seconds * chance.random())
                work.resume()
        finally:
            work.finish()
        return work.result()
