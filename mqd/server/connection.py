"""One connection of the server: receives bytes, dispatches whole frames, and sends the responses in
the order of the requests.

No task belongs to a connection. The poller calls `on_ready`. A request that finishes later (after a
commit, or in a task) completes its `Slot`, and the connection sends the responses that are ready,
from the front of its queue. Everything here runs on the event loop's thread and never waits.

Invariants:
- Responses are sent in the order of their requests, each once (I9).
- Bytes handed to the dispatcher stay untouched until the turn ends: records are appended from where
  they were received.
- The memory of a connection is bounded: requests without a response, unsent bytes, and one
  unfinished frame that grows only as its bytes arrive (I14).
"""

from __future__ import annotations

import logging
import math
import mmap
from collections import deque
from struct import Struct
from typing import Protocol

from mqd.errors import ProtocolError
from mqd.io.disk import FileRange
from mqd.io.net import HANG_UP, READABLE, WRITABLE, Poller, Socket
from mqd.limits import (
    FRAME_BYTES_MIN,
    IN_FLIGHT_REQUESTS_MAX,
    KIB,
    MIB,
    RECEIVE_BYTES_MAX,
    SENDFILE_BYTES_MIN,
    SENT_BYTES_PER_SLICE,
    STRANGER_FRAME_BYTES_MAX,
)
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.server.bugs import raised_in_core
from mqd.server.context import PEER
from mqd.server.memory import Answers, FramePool
from mqd.server.other_protocols import other_protocol
from mqd.server.receive_buffers import Arena, Buffer, new_buffer

logger = logging.getLogger(__name__)

_INT32 = Struct(">i").unpack_from

_SMALL_RECEIVE_BYTES = 16 * KIB
"""How much to receive where a large frame is expected to begin: what is received here is
copied once.
"""
_LARGE_FRAME_BYTES = 128 * KIB
_FRAME_BUFFER_BYTES_MIN = 64 * KIB
_FRAME_RECEIVE_BYTES_MAX = 1 * MIB
"""Of one frame with one call: about a millisecond, page faults included."""
_NOTHING = memoryview(b"")
_JOIN_BYTES_MAX = 256 * KIB
"""Small responses are joined up to this and sent with one call."""
RESUME = 0
"""Instead of events: the connection used up its slice of an earlier turn, and gets one in
this turn.
"""


Part = bytes | bytearray | memoryview | FileRange


class QueuedResponse(Protocol):
    """A place in a connection's queue of responses. Code that sets `parts` calls
    `Connection.answered`.
    """

    parts: list[Part] | None


class Slot:
    """A queued response that is completed once, in the same turn or later."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[Part] | None = None

    def complete(self, parts: list[Part]) -> None:
        """`parts`: the response with its length and header. Empty if none is sent (acks=0)."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        self.connection.answered()


class Freeable(Protocol):
    """A parked request that can be woken (replica/waiters.py)."""

    def free(self) -> None: ...


class Cancellable(Protocol):
    """The scope of a task's work."""

    def cancel(self) -> None: ...


