"""From a stream of bytes to frames: four bytes of length, then that many bytes. For clients and
tests.

(The server's connection frames in place, in its receive arena.) No memory is set aside for a length
that was only announced: the buffer grows with the bytes that arrive.
"""

from __future__ import annotations

import struct

from mqd import limits
from mqd.errors import ProtocolError

_LENGTH = struct.Struct(">l")


_LENT_BYTES_MIN = 64 * limits.KIB
"""Frames from here on are handed out where they were received; smaller ones are copied, so
that they do not hold a large buffer.
"""


class FrameReader:
    """Give it what arrives, in whatever pieces; take whole frames out. Receive into `room` and say
    how much with `received`, or give bytes to `receive_data`.

    After a ProtocolError the stream has no meaning any more: every further call raises again.
    """

    def __init__(
        self,
        *,
        bytes_max: int = limits.REQUEST_BYTES_MAX,
        bytes_min: int = limits.RESPONSE_BYTES_MIN,
        receive_bytes: int = 4 * limits.KIB,
    ) -> None:
        """`receive_bytes`: how much to receive at once while it is not known how much will come."""
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._receive_bytes = receive_bytes
        self._buffer = memoryview(bytearray(receive_bytes))
        self._start = self._end = 0
        """What was received and not taken yet."""
        self._is_lent = False
        """Whether a frame that lies in the buffer was handed out: then nothing is received
        into it any more.
        """
        self._last_bytes = 0
        """Of the last frame that was handed out where it lay."""

    @property
    def pending_bytes(self) -> int:
        """Bytes received that no frame has taken.

        Not 0 at the end of the stream: it was cut off.
        """
        return self._end - self._start

    def room(self) -> memoryview:
        """Where to receive the next bytes; never empty. Raises ProtocolError."""
        kept = self._end - self._start
        announced = _LENGTH.size + max(self._next_length(), 0)
        believed = min(announced, max(4 * kept, self._last_bytes))
        if (
            self._is_lent
            or self._end == len(self._buffer)
            or believed > len(self._buffer) - self._start
        ):
            # several frames, which nobody has taken yet
            size = believed if believed > kept else 2 * kept
            buffer = memoryview(bytearray(max(self._receive_bytes, size)))
            buffer[:kept] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end, self._is_lent = buffer, 0, kept, False
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """So many bytes are in `room` now.

        Raises ProtocolError for a length outside the bounds, before there is room for its frame.
        """
        self._end += count
        self._next_length()

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """As `room` and `received`."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self.received(count)

    def next_frame(self) -> memoryview | None:
        """The next frame without its length; None until one is whole. Nothing changes it later."""
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
            raise ProtocolError(
                f"frame of {length} bytes; {self._bytes_min} to {self._bytes_max} are taken"
            )
        return length
