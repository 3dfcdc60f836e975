"""One connection of the server: its peer, its responses in the order of the requests, and its end.
The base class receives the requests (request_receiver.py).

No task belongs to a connection. The poller calls `on_ready`. A request that finishes later (after a
commit, or in a task) completes its `Slot`. The connection sends the responses that are ready, from
the front of its queue. Everything here runs on the event loop's thread and never waits.

Invariants:
- Responses are sent in the order of their requests, each once (I9).
- The memory of unsent responses is bounded (I14).
"""

from __future__ import annotations

import logging
import math

from mqd.errors import ProtocolError
from mqd.io.net import HANG_UP, PEER_CLOSED, READABLE, WRITABLE, Socket
from mqd.io.tls import TlsSocket
from mqd.io.tls_errors import TlsFailed
from mqd.limits import TLS_CONNECTION_BYTES, UNAUTHENTICATED_FRAME_BYTES_MAX
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.security.client_listeners import PEER_LISTENER, ClientListener
from mqd.security.principal import ANONYMOUS
from mqd.server.bugs import raised_in_core
from mqd.server.connection_owner import Cancellable, Freeable, Owner
from mqd.server.context import PEER
from mqd.server.refused_batches import RefusedBatches
from mqd.server.request_receiver import RequestReceiver
from mqd.server.sasl_connection import SaslConnection
from mqd.server.send_queue import Part

logger = logging.getLogger(__name__)

RESUME = 0
"""A value for `on_ready` in place of events. The connection used its whole slice in an earlier
turn, and gets a new slice in this turn.
"""


