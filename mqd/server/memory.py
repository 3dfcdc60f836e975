"""One budget for the memory that connections use: requests, unsent responses, parked fetches. A
core.

`memory.budget.bytes` is the sum; requests and responses have a share each (`Shares`). Groups and
transactions have bounds of their own (coordinator/account.py), fetch sessions too (limits.py).
Nodes of the cluster have pools that no client can fill.

When a share is used up, the server stops reading connections that need more of it. After
`EVICT_SECONDS` it closes one that holds much, with a line in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mqd.limits import MIB, SEND_QUEUE_BYTES_MAX, SEND_QUEUE_BYTES_MIN

DEFAULT_PART = 4
"""The default budget is a quarter of the memory of the machine, or of its control group."""
BUDGET_BYTES_MIN = 64 * MIB
"""The default is no less than this.

The option may be: a node works with any budget, one large request at a time.
"""
EVICT_SECONDS = 0.25
"""How long a connection waits for memory before another one is closed for it."""
PARKED_ROW_BYTES = 400
"""Memory of one partition of a parked fetch."""
SMALL_FRAME_BYTES_MAX = 2 * MIB
"""Twice the default of `message.max.bytes`. Requests up to this size have a part of the pool that
larger ones cannot take, so half-received large requests do not block them.
"""
_RESERVED_PART = 4
_TASKS_PART = 4
"""Requests in tasks are evicted first if they hold more than this part of the pool. Parked fetches
have half of it at most.
"""
STALLED_SECONDS = 1.0
"""The slowest of the frames that have been read for longer is evicted first. The time for which a
frame waits for memory does not count: its client cannot send then.
"""


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes of each class of clients' memory."""

    requests: int
    """Requests that are being received or are in tasks, and large parked fetches."""
    responses: int

    @classmethod
    def of(cls, budget: int) -> Shares:
        return cls(requests=budget // 2, responses=budget // 2)


class Holder(Protocol):
    """A connection, as its pool sees it."""

    @property
    def open(self) -> bool: ...

    @property
    def held_bytes(self) -> int:
        """Bytes of its unfinished frame, and of the buffer that it keeps for the next one."""
        ...

    @property
    def arrived_bytes(self) -> int:
        """How much of the unfinished frame has arrived."""
        ...

    @property
    def task_bytes(self) -> int:
        """Bytes of a large request that has arrived completely, and that a task holds."""
        ...

    def seconds_read(self, now: float) -> float | None:
        """For how long the node has been reading its unfinished frame. None without one."""
        ...

    def read_again(self, now: float) -> None: ...


class _Waiting(NamedTuple):
    """A connection that is not read until there is memory."""

    holder: Holder
    size: int
    """How much more it wants."""
    since: float


class RequestPool:
    """Memory of the unfinished requests of one listener, and of large ones that tasks hold.

    One connection at a time may exceed the limit. Otherwise half-received frames could wait for
    each other forever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.leaving = 0
        """Of `bytes`: memory of tasks whose connections have closed. It is free when they end."""
        self._parked = 0
        """Bytes of parked fetches."""
        self._beyond: Holder | None = None
        self._reserved: dict[Holder, int] = {}
        """Small frames that the reserved part has room for, and their bytes."""
        self._waiting: deque[_Waiting] = deque()
        """The longest waiting first. Small frames have a queue of their own, which goes first."""
        self._small_waiting: deque[_Waiting] = deque()

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting or self._small_waiting)

    def has_room(self, holder: Holder, size: int, frame_bytes: int) -> bool:
        """Whether `holder` may take `size` more bytes, for a frame of `frame_bytes`."""
        if self.fits(size):
            return True
        if frame_bytes <= SMALL_FRAME_BYTES_MAX and self._fits_reserve(size, holder):
            self._reserved[holder] = size
            return True
        if self._beyond is None:
            self._beyond = holder
        return self._beyond is holder

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` more bytes outside of the reserved part."""
        reserve = self.bytes_max // _RESERVED_PART
        ordinary = self.bytes + self._parked - sum(self._reserved.values())
        return ordinary + size <= self.bytes_max - reserve

    def _fits_reserve(self, size: int, holder: Holder | None = None) -> bool:
        own = 0 if holder is None else self._reserved.get(holder, 0)
        return sum(self._reserved.values()) - own + size <= self.bytes_max // _RESERVED_PART

    def may_park(self, rows: int) -> bool:
        """Whether a fetch of `rows` partitions may wait here for records. Parked fetches have half
        of the pool.
        """
        return self._parked + self._parked_size(rows) <= self.bytes_max // 2

    def park(self, rows: int) -> None:
        self._parked += self._parked_size(rows)

    def unpark(self, rows: int) -> None:
        self._parked -= self._parked_size(rows)

    @staticmethod
    def _parked_size(rows: int) -> int:
        return rows * PARKED_ROW_BYTES

    def done(self, holder: Holder) -> None:
        """Its frame is complete, or dropped."""
        self._reserved.pop(holder, None)
        if self._beyond is holder:
            self._beyond = None

    def wait(self, holder: Holder, size: int, frame_bytes: int, now: float) -> None:
        """Wait for room for `size` more bytes of a frame of `frame_bytes`."""
        small = frame_bytes <= SMALL_FRAME_BYTES_MAX
        (self._small_waiting if small else self._waiting).append(_Waiting(holder, size, now))

    def grant(self, now: float) -> None:
        """Let waiting connections read again while there is room for them."""
        for waiting in (self._small_waiting, self._waiting):
            while waiting:
                holder, size, _ = waiting[0]
                if (
                    holder.open
                    and self._beyond is not None
                    and not self.fits(size)
                    and not (waiting is self._small_waiting and self._fits_reserve(size, holder))
                ):
                    break
                waiting.popleft()
                if holder.open:
                    holder.read_again(now)

    def _longest_waiting(self) -> _Waiting | None:
        for waiting in (self._small_waiting, self._waiting):
            while waiting and not waiting[0].holder.open:
                waiting.popleft()
            if waiting:
                return waiting[0]
        return None

    def to_evict(self, holders: Iterable[Holder], now: float) -> Holder | None:
        """The connection to close in favour of the one that has waited longest. None if none has
        waited long enough, or if closed connections free enough memory.

        If tasks hold more than arriving frames do, and more than a quarter of the pool: the
        connection whose task holds the most. Else the slowest of the frames that have been arriving
        for longer than STALLED_SECONDS. Else the connection that holds the most, if that is more
        than the waiting one needs.
        """
        longest = self._longest_waiting()
        if longest is None or now - longest.since < EVICT_SECONDS:
            return None
        waiting, wanted, _ = longest
        if self.leaving and self.fits(wanted - self.leaving):
            return None
        holders = list(holders)
        others = [
            one
            for one in holders
            if one is not waiting and one.held_bytes and one.seconds_read(now) is not None
        ]
        in_tasks = sum(one.task_bytes for one in holders)
        if in_tasks > max(sum(one.held_bytes for one in others), self.bytes_max // _TASKS_PART):
            return max(holders, key=lambda one: one.task_bytes)
        rates = [
            (one.arrived_bytes / seconds, place)
            for place, one in enumerate(others)
            if (seconds := one.seconds_read(now) or 0.0) > STALLED_SECONDS
        ]
        if rates:
            return others[min(rates)[1]]
        greediest = max(others, key=lambda one: one.held_bytes, default=None)
        return greediest if greediest is not None and greediest.held_bytes > wanted else None


class ResponsePool:
    """Memory of the responses of one listener that wait for slow readers."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def connection_bytes_max(self) -> int:
        """Above this size of its unsent responses, a connection is not read. Less when all readers
        together are slow.
        """
        free = self.bytes_max - self.bytes
        return max(SEND_QUEUE_BYTES_MIN, min(SEND_QUEUE_BYTES_MAX, free // 4))

    @property
    def is_over(self) -> bool:
        return self.bytes > self.bytes_max
