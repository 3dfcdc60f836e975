"""Connections that are muted until a time, because their clients used more than their quotas."""

from __future__ import annotations

import heapq
import math
from itertools import count

import trio

from mqd.io.clock import Clock
from mqd.server.connection import Connection


class MutedConnections:
    """Ends the mute of each connection at its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_time: list[tuple[float, int, Connection]] = []
        """A heap of times, with numbers so that connections are never compared."""
        self._numbers = count()
        self._added = trio.Event()

    def __len__(self) -> int:
        return len(self._by_time)

    def add(self, connection: Connection) -> None:
        entry = (connection.muted_until, next(self._numbers), connection)
        heapq.heappush(self._by_time, entry)
        self._added.set()

    def discard_closed(self) -> None:
        self._by_time = [entry for entry in self._by_time if entry[2].open]
        heapq.heapify(self._by_time)

    async def run(self) -> None:
        """End mutes until cancelled."""
        while True:
            now = self._clock.monotonic()
            while self._by_time and self._by_time[0][0] <= now:
                _, _, connection = heapq.heappop(self._by_time)
                if connection.muted_until > now:  # it was muted again meanwhile
                    self.add(connection)
                else:
                    connection.unmute()
            self._added = trio.Event()
            seconds = self._by_time[0][0] - now if self._by_time else math.inf
            with trio.move_on_after(seconds):
                await self._added.wait()
