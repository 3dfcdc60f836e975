"""The responses that one connection sends, and those that wait for a slow reader.

Most responses are plain bytes, and the socket takes all of them at once. The rest waits here: bytes
count in the memory of the listener, file ranges go from file to socket without a copy. The caller
watches the socket while anything waits, and closes the connection after an OSError.
"""

from __future__ import annotations

from collections import deque

from mqd.io.disk import FileRange
from mqd.io.net import Socket
from mqd.limits import KIB, SENDFILE_BYTES_MIN, SENT_BYTES_PER_SLICE
from mqd.server.memory import ResponsePool

_JOIN_BYTES_MAX = 256 * KIB
"""Small parts are joined up to this size and sent with one call."""

Part = bytes | bytearray | memoryview | FileRange


class SendQueue:
    """The parts of responses that the peer has not taken yet."""

    __slots__ = ("_sock", "made_bytes", "parts", "pool", "sent_at", "unsent_bytes")

    def __init__(self, sock: Socket, pool: ResponsePool, now: float) -> None:
        self._sock = sock
        self.pool = pool
        self.parts: deque[Part] = deque()
        self.unsent_bytes = 0
        """Memory of the responses that wait to be sent; file ranges take none."""
        self.made_bytes = 0
        """Memory of large responses that are being encoded, or wait for an earlier response."""
        self.sent_at = now
        """When the peer last took a byte of a response, or when the first part began to wait."""

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait that the connection should take no more requests."""
        return self.held_bytes > self.pool.connection_bytes_max

    @property
    def held_bytes(self) -> int:
        return self.unsent_bytes + self.made_bytes

    def count_made(self, size: int) -> None:
        """`made_bytes` are so many from now on."""
        self.pool.bytes += size - self.made_bytes
        self.made_bytes = size

    def send_bytes(self, parts: list[Part], now: float) -> bool:
        """Send parts without file ranges while the queue is empty. Returns whether all is sent.

        Raises OSError.
        """
        data: Part = parts[0] if len(parts) == 1 else b"".join(parts)  # type: ignore[arg-type]
        assert not isinstance(data, FileRange)
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return True
        self.parts.append(memoryview(data)[sent:])
        self.sent_at = now
        self.count_unsent()
        return False

    def add(self, parts: list[Part], now: float) -> None:
        """Queue parts behind those that wait. The caller then sends or counts them."""
        if not self.parts:
            self.sent_at = now
        self.parts.extend(parts)

    def send(self, now: float) -> bool:
        """Send until the queue is empty, a slice is used up, or the peer reads too slowly. Returns
        whether the queue is empty.

        Raises OSError.
        """
        is_empty = self._send(now)
        self.count_unsent()
        return is_empty

    def clear(self) -> None:
        """Drop what is not sent."""
        self.parts.clear()
        self.count_unsent()
        self.count_made(0)

    def count_unsent(self) -> None:
        """Count the bytes that wait in the memory of the listener."""
        parts = self.parts
        if not parts and not self.unsent_bytes:
            return
        size = sum(len(part) for part in parts if not isinstance(part, FileRange))
        self.pool.bytes += size - self.unsent_bytes
        self.unsent_bytes = size

    def _send(self, now: float) -> bool:
        parts, sock = self.parts, self._sock
        total = 0
        while parts:
            if total > SENT_BYTES_PER_SLICE:
                return False
            piece = self._next_piece()
            try:
                if isinstance(piece, FileRange):
                    sent = sock.send_file(piece.file, piece.position, piece.size)
                    if sent < piece.size:
                        parts.appendleft(
                            FileRange(piece.file, piece.position + sent, piece.size - sent)
                        )
                else:
                    sent = sock.send_more(piece) if parts else sock.send(piece)
                    if sent < len(piece):
                        parts.appendleft(memoryview(piece)[sent:])
                total += sent
                self.sent_at = now
            except BlockingIOError:
                parts.appendleft(piece)
                return False
        return True

    def _next_piece(self) -> Part:
        """What the next call sends: one large part, or the small parts before it, joined. Reads
        small ranges.
        """
        parts = self.parts
        part = parts.popleft()
        if _is_sent_alone(part):
            return part
        pieces = [_bytes_of(part)]
        size = len(pieces[0])
        while parts and size < _JOIN_BYTES_MAX:
            if _is_sent_alone(parts[0]):
                break
            pieces.append(_bytes_of(parts.popleft()))
            size += len(pieces[-1])
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]


def _is_sent_alone(part: Part) -> bool:
    """Whether it is too large to be joined with others."""
    if isinstance(part, FileRange):
        return part.size >= SENDFILE_BYTES_MIN
    return len(part) >= _JOIN_BYTES_MAX


def _bytes_of(part: Part) -> bytes | bytearray | memoryview:
    if not isinstance(part, FileRange):
        return part
    data = part.file.read_at(part.position, part.size)
    if len(data) != part.size:
        raise OSError(f"{part.file.path} ends before position {part.position + part.size}")
    return data
