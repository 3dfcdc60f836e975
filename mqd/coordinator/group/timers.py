"""Timers of a shard: deadlines by key. They are soft state."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import TypeAlias

TimerKey: TypeAlias = tuple[str, ...]
"""The kind of the timer, which names its part of the shard, then its subject, such as a group and
a member."""


class Timers:
    """Deadlines by key, in monotonic seconds. A later deadline, as after each heartbeat, takes no
    entry in the heap."""

    def __init__(self) -> None:
        self._at: dict[TimerKey, float] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._entry: dict[TimerKey, tuple[float, int]] = {}
        """The valid entry of each key in the heap: never later than its deadline."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._at)

    def set(self, key: TimerKey, at: float) -> None:
        """Set or replace the deadline of the key."""
        self._at[key] = at
        entry = self._entry.get(key)
        if entry is None or at < entry[0]:
            number = next(self._numbers)
            self._entry[key] = at, number
            heappush(self._heap, (at, number, key))

    def put_off(self, seconds: float) -> None:
        """Move all deadlines."""
        for key in self._at:
            self._at[key] += seconds

    def cancel(self, key: TimerKey) -> None:
        """Remove the deadline of the key, if it has one."""
        self._at.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline."""
        heap = self._heap
        while heap:
            at, number, key = heap[0]
            if self._entry.get(key) != (at, number):
                heappop(heap)
                continue
            wanted = self._at.get(key)
            if wanted is None:
                heappop(heap)
                del self._entry[key]
            elif wanted > at:
                number = next(self._numbers)
                self._entry[key] = wanted, number
                heapreplace(heap, (wanted, number, key))
            else:
                return at
        return None

    def take_expired(self, now: float) -> TimerKey | None:
        """Remove the earliest deadline if it is not after `now`, and return its key."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, key = heappop(self._heap)
        del self._entry[key]
        del self._at[key]
        return key
