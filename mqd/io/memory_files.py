"""Files in the memory of this process, beside those of a disk: the logs of topics with
`mqd.storage=memory`.

`DiskWithMemory` is a Disk. A path below `MEMORY` is a file in memory, any other path belongs to the
disk. So the same code writes both kinds of logs, and nothing of a log in memory reaches a device.
All files in memory end with the process.

All of them together have at most `bytes_max` bytes; a write beyond that raises ENOSPC, as on a full
disk. A removed file gives its memory back at once, also while a response still needs it: a later
read returns fewer bytes, and the connection of that slow reader ends. Otherwise slow readers could
hold more memory than the bound.

A file is a bytearray, and not a memfd: it needs no descriptor, counts in this process, and is the
same in a simulation. The price is one copy for each read. Worker threads use these files, too, so a
lock protects the sum of the sizes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import trio

from mqd.io.disk import Disk, File

MEMORY: Final = Path("memory:")
"""The root of the files in memory. No file of a disk has this name: data directories are given by
their own paths."""
NO_DESCRIPTOR: Final = -1
"""`File.fileno` of a file in memory: it cannot be sent with sendfile."""

ResultT = TypeVar("ResultT")
ArgumentsT = TypeVarTuple("ArgumentsT")


class _Usage:
    """The bytes of all files together."""

    __slots__ = ("_lock", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._lock = threading.Lock()

    def grow(self, size: int, path: Path) -> None:
        """Raises OSError ENOSPC beyond the bound."""
        with self._lock:
            if size > 0 and self.bytes + size > self.bytes_max:
                raise _error(errno.ENOSPC, path)
            self.bytes += size


class MemoryFile:
    """A File in memory. All who open its path share one object."""

    __slots__ = ("_data", "_is_removed", "_usage", "path")

    def __init__(self, path: Path, usage: _Usage) -> None:
        self.path = path
        self._usage = usage
        self._data = bytearray()
        self._is_removed = False

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        size = sum(map(len, views))
        if self._is_removed:
            return size  # as a write to a file without a name
        self._usage.grow(size, self.path)
        for view in views:
            self._data += view
        return size

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        if self._is_removed:
            return
        end = position + len(data)
        growth = max(0, end - len(self._data))
        self._usage.grow(growth, self.path)
        if position > len(self._data):
            self._data.extend(bytes(position - len(self._data)))
        self._data[position:end] = data

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])

    def truncate(self, size: int) -> None:
        if self._is_removed:
            return
        growth = size - len(self._data)
        self._usage.grow(growth, self.path)
        if growth > 0:
            self._data.extend(bytes(growth))
        else:
            del self._data[size:]

    def size(self) -> int:
        return len(self._data)

    def sync(self) -> None:
        """Nothing is durable, and nothing needs to be."""

    def fileno(self) -> int:
        return NO_DESCRIPTOR

    def close(self) -> None:
        """The file stays until it is removed."""

    def remove(self) -> None:
        """Give the memory back."""
        if not self._is_removed:
            self._is_removed = True
            self._usage.grow(-len(self._data), self.path)
            self._data = bytearray()

    def __repr__(self) -> str:
        return f"<MemoryFile {self.path}>"


_Directory = dict[str, "MemoryFile | _Directory"]


class DiskWithMemory:
    """See the head of this file."""

    def __init__(self, disk: Disk, bytes_max: int) -> None:
        self._disk = disk
        self._usage = _Usage(bytes_max)
        self._root: _Directory = {}

    @property
    def memory_bytes(self) -> int:
        """The bytes of all files in memory."""
        return self._usage.bytes

    # -- finding

    def _find(self, path: Path) -> MemoryFile | _Directory | None:
        found: MemoryFile | _Directory | None = self._root
        for name in path.parts[1:]:
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        return found

    def _directory(self, path: Path) -> _Directory:
        found = self._find(path)
        if isinstance(found, dict):
            return found
        raise _error(errno.ENOENT if found is None else errno.ENOTDIR, path)

    def _file(self, path: Path) -> MemoryFile:
        found = self._find(path)
        if isinstance(found, MemoryFile):
            return found
        raise _error(errno.ENOENT if found is None else errno.EISDIR, path)

    # -- the methods of a Disk

    def open(self, path: Path, *, create: bool = False) -> File:
        if not in_memory(path):
            return self._disk.open(path, create=create)
        directory = self._directory(path.parent)
        if create and path.name not in directory:
            directory[path.name] = MemoryFile(path, self._usage)
        return self._file(path)

    def list(self, path: Path) -> list[str]:
        return sorted(self._directory(path)) if in_memory(path) else self._disk.list(path)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None if in_memory(path) else self._disk.exists(path)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if not in_memory(path):
            self._disk.make_directory(path, durable=durable)
            return
        found = self._root
        for name in path.parts[1:]:
            below = found.setdefault(name, {})
            if not isinstance(below, dict):
                raise _error(errno.ENOTDIR, path)
            found = below

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        if not in_memory(source):
            self._disk.rename(source, target, durable=durable)
            return
        entries = self._directory(source.parent)
        if source.name not in entries:
            raise _error(errno.ENOENT, source)
        targets = self._directory(target.parent)
        self._removed(targets.pop(target.name, None))
        entry = targets[target.name] = entries.pop(source.name)
        if isinstance(entry, MemoryFile):
            entry.path = target

    def remove(self, path: Path) -> None:
        if not in_memory(path):
            self._disk.remove(path)
            return
        parent = self._find(path.parent)
        if isinstance(parent, dict):
            self._removed(parent.pop(path.name, None))

    def remove_tree(self, path: Path) -> None:
        if in_memory(path):
            self.remove(path)
        else:
            self._disk.remove_tree(path)

    def _removed(self, entry: MemoryFile | _Directory | None) -> None:
        if isinstance(entry, MemoryFile):
            entry.remove()
        elif entry is not None:
            for below in list(entry.values()):
                self._removed(below)

    def sync_directory(self, path: Path) -> None:
        if not in_memory(path):
            self._disk.sync_directory(path)

    def read_bytes(self, path: Path) -> bytes:
        if not in_memory(path):
            return self._disk.read_bytes(path)
        file = self._file(path)
        return file.read_at(0, file.size())

    def write_atomic(self, path: Path, data: bytes) -> None:
        if not in_memory(path):
            self._disk.write_atomic(path, data)
            return
        directory = self._directory(path.parent)
        file = MemoryFile(path, self._usage)
        file.append([data])
        self._removed(directory.get(path.name))
        directory[path.name] = file

    def free_bytes(self, path: Path) -> int:
        if in_memory(path):
            return max(0, self._usage.bytes_max - self._usage.bytes)
        return self._disk.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._usage.bytes_max if in_memory(path) else self._disk.total_bytes(path)

    def lock(self, path: Path) -> File:
        return self.open(path, create=True) if in_memory(path) else self._disk.lock(path)

    def boot_id(self) -> str:
        return self._disk.boot_id()

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        return await self._disk.offload(call, *args, limiter=limiter)


def in_memory(path: Path) -> bool:
    return path.parts[:1] == MEMORY.parts


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
