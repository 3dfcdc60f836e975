"""What waits to be sent to one node. Pure: service.py connects and sends.

One outbound TCP connection a peer carries this node's messages; the peer's own connection carries the answers. A
connection is FIFO and loses nothing until it ends: when more waits than the bounds allow, the connection is ended, since
a gap inside one is what the protocol above does not expect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mqd import limits
from mqd.raft import codec
from mqd.raft.codec import Message

CONNECT_TIMEOUT_SECONDS = 2.0
INTRODUCTION_TIMEOUT_SECONDS = 3.5
SEND_TIMEOUT_SECONDS = 3.5
"""A peer that takes no byte for this long is gone, whatever TCP still hopes."""
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
STEADY_SECONDS = 1.0
"""A connection that lasted this long is replaced at once when it breaks, and its successor's backoff starts from the minimum."""


class PeerQueue:
    """Frames that wait for one peer's connection. Closed (the start): what comes is dropped, as on a cut wire."""

    def __init__(self, peer: int, *, wake: Callable[[], None]) -> None:
        self.peer = peer
        self._wake = wake
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._correlation_id = 0
        self.opened = False
        self.overflowed = False
        self.sent = 0
        self.dropped = 0

    def open(self) -> None:
        """A connection stands, with its handshake sent."""
        self._clear()
        self.opened, self.overflowed = True, False

    def close(self) -> None:
        self.dropped += len(self._frames)
        self._clear()
        self.opened = False

    def put(self, message: Message) -> None:
        """Never waits. Too much: the connection is to be ended (`overflowed`)."""
        if not self.opened or self.overflowed:
            self.dropped += 1
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = codec.encode_frame(codec.API_KEY_MESSAGE, self._correlation_id, codec.encode_message(message))
        if len(self._frames) >= limits.RAFT_OUTBOX_MESSAGES_MAX or self._bytes + len(frame) > limits.RAFT_OUTBOX_BYTES_MAX:
            self.overflowed = True
        else:
            self._frames.append(frame)
            self._bytes += len(frame)
        self._wake()

    def take(self, bytes_max: int = 4 * limits.RAFT_BATCH_BYTES) -> bytes:
        """Frames for one send, in order; empty when nothing waits."""
        taken: list[bytes] = []
        size = 0
        while self._frames and size < bytes_max:
            taken.append(self._frames.popleft())
            size += len(taken[-1])
        self._bytes -= size
        self.sent += len(taken)
        return b"".join(taken)

    def _clear(self) -> None:
        self._frames.clear()
        self._bytes = 0
