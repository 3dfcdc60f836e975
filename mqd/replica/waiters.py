"""Parked requests: produce requests that wait for a commit, and fetches that wait for records.

Pure: deadlines are numbers. A request is freed exactly once: by what it waits for, by its deadline,
or by an error. The partition is a type parameter, because partition.py imports this file.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar

from mqd.errors import ErrorCode
from mqd.limits import DECODED_AT_ONCE_ROWS
from mqd.types import Offset

_LEFT_AT_ONCE = 10 * DECODED_AT_ONCE_ROWS

PartitionT = TypeVar("PartitionT")

Append = tuple[PartitionT, Offset, list[Any], int]
"""One appended batch of a produce request. It has its partition, the offset that it waits for, the
rows of the response, and the index of its row.

The offset: the batch waits until the high watermark reaches it. `WRITE_ONLY`: it waits for nothing.
Less than that (`until_durable`): it waits for this replica's fdatasync, and for no follower.

A plain tuple, unpacked into names where it is read. There is one for each batch, and a NamedTuple
takes 400 ns instead of 30 ns to create.
"""
WRITE_ONLY: Offset = -1
"""The offset of an `Append` that waits for nothing more when it is written (acks=1)."""


def until_durable(end_offset: Offset) -> Offset:
    """The offset of an `Append` that waits for this replica's fdatasync up to `end_offset`. Applied
    to its own result, the function returns `end_offset`.
    """
    return -2 - end_offset


class ProduceTicket(ABC, Generic[PartitionT]):
    """One produce request: freed when each of its batches is committed or refused.

    Abstract: the response of the handler is the ticket, so there is one object for each request.
    """

    __slots__ = ("appends", "deadline", "freed", "waiting")

    def __init__(self) -> None:
        self.appends: list[Append[PartitionT]] = []
        """The batches of this request."""
        self.waiting = 0
        """The number of `appends` that are neither committed nor refused."""
        self.freed = False
        self.deadline = 0.0

    @abstractmethod
    def refuse(self, append: Append[PartitionT], code: ErrorCode) -> None:
        """The batch was not kept, or this node cannot know whether it will be committed."""

    @abstractmethod
    def release(self) -> None:
        """Called once, when the ticket is freed: sends the response."""

    def append_done(self) -> None:
        """One batch of this request is committed or refused."""
        assert self.waiting > 0, self
        self.waiting -= 1
        if not self.waiting and not self.freed:
            self.free()

    def free(self) -> None:
        assert not self.freed
        self.freed = True
        self.release()


class FetchWaiter:
    """One parked fetch: freed by enough bytes, by its deadline, or by the next request of its
    connection.
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
        """Called once: plans the fetch again and sends the response."""
        self.leaves_later = leaves_later
        """Whether the owner calls `leave` or `leaving` after `release`: one append may free
        many fetches of 10,000 partitions each.
        """
        self.read_committed = read_committed
        """Whether only bytes below the last stable offset count."""
        self.bytes_wanted = bytes_wanted
        self.deadline = deadline
        self.partitions: list[HoldsFetches] = []
        self.freed = False

    def park(self, partitions: Iterable[HoldsFetches]) -> None:
        """Also wait for these partitions."""
        for partition in partitions:
            self.partitions.append(partition)
            partition.fetches[self] = None

    def leave(self) -> None:
        """Stop waiting for any partition."""
        for _ in self.leaving():
            pass

    def leaving(self) -> Generator[int, None, None]:
        """`leave` in slices: yields the number of rows that cost as much work as the slice."""
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
    """A partition, as a fetch waiter uses it."""

    fetches: dict[FetchWaiter, None]


class Waits(Protocol):
    """A parked request, as `Deadlines` uses it."""

    deadline: float
    freed: bool
    """Whether it no longer needs a deadline."""


WaiterT = TypeVar("WaiterT", bound=Waits)


class Deadlines(Generic[WaiterT]):
    """Parked requests by deadline.

    A freed request stays in the heap until its deadline, or until half of the heap is freed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, WaiterT]] = []
        """(deadline, sequence number, request): the sequence number breaks ties."""
        self._sequence = 0
        self._sweep_at = 256
        """The size of the heap at which freed requests are removed."""

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
        """Remove and return the requests that still wait and whose deadline has come."""
        late: list[WaiterT] = []
        while self._heap and self._heap[0][0] <= now:
            waiter = heapq.heappop(self._heap)[2]
            if not waiter.freed:
                late.append(waiter)
        return late
