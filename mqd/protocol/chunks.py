"""The bytes of a large message while it is encoded: chunks that are never joined.

A join of hundreds of megabytes takes hundreds of milliseconds. Large values are not even copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqd.limits import KIB

_CHUNK_BYTES = 64 * KIB
_COPIED_BYTES_MAX = 4 * KIB
"""Longer `bytes` become a chunk of their own."""

Chunk = bytes | bytearray | Any
"""Bytes, or a range of a file (`Unread`)."""


class Unread:
    """A value of `size` bytes that are not in memory: ranges of files. The socket reads them."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: Sequence[Any], size: int) -> None:
        self.parts = parts
        self.size = size

    def __len__(self) -> int:
        return self.size


class Chunks:
    """What constructs build into."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes in memory."""
        self._complete: list[Chunk] = []
        self._last = bytearray()

    def write(self, data: bytes | bytearray | memoryview | Unread) -> None:
        if isinstance(data, Unread):
            self._end_chunk()
            self._complete.extend(data.parts)
            return
        self.size += len(data)
        if len(data) > _COPIED_BYTES_MAX and isinstance(data, bytes):
            self._end_chunk()
            self._complete.append(data)
            return
        self._last += data
        if len(self._last) >= _CHUNK_BYTES:
            self._end_chunk()

    def take(self) -> list[Chunk]:
        """All chunks, in their order."""
        self._end_chunk()
        return self._complete

    def _end_chunk(self) -> None:
        if self._last:
            self._complete.append(self._last)
            self._last = bytearray()
