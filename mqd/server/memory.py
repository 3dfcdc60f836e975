"""One budget for what connections make a node hold: requests, unsent answers, parked fetches. A
core.

`memory.budget.bytes` is the sum; each class has a share of it (`Shares`). Groups and transactions
have bounds of their own (coordinator/account.py), fetch sessions too (limits.py). Nodes of the
cluster have a pool of frames that no client can fill.

Where a share is used up, the connections that hold the most are read no further, and then closed
with a line in the log: a connection that sends a request waits for another one's memory for
`EVICT_SECONDS` at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from mqd.limits import MIB, SEND_QUEUE_BYTES_MAX, SEND_QUEUE_BYTES_MIN

DEFAULT_PART = 4
"""The default budget is this part of the machine's memory, or of the control group's."""
BUDGET_BYTES_MIN = 64 * MIB
"""The default is no less than this.

The option may be: a node works with any budget, one large request at a time.
"""
EVICT_SECONDS = 0.25
"""How long a connection waits for memory before another one is closed for it."""
PARKED_ROW_BYTES = 400
"""What a partition of a parked fetch takes."""
_TASKS_PART = 4
"""Requests in tasks go first where they hold more than this part: parked fetches have half
at most.
"""
STALLED_SECONDS = 1.0
"""A frame that has been arriving for longer is judged by its rate: the slowest goes first."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes of each class of clients' memory."""

    frames: int
    """Of requests that are received or in tasks, and of large fetches that are parked."""
    answers: int

    @classmethod
    def of(cls, budget: int) -> Shares:
        return cls(frames=budget // 2, answers=budget // 2)


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
        """Of a large request that has arrived whole and that a task holds."""
        ...

    @property
    def frame_since(self) -> float | None: ...

    def read_again(self) -> None: ...


class FramePool:
    """Memory of the unfinished requests of one listener, and of large ones that tasks hold.

    One connection at a time may go beyond the limit, or half-received frames could wait for one
    another for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.leaving = 0
        """Of `bytes`: what tasks hold for connections that have closed, until they end."""
        self._parked = 0
        """Bytes of parked fetches."""
        self._beyond: Holder | None = None
        self._waiting: deque[tuple[Holder, int, float]] = deque()
        """(connection, how much it wants, since when), the longest waiting first."""

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def has_room(self, holder: Holder, size: int) -> bool:
        """Whether `holder` may take so many bytes more."""
        if self.bytes + self._parked + size <= self.bytes_max:
            return True
        if self._beyond is None:
            self._beyond = holder
        return self._beyond is holder

    def may_park(self, rows: int) -> bool:
        """Whether a fetch of so many partitions may wait here for records: parked fetches
        get half of the pool.
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
        """Its frame is complete, or gone."""
        if self._beyond is holder:
            self._beyond = None

    def wait(self, holder: Holder, size: int, now: float) -> None:
        self._waiting.append((holder, size, now))

    def grant(self) -> None:
        """Let connections read again while there is room for what they want."""
        while self._waiting:
            holder, size, _ = self._waiting[0]
            if (
                holder.open
                and self.bytes + self._parked + size > self.bytes_max
                and self._beyond is not None
            ):
                return
            self._waiting.popleft()
            if holder.open:
                holder.read_again()

    def to_evict(self, holders: Iterable[Holder], now: float) -> Holder | None:
        """The connection to close in favour of the one that has waited longest. None if none has
        waited long enough, or if closed connections free enough memory.

        If tasks hold more than arriving frames do, and more than a quarter of the pool: the
        connection whose task holds the most. Else the slowest of the frames that have been arriving
        for longer than STALLED_SECONDS. Else the connection that holds the most, if that is more
        than the waiting one needs.
        """
        while self._waiting and not self._waiting[0][0].open:
            self._waiting.popleft()
        if not self._waiting or now - self._waiting[0][2] < EVICT_SECONDS:
            return None
        waiting, wanted, _ = self._waiting[0]
        if self.leaving and self.bytes - self.leaving + self._parked + wanted <= self.bytes_max:
            return None
        holders = list(holders)
        others = [
            one
            for one in holders
            if one is not waiting and one.held_bytes and one.frame_since is not None
        ]
        in_tasks = sum(one.task_bytes for one in holders)
        if in_tasks > max(sum(one.held_bytes for one in others), self.bytes_max // _TASKS_PART):
            return max(holders, key=lambda one: one.task_bytes)
        stalled = [one for one in others if now - _since(one, now) > STALLED_SECONDS]
        if stalled:
            return min(stalled, key=lambda one: one.arrived_bytes / (now - _since(one, now)))
        greediest = max(others, key=lambda one: one.held_bytes, default=None)
        return greediest if greediest is not None and greediest.held_bytes > wanted else None


def _since(holder: Holder, now: float) -> float:
    return now if holder.frame_since is None else holder.frame_since


class Answers:
    """Memory of the answers that wait for slow readers, over all clients."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def connection_bytes_max(self) -> int:
        """Above this a connection is not read: less when the readers together are slow."""
        free = self.bytes_max - self.bytes
        return max(SEND_QUEUE_BYTES_MIN, min(SEND_QUEUE_BYTES_MAX, free // 4))

    @property
    def is_over(self) -> bool:
        return self.bytes > self.bytes_max
