"""Parked work: produce requests that wait for their records to be committed, fetches that wait for
records to come.

Pure: deadlines are numbers, and a ticket is freed by whoever settles it. Every ticket is freed
exactly once: by what it waits for, by its deadline, or by a refusal.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mqd.errors import ErrorCode
from mqd.limits import DECODED_AT_ONCE_ROWS
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.replica.partition import Partition

_LEFT_AT_ONCE = 10 * DECODED_AT_ONCE_ROWS

Append = tuple["Partition", Offset, list[Any], int]
"""One batch of a produce request: where it went, what it waits for, and the answer's rows and index
of its row.

It waits for the high watermark to reach the offset; at -1 for nothing, written is enough; below
that (`until_durable`) for this replica alone to have it on stable storage. A plain tuple: there is
one for every batch.
"""


def until_durable(end_offset: Offset) -> Offset:
    """What an `Append` says that waits for the leader's own fdatasync up to `end_offset`,
    and for no follower. Its own inverse.
    """
    return -2 - end_offset


class ProduceTicket(ABC):
    """One produce request on its way: freed when every partition in it is committed or refused.

    Abstract: the handler's answer is the ticket, there is one object a request.
    """

    __slots__ = ("appends", "deadline", "freed", "waiting")

    def __init__(self) -> None:
        self.appends: list[Append] = []
        """What this request appended, and up to where each must be committed."""
        self.waiting = 0
        """How many of `appends` are neither committed nor refused."""
        self.freed = False
        self.deadline = 0.0

    @abstractmethod
    def refuse(self, append: Append, code: ErrorCode) -> None:
        """What was appended could not be kept, or nobody can tell whether it will be committed."""

    @abstractmethod
    def release(self) -> None:
        """Called once, when the ticket is free: sends the answer."""

    def settle(self) -> None:
        """One partition of this request is committed or refused."""
        assert self.waiting > 0, self
        self.waiting -= 1
        if not self.waiting and not self.freed:
            self.free()

    def free(self) -> None:
        assert not self.freed
        self.freed = True
        self.release()


class FetchWaiter:
    """One fetch that found less than it wants: woken by bytes, by its deadline, or by what
    comes behind it.
    """

    __slots__ = (
        "bytes_wanted",
        "deadline",
        "freed",
        "leaves_later",
        "partitions",
        "read_committed",
        "release",
    )

    def __init__(
        self,
        release: Callable[[], None],
        bytes_wanted: int,
        deadline: float,
        *,
        read_committed: bool = False,
        leaves_later: bool = False,
    ) -> None:
        self.release = release
        """Called once: plans the fetch again and answers it."""
        self.leaves_later = leaves_later
        """Whether the owner calls `leave` or `leaving` after `release`: one append may free
        many fetches of 10,000 partitions each.
        """
        self.read_committed = read_committed
        """Whether bytes count only when no open transaction holds them back."""
        self.bytes_wanted = bytes_wanted
        self.deadline = deadline
        self.partitions: list[HoldsFetches] = []
        self.freed = False

    def park(self, partitions: Iterable[HoldsFetches]) -> None:
        """Wait on these partitions, too."""
        for partition in partitions:
            self.partitions.append(partition)
            partition.fetches[self] = None

    def leave(self) -> None:
        """Wait on no partition."""
        for _ in self.leaving():
            pass

    def leaving(self) -> Generator[int, None, None]:
        """The same, a slice at a time: yields a number of rows that are as much work as
        what was done since.
        """
        partitions, self.partitions = self.partitions, []
        for number, partition in enumerate(partitions):
            partition.fetches.pop(self, None)
            if number % _LEFT_AT_ONCE == _LEFT_AT_ONCE - 1:
                yield DECODED_AT_ONCE_ROWS

    def free(self) -> None:
        if not self.freed:
            self.freed = True
            if not self.leaves_later:
                self.leave()
            self.release()


class HoldsFetches(Protocol):
    """A partition, as a waiter sees it."""

    fetches: dict[FetchWaiter, None]


class Waits(Protocol):
    """What `Deadlines` keeps: has a deadline, and knows whether it was freed by something else."""

    deadline: float
    freed: bool


WaiterT = TypeVar("WaiterT", bound=Waits)


class Deadlines(Generic[WaiterT]):
    """Waiters by deadline.

    A freed waiter stays in the heap until its time or until half of the heap is such.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, WaiterT]] = []
        self._sequence = 0
        self._sweep_at = 256

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, waiter: WaiterT) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (waiter.deadline, self._sequence, waiter))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].freed]
            heapq.heapify(self._heap)
            self._sweep_at = max(256, 2 * len(self._heap))

    def next_deadline(self) -> float | None:
        while self._heap and self._heap[0][2].freed:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[WaiterT]:
        """Take out and return whoever's deadline is not after `now` and is still waiting."""
        late: list[WaiterT] = []
        while self._heap and self._heap[0][0] <= now:
            waiter = heapq.heappop(self._heap)[2]
            if not waiter.freed:
                late.append(waiter)
        return late
