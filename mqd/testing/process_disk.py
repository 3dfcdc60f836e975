"""The disk of a machine, as one process sees it: the simulated Disk and File of mqd/io/disk.py.

Each call may fail with an injected fault, or end its process in the middle of a change. Offloaded
work may pause at a call while the event loop runs (threads.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from mqd.testing import threads
from mqd.testing.disk import CAPACITY_BYTES, MemoryDisk, disk_error
from mqd.testing.inodes import Directory, Inode, apply_write
from mqd.testing.process import Process

ResultT = TypeVar("ResultT")
ArgumentsT = TypeVarTuple("ArgumentsT")

SPLIT_LIKELIHOOD = 0.25
"""The probability that an offloaded call pauses at some of its disk calls (threads.py). Other calls
run as a whole, at a random moment of the delay.
"""


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
            raise disk_error(errno.EBADF, self.path)
        if self._disk.faults.dead and self._disk.faults.dead in str(self.path):
            raise disk_error(errno.EIO, self.path)

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
        process_ends = disk.count_change()
        fails = bool(disk.faults.writes) and disk.faults.take(disk.faults.writes, self.path)
        if process_ends or fails:
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
            apply_write(self._inode.data, position, data)
            self._inode.pending.append((position, data))
            if growth > 0:
                disk.used += growth
        if process_ends:
            disk.end_process()
        if size < wanted or fails:
            raise disk_error(code, self.path)

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        faults = self._disk.faults
        if faults.reads and faults.take(faults.reads, self.path):
            raise disk_error(errno.EIO, self.path)
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._check()
        disk, data = self._disk, self._inode.data
        process_ends = disk.count_change()
        if process_ends and disk.random.random() < 0.5:
            disk.end_process()
        if size < len(data):
            disk.used -= len(data) - size
            del data[size:]
            self._inode.pending.append((size, None))
        elif size > len(data):
            self.write_at(len(data), bytes(size - len(data)))
        if process_ends:
            disk.end_process()

    def size(self) -> int:
        return len(self._inode.data)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        process_ends = disk.count_change()
        if process_ends and disk.random.random() < 0.5:
            disk.end_process()
        if disk.faults.syncs and disk.faults.take(disk.faults.syncs, self.path):
            self._inode.pending = [
                write for write in self._inode.pending if disk.random.random() < 0.3
            ]
            self._inode.sync()
            disk.trace.add(disk.name, f"sync failed {self.path}")
            raise disk_error(errno.EIO, self.path)
        disk.syncs += 1
        disk.trace.add(disk.name, f"sync {self.path} {len(self._inode.data)}")
        self._inode.sync()
        if process_ends:
            disk.end_process()

    def fileno(self) -> int:
        raise disk_error(errno.EBADF, self.path)

    def close(self) -> None:
        self._is_open = False

    def __repr__(self) -> str:
        return f"<MemoryFile {self.path}>"


class _Lock(MemoryFile):
    """A file lock, held until it is closed or its process ends."""

    __slots__ = ()

    def close(self) -> None:
        if self._disk.locks.get(self.path) is self._process:
            del self._disk.locks[self.path]
        super().close()


class ProcessDisk:
    """A Disk (io/disk.py): the machine's disk, as one process sees it."""

    def __init__(self, disk: MemoryDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def _check(self, path: Path) -> None:
        threads.step()
        self._process.check()
        dead = self._disk.faults.dead
        if dead and dead in str(path):
            raise disk_error(errno.EIO, path)

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        return MemoryFile(self._disk, self._process, path, self._inode(path, create))

    def _inode(self, path: Path, create: bool) -> Inode:
        self._check(path)
        found = self._disk.find(path)
        if isinstance(found, Directory):
            raise disk_error(errno.EISDIR, path)
        if found is None:
            directory = self._disk.directory(path.parent)
            if not create:
                raise disk_error(errno.ENOENT, path)
            if self._disk.capacity - self._disk.used <= 0:
                raise disk_error(errno.ENOSPC, path)
            found = self._disk.new_inode()
            self._change(directory, (path.name, found))
        return found

    def _change(self, directory: Directory, *changes: tuple[str, Inode | Directory | None]) -> None:
        """Make one atomic change of a directory. The process may end before or after it."""
        process_ends = self._disk.count_change()
        if process_ends and self._disk.random.random() < 0.5:
            self._disk.end_process()
        directory.change(*changes)
        if process_ends:
            self._disk.end_process()

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
                raise disk_error(errno.EEXIST, path)
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
            raise disk_error(errno.ENOENT, source)
        directory = self._disk.directory(target.parent)
        replaced = directory.names.get(target.name)
        if isinstance(replaced, Directory) and (replaced.names or isinstance(moved, Inode)):
            raise disk_error(
                errno.ENOTEMPTY if isinstance(moved, Directory) else errno.EISDIR, target
            )
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
            raise disk_error(errno.EISDIR, path)
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
        if self._disk.count_change():
            self._disk.end_process()
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
        """Run a call that takes time, while the event loop runs. As with a thread, a waiting caller
        cannot be cancelled.
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
        """Run the call in a thread that pauses at times. If the process ends meanwhile, the next
        disk call ends the work.
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
