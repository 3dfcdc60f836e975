"""One connection of the server: receives bytes, dispatches whole frames, and sends the responses in
the order of the requests.

No task belongs to a connection. The poller calls `on_ready`. A request that finishes later (after a
commit, or in a task) completes its `Slot`. The connection sends the responses that are ready, from
the front of its queue. Everything here runs on the event loop's thread and never waits.

Invariants:
- Responses are sent in the order of their requests, each once (I9).
- Bytes that the dispatcher has do not change until the turn ends, because appends read the records
  from the receive buffer.
- The memory of a connection is bounded: requests without a response, unsent bytes, and one
  unfinished frame that grows only as its bytes arrive (I14).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from struct import Struct
from typing import Protocol

from mqd.errors import ProtocolError
from mqd.io.net import HANG_UP, PEER_CLOSED, READABLE, WRITABLE, Socket
from mqd.io.tls import TlsSocket
from mqd.io.tls_errors import TlsFailed
from mqd.limits import (
    FRAME_BYTES_MIN,
    IN_FLIGHT_REQUESTS_MAX,
    KIB,
    RECEIVE_BYTES_MAX,
    TLS_CONNECTION_BYTES,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
)
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.security.client_listeners import PEER_LISTENER, ClientListener
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.bugs import raised_in_core
from mqd.server.connection_owner import Cancellable, Freeable, Owner
from mqd.server.context import PEER
from mqd.server.frame_buffer import FrameBuffer
from mqd.server.memory import IDLE_FRAME_SECONDS
from mqd.server.receive_buffers import Buffer
from mqd.server.refused_batches import RefusedBatches
from mqd.server.sasl_connection import SaslConnection
from mqd.server.send_queue import Part, SendQueue

logger = logging.getLogger(__name__)

_INT32 = Struct(">i").unpack_from

_SMALL_RECEIVE_BYTES = 16 * KIB
"""The size of a receive that probably gets the start of a large frame. These bytes are copied to
the buffer of the frame, so the receive is small.
"""
RESUME = 0
"""A value for `on_ready` in place of events. The connection used its whole slice in an earlier
turn, and gets a new slice in this turn.
"""


class QueuedResponse(Protocol):
    """The place of a request in the queue of responses. Code that sets `parts` calls
    `Connection.response_ready`.
    """

    parts: list[Part] | None
    """The response with its length and header. None until it is complete; empty if none is sent
    (acks=0).
    """


class Slot:
    """A queued response that is completed once, in the same turn or later."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[Part] | None = None

    def complete(self, parts: list[Part]) -> None:
        """`parts`: as in `QueuedResponse`."""
        assert self.parts is None, "a request has one response"
        self.parts = parts
        self.connection.response_ready()


