"""The requests of one connection, from its socket to the dispatcher.

Receives bytes, finds whole frames and dispatches them, one after the other, until the next one must
wait. Then the socket is not read, and `resume` continues. The memory of requests counts in the pool
of the listener; its rules are in memory.py.

Invariants:
- Bytes that the dispatcher has do not change until the turn ends, because appends read the records
  from the receive buffer.
- The memory of requests is bounded: requests without a response, and one unfinished frame that
  grows only as its bytes arrive (I14).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from struct import Struct
from typing import Self

from mqd.io.net import PEER_CLOSED, READABLE, WRITABLE, Socket
from mqd.limits import IN_FLIGHT_REQUESTS_MAX, KIB, RECEIVE_BYTES_MAX
from mqd.server.connection_owner import Owner, QueuedResponse
from mqd.server.context import PEER
from mqd.server.frame_buffer import FrameBuffer
from mqd.server.memory import IDLE_FRAME_SECONDS
from mqd.server.receive_buffers import Buffer
from mqd.server.send_queue import SendQueue

_INT32 = Struct(">i").unpack_from

_SMALL_RECEIVE_BYTES = 16 * KIB
"""The size of a receive that probably gets the start of a large frame. These bytes are copied to
the buffer of the frame, so the receive is small.
"""


class RequestReceiver(ABC):
    """The receiving half of `Connection`. It is the `Holder` of the request pool.

    A base class, because both halves need the same attributes for each request. With an object for
    each half, a request would cost more attribute look-ups.
    """

    __slots__ = (
        "_closing",
        "_events",
        "barrier",
        "frames",
        "last_active",
        "must_yield",
        "muted_until",
        "open",
        "owner",
        "peer",
        "request_pool",
        "send_queue",
        "slots",
        "sock",
        "task_bytes",
        "used",
    )

    owner: Owner[Self]

    def __init__(self, owner: Owner[Self], sock: Socket, listener: str, now: float) -> None:
        self.owner = owner
        self.sock = sock
        self.peer = sock.peer
        self.open = True
        self._closing = False
        """The peer sends no more. The connection closes after its last response."""
        self._events = READABLE | PEER_CLOSED
        self.last_active = now
        """Monotonic seconds of the last request or response."""
        self.slots: deque[QueuedResponse] = deque()
        """One place for each request without a sent response, in the order of the requests."""
        self.send_queue = SendQueue(sock, owner.memory.response_pool(listener), now)
        self.request_pool = owner.memory.request_pool(listener)
        self.frames = FrameBuffer(
            self.request_pool, owner.request_bytes_max, is_of_nodes=listener == PEER
        )
        self.barrier = False
        """Whether a task handles a request. Later requests wait, because clients expect
        administrative requests to run in order.
        """
        self.must_yield = False
        """Its requests have used their time in this turn. The others wait for the next turn."""
        self.muted_until = 0.0
        """Monotonic seconds until which no request is read, because the client used more than its
        quota (KIP-219). 0: it is not muted."""
        self.task_bytes = 0
        """Bytes of a large request without a response, in a task or waiting for one."""
        self.used = 0.0
        """Seconds of the event loop that its requests have used. If the connection was idle, the
        count continues from the virtual time of the server (Server._turn).
        """

    # -- receiving ---------------------------------------------------------------------------------

    def _receive_in_arena(self) -> None:
        """Receive while there is no unfinished frame."""
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

    def _grow(self: Self, frame_bytes: int) -> bool:
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

    def _handle_frames(self: Self, buffer: Buffer, view: memoryview, start: int, end: int) -> int:
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

    # -- waiting -----------------------------------------------------------------------------------

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

    def read_again(self, now: float) -> None:
        """There is memory again: continue to receive."""
        self.frames.read_again(now)
        if not self._closing:
            self._watch(self._events | READABLE)

    def mute(self: Self, seconds: float) -> None:
        """Handle no further request for this time: the client used more than its quota."""
        was_muted = self.muted_until > 0
        self.muted_until = max(self.muted_until, self.owner.now + seconds)
        if not was_muted:
            self._pause()
            self.owner.unmute_later(self)

    def unmute(self: Self) -> None:
        """Handle requests again."""
        self.muted_until = 0.0
        self.frames.restart(self.owner.now)
        if self.open:
            self.owner.resume_later(self)

    def _pause(self) -> None:
        self._watch(self._events & ~READABLE)

    def _watch(self, events: int) -> None:
        if self.open and events != self._events:
            self._events = events
            self.owner.poller.watch(self.sock, self, events)

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
    def address(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def held_bytes(self) -> int:
        return self.frames.held_bytes

    @property
    def arrived_bytes(self) -> int:
        return self.frames.arrived_bytes

    @property
    def completed_bytes(self) -> int:
        return self.frames.completed_bytes

    def seconds_read(self, now: float) -> float | None:
        return self.frames.seconds_read(now)

    def idle_seconds(self, now: float) -> float:
        seconds = 0.0 if self.muted_until else self.frames.idle_seconds(now)
        # Bytes that this node has not read yet are no fault of the client.
        return 0.0 if seconds > IDLE_FRAME_SECONDS and self.sock.has_unread else seconds

    # -- the other half ----------------------------------------------------------------------------

    @abstractmethod
    def on_ready(self, events: int) -> None:
        """The poller reports that this socket can be read or written, or is closed."""

    @abstractmethod
    def finish(self) -> None:
        """Receive no more. Send the outstanding responses, then close the connection."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Receiving or handling a request failed."""
