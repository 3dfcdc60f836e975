"""The bytes of a large message while it is encoded: chunks that are never joined.

A join of hundreds of megabytes takes hundreds of milliseconds. Large values are not even copied.
"""

from __future__ import annotations

from mqd.limits import KIB

_CHUNK_BYTES = 64 * KIB
_COPIED_BYTES_MAX = 4 * KIB
"""Longer `bytes` become a chunk of their own."""

Chunk = bytes | bytearray


class Chunks:
    """What constructs build into."""

    def __init__(self) -> None:
        self.size = 0
        self._complete: list[Chunk] = []
        self._last = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
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
