"""From a stream of bytes to frames: four bytes of length, then that many bytes. For clients and tests.

(The server's connection frames in place, in its receive arena.) No memory is set aside for a length that was only
announced: the buffer grows with the bytes that arrive.
"""

from __future__ import annotations

import struct

from mqd import limits
from mqd.errors import ProtocolError

_LENGTH = struct.Struct(">l")


class FrameReader:
    """Give it what arrives, in whatever pieces; take whole frames out.

    After a ProtocolError the stream has no meaning any more: every further call raises again."""

    def __init__(self, *, bytes_max: int = limits.REQUEST_BYTES_MAX, bytes_min: int = limits.RESPONSE_BYTES_MIN) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes received that no frame has taken. Not 0 at the end of the stream: it was cut off."""
        return len(self._buffer)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Raises ProtocolError for a length outside the bounds, before its frame is stored."""
        self._buffer += data
        self._next_length()

    def next_frame(self) -> memoryview | None:
        """The next frame without its length, its own copy of the bytes; None until one is whole."""
        length = self._next_length()
        end = _LENGTH.size + length
        if length < 0 or len(self._buffer) < end:
            return None
        frame = memoryview(bytes(memoryview(self._buffer)[_LENGTH.size : end]))
        del self._buffer[:end]
        return frame

    def _next_length(self) -> int:
        if len(self._buffer) < _LENGTH.size:
            return -1
        length: int = _LENGTH.unpack_from(self._buffer)[0]
        if not self._bytes_min <= length <= self._bytes_max:
            raise ProtocolError(f"frame of {length} bytes; {self._bytes_min} to {self._bytes_max} are taken")
        return length
