"""Fetches that wait for available records of share partitions.

Records that become available wake one fetch. When it has acquired some of them, or ends without an
attempt, it wakes the next fetch if there are more. So one record does not wake a thousand fetches
for one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from mqd.replica.partition import Partition
from mqd.replica.waiters import FetchWaiter


class Waiter:
    """One fetch: attempts to acquire records, and waits after each attempt in vain."""

    def __init__(self) -> None:
        self.is_woken = False
        """Records may have become available since the last attempt began."""
        self._is_in_vain = False
        """The last attempt has acquired nothing."""
        self._places: Sequence[Waiters] = ()
        self._event: trio.Event | None = None

    def begin_attempt(self, places: Sequence[Waiters]) -> None:
        """From now on, what becomes available in these share partitions ends the next wait."""
        self._unpark()
        self.is_woken = self._is_in_vain = False
        self._places = places
        for one in places:
            one.add(self)

    async def wait(self, seconds: float) -> None:
        """The attempt was in vain: return when records may be available, or after so long."""
        self._is_in_vain = True
        if not self.is_woken:
            self._event = trio.Event()
            with trio.move_on_after(max(0.0, seconds)):
                await self._event.wait()

    def wake(self) -> None:
        self.is_woken = True
        if self._event is not None:
            self._event.set()

    def leave(self) -> None:
        """The fetch ends. Others may get the records for which it was woken, or that it left."""
        self._unpark()
        if self.is_woken or not self._is_in_vain:
            for one in self._places:
                one.wake_one()

    def _unpark(self) -> None:
        for one in self._places:
            one.remove(self)


class Waiters:
    """The fetches that wait for records of one share partition."""

    def __init__(self, partition: Partition, has_records: Callable[[], bool]) -> None:
        """`has_records()`: whether a fetch may acquire records now, or gets an error."""
        self._partition = partition
        self._has_records = has_records
        self._waiters: dict[Waiter, None] = {}
        """Without those that were woken."""
        self._watch: FetchWaiter | None = None
        """Notices new records in the log."""

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None
        self._watch_log()

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def wake_one(self) -> None:
        """Records may have become available."""
        while self._waiters and self._has_records():
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.is_woken:
                waiter.wake()
                return

    def wake_all(self) -> None:
        while self._waiters:
            self._waiters.popitem()[0].wake()

    def _log_has_grown(self) -> None:
        """Or this node no longer leads the partition."""
        self._watch = None
        self.wake_one()
        if self._waiters:
            self._watch_log()

    def _watch_log(self) -> None:
        if self._watch is None:
            self._watch = FetchWaiter(self._log_has_grown, 1, math.inf)
            self._watch.park([self._partition])