class Connection:
    """One accepted socket."""

    __slots__ = (
        "_closing",
        "_events",
        "barrier",
        "client_id",
        "client_listener",
        "frames",
        "handshake",
        "is_dirty",
        "last_active",
        "listener",
        "must_yield",
        "muted_until",
        "open",
        "owner",
        "parked",
        "peer",
        "peer_closed",
        "peer_node",
        "principal",
        "refused_batches",
        "request_pool",
        "sasl",
        "send_queue",
        "since",
        "slots",
        "sock",
        "task_bytes",
        "throttle_ms",
        "unauthenticated_requests",
        "used",
        "work",
        "work_needs_peer",
    )

    def __init__(
        self,
        owner: Owner[Connection],
        sock: Socket,
        listener: str,
        now: float,
        client_listener: ClientListener | None = None,
    ) -> None:
        self.owner = owner
        self.sock = sock
        self.peer = sock.peer
        self.listener = listener
        self.client_listener = client_listener
        """The listener for clients that accepted it. None on the peer listener."""
        self.peer_node: int | None = None
        """On the peer listener: the node that completed the handshake."""
        self.principal = ANONYMOUS
        """The identity that the client has proved."""
        self.sasl: SaslConnection | None = None
        """On a listener that demands SASL: the authentication."""
        self.handshake: ListenerHandshake | None = None
        """On the peer listener: the handshake, from its first message on."""
        self.unauthenticated_requests = 0
        """On the peer listener: requests before the end of the handshake."""
        self.since = now
        self.last_active = now
        self.open = True
        self._closing = False
        """The peer sends no more. The connection closes after its last response."""
        self._events = READABLE | PEER_CLOSED
        self.peer_closed = False
        """Whether the peer sends no more. Bytes that it sent before may be unread."""
        self.client_id: bytes | bytearray = b""
        """The client id of the last request, in UTF-8: checked once, not at each request."""
        self.slots: deque[QueuedResponse] = deque()
        """One place for each request without a sent response, in the order of the requests."""
        self.send_queue = SendQueue(sock, owner.memory.response_pool(listener), now)
        self.is_dirty = False
        self.request_pool = owner.memory.request_pool(listener)
        self.frames = FrameBuffer(
            self.request_pool,
            UNAUTHENTICATED_FRAME_BYTES_MAX if listener == PEER else owner.request_bytes_max,
            is_of_nodes=listener == PEER,
        )
        self.barrier = False
        """Whether a task handles a request. Later requests wait, because clients expect
        administrative requests to run in order.
        """
        self.work: Cancellable | None = None
        """The task that works only for this connection. `close` cancels it."""
        self.work_needs_peer = False
        """Whether `work` is useless if the peer has closed the connection."""
        self.task_bytes = 0
        """Bytes of a large request without a response, in a task or waiting for one."""
        self.parked: Freeable | None = None
        """The waiter of the one fetch that may be parked here. A later request wakes it."""
        self.refused_batches: RefusedBatches | None = None
        """None: no batch of an idempotent producer was refused here."""
        self.must_yield = False
        """Its requests have used their time in this turn. The others wait for the next turn."""
        self.muted_until = 0.0
        """Monotonic seconds until which no request is read, because the client used more than its
        quota (KIP-219). 0: it is not muted."""
        self.throttle_ms = 0
        """The throttle time in the response of the current request that is no Produce or Fetch."""
        self.used = 0.0
        """Seconds of the event loop that its requests have used. If the connection was idle, the
        count continues from the virtual time of the server (Server._turn).
        """
        if isinstance(sock, TlsSocket):
            self._begin_tls(sock)
        owner.poller.watch(sock, self, self._events)

    # -- receiving ---------------------------------------------------------------------------------

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

    def _receive_in_arena(self) -> None:
        arena = self.owner.arena
        frames = self.frames
        start = arena.position
        expects_large = frames.is_large or self.request_pool.is_wanted
        size = _SMALL_RECEIVE_BYTES if expects_large else RECEIVE_BYTES_MAX
        received = self.sock.receive_into(arena.view[start : start + size])
        if not received:
            self.finish()
            return
        end = start + received
        arena.position = end
        done = self._handle_frames(arena.buffer, arena.view, start, end)
        if done < end and self.open:
            frames.keep(arena.view[done:end], self.owner.now, self.owner.turns)
            if frames.is_large and received == size and not self.must_wait:
                self._receive_in_frame()

    def _receive_in_frame(self) -> None:
        """Receive more of an unfinished frame, up to its end."""
        frames = self.frames
        frame_end = frames.frame_end
        if frames.end >= frame_end:  # whole frames that were held back: `resume` handles them
            return
        if frames.end == len(frames.view) and not self._grow(frame_end - frames.start):
            return
        received = self.sock.receive_into(frames.room(frames.frame_end))
        if not received:
            self.finish()
            return
        frames.received(received, self.owner.now)
        if frames.has_whole_frame:
            self._handle_kept()

    def _grow(self, frame_bytes: int) -> bool:
        """Make room for more of a frame. Returns False if it must wait for memory."""
        frames = self.frames
        size = frames.next_size(frame_bytes)
        if not self.request_pool.has_room(self, size, frame_bytes):
            self._pause()
            frames.waits_since = self.owner.now
            self.owner.memory.want(self, size, frame_bytes, self.owner.now)
            return False
        frames.grow(size, self.owner.turns)
        return True

    def _handle_kept(self) -> None:
        """Handle the whole frames among the kept bytes."""
        frames = self.frames
        buffer, end = frames.buffer, frames.end
        assert buffer is not None
        done = self._handle_frames(buffer, frames.view, frames.start, end)
        if not self.open:
            return
        frames.completed_bytes += done - frames.start
        if done == end:
            self._release_frames()
        else:
            frames.start = done
            frames.begin(self.owner.now)

    def _handle_frames(self, buffer: Buffer, view: memoryview, start: int, end: int) -> int:
        """Dispatch every whole frame in buffer[start:end]; returns the position of the
        first byte not handled.
        """
        dispatch = self.owner.dispatcher.dispatch
        slots, frames = self.slots, self.frames
        events = self._events
        self.last_active = self.owner.now
        while end - start >= 4:
            size = _INT32(buffer, start)[0]
            frame_end = start + 4 + size
            if frame_end > end or size < frames.frame_bytes_min or size > frames.frame_bytes_max:
                frames.checked_size(size)
                break
            if (
                self.barrier
                or self.muted_until
                or len(slots) >= IN_FLIGHT_REQUESTS_MAX
                or (events & WRITABLE and self.must_wait)
            ):
                self._pause()
                break
            # One after the other, in the order of arrival (I6).
            if not dispatch(self, buffer, view, start + 4, frame_end):
                self._pause()
                break
            if self._closing:  # later requests are dropped
                return end
            start = frame_end
            if not self.open:
                break
            if start < end and self.owner.slice_is_over:
                self.must_yield = True
                self._pause()
                self.owner.resume_later(self)
                break
        return start

    def _release_frames(self) -> None:
        if self.frames.buffer is not None:
            self.request_pool.done(self)
        self.frames.release(self.owner.turns)

    def read_again(self, now: float) -> None:
        """There is memory again: continue to receive."""
        self.frames.read_again(now)
        if not self._closing:
            self._watch(self._events | READABLE)

    def resume(self) -> None:
        """Nothing refers to the connection now: handle the kept frames, then receive. The caller
        ends the turn.
        """
        if not self.open:
            return
        if self.frames.has_whole_frame:
            try:
                self._handle_kept()
            except Exception as error:
                self._failed(error)
        if (
            self.open
            and not self._closing
            and not self.must_wait
            and not self.frames.has_whole_frame
        ):
            self._watch(self._events | READABLE)

    def authenticated(self, node_id: int) -> None:
        """The peer has proved that it is the node `node_id`. Its next request is served. Raises
        ProtocolError if there are too many connections of nodes.
        """
        if isinstance(self.sock, TlsSocket):
            refusal = self.sock.refusal_of_node(node_id)
            if refusal is not None:
                raise ProtocolError(refusal)
        self.owner.authenticated(self)
        self.peer_node = node_id
        self.frames.frame_bytes_max = self.owner.request_bytes_max

    # -- SASL --------------------------------------------------------------------------------------

    def demand_sasl(self, sasl: SaslConnection) -> None:
        """Serve nothing before the client has logged in. Called before the first byte."""
        self.sasl = sasl
        self.frames.frame_bytes_max = sasl.frame_bytes_max(self.owner.request_bytes_max)

    def expect_bare_tokens(self) -> None:
        """The next frames are tokens, which may be shorter than a request."""
        self.frames.frame_bytes_min = 0

    def logged_in(self, principal: Principal) -> None:
        """The client has proved that it is `principal`. Its requests are served."""
        self.principal = principal
        self.frames.frame_bytes_min = FRAME_BYTES_MIN
        self.frames.frame_bytes_max = self.owner.request_bytes_max

    # -- quotas ------------------------------------------------------------------------------------

    def mute(self, seconds: float) -> None:
        """Handle no further request for this time."""
        was_muted = self.muted_until > 0
        self.muted_until = max(self.muted_until, self.owner.now + seconds)
        if not was_muted:
            self._pause()
            self.owner.unmute_later(self)

    def unmute(self) -> None:
        """Handle requests again."""
        self.muted_until = 0.0
        self.frames.restart(self.owner.now)
        if self.open:
            self.owner.resume_later(self)

    # -- TLS ---------------------------------------------------------------------------------------

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

    # -- state -------------------------------------------------------------------------------------

    @property
    def listener_name(self) -> str:
        """For log lines."""
        return PEER_LISTENER if self.client_listener is None else self.client_listener.name

    @property
    def must_wait(self) -> bool:
        """Whether the next request must wait: for an earlier response, the send queue, the next
        turn, or the end of a throttle time.
        """
        if (
            self.barrier
            or self.must_yield
            or self.muted_until
            or len(self.slots) >= IN_FLIGHT_REQUESTS_MAX
        ):
            return True
        return self.send_queue.is_full

    @property
    def has_outstanding_responses(self) -> bool:
        """Whether the response of some request is not ready or not sent."""
        return bool(self.slots or self.send_queue.parts)

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

    @property
    def received_at(self) -> float:
        """Monotonic seconds of the last request or response. -inf after the end of the stream."""
        return self.last_active if self.open and not self._closing else -math.inf

    @property
    def ends(self) -> bool:
        """Whether the peer sends no more requests. Its fetches are then not parked."""
        return self._closing or not self.open

    # -- memory ------------------------------------------------------------------------------------

    def hold(self, size: int) -> None:
        """From now on, count `size` bytes of a request that a task holds, even after the connection
        has closed.
        """
        more = size - self.task_bytes
        self.task_bytes = size
        self.request_pool.bytes += more
        if not self.open:
            self.request_pool.leaving += more

    @property
    def held_bytes(self) -> int:
        return self.frames.held_bytes

    @property
    def arrived_bytes(self) -> int:
        return self.frames.arrived_bytes

    @property
    def address(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def completed_bytes(self) -> int:
        return self.frames.completed_bytes

    def seconds_read(self, now: float) -> float | None:
        return self.frames.seconds_read(now)

    def idle_seconds(self, now: float) -> float:
        seconds = 0.0 if self.muted_until else self.frames.idle_seconds(now)
        # Bytes that this node has not read yet are no fault of the client.
        return 0.0 if seconds > IDLE_FRAME_SECONDS and self.sock.has_unread else seconds

    # -- responses ---------------------------------------------------------------------------------

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

    # -- events ------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._watch(self._events & ~READABLE)

    def _watch(self, events: int) -> None:
        if self.open and events != self._events:
            self._events = events
            self.owner.poller.watch(self.sock, self, events)

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
        self.owner.closed(self)
