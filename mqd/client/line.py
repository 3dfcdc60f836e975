"""One connection that one task owns: the task sends, waits and reads the response itself.

For followers, whose fetches are on the path of every acknowledgement. A separate task that moves
bytes (client/peer.py) costs two passes of the scheduler in each direction. Other tasks may send
requests whose responses are discarded.

A response is a view into the line's one buffer, valid until `response` is called again. A line that
is cancelled while it sends is unusable; one that is cancelled while it waits stays usable.
"""

from __future__ import annotations

import struct
from collections import deque

import trio

from mqd import limits
from mqd.client.errors import ConnectionBroken
from mqd.errors import ProtocolError
from mqd.io.net import Stream
from mqd.protocol.schema import Api, decode_response_header, encode_request_header

_SIZE = struct.Struct(">i")
_CORRELATION_IDS = 2**31
_RECEIVED_IN_A_ROW = 16
"""After this many receives in a row, other tasks run once."""


class Line:
    """See the head of this file."""

    def __init__(
        self,
        stream: Stream,
        *,
        peer: str,
        client_id: str = "mqd",
        response_bytes_max: int = limits.RESPONSE_BYTES_MAX,
    ) -> None:
        """`peer` is the address for messages, "host:port"."""
        self.peer = peer
        self._client_id = client_id
        self._stream = stream
        self._response_bytes_max = response_bytes_max
        self._in_flight: deque[tuple[int, Api, int, bool]] = deque()
        """(correlation id, API, version, whether the response is read), in the order in which they
        were sent.
        """
        self._next_correlation_id = 0
        self._outgoing: list[bytes] = []
        """Requests that the next sender sends too."""
        self._is_sending = False
        self._closed: str | None = None
        self._buffer = memoryview(bytearray(limits.CLIENT_RECEIVE_BYTES))
        self._start = self._end = 0
        """The received bytes that no caller has taken."""
        self._last_length = 0
        self._receives = 0

    async def send(
        self, api: Api, version: int, body: bytes | bytearray, *, wanted: bool = True
    ) -> None:
        """Send a request. `wanted=False` discards its response.

        Raises ConnectionBroken.
        """
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        header = encode_request_header(api, version, correlation_id, self._client_id)
        self._in_flight.append((correlation_id, api, version, wanted))
        data = b"".join((_SIZE.pack(len(header) + len(body)), header, body))
        if self._is_sending:
            self._outgoing.append(data)
            return
        self._is_sending = True
        try:
            await self._stream.send_all(data)
            while self._outgoing:
                data, self._outgoing = b"".join(self._outgoing), []
                await self._stream.send_all(data)
        except OSError as error:
            raise self._broken("writing to", error) from None
        finally:
            self._is_sending = False

    async def response(self) -> tuple[memoryview, int]:
        """(frame, position of the body) of the next response that is wanted.

        Raises ConnectionBroken, and ProtocolError if the bytes are not a valid response.
        """
        while True:
            while (frame := self._next_frame()) is None:
                await self._receive()
            if not self._in_flight:
                raise ProtocolError("a response without a request")
            awaited, api, version, wanted = self._in_flight.popleft()
            correlation_id, position = decode_response_header(api, version, frame)
            if correlation_id != awaited:
                raise ProtocolError(
                    f"a response to request {correlation_id}; expected: a response to {awaited}"
                )
            if wanted:
                return frame, position

    def close(self, reason: str = "the connection was closed on this side") -> None:
        """Callers that send or wait get `reason` as their error."""
        if self._closed is None:
            self._closed = reason
        self._stream.close()

    # -- inside

    def _broken(self, doing: str, error: OSError) -> ConnectionBroken:
        return ConnectionBroken(
            self._closed or f"{doing} {self.peer} failed: {error.strerror or error}", sent=True
        )

    def _next_frame(self) -> memoryview | None:
        end = self._start + _SIZE.size + self._length()
        if end > self._end:
            return None
        frame = self._buffer[self._start + _SIZE.size : end]
        self._start, self._last_length = end, len(frame)
        return frame

    def _length(self) -> int:
        """The length of the next frame; the minimum length until its header has arrived."""
        if self._end - self._start < _SIZE.size:
            return limits.RESPONSE_BYTES_MIN
        length: int = _SIZE.unpack_from(self._buffer, self._start)[0]
        if not limits.RESPONSE_BYTES_MIN <= length <= self._response_bytes_max:
            raise ProtocolError(f"a response of {length} bytes")
        return length

    async def _receive(self) -> None:
        self._make_room(_SIZE.size + self._length())
        self._receives += 1
        if not self._receives % _RECEIVED_IN_A_ROW:
            await trio.lowlevel.checkpoint()
        try:
            received = await self._stream.receive_into(self._buffer[self._end :])
        except OSError as error:
            raise self._broken("reading from", error) from None
        if not received:
            raise ConnectionBroken(f"{self.peer} closed the connection", sent=True)
        self._end += received

    def _make_room(self, wanted: int) -> None:
        """Grow the buffer for the next frame, of `wanted` bytes, to at most four times the received
        part. So a large length field alone allocates nothing.
        """
        buffer, kept = self._buffer, self._buffer[self._start : self._end]
        if len(kept) == len(buffer):
            buffer = memoryview(bytearray(min(wanted, 4 * len(kept))))
        elif not kept and len(buffer) > limits.CLIENT_RECEIVE_BYTES >= self._last_length:
            buffer = memoryview(bytearray(limits.CLIENT_RECEIVE_BYTES))
        elif not self._start:
            return
        buffer[: len(kept)] = kept
        self._buffer, self._start, self._end = buffer, 0, len(kept)
