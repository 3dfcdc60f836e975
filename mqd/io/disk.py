"""Seam 3 of 4: the disk. Files are appended with vectored writes and read by position, without
memory mapping.

Every method may raise OSError. The services convert a failed write or sync to StorageError and
never retry it. After a failed fsync, a second one may report success without any effect (Rebello et
al., ATC '20). Calls are synchronous. Services pass slow calls, such as `sync`, to `offload`. The
others use only the page cache, and run on the event loop.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

import trio

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ArgumentsT = TypeVarTuple("ArgumentsT")

_VECTORS_MAX = 1024  # IOV_MAX on Linux
_DESCRIPTORS_MAX = 1 << 20  # if there is no other limit
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the maximum; returns the new limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else _DESCRIPTORS_MAX


class File(Protocol):
    """One open file.

    Closed with its last reference: a fetch may still send a deleted segment.
    """

    path: Path

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all views at the end, in order; returns the bytes written.

        Short writes are completed, or raise OSError.
        """
        ...

    def write_at(self, position: int, data: bytes | memoryview) -> None: ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer bytes only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """fdatasync: returns when all written data is durable. Blocks; safe in a thread."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile; negative for a file in memory. A simulated file raises
        OSError."""
        ...

    def close(self) -> None: ...


class FileRange(NamedTuple):
    """Bytes of a file that are sent to a socket without a copy in Python.

    A reference to it keeps the file open.
    """

    file: File
    position: int
    size: int


class Disk(Protocol):
    """A directory tree: the operations that the log, the journal and the snapshots use."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and appending. Raises FileNotFoundError unless `create`."""
        ...

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def exists(self, path: Path) -> bool: ...

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Create a directory with its parents, for this user only. Does nothing if it exists.
        `durable`: the parent's entry is synced before it returns.
        """
        ...

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        """Replace atomically. `durable`: the directory entry is synced before it returns."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file. Does nothing if it does not exist."""
        ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def read_bytes(self, path: Path) -> bytes: ...

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Write a temporary file, fsync, rename, fsync the directory: all or nothing, and durable
        on return.
        """
        ...

    def free_bytes(self, path: Path) -> int: ...

    def total_bytes(self, path: Path) -> int: ...

    def lock(self, path: Path) -> File:
        """Take an exclusive lock that ends with the process. Raises BlockingIOError if another
        process holds it.
        """
        ...

    def boot_id(self) -> str:
        """The id of the machine's current boot. While it stays the same, written data exists even
        without a sync, also after a killed process. Empty if unknown.
        """
        ...

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        """Run a blocking call in a worker thread, so that the event loop continues. `limiter`
        bounds the number of threads.
        """
        ...


class OsFile:
    """A File of the operating system."""

    __slots__ = ("_descriptor", "_size", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def append(self, views: Sequence[bytes | bytearray | memoryview]) -> int:
        if len(views) > _VECTORS_MAX:
            return sum(
                self.append(views[start : start + _VECTORS_MAX])
                for start in range(0, len(views), _VECTORS_MAX)
            )
        size = sum(map(len, views))
        written = os.pwritev(self._descriptor, views, self._size)
        self._size += written
        if written < size:  # a short write: the disk is nearly full, or a signal arrived
            self.write_at(self._size, b"".join(views)[written:])
        return size

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, position)
            if not written:
                raise OSError(errno.EIO, "the write makes no progress", str(self.path))
            position += written
            self._size = max(self._size, position)
            view = view[written:]

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (part := os.pread(self._descriptor, size - got, position + got)):
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def size(self) -> int:
        return self._size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    def __repr__(self) -> str:
        return f"<OsFile {self.path}>"


class OsDisk:
    """The Disk of the operating system.

    New files have mode 0600 and new directories 0700, with `group_readable` 0640 and 0750.
    """

    _file_mode = 0o600
    _directory_mode = 0o700

    def __init__(self, *, group_readable: bool = False) -> None:
        if group_readable:
            self._file_mode, self._directory_mode = 0o640, 0o750

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(path, os.open(path, flags, self._file_mode))

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if os.path.isdir(path):
            self._warn_of_others(path)
            return
        missing = [path, *path.parents]
        missing = missing[
            : next(count for count, parent in enumerate(missing) if os.path.isdir(parent))
        ]
        for directory in reversed(missing):
            try:
                os.mkdir(directory, self._directory_mode)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise
            if durable:
                self.sync_directory(directory.parent)

    def _warn_of_others(self, path: Path) -> None:
        """Warn about access for other users. An existing directory keeps its mode, because it may
        have other uses.
        """
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o077 & ~self._directory_mode:
            remedy = f"chmod {self._directory_mode:o} {shlex.quote(str(path))}"
            logger.warning(
                "other users can access a data directory directory=%s mode=%o remedy=%s",
                path,
                mode,
                remedy,
            )

    def rename(self, source: Path, target: Path, *, durable: bool = True) -> None:
        os.replace(source, target)
        if durable:
            self.sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        import shutil

        if os.path.isdir(path):
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, self._file_mode
        )
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            self.remove(temporary)
            raise
        finally:
            os.close(descriptor)
        self.rename(temporary, path)

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: Path) -> File:
        import fcntl

        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        return await trio.to_thread.run_sync(call, *args, limiter=limiter)
