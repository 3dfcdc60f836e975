"""The outbound connection to one peer: what waits for it, and the task that keeps it open.

One outbound TCP connection a peer carries this node's messages; the peer's own connection carries
the replies. A connection is FIFO and loses nothing until it ends. When more waits than the bounds
allow, the connection is ended: the protocol above does not expect a gap inside one.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from mqd import limits
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.io.net import Network, Stream
from mqd.raft import codec
from mqd.raft.codec import Message
from mqd.raft.handshake import HandshakeRefused

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 2.0
SEND_TIMEOUT_SECONDS = 3.5
"""A peer that takes no byte for this long is gone, whatever TCP still hopes."""
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
STEADY_SECONDS = 1.0
"""A connection that lasted this long is replaced at once when it breaks, and its successor's
backoff starts from the minimum."""


class PeerQueue:
    """Frames that wait for one peer's connection. Closed (the start): messages are dropped, as on a
    cut wire."""

    def __init__(self, *, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._correlation_id = 0
        self.opened = False
        self.overflowed = False

    def open(self) -> None:
        """A connection is open, and its handshake complete."""
        self._clear()
        self.opened, self.overflowed = True, False

    def close(self) -> None:
        self._clear()
        self.opened = False

    def put(self, message: Message) -> None:
        """Never waits. Too much: the connection must end (`overflowed`)."""
        if not self.opened or self.overflowed:
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        body = codec.encode_message(message)
        frame = codec.encode_frame(codec.API_KEY_MESSAGE, self._correlation_id, body)
        is_full = len(self._frames) >= limits.RAFT_OUTBOX_MESSAGES_MAX
        if is_full or self._bytes + len(frame) > limits.RAFT_OUTBOX_BYTES_MAX:
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
        return b"".join(taken)

    def _clear(self) -> None:
        self._frames.clear()
        self._bytes = 0


class LinkOwner(Protocol):
    """What a link needs of its node."""

    async def authenticate(self, stream: Stream, receiver: int) -> None:
        """Raises OSError."""
        ...

    def on_link_opened(self, peer: int) -> None: ...

    def on_link_closed(self, peer: int) -> None: ...

    def on_link_gone(self, peer: int) -> None:
        """The connection broke, and nothing listens at the peer's address."""
        ...


class PeerLink:
    """The connection to one peer, which `run` keeps open."""

    def __init__(
        self,
        peer: int,
        address: tuple[str, int],
        owner: LinkOwner,
        *,
        network: Network,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.peer = peer
        self.host, self.port = address
        self._owner = owner
        self._network, self._clock, self._entropy = network, clock, entropy
        self._wake = trio.Event()
        self.queue = PeerQueue(wake=lambda: self._wake.set())
        self.unreachable = "not tried yet"
        """Why there is no connection, where there is none."""
        self.received_at = -math.inf
        """When the peer last sent a Raft message, or completed a handshake on this connection."""

    @property
    def no_connection_reason(self) -> str:
        """Empty while a connection is open and its handshake complete."""
        return "" if self.queue.opened else self.unreachable

    async def run(self) -> None:
        """Keep one connection open, for ever. A broken one is replaced at once: when that is
        refused, the peer is gone."""
        backoff = BACKOFF_SECONDS_MIN
        broke = False
        while True:
            began: float | None = None
            try:
                stream = await self._network.connect(
                    self.host, self.port, timeout=CONNECT_TIMEOUT_SECONDS
                )
            except OSError as error:
                place = f"{self.host}:{self.port}"
                logger.debug("raft: cannot connect to node %d at %s: %s", self.peer, place, error)
                self.unreachable = reason_of(error)
                if broke and error.errno == errno.ECONNREFUSED:
                    self._owner.on_link_gone(self.peer)
                broke = False
            else:
                began = await self._use(stream)
                broke = broke or began is not None
            if began is not None and self._clock.monotonic() - began > STEADY_SECONDS:
                backoff = BACKOFF_SECONDS_MIN
                continue
            await trio.sleep(backoff * (0.5 + self._entropy.random() / 2))
            backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)

    async def _use(self, stream: Stream) -> float | None:
        """Complete the handshake, then send until the connection ends. Returns when sending began;
        None where it did not."""
        began: float | None = None
        try:
            reason = await self._authenticate(stream)
            if reason is None:
                self.received_at = began = self._clock.monotonic()
                reason = await self._send_until_closed(stream)
                place = f"{self.host}:{self.port}"
                logger.info("raft: connection to node %d at %s ended: %s", self.peer, place, reason)
        finally:
            stream.close()
            if self.queue.opened:
                self.queue.close()
                self._owner.on_link_closed(self.peer)
        self.unreachable = reason
        return began

    async def _authenticate(self, stream: Stream) -> str | None:
        """None, or why not."""
        try:
            await self._owner.authenticate(stream, self.peer)
        except OSError as error:
            reason = reason_of(error)
            if isinstance(error, HandshakeRefused) and self.unreachable != reason:  # logged once
                place = f"{self.host}:{self.port}"
                logger.warning("raft: not connected to node %d at %s: %s", self.peer, place, reason)
            return reason
        return None

    async def _send_until_closed(self, stream: Stream) -> str:
        """Returns why the connection ended. Cancelled: it must be closed."""
        ended = "closed by the peer (see the log of that node)"

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal ended
            view = memoryview(bytearray(64))
            try:
                while await stream.receive_into(view):
                    pass  # a peer sends no replies here; whatever it is, it is not ours
            except OSError as error:
                ended = str(error)
            scope.cancel()

        async def send() -> None:
            nonlocal ended
            self.queue.open()
            self._owner.on_link_opened(self.peer)
            data = b""
            while not self.queue.overflowed:
                if data:
                    with trio.move_on_after(SEND_TIMEOUT_SECONDS) as slow:
                        try:
                            await stream.send_all(data)
                        except OSError as error:
                            ended = str(error)
                            return
                    if slow.cancelled_caught:
                        ended = f"the peer read nothing for {SEND_TIMEOUT_SECONDS} s"
                        return
                else:
                    await self._wake.wait()
                    self._wake = trio.Event()
                data = self.queue.take()
            ended = "too many messages were queued for it"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await send()
            nursery.cancel_scope.cancel()
        return ended


def reason_of(error: OSError) -> str:
    """Without the address, which Trio writes into its text and every log line here names anyway."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
