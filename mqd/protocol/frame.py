"""Splits a stream of bytes into frames: four bytes of length, then that many bytes. For clients and
tests.

The server finds frames in place, in its receive arena. Nothing is allocated for a length alone: the
buffer grows with the received bytes.
"""

from __future__ import annotations

import struct

from mqd import limits
from mqd.errors import ProtocolError

_LENGTH = struct.Struct(">l")


_LENT_BYTES_MIN = 64 * limits.KIB
"""Frames of this size or more are views of the receive buffer. Smaller frames are copied, so that
they do not keep a large buffer alive.
"""


_TLS_RECORDS = (0x1503, 0x1603)
"""How an alert or a handshake of TLS begins."""


class TlsRecord(ProtocolError):
    """The other side speaks TLS."""


class FrameReader:
    """Takes bytes in pieces of any size, and returns complete frames. Receive into `room` and call
    `received` with the number of bytes, or pass bytes to `receive_data`.

    After a ProtocolError, the rest of the stream is unusable: every further call raises it again.
    """

    def __init__(
        self,
        *,
        bytes_max: int = limits.REQUEST_BYTES_MAX,
        bytes_min: int = limits.RESPONSE_BYTES_MIN,
        receive_bytes: int = 4 * limits.KIB,
    ) -> None:
        """`receive_bytes`: how much to receive at once while the size of the next frame is
        unknown.
        """
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._receive_bytes = receive_bytes
        self._buffer = memoryview(bytearray(receive_bytes))
        self._start = self._end = 0
        """Start and end of the received bytes that belong to no frame yet."""
        self._is_lent = False
        """Whether a returned frame is a view of this buffer. Then nothing more is received into
        it.
        """
        self._last_bytes = 0
        """Size of the last frame that was returned as a view."""

    @property
    def pending_bytes(self) -> int:
        """Received bytes that belong to no complete frame. If not 0 at the end of the stream, the
        stream is truncated.
        """
        return self._end - self._start

    def room(self) -> memoryview:
        """Memory for the next bytes; never empty. Raises ProtocolError."""
        kept = self._end - self._start
        announced = _LENGTH.size + max(self._next_length(), 0)
        believed = min(announced, max(4 * kept, self._last_bytes))
        if (
            self._is_lent
            or self._end == len(self._buffer)
            or believed > len(self._buffer) - self._start
        ):
            # complete frames that the caller has not taken yet
            size = believed if believed > kept else 2 * kept
            buffer = memoryview(bytearray(max(self._receive_bytes, size)))
            buffer[:kept] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end, self._is_lent = buffer, 0, kept, False
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were received into `room`. Raises ProtocolError for a length outside the
        bounds, before memory for its frame is allocated.
        """
        self._end += count
        self._next_length()

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """The same as `room` and `received`, for bytes."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self.received(count)

    def next_frame(self) -> memoryview | None:
        """The next complete frame without its length; None if there is none. Its content never
        changes.
        """
        length = self._next_length()
        start = self._start + _LENGTH.size
        if length < 0 or self._end < start + length:
            return None
        frame = self._buffer[start : start + length].toreadonly()
        self._start = start + length
        if length >= _LENT_BYTES_MIN:
            self._is_lent = True
            self._last_bytes = _LENGTH.size + length
        else:
            frame = memoryview(bytes(frame))
            if self._start == self._end and not self._is_lent:
                self._start = self._end = 0
        return frame

    def _next_length(self) -> int:
        if self._end - self._start < _LENGTH.size:
            return -1
        length: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not self._bytes_min <= length <= self._bytes_max:
            if length >> 16 in _TLS_RECORDS:
                raise TlsRecord("a TLS record instead of a frame")
            raise ProtocolError(
                f"frame of {length} bytes; {self._bytes_min} to {self._bytes_max} are taken"
            )
        return length
