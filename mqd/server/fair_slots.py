"""Slots for the requests of clients that the controller decides. Where connections compete, the one
that has used the least time lately goes first.

So a client that sends one request waits for the requests that are in progress, and not for all of
those that fifty others repeat. (With start-time fair queuing, as in the turns of the server, it
would wait for one request of each: these take 50 ms, and the slices of a turn 2 ms.)
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from math import inf, log2
from typing import Final

import trio

_HALF_LIFE_SECONDS: Final = 10.0
"""After so long, the time that a connection has used counts half."""
_FORGOTTEN_HALF_LIVES: Final = 20.0
_KEYS_KEPT: Final = 64


class FairSlots:
    """A semaphore whose waiters are ordered by the time that their keys have used."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._used: dict[str, float] = {}
        """By key: the binary logarithm of the used time, each second of it multiplied by two to the
        power of its half-lives since the start. The order of two keys does not change with time.
        """
        self._waiting: list[tuple[float, int, trio.Event]] = []
        """A heap of (used time, order of arrival, its turn)."""
        self._arrivals = count()
        self._sweep_at = _KEYS_KEPT

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it until the end of the block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(self._used.get(key, -inf))
        began = trio.current_time()
        try:
            yield
        finally:
            self._count(key, trio.current_time() - began)
            self._leave()

    async def _wait(self, used: float) -> None:
        turn = trio.Event()
        entry = (used, next(self._arrivals), turn)
        heapq.heappush(self._waiting, entry)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():
                self._leave()
            else:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise

    def _leave(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._free += 1

    def _count(self, key: str, seconds: float) -> None:
        half_lives = trio.current_time() / _HALF_LIFE_SECONDS
        before = 2.0 ** (self._used.get(key, -inf) - half_lives)
        if before + seconds > 0:
            self._used[key] = half_lives + log2(before + seconds)
        if len(self._used) > self._sweep_at:
            oldest = half_lives - _FORGOTTEN_HALF_LIVES
            self._used = {one: used for one, used in self._used.items() if used > oldest}
            self._sweep_at = max(_KEYS_KEPT, 2 * len(self._used))
