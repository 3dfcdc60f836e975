"""The received bytes of one connection that are not handled yet: an unfinished frame, or frames
that wait for an earlier response.

A buffer grows only as its bytes arrive, so that a declared length alone allocates nothing (I14).
All buffers count in the memory of the listener.
"""

from __future__ import annotations

import mmap
from struct import Struct

from mqd.errors import ProtocolError
from mqd.limits import FRAME_BYTES_MIN, KIB, MIB
from mqd.server.memory import PROGRESS_BYTES, SMALL_FRAME_BYTES_MAX, RequestPool
from mqd.server.other_protocols import other_protocol
from mqd.server.receive_buffers import Buffer, new_buffer

_INT32 = Struct(">i").unpack_from

_LARGE_FRAME_BYTES = 128 * KIB
_BUFFER_BYTES_MIN = 64 * KIB
_SCARCE_BUFFER_BYTES_MIN = 16 * KIB
"""The same while connections wait for memory: what a waiting connection holds."""
_RECEIVE_BYTES_MAX = 1 * MIB
"""Bytes that one call receives of a frame: about a millisecond, page faults included."""
_NO_BYTES = memoryview(b"")


class FrameBuffer:
    """buffer[start:end] has the bytes. Without any, `buffer` is None."""

    __slots__ = (
        "_is_retained",
        "_progress_at",
        "_progress_bytes",
        "_request_bytes_max",
        "_spare",
        "_spare_turn",
        "buffer",
        "completed_bytes",
        "end",
        "frame_bytes_max",
        "frame_bytes_min",
        "is_large",
        "is_of_nodes",
        "pool",
        "since",
        "start",
        "view",
        "waits_since",
    )

    def __init__(self, pool: RequestPool, request_bytes_max: int, *, is_of_nodes: bool) -> None:
        """`is_of_nodes`: the connection is one of the peer listener."""
        self.pool = pool
        self.is_of_nodes = is_of_nodes
        self._request_bytes_max = request_bytes_max
        self.frame_bytes_max = request_bytes_max
        self.frame_bytes_min = FRAME_BYTES_MIN
        self.buffer: Buffer | None = None
        self.view = _NO_BYTES
        self.start = 0
        self.end = 0
        self.is_large = False
        """Whether the latest unfinished frame was large: the next one may be, too."""
        self.since: float | None = None
        """Since when the first frame has been arriving, for the time limit on it. Later by the time
        for which it waited for memory: it was not read then.
        """
        self.waits_since: float | None = None
        """Since when the frame has been waiting for memory."""
        self.completed_bytes = 0
        """Bytes of the frames that arrived here and were handled."""
        self._progress_at = 0.0
        """When the frame had last received PROGRESS_BYTES more than `_progress_bytes`."""
        self._progress_bytes = 0
        self._is_retained = False
        self._spare: Buffer | None = None
        """The buffer of the last large frame, for the next one."""
        self._spare_turn = 0
        """The turn in which `_spare` was last in use."""

    # -- allowed frames ----------------------------------------------------------------------------

    def restrict(self, bytes_max: int) -> None:
        """The peer is not authenticated: no frame may be larger than that."""
        self.frame_bytes_max = bytes_max

    def expect_bare_tokens(self) -> None:
        """The next frames are tokens, which may be shorter than a request."""
        self.frame_bytes_min = 0

    def accept_requests(self) -> None:
        """The peer is authenticated."""
        self.frame_bytes_min = FRAME_BYTES_MIN
        self.frame_bytes_max = self._request_bytes_max

    # -- frames ------------------------------------------------------------------------------------

    def checked_size(self, size: int) -> int:
        """`size`, the length field of a frame. Raises ProtocolError if it is not allowed."""
        if size < self.frame_bytes_min or size > self.frame_bytes_max:
            raise ProtocolError(
                other_protocol(size, is_of_nodes=self.is_of_nodes)
                or f"a frame of {size} bytes "
                f"(allowed: {self.frame_bytes_min} to {self.frame_bytes_max})"
            )
        return size

    @property
    def frame_end(self) -> int:
        """The end of the first frame in `buffer`; the end of its length field while that is
        incomplete.
        """
        assert self.buffer is not None
        if self.end - self.start < 4:
            return self.start + 4
        return self.start + 4 + self.checked_size(_INT32(self.buffer, self.start)[0])

    @property
    def has_whole_frame(self) -> bool:
        """Whether a request could be handled, or refused because of its length. Never raises:
        callers include tasks in which an error of a peer would end the node.
        """
        if self.buffer is None or self.end - self.start < 4:
            return False
        size: int = _INT32(self.buffer, self.start)[0]
        is_invalid = size < self.frame_bytes_min or size > self.frame_bytes_max
        return is_invalid or self.end >= self.start + 4 + size

    @property
    def arrived_bytes(self) -> int:
        """The number of received bytes of the unfinished frame."""
        return self.end - self.start

    def seconds_read(self, now: float) -> float | None:
        """For how long this node has been reading the unfinished frame. None without one."""
        if self.since is None:
            return None
        until = now if self.waits_since is None else self.waits_since
        return max(0.0, until - self.since)

    def idle_seconds(self, now: float) -> float:
        """For how long the unfinished frame has received less than PROGRESS_BYTES, while this node
        read it.
        """
        until = now if self.waits_since is None else self.waits_since
        return max(0.0, until - self._progress_at)

    def is_late(self, now: float, seconds_max: float) -> bool:
        """Whether a frame has been read for longer than `seconds_max` and is still incomplete."""
        seconds = self.seconds_read(now)
        if seconds is None or seconds < seconds_max or self.buffer is None:
            return False
        return not self.has_whole_frame

    def restart(self, now: float) -> None:
        """The connection was not read until now, so the time before does not count."""
        self._progress_at = now
        if self.since is not None:
            self.since = now

    def read_again(self, now: float) -> None:
        """The wait for memory is over."""
        self._progress_at = now
        if self.waits_since is not None:
            if self.since is not None:
                self.since += now - self.waits_since
            self.waits_since = None

    # -- bytes -------------------------------------------------------------------------------------

    def keep(self, rest: memoryview, now: float, turn: int) -> None:
        """Copy what cannot be handled yet out of the arena."""
        assert self.buffer is None
        size = len(rest)
        wanted = 4 + self.checked_size(_INT32(rest, 0)[0]) if size >= 4 else 4
        self.is_large = wanted > _LARGE_FRAME_BYTES
        least = _SCARCE_BUFFER_BYTES_MIN if self.pool.is_wanted else _BUFFER_BYTES_MIN
        self._allocate(max(size, min(wanted, least)), turn)
        self.view[:size] = rest
        self.end = size
        self.begin(now)

    def begin(self, now: float) -> None:
        """The bytes from `start` on are those of a new frame."""
        self.since = self._progress_at = now
        self._progress_bytes = self.arrived_bytes

    def received(self, size: int, now: float) -> None:
        """So many bytes more have arrived in `room`."""
        self.end += size
        if self.arrived_bytes - self._progress_bytes >= PROGRESS_BYTES:
            self._progress_at, self._progress_bytes = now, self.arrived_bytes

    def room(self, frame_end: int) -> memoryview:
        """The buffer for the next bytes of the frame that ends at `frame_end`."""
        return self.view[self.end : min(frame_end, len(self.view), self.end + _RECEIVE_BYTES_MAX)]

    def next_size(self, frame_bytes: int) -> int:
        """The size to grow to for a frame: four times the bytes that have arrived, at most.

        Where memory is short, a small frame gets its whole size, so that it waits only once.
        Elsewhere growth in steps is faster: the spare buffer serves the last step.
        """
        is_small = frame_bytes <= SMALL_FRAME_BYTES_MAX
        if is_small and (self.pool.is_wanted or not self.pool.fits(frame_bytes)):
            return frame_bytes
        return min(frame_bytes, 4 * max(self.end, _BUFFER_BYTES_MIN))

    def grow(self, size: int, turn: int) -> None:
        if not self._extend(size):
            self._allocate(size, turn)

    def release(self, turn: int) -> None:
        """All bytes are handled, or dropped.

        A large buffer stays for the next frame, as large ones rarely come alone.
        """
        if self.buffer is not None:
            self.drop_spare()
            if len(self.buffer) > _BUFFER_BYTES_MIN and not self._is_retained:
                self._spare, self._spare_turn = self.buffer, turn
            else:
                self.pool.bytes -= len(self.buffer)
            self.buffer = None
            self.view = _NO_BYTES
            self.start = self.end = 0
            self._is_retained = False
        self.since = self.waits_since = None

    def retain(self, buffer: Buffer) -> bool:
        """Leave the dispatched bytes untouched after the turn, too. Returns False where the caller
        must copy them: `buffer` is the arena.
        """
        if buffer is not self.buffer:
            return False
        self._is_retained = True
        return True

    def drop_spare(self) -> None:
        """Free the buffer that was kept for the next frame."""
        if self._spare is not None:
            self.pool.bytes -= len(self._spare)
            self._spare = None

    @property
    def held_bytes(self) -> int:
        """Memory of the buffer, and of the spare one."""
        return (len(self.buffer) if self.buffer is not None else 0) + (
            len(self._spare) if self._spare is not None else 0
        )

    def _extend(self, size: int) -> bool:
        """Make a mapped buffer longer in place. Returns False for other buffers, and while views of
        its requests exist.
        """
        buffer = self.buffer
        if self.start or not isinstance(buffer, mmap.mmap):
            return False
        former = len(buffer)
        self.view.release()
        try:
            buffer.resize(size)
        except BufferError:
            return False
        finally:
            self.view = memoryview(buffer)
        self.pool.bytes += size - former
        return True

    def _allocate(self, size: int, turn: int) -> None:
        """Move the bytes to the front of a buffer of at least `size` bytes: the spare one, or a new
        one.

        Never a buffer whose bytes were dispatched in this turn: its records may still wait to be
        written.
        """
        buffer = self._spare
        if buffer is not None and self._spare_turn != turn and len(buffer) >= size:
            self._spare = None
        else:
            buffer = new_buffer(size)
            self.pool.bytes += size
        view = memoryview(buffer)
        if self.buffer is not None:
            kept = self.end - self.start
            view[:kept] = self.view[self.start : self.end]
            self.pool.bytes -= len(self.buffer)
            self.start, self.end = 0, kept
            self._is_retained = False
        self.buffer = buffer
        self.view = view