class Dispatcher(Protocol):
    """Handles frames and makes the responses (server/dispatch.py)."""

    def dispatch(
        self, connection: Connection, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        """Take up the request in buffer[start:end]. False if it must wait for an earlier response.

        Raises ProtocolError where the connection must be closed.
        """
        ...

    def bug(self, connection: Connection, api: str) -> None:
        """Log the exception that is being handled, and close the connection."""
        ...


class Owner(Protocol):
    """The server, as a connection sees it (server/service.py)."""

    arena: Arena
    request_bytes_max: int
    now: float
    """Monotonic seconds at which this turn began."""
    now_ms: int
    """The same moment in milliseconds since the Unix epoch."""
    turns: int
    """Turns that have ended."""

    @property
    def poller(self) -> Poller: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    def dirty(self, connection: Connection) -> None:
        """This connection has responses to send when the turn ends."""
        ...

    def pool(self, listener: str) -> FramePool:
        """Memory of the unfinished frames of one listener."""
        ...

    def answers(self, listener: str) -> Answers:
        """Memory of the unsent responses of one listener."""
        ...

    def memory_wanted(self, connection: Connection, size: int, frame_bytes: int) -> None:
        """`connection` is not read until its pool has room for `size` more bytes, for a frame of
        `frame_bytes`.
        """
        ...

    @property
    def slice_is_over(self) -> bool:
        """Whether the connection that is served now has had its share of this turn."""
        ...

    def resume_later(self, connection: Connection) -> None:
        """Call `resume` after other connections had a turn."""
        ...

    def introduced(self, connection: Connection) -> None:
        """It is a node of the cluster from now on. Raises ProtocolError where it has no room."""
        ...

    def closed(self, connection: Connection) -> None: ...


class Connection:
    """One accepted socket."""

    __slots__ = (
        "_closing",
        "_events",
        "_frame",
        "_frame_end",
        "_frame_is_kept",
        "_frame_start",
        "_frame_view",
        "_large",
        "_ranges",
        "_sending",
        "_spare",
        "_spare_turn",
        "answers",
        "barrier",
        "client_id",
        "frame_bytes_max",
        "frame_since",
        "handshake",
        "is_dirty",
        "last_active",
        "listener",
        "must_yield",
        "open",
        "owner",
        "parked",
        "peer",
        "peer_node",
        "pool",
        "sent_at",
        "since",
        "slots",
        "sock",
        "stranger_requests",
        "task_bytes",
        "unsent_bytes",
        "used",
        "waits_since",
        "work",
    )

    def __init__(self, owner: Owner, sock: Socket, listener: str, now: float) -> None:
        self.owner = owner
        self.sock = sock
        self.peer = sock.peer
        self.listener = listener
        self.peer_node: int | None = None
        """On the peer listener: the node that introduced itself."""
        self.handshake: ListenerHandshake | None = None
        """On the peer listener: the handshake, from its hello on."""
        self.since = now
        self.work: Cancellable | None = None
        """The task that works only for this connection: it ends when the connection closes."""
        self.task_bytes = 0
        """Bytes of a large request without a response: a task has it, or it waits for one."""
        self.stranger_requests = 0
        """On the peer listener: requests before the introduction was complete."""
        self.frame_bytes_max = (
            STRANGER_FRAME_BYTES_MAX if listener == PEER else owner.request_bytes_max
        )
        self.client_id: bytes | bytearray = b""
        """The client id of the last request, in UTF-8: checked once, not at each request."""
        self.open = True
        self.must_yield = False
        """Its requests have used their time in this turn. The others wait for the next turn."""
        self.barrier = False
        """A task has a request. Later requests wait, as clients expect of administrative ones."""
        self.slots: deque[QueuedResponse] = deque()
        self.parked: Freeable | None = None
        """The waiter of the one fetch that may be parked here. A later request wakes it."""
        self.last_active = now
        self.frame_since: float | None = None
        """Since when a frame has been arriving, for the time limit on it. Later by the time for
        which it waited for memory: it was not read then.
        """
        self.waits_since: float | None = None
        """Since when the frame has been waiting for memory."""
        self.is_dirty = False
        self.pool, self.answers = owner.pool(listener), owner.answers(listener)
        self.unsent_bytes = 0
        """Memory of the responses that wait to be sent; file ranges take none."""
        self.sent_at = now
        """When the peer last took a byte of a response, or when the first waiting one was made."""
        self.used = 0.0
        """Seconds of the event loop that its requests have used, or the virtual time at
        which it was served (Server._turn).
        """
        self._events = READABLE
        self._closing = False
        self._large = False
        self._sending: deque[Part] = deque()
        self._ranges = False
        """Whether there may be ranges of files in `_sending`."""
        self._frame: Buffer | None = None
        """Bytes received and not yet handled: an unfinished frame, or frames behind a barrier."""
        self._frame_is_kept = False
        self._spare: Buffer | None = None
        self._spare_turn = 0
        self._frame_view = _NOTHING
        self._frame_start = 0
        self._frame_end = 0
        owner.poller.watch(sock, self, READABLE)

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
                if self._frame is None:
                    self._receive_in_arena()
                else:
                    self._receive_in_frame()
            except BlockingIOError:
                pass
            except Exception as error:
                self._failed(error)
        elif events & HANG_UP:
            self.close()

    def refuse(self, error: ProtocolError) -> None:
        """Close the connection: its peer sent an invalid request, or one that it may not send."""
        logger.warning(
            "closing a connection peer=%s listener=%s reason=%s", self.peer, self.listener, error
        )
        self.close()

    def _failed(self, error: Exception) -> None:
        """Receiving or handling a request failed: by its peer, by the network, or by a bug.

        Raises again where the node must stop.
        """
        if isinstance(error, ProtocolError):
            self.refuse(error)
        elif isinstance(error, OSError):
            self._lost(error)
        elif raised_in_core(error):
            raise error
        else:
            self.owner.dispatcher.bug(self, "produce or fetch")

    def _lost(self, error: OSError) -> None:
        logger.debug("connection lost peer=%s reason=%s", self.peer, error)
        self.close()

    def _receive_in_arena(self) -> None:
        arena = self.owner.arena
        start = arena.position
        size = _SMALL_RECEIVE_BYTES if self._large else RECEIVE_BYTES_MAX
        received = self.sock.receive_into(arena.view[start : start + size])
        if not received:
            self._end_of_stream()
            return
        end = start + received
        arena.position = end
        done = self._handle_frames(arena.buffer, arena.view, start, end)
        if done < end and self.open:
            self._keep(arena.view[done:end])
            if self._large and received == size and not self.held:
                self._receive_in_frame()

    def _receive_in_frame(self) -> None:
        """Receive more of an unfinished frame, up to its end."""
        assert self._frame is not None
        wanted = self._first_frame_end()
        if self._frame_end >= wanted:  # whole frames that were held back: `resume` handles them
            return
        if len(self._frame) == self._frame_end and not self._grow(wanted):
            return
        end = min(wanted, len(self._frame), self._frame_end + _FRAME_RECEIVE_BYTES_MAX)
        received = self.sock.receive_into(self._frame_view[self._frame_end : end])
        if not received:
            self._end_of_stream()
            return
        self._frame_end += received
        if self._frame_end >= self._first_frame_end():
            self._handle_kept()

    def _first_frame_end(self) -> int:
        """Where the first of the kept frames ends, in `_frame`; the end of its length while
        that is not there yet.
        """
        assert self._frame is not None
        if self._frame_end - self._frame_start < 4:
            return self._frame_start + 4
        return self._frame_start + 4 + self._checked_size(_INT32(self._frame, self._frame_start)[0])

    @property
    def _has_whole_frame(self) -> bool:
        """Whether a request is kept that could be handled."""
        return self._frame is not None and self._frame_end >= self._first_frame_end()

    def _checked_size(self, size: int) -> int:
        if size < FRAME_BYTES_MIN or size > self.frame_bytes_max:
            raise ProtocolError(
                other_protocol(size)
                or f"a frame of {size} bytes (allowed: {FRAME_BYTES_MIN} to {self.frame_bytes_max})"
            )
        return size

    def _keep(self, rest: memoryview) -> None:
        """Copy what cannot be handled yet out of the arena."""
        assert self._frame is None
        size = len(rest)
        wanted = 4 + self._checked_size(_INT32(rest, 0)[0]) if size >= 4 else 4
        self._large = wanted > _LARGE_FRAME_BYTES
        self._set_frame(max(size, min(wanted, _FRAME_BUFFER_BYTES_MIN)))
        self._frame_view[:size] = rest
        self._frame_end = size
        self.frame_since = self.owner.now

    def _grow(self, wanted: int) -> bool:
        """Room for more of the frame: four times what really came, so that a declared
        length alone costs nothing.
        """
        assert self._frame is not None
        frame_bytes = wanted - self._frame_start
        size = min(frame_bytes, 4 * max(self._frame_end, _FRAME_BUFFER_BYTES_MIN))
        if not self.pool.has_room(self, size, frame_bytes):
            self._pause()
            self.waits_since = self.owner.now
            self.owner.memory_wanted(self, size, frame_bytes)
            return False
        if not self._extend(size):
            self._set_frame(size)
        return True

    def _extend(self, size: int) -> bool:
        """Make a mapped buffer longer in place. False for another buffer, and where views of its
        requests exist.
        """
        frame = self._frame
        if self._frame_start or not isinstance(frame, mmap.mmap):
            return False
        former = len(frame)
        self._frame_view.release()
        try:
            frame.resize(size)
        except BufferError:
            return False
        finally:
            self._frame_view = memoryview(frame)
        self.pool.bytes += size - former
        return True

    def _set_frame(self, size: int) -> None:
        """A buffer of at least `size` bytes with the kept ones at its front: the one of the frame
        before, or a new one.

        Never one whose bytes were dispatched in this turn: its records may still wait to be
        written.
        """
        frame = self._spare
        if frame is not None and self._spare_turn != self.owner.turns and len(frame) >= size:
            self._spare = None
        else:
            frame = new_buffer(size)
            self.pool.bytes += size
        view = memoryview(frame)
        if self._frame is not None:
            kept = self._frame_end - self._frame_start
            view[:kept] = self._frame_view[self._frame_start : self._frame_end]
            self.pool.bytes -= len(self._frame)
            self._frame_start, self._frame_end = 0, kept
            self._frame_is_kept = False
        self._frame = frame
        self._frame_view = view

    def _drop_frame(self) -> None:
        """The kept bytes are handled.

        A large buffer stays for the next frame, as large ones rarely come alone.
        """
        if self._frame is not None:
            self.drop_spare()
            if len(self._frame) > _FRAME_BUFFER_BYTES_MIN and not self._frame_is_kept:
                self._spare, self._spare_turn = self._frame, self.owner.turns
            else:
                self.pool.bytes -= len(self._frame)
            self._frame = None
            self._frame_view = _NOTHING
            self._frame_start = self._frame_end = 0
            self._frame_is_kept = False
            self.pool.done(self)
        self.frame_since = self.waits_since = None

    def keep_frame(self, buffer: Buffer) -> bool:
        """Leave the bytes that were dispatched untouched after the turn, too; False where
        they must be copied: `buffer` is the arena.
        """
        if buffer is not self._frame:
            return False
        self._frame_is_kept = True
        return True

    def drop_spare(self) -> None:
        """Give back the buffer that was kept for a next frame."""
        if self._spare is not None:
            self.pool.bytes -= len(self._spare)
            self._spare = None

    def _handle_kept(self) -> None:
        """Handle the whole frames among the kept bytes."""
        frame, end = self._frame, self._frame_end
        assert frame is not None
        done = self._handle_frames(frame, self._frame_view, self._frame_start, end)
        if not self.open:
            return
        if done == end:
            self._drop_frame()
        else:
            self._frame_start = done
            self.frame_since = self.owner.now

    def _handle_frames(self, buffer: Buffer, view: memoryview, start: int, end: int) -> int:
        """Dispatch every whole frame in buffer[start:end]; returns the position of the
        first byte not handled.
        """
        dispatch = self.owner.dispatcher.dispatch
        slots = self.slots
        events = self._events
        self.last_active = self.owner.now
        while end - start >= 4:
            size = _INT32(buffer, start)[0]
            frame_end = start + 4 + size
            if frame_end > end or size < FRAME_BYTES_MIN or size > self.frame_bytes_max:
                self._checked_size(size)
                break
            if (
                self.barrier
                or len(slots) >= IN_FLIGHT_REQUESTS_MAX
                or (events & WRITABLE and self.held)
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

    @property
    def answering(self) -> bool:
        """Whether a response of a request is not made or not sent."""
        return bool(self.slots or self._sending)

    @property
    def held(self) -> bool:
        """Whether the next request must wait until an earlier response is made or sent."""
        if self.barrier or self.must_yield or len(self.slots) >= IN_FLIGHT_REQUESTS_MAX:
            return True
        return self.unsent_bytes > self.answers.connection_bytes_max

    def hold(self, size: int) -> None:
        """A task holds so many bytes of a request of this connection from now on, also when
        it has closed.
        """
        more = size - self.task_bytes
        self.task_bytes = size
        self.pool.bytes += more
        if not self.open:
            self.pool.leaving += more

    @property
    def held_bytes(self) -> int:
        """Memory of the unfinished frame, and of the buffer for the next one."""
        return (len(self._frame) if self._frame is not None else 0) + (
            len(self._spare) if self._spare is not None else 0
        )

    @property
    def arrived_bytes(self) -> int:
        """How much of the unfinished frame has arrived."""
        return self._frame_end - self._frame_start

    def seconds_read(self, now: float) -> float | None:
        """For how long this node has been reading the unfinished frame. None without one."""
        if self.frame_since is None:
            return None
        until = now if self.waits_since is None else self.waits_since
        return max(0.0, until - self.frame_since)

    def frame_is_late(self, now: float, seconds_max: float) -> bool:
        """Whether a frame has been read for longer than `seconds_max` and is still not whole."""
        seconds = self.seconds_read(now)
        if seconds is None or seconds < seconds_max or self._frame is None:
            return False
        return self._frame_end < self._first_frame_end()

    def _pause(self) -> None:
        self._watch(self._events & ~READABLE)

    def read_again(self, now: float) -> None:
        """There is memory again: continue to receive."""
        if self.waits_since is not None:
            if self.frame_since is not None:
                self.frame_since += now - self.waits_since
            self.waits_since = None
        if not self._closing:
            self._watch(self._events | READABLE)

    def resume(self) -> None:
        """Nothing holds the connection any more: handle the kept frames, then receive. The caller
        ends the turn.
        """
        if not self.open:
            return
        if self._has_whole_frame:
            try:
                self._handle_kept()
            except Exception as error:
                self._failed(error)
        if self.open and not self._closing and not self.held and not self._has_whole_frame:
            self._watch(self._events | READABLE)

    def introduced(self, node_id: int) -> None:
        """The peer is this node of the cluster. Its requests are served from the next one on.
        Raises ProtocolError if there are too many connections of nodes.
        """
        self.owner.introduced(self)
        self.peer_node = node_id
        self.frame_bytes_max = self.owner.request_bytes_max

    @property
    def received_at(self) -> float:
        """Monotonic seconds of the last request or response. -inf after the end of the stream."""
        return self.last_active if self.open and not self._closing else -math.inf

    @property
    def ends(self) -> bool:
        """Whether its peer sends no more, so no fetch of it is parked."""
        return self._closing or not self.open

    @property
    def is_sending(self) -> bool:
        """Whether responses wait for the peer to take them."""
        return bool(self._sending)

    @property
    def is_stranger(self) -> bool:
        """Whether its peer, on the peer listener, has not introduced itself."""
        return self.listener == PEER and self.peer_node is None

    def finish(self) -> None:
        """Receive no more. Send the outstanding responses, then close the connection."""
        self._end_of_stream()

    def _end_of_stream(self) -> None:
        """The peer sends no more. Send the outstanding responses, then close the connection."""
        self._closing = True
        self._pause()
        self._drop_frame()
        if self.parked is not None:
            self.parked.free()
        self._close_when_done()

    # -- sending -----------------------------------------------------------------------------------

    def slot(self) -> Slot:
        """Take the next place in the queue of responses."""
        slot = Slot(self)
        self.slots.append(slot)
        return slot

    def answered(self) -> None:
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
        plain = True
        while slots:
            parts = slots[0].parts
            if parts is None:
                break
            slots.popleft()
            ready += parts
            if len(parts) > 1:
                plain = False
        if ready:
            self.last_active = self.owner.now
        if plain and ready and not self._sending:
            self._send_plain(ready[0] if len(ready) == 1 else b"".join(ready))  # type: ignore[arg-type]
        elif ready:
            if not self._sending:
                self.sent_at = self.owner.now
            self._sending.extend(ready)
            self._ranges = self._ranges or not plain
            if not self._events & WRITABLE:
                self._send()
            else:
                self._note_unsent()
        if self._closing or not self._events & READABLE:
            self._after_progress()

    def _after_progress(self) -> None:
        if not self.open:
            return
        if self._closing:
            self._close_when_done()
        elif not self._events & READABLE and not self.held:
            if self._has_whole_frame and self.owner.slice_is_over:
                self.must_yield = True
                self.owner.resume_later(self)
            else:
                self.resume()

    def _send_plain(self, data: Part) -> None:
        """Send bytes when nothing else waits to be sent: most responses."""
        assert not isinstance(data, FileRange)
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent < len(data):
            self._sending.append(memoryview(data)[sent:])
            self.sent_at = self.owner.now
            self._note_unsent()
            self._watch(self._events | WRITABLE)

    def _note_unsent(self) -> None:
        """Count the bytes that wait to be sent."""
        size = (
            sum(len(part) for part in self._sending if not isinstance(part, FileRange))
            if self._sending
            else 0
        )
        self.answers.bytes += size - self.unsent_bytes
        self.unsent_bytes = size

    def _send(self) -> None:
        self._send_more()
        if self.unsent_bytes or self._sending:
            self._note_unsent()

    def _send_more(self) -> None:
        """Send until all or enough is sent, or the peer reads too slowly; then the poller
        calls again.
        """
        sending = self._sending
        sock = self.sock
        total = 0
        try:
            while sending:
                if total > SENT_BYTES_PER_SLICE:
                    self._watch(self._events | WRITABLE)
                    return
                piece = self._next_piece()
                try:
                    if isinstance(piece, FileRange):
                        sent = sock.send_file(piece.file, piece.position, piece.size)
                        if sent < piece.size:
                            sending.appendleft(
                                FileRange(piece.file, piece.position + sent, piece.size - sent)
                            )
                    else:
                        sent = sock.send_more(piece) if sending else sock.send(piece)
                        if sent < len(piece):
                            sending.appendleft(memoryview(piece)[sent:])
                    total += sent
                    self.sent_at = self.owner.now
                except BlockingIOError:
                    sending.appendleft(piece)
                    self._watch(self._events | WRITABLE)
                    return
        except OSError as error:
            self._lost(error)
            return
        self._ranges = False
        if self._events & WRITABLE:
            self._watch(self._events & ~WRITABLE)

    def _next_piece(self) -> Part:
        """The bytes for one call: a large range, or all small parts before it joined. Reads small
        ranges.
        """
        sending = self._sending
        part = sending.popleft()
        if not self._ranges:
            if not sending:
                return part
            data = b"".join((part, *sending))  # type: ignore[arg-type]
            sending.clear()
            return data
        if isinstance(part, FileRange) and part.size >= SENDFILE_BYTES_MIN:
            return part
        pieces = [self._bytes_of(part)]
        size = len(pieces[0])
        while sending and size < _JOIN_BYTES_MAX:
            following = sending[0]
            if isinstance(following, FileRange) and following.size >= SENDFILE_BYTES_MIN:
                break
            pieces.append(self._bytes_of(sending.popleft()))
            size += len(pieces[-1])
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    @staticmethod
    def _bytes_of(part: Part) -> bytes | bytearray | memoryview:
        if not isinstance(part, FileRange):
            return part
        data = part.file.read_at(part.position, part.size)
        if len(data) != part.size:
            raise OSError(f"{part.file.path} ends before position {part.position + part.size}")
        return data

    # -- the end -----------------------------------------------------------------------------------

    def _watch(self, events: int) -> None:
        if self.open and events != self._events:
            self._events = events
            self.owner.poller.watch(self.sock, self, events)

    def _close_when_done(self) -> None:
        if not self.slots and not self._sending:
            self.close()

    def close(self) -> None:
        """Close at once. Responses that are not sent are dropped."""
        if not self.open:
            return
        self.open = False
        self.owner.poller.forget(self.sock)
        self.sock.close()
        if self.work is not None:
            self.work.cancel()
        self.slots.clear()
        self._sending.clear()
        self._note_unsent()
        self._drop_frame()
        self.drop_spare()
        self.pool.leaving += self.task_bytes
        if self.parked is not None:
            self.parked.free()
        self.owner.closed(self)