class Slot:
    """A queued response that is completed once, in the same turn or later."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[Part] | None = None

    def complete(self, parts: list[Part]) -> None:
        """`parts`: as in `QueuedResponse` (connection_owner.py)."""
        assert self.parts is None, "a request has one response"
        self.parts = parts
        self.connection.response_ready()


class Connection(RequestReceiver):
    """One accepted socket."""

    __slots__ = (
        "client_id",
        "client_listener",
        "handshake",
        "is_dirty",
        "listener",
        "parked",
        "peer_closed",
        "peer_node",
        "principal",
        "refused_batches",
        "sasl",
        "since",
        "throttle_ms",
        "unauthenticated_requests",
        "work",
        "work_needs_peer",
    )

    owner: Owner[Connection]

    def __init__(
        self,
        owner: Owner[Connection],
        sock: Socket,
        listener: str,
        now: float,
        client_listener: ClientListener | None = None,
        sasl: SaslConnection | None = None,
    ) -> None:
        super().__init__(owner, sock, listener, now)
        self.listener = listener
        self.client_listener = client_listener
        """The listener for clients that accepted it. None on the peer listener."""
        self.principal = ANONYMOUS
        """The identity that the client has proved."""
        self.sasl = sasl
        """On a listener that demands SASL: the authentication. Nothing is served before it."""
        self.peer_node: int | None = None
        """On the peer listener: the node that completed the handshake."""
        self.handshake: ListenerHandshake | None = None
        """On the peer listener: the handshake, from its first message on."""
        self.unauthenticated_requests = 0
        """On the peer listener: requests before the end of the handshake."""
        if listener == PEER:
            self.frames.restrict(UNAUTHENTICATED_FRAME_BYTES_MAX)
        elif sasl is not None:
            self.frames.restrict(sasl.frame_bytes_max(owner.request_bytes_max))
        self.since = now
        """Monotonic seconds of the accept."""
        self.peer_closed = False
        """Whether the peer sends no more. Bytes that it sent before may be unread."""
        self.client_id: bytes | bytearray = b""
        """The client id of the last request, in UTF-8: checked once, not at each request."""
        self.is_dirty = False
        """Whether the server flushes it when the turn ends."""
        self.work: Cancellable | None = None
        """The task that works only for this connection. `close` cancels it."""
        self.work_needs_peer = False
        """Whether `work` is useless if the peer has closed the connection."""
        self.parked: Freeable | None = None
        """The waiter of the one fetch that may be parked here. A later request wakes it."""
        self.refused_batches: RefusedBatches | None = None
        """None: no batch of an idempotent producer was refused here."""
        self.throttle_ms = 0
        """The throttle time in the response of the current request that is no Produce or Fetch."""
        if isinstance(sock, TlsSocket):
            self._begin_tls(sock)
        owner.poller.watch(sock, self, self._events)

    # -- events ------------------------------------------------------------------------------------

    def on_ready(self, events: int) -> None:
        """The poller reports that this socket can be read or written, or is closed. An error of the
        peer closes only this connection.
        """
        if not self.open:
            return
        if events == RESUME:
            self.must_yield = False
            self.resume()
            return
        watched = self._events
        if events & WRITABLE and watched & WRITABLE:
            self._send()
            self._after_progress()
        if events & READABLE and watched & READABLE:
            try:
                if self.frames.buffer is None:
                    self._receive_in_arena()
                else:
                    self._receive_in_frame()
            except BlockingIOError:
                pass
            except Exception as error:
                self._failed(error)
        elif events & HANG_UP:
            self.close()
        if events & PEER_CLOSED and self.open:
            self._on_peer_closed()

    def _on_peer_closed(self) -> None:
        """The peer sends no more. A client that waits for the response of a long request has no
        reason to close its direction, so it has closed the connection.
        """
        self.peer_closed = True
        self._watch(self._events & ~PEER_CLOSED)
        if self.work is not None and self.work_needs_peer:
            self.close()

    # -- the peer ----------------------------------------------------------------------------------

    @property
    def listener_name(self) -> str:
        """For log lines."""
        return PEER_LISTENER if self.client_listener is None else self.client_listener.name

    @property
    def is_unauthenticated(self) -> bool:
        """Whether its peer has not completed the handshake of a node, or the login of a client."""
        if self.sasl is not None:
            return not self.sasl.is_authenticated
        return self.listener == PEER and self.peer_node is None

    @property
    def is_in_handshake(self) -> bool:
        """Whether a handshake must be complete soon: of TLS, or of a node."""
        return self.is_unauthenticated or self._is_in_tls_handshake

    def _begin_tls(self, sock: TlsSocket) -> None:
        """Count the memory of the handshake until it is complete."""
        sock.on_established = self._on_tls_established
        self.request_pool.bytes += TLS_CONNECTION_BYTES

    def _on_tls_established(self) -> None:
        assert isinstance(self.sock, TlsSocket)
        self.request_pool.bytes -= TLS_CONNECTION_BYTES
        self.principal = self.sock.principal

    @property
    def _is_in_tls_handshake(self) -> bool:
        return isinstance(self.sock, TlsSocket) and not self.sock.is_established

    @property
    def received_at(self) -> float:
        """Monotonic seconds of the last request or response. -inf after the end of the stream."""
        return self.last_active if self.open and not self._closing else -math.inf

    @property
    def ends(self) -> bool:
        """Whether the peer sends no more requests. Its fetches are then not parked."""
        return self._closing or not self.open

    # -- responses ---------------------------------------------------------------------------------

    @property
    def has_outstanding_responses(self) -> bool:
        """Whether the response of some request is not ready or not sent."""
        return bool(self.slots or self.send_queue.parts)

    def slot(self) -> Slot:
        """Take the next place in the queue of responses."""
        slot = Slot(self)
        self.slots.append(slot)
        return slot

    def response_ready(self) -> None:
        """A response is ready. If it is the first of the queue, it is sent when the turn ends."""
        if not self.is_dirty and self.open and self.slots and self.slots[0].parts is not None:
            self.is_dirty = True
            self.owner.dirty(self)

    def flush(self) -> None:
        """Send the responses that are ready, from the front. Called when the turn ends."""
        self.is_dirty = False
        if not self.open:
            return
        slots = self.slots
        ready: list[Part] = []
        has_parts = False
        while slots:
            parts = slots[0].parts
            if parts is None:
                break  # in the order of the requests (I9)
            slots.popleft()
            ready += parts
            if len(parts) > 1:
                has_parts = True
        if ready:
            now = self.last_active = self.owner.now
            queue = self.send_queue
            if has_parts or queue.parts:
                queue.add(ready, now)
                if self._events & WRITABLE:
                    queue.count_unsent()
                else:
                    self._send()
            else:  # most responses
                try:
                    if not queue.send_bytes(ready, now):
                        self._watch(self._events | WRITABLE)
                except OSError as error:
                    self._lost(error)
            if queue.made_bytes and not slots:
                queue.count_made(0)
        if self._closing or not self._events & READABLE:
            self._after_progress()

    def _send(self) -> None:
        """Send the queued responses. While some are unsent, the poller calls `on_ready` again."""
        try:
            is_empty = self.send_queue.send(self.owner.now)
        except OSError as error:
            self._lost(error)
            return
        self._watch(self._events & ~WRITABLE if is_empty else self._events | WRITABLE)

    def _after_progress(self) -> None:
        if not self.open:
            return
        if self._closing:
            self._close_when_done()
        elif not self._events & READABLE and not self.must_wait:
            if self.frames.has_whole_frame and self.owner.slice_is_over:
                self.must_yield = True
                self.owner.resume_later(self)
            else:
                self.resume()

    # -- the end -----------------------------------------------------------------------------------

    def refuse(self, error: ProtocolError) -> None:
        """Close the connection: its peer sent an invalid request, or one that it may not send."""
        logger.warning(
            "closing a connection peer=%s listener=%s reason=%s",
            self.peer,
            self.listener_name,
            error,
        )
        self.close()

    def _failed(self, error: Exception) -> None:
        """Receiving or handling a request failed: by its peer, by the network, or by a bug.

        Raises `error` again if the node must stop.
        """
        if isinstance(error, ProtocolError):
            self.refuse(error)
        elif isinstance(error, TlsFailed):
            logger.warning(
                "secure connection failed peer=%s listener=%s reason=%s",
                self.peer,
                self.listener_name,
                error,
            )
            self.close()
        elif isinstance(error, OSError):
            self._lost(error)
        elif raised_in_core(error):
            raise error
        else:
            self.owner.dispatcher.bug(self, "produce or fetch")

    def _lost(self, error: OSError) -> None:
        logger.debug("connection lost peer=%s reason=%s", self.peer, error)
        self.close()

    def finish(self) -> None:
        """Receive no more. Send the outstanding responses, then close the connection."""
        self._closing = True
        self._pause()
        self._release_frames()
        if self.parked is not None:
            self.parked.free()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if not self.has_outstanding_responses:
            self.close()

    def close(self) -> None:
        """Close at once. Responses that are not sent are dropped."""
        if not self.open:
            return
        self.open = False
        if self._is_in_tls_handshake:
            self.request_pool.bytes -= TLS_CONNECTION_BYTES
        self.owner.poller.forget(self.sock)
        self.sock.close()
        if self.work is not None:
            self.work.cancel()
        self.slots.clear()
        self.send_queue.clear()
        self._release_frames()
        self.frames.drop_spare()
        self.request_pool.leaving += self.task_bytes
        if self.parked is not None:
            self.parked.free()
        self.handshake = None  # it refers to this connection
        self.owner.closed(self)
