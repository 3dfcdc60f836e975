"""One budget for the memory that connections use: requests, unsent responses, parked fetches. A
core.

`memory.budget.bytes` is the sum; requests and responses have a share each (`Shares`). Groups and
transactions have bounds of their own (coordinator/account.py), fetch sessions too (limits.py).
Nodes of the cluster have pools that no client can fill.

When a share is used up, the server stops reading connections that need more of it. Once one has
waited for `EVICT_SECONDS`, the server closes others, with a line in the log, until there is room.
The wait itself has no bound: it depends on what the others do. Every second grant goes to the
connection that has completed the most request bytes. So a client that finishes its requests waits
for few others, even if hundreds of half-received frames wait before it. The
other grants go round the addresses: a client waits for one connection of each other address. Of an
address, the connection that has waited longest is next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mqd.limits import KIB, MIB, SEND_QUEUE_BYTES_MAX, SEND_QUEUE_BYTES_MIN

EVICT_SECONDS = 0.1
"""The wait of a connection after which others are closed to free memory."""
IDLE_FRAME_SECONDS = 0.05
"""A half-received frame is idle if it has received less than PROGRESS_BYTES for so long. Idle
frames are evicted first, as many as are needed at once.
"""
PROGRESS_BYTES = 16 * KIB
BUSY_EVICT_SECONDS = 0.25
"""The same wait if no frame is idle."""
PARKED_ROW_BYTES = 400
"""Memory of one partition of a parked fetch."""
SMALL_FRAME_BYTES_MAX = 2 * MIB
"""Twice the default of `message.max.bytes`. Requests up to this size have a part of the pool that
larger ones cannot take, so half-received large requests do not block them.
"""
_ADDRESSES_MAX = 1_000
"""Addresses whose last grants are known."""
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
    def address(self) -> str:
        """The address of the peer, without the port."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of its unfinished frame, and of the buffer that it keeps for the next one."""
        ...

    @property
    def arrived_bytes(self) -> int:
        """The number of received bytes of the unfinished frame."""
        ...

    @property
    def task_bytes(self) -> int:
        """Bytes of a large request that has arrived completely, and that a task holds."""
        ...

    @property
    def completed_bytes(self) -> int:
        """Bytes of the large requests of this connection that have arrived completely."""
        ...

    def seconds_read(self, now: float) -> float | None:
        """For how long the node has been reading its unfinished frame. None without one."""
        ...

    def idle_seconds(self, now: float) -> float:
        """For how long the unfinished frame has received less than PROGRESS_BYTES. The time for
        which it waited for memory does not count. 0 if bytes wait for this node to read them.
        """
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
        """The part of `bytes` that tasks of closed connections use. It is free when they end."""
        self._parked = 0
        """Bytes of parked fetches."""
        self._over_limit: Holder | None = None
        self._reserved: dict[Holder, int] = {}
        """Small frames that the reserved part has room for, and their bytes."""
        self._granted: dict[Holder, int] = {}
        """Bytes for connections that waited and have not allocated them yet."""
        self._waiting: dict[Holder, _Waiting] = {}
        """The longest waiting first. Small frames have a queue of their own, which goes first."""
        self._small_waiting: dict[Holder, _Waiting] = {}
        self._trusted_next = True
        """The next grant is for the connection that has sent the most in whole requests."""
        self._grants = 0
        self._granted_at: dict[str, int] = {}
        """Address -> the number of its last grant."""

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting or self._small_waiting)

    def has_room(self, holder: Holder, size: int, frame_bytes: int) -> bool:
        """Whether `holder` may take `size` more bytes, for a frame of `frame_bytes`. A connection
        that has not waited takes none before those that wait.
        """
        if self._granted.pop(holder, None) is not None or self._over_limit is holder:
            return True
        small = frame_bytes <= SMALL_FRAME_BYTES_MAX
        if self._small_waiting or (self._waiting and not small):
            return False
        return self._take(holder, size, small=small)

    def _take(self, holder: Holder, size: int, *, small: bool) -> bool:
        if self.fits(size):
            return True
        if small and self._fits_reserve(size, holder):
            self._reserved[holder] = size
            return True
        if self._over_limit is None:
            self._over_limit = holder
        return self._over_limit is holder

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` more bytes outside of the reserved part."""
        reserve = self.bytes_max // _RESERVED_PART
        used = self.bytes + self._parked + sum(self._granted.values())
        return used - sum(self._reserved.values()) + size <= self.bytes_max - reserve

    def _fits_reserve(self, size: int, holder: Holder) -> bool:
        own = self._reserved.get(holder, 0)
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
        self._granted.pop(holder, None)
        if self._over_limit is holder:
            self._over_limit = None

    def wait(self, holder: Holder, size: int, frame_bytes: int, now: float) -> None:
        """Wait for room for `size` more bytes of a frame of `frame_bytes`."""
        small = frame_bytes <= SMALL_FRAME_BYTES_MAX
        (self._small_waiting if small else self._waiting)[holder] = _Waiting(holder, size, now)

    def grant(self, now: float) -> None:
        """Let waiting connections read again while there is room for them."""
        for queue in (self._small_waiting, self._waiting):
            while queue:
                holder, size, _ = self._next_of(queue)
                if holder.open:
                    if not self._take(holder, size, small=queue is self._small_waiting):
                        break
                    self._granted[holder] = size
                    holder.read_again(now)
                    self._note_grant(holder.address)
                del queue[holder]

    def _note_grant(self, address: str) -> None:
        self._trusted_next = not self._trusted_next
        self._grants += 1
        if len(self._granted_at) >= _ADDRESSES_MAX:
            self._granted_at.clear()
        self._granted_at[address] = self._grants

    def _next_of(self, queue: dict[Holder, _Waiting]) -> _Waiting:
        if self._trusted_next:
            most = max(queue.values(), key=lambda one: one.holder.completed_bytes)
            if most.holder.completed_bytes:
                return most
        # of equals, the first one: the longest waiting
        return min(queue.values(), key=lambda one: self._granted_at.get(one.holder.address, 0))

    def _longest_waiting(self) -> _Waiting | None:
        for queue in (self._small_waiting, self._waiting):
            while queue:
                oldest = next(iter(queue.values()))
                if oldest.holder.open:
                    return oldest
                del queue[oldest.holder]
        return None

    def to_evict(self, holders: Iterable[Holder], now: float) -> list[Holder]:
        """The connections to close in favour of those that wait. None if none has waited long
        enough, or if closed connections free enough memory.

        If tasks hold more than arriving frames do, and more than a quarter of the pool: the
        connection whose task holds the most. Else the longest idle frames, as many as the waiting
        ones need. Else the slowest of the frames that have been arriving for longer than
        STALLED_SECONDS. Else the connection that holds the most, if that is more than the one that
        has waited longest needs.
        """
        oldest = self._longest_waiting()
        if oldest is None or now - oldest.since < EVICT_SECONDS:
            return []
        if self.leaving and self.fits(oldest.size - self.leaving):
            return []
        holders = list(holders)
        others = [
            one
            for one in holders
            if one is not oldest.holder and one.held_bytes and one.seconds_read(now) is not None
        ]
        in_tasks = sum(one.task_bytes for one in holders)
        if in_tasks > max(sum(one.held_bytes for one in others), self.bytes_max // _TASKS_PART):
            return [max(holders, key=lambda one: one.task_bytes)]
        queue = self._small_waiting or self._waiting
        idle = self._longest_idle(others, sum(one.size for one in queue.values()), now)
        if idle or now - oldest.since < BUSY_EVICT_SECONDS:
            return idle
        rates = [
            (one.arrived_bytes / seconds, place)
            for place, one in enumerate(others)
            if (seconds := one.seconds_read(now) or 0.0) > STALLED_SECONDS
        ]
        if rates:
            return [others[min(rates)[1]]]
        greediest = max(others, key=lambda one: one.held_bytes, default=None)
        if greediest is not None and greediest.held_bytes > oldest.size:
            return [greediest]
        return []

    def _longest_idle(self, others: list[Holder], wanted: int, now: float) -> list[Holder]:
        """The longest idle frames that hold `wanted` bytes together, or all idle ones."""
        ages = [(one.idle_seconds(now), place) for place, one in enumerate(others)]
        chosen: list[Holder] = []
        for idle_seconds, place in sorted(ages, reverse=True):
            if idle_seconds <= IDLE_FRAME_SECONDS or wanted <= 0:
                break
            one = others[place]
            chosen.append(one)
            wanted -= one.held_bytes + self._granted.get(one, 0)
        return chosen


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
