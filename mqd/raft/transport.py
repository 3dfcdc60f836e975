"""The outbound connection to one peer: its queue, and the task that keeps it open.

One outbound TCP connection to each peer carries this node's messages; the peer's own connection
carries the replies. A connection is FIFO and loses nothing until it closes. If the queue exceeds
its limits, the connection is closed, because Raft does not expect a gap within one.
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
"""The connection to a peer that reads no byte for this long is closed, even if TCP still
retries.
"""
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
STEADY_SECONDS = 1.0
"""A broken connection that lasted this long is replaced immediately, and the backoff restarts from
its minimum.
"""


class PeerQueue:
    """The queued frames for one peer. While it is closed, as at the start, messages are dropped, as
    on a broken connection.
    """

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
        """Queue a message without waiting. If the queue is full, the connection must close
        (`overflowed`).
        """
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
        """Frames for one send, in order; empty if the queue is empty."""
        frames: list[bytes] = []
        size = 0
        while self._frames and size < bytes_max:
            frames.append(self._frames.popleft())
            size += len(frames[-1])
        self._bytes -= size
        return b"".join(frames)

    def _clear(self) -> None:
        self._frames.clear()
        self._bytes = 0


class LinkOwner(Protocol):
    """The interface of a link to its node."""

    async def authenticate(self, stream: Stream, receiver: int) -> None:
        """Complete the handshake. Raises OSError."""
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
        """Why there is no connection, if there is none."""
        self.received_at = -math.inf
        """When the peer last sent a Raft message, or completed a handshake on this connection."""

    @property
    def no_connection_reason(self) -> str:
        """Why there is no authenticated connection; empty if there is one."""
        return "" if self.queue.opened else self.unreachable

    async def run(self) -> None:
        """Keep one connection open until cancelled. A broken connection is replaced immediately: if
        that is refused, the peer's process has ended.
        """
        backoff = BACKOFF_SECONDS_MIN
        broke = False
        while True:
            began: float | None = None
            try:
                stream = await self._network.connect(
                    self.host, self.port, timeout=CONNECT_TIMEOUT_SECONDS
                )
            except OSError as error:
                address_text = f"{self.host}:{self.port}"
                logger.debug(
                    "peer connection failed node=%d address=%s reason=%s",
                    self.peer,
                    address_text,
                    error,
                )
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
        """Complete the handshake, then send until the connection closes. Returns when sending
        began; None if it did not.
        """
        began: float | None = None
        try:
            reason = await self._authenticate(stream)
            if reason is None:
                self.received_at = began = self._clock.monotonic()
                reason = await self._send_until_closed(stream)
                address_text = f"{self.host}:{self.port}"
                logger.info(
                    "peer connection ended node=%d address=%s reason=%s",
                    self.peer,
                    address_text,
                    reason,
                )
        finally:
            stream.close()
            if self.queue.opened:
                self.queue.close()
                self._owner.on_link_closed(self.peer)
        self.unreachable = reason
        return began

    async def _authenticate(self, stream: Stream) -> str | None:
        """None, or the reason of the failure."""
        try:
            await self._owner.authenticate(stream, self.peer)
        except OSError as error:
            reason = reason_of(error)
            if isinstance(error, HandshakeRefused) and self.unreachable != reason:  # logged once
                address_text = f"{self.host}:{self.port}"
                logger.warning(
                    "peer handshake failed node=%d address=%s reason=%s",
                    self.peer,
                    address_text,
                    reason,
                )
            return reason
        return None

    async def _send_until_closed(self, stream: Stream) -> str:
        """Returns why the connection closed. Cancelled: the caller closes it."""
        ended = "closed by the peer (see the log of that node)"

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal ended
            view = memoryview(bytearray(64))
            try:
                while await stream.receive_into(view):
                    pass  # a peer sends no replies on this connection, so ignore the bytes
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
    """The reason without the address, which Trio adds to its text and every log line here has
    already.
    """
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)
