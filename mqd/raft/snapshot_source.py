"""The bytes of one snapshot, read in parts to send them to a follower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqd.errors import StorageError

if TYPE_CHECKING:
    from mqd.io.disk import File


class SnapshotSource:
    """A snapshot in memory or in a file. The file stays this snapshot when a newer one replaces it
    by rename.
    """

    __slots__ = ("_bytes", "_file", "size")

    def __init__(self, found: File | bytes) -> None:
        self._bytes = found if isinstance(found, bytes) else b""
        self._file = None if isinstance(found, bytes) else found
        self.size = len(self._bytes) if self._file is None else self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`. Raises StorageError."""
        if self._file is None:
            return self._bytes[position : position + size]
        try:
            return self._file.read_at(position, size)
        except OSError as error:
            raise StorageError(f"{self._file.path}: {error}") from error
