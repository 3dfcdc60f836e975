"""A Disk in memory that can lose power: what was not synced is lost wholly, partly, or out of
order.

`fuse`: after so many writes the power fails in the middle of the next one (PowerCut). `fail_with`:
the next write or sync raises this OSError instead. `crash(random)` decides which unsynced writes
survive.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from mqd.io.disk import ArgumentsT, ResultT


class PowerCut(BaseException):
    """The power fails here."""


class _Content:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        # writes since the last sync; (size, b"") truncates
        self.pending: list[tuple[int, bytes]] = []


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: Path, content: _Content) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self.closed = False

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(views)
        self.write_at(len(self._content.data), data)
        return len(data)

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        assert not self.closed
        content, written = self._content, bytes(data)
        cut = self._disk.spend()
        if cut:
            written = written[: self._disk.random.randrange(len(written) + 1)]
        content.data[position : position + len(written)] = written
        content.pending.append((position, written))
        if cut:
            raise PowerCut

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._content.data[position : position + size])

    def truncate(self, size: int) -> None:
        if self._disk.spend():
            raise PowerCut
        del self._content.data[size:]
        self._content.pending.append((size, b""))

    def size(self) -> int:
        return len(self._content.data)

    def sync(self) -> None:
        assert not self.closed
        if self._disk.spend():
            raise PowerCut
        self._content.durable = bytes(self._content.data)
        self._content.pending.clear()
        self._disk.syncs += 1

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory")

    def close(self) -> None:
        self.closed = True


class MemoryDisk:
    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.files: dict[Path, _Content] = {}
        self.fuse: int | None = None
        self.fail_with: OSError | None = None
        self.syncs = 0
        self.operations = 0

    def spend(self) -> bool:
        """Count one write. Returns whether the power fails during it."""
        self.operations += 1
        if self.fail_with is not None:
            raise self.fail_with
        if self.fuse is None:
            return False
        self.fuse -= 1
        return self.fuse < 0

    def crash(self) -> None:
        """Power off: each file keeps what was synced and some of what was not."""
        for content in self.files.values():
            data = bytearray(content.durable)
            pending = content.pending
            if self.random.random() < 0.3:  # blocks reach the disk in any order
                pending = [write for write in pending if self.random.random() < 0.5]
            else:
                pending = pending[: self.random.randrange(len(pending) + 1)]
            for position, written in pending:
                if not written:
                    del data[position:]
                    continue
                if len(data) < position:
                    data.extend(bytes(position - len(data)))
                if self.random.random() < 0.3:
                    written = written[: self.random.randrange(len(written) + 1)]
                data[position : position + len(written)] = written
            content.data, content.durable, content.pending = data, bytes(data), []
        self.fuse = None

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.files[path] = _Content()
        return MemoryFile(self, path, self.files[path])

    def list(self, path: Path) -> list[str]:
        return sorted(name.name for name in self.files if name.parent == path)

    def exists(self, path: Path) -> bool:
        return path in self.files

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        pass

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        self.files[target] = self.files.pop(source)

    def remove(self, path: Path) -> None:
        self.files.pop(path, None)

    def remove_tree(self, path: Path) -> None:
        for name in [name for name in self.files if path in name.parents]:
            del self.files[name]

    def sync_directory(self, path: Path) -> None:
        pass

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self.open(path)._content.data)

    def write_atomic(self, path: Path, data: bytes) -> None:
        cut = self.spend()
        if not cut or self.random.random() < 0.5:
            content = self.files[path] = _Content()
            content.data, content.durable = bytearray(data), bytes(data)
        if cut:
            raise PowerCut

    def free_bytes(self, path: Path) -> int:
        return 1 << 40

    def total_bytes(self, path: Path) -> int:
        return 1 << 40

    def lock(self, path: Path) -> MemoryFile:
        return self.open(path, create=True)

    def boot_id(self) -> str:
        return "boot"

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        return await trio.to_thread.run_sync(call, *args, limiter=limiter)
