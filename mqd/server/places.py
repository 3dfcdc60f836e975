"""Bounds how many requests run in tasks at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mqd.limits import LARGE_REQUESTS_AT_ONCE, READ_AT_ONCE
from mqd.server.connection import Connection
from mqd.server.connection_work import until_closed
from mqd.server.served_apis import DESCRIBING, GIVING_WAY, LISTING, READING, Handler
from mqd.server.slices import between_slices

LOOKUPS_SECONDS_MAX = 0.25
"""How long a request that looks up times holds its place while others wait."""


class Place:
    """One of the places of a semaphore, while a task has it."""

    def __init__(self, places: trio.Semaphore) -> None:
        self._places = places
        self._taken_at: float | None = None

    async def take(self) -> None:
        await self._places.acquire()
        self._taken_at = trio.current_time()

    def leave(self) -> None:
        if self._taken_at is not None:
            self._taken_at = None
            self._places.release()

    async def give_way(self) -> None:
        """Wait behind the others, if the task has had the place for LOOKUPS_SECONDS_MAX."""
        if (
            self._taken_at is not None
            and trio.current_time() - self._taken_at >= LOOKUPS_SECONDS_MAX
            and self._places.statistics().tasks_waiting
        ):
            self.leave()
            await self.take()


class Places:
    """Limits the number of requests of one listener that run in tasks at once: the rows of each
    take megabytes.

    Lookups by time and by key have places of their own, and give way to each other. One request
    may read and decompress a batch in each of thousands of partitions, or read 64 MiB. So no other
    request waits behind them.
    """

    def __init__(self) -> None:
        self._semaphores = {
            apis: trio.Semaphore(READ_AT_ONCE) for apis in (*READING, LISTING, DESCRIBING)
        }
        self._many_rows = trio.Semaphore(READ_AT_ONCE)
        self._large = trio.Semaphore(LARGE_REQUESTS_AT_ONCE)

    @asynccontextmanager
    async def taken(
        self, connection: Connection, handler: Handler, *, large: bool, many_rows: bool = False
    ) -> AsyncIterator[Callable[[], None]]:
        """Wait until a request may be carried out, or its connection has closed. `large`: its rows
        are decoded in slices. `many_rows`: it is short, but its response may have many rows.

        Gives a function that leaves the place early.
        """
        semaphore = self._of(handler, large=large, many_rows=many_rows)
        if semaphore is None:
            yield _nothing_to_leave
            return
        place = Place(semaphore)
        with until_closed(connection, needs_peer=True):
            await place.take()
        token = between_slices.set(place.give_way if handler.name in GIVING_WAY else None)
        try:
            yield place.leave
        finally:
            between_slices.reset(token)
            place.leave()

    def _of(self, handler: Handler, *, large: bool, many_rows: bool) -> trio.Semaphore | None:
        """Where this request takes its turn; None: it need not."""
        for apis, semaphore in self._semaphores.items():
            if handler.name in apis:
                return semaphore
        if many_rows:
            return self._many_rows
        return self._large if large else None


def _nothing_to_leave() -> None:
    pass
