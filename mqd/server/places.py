"""Bounds how many requests run in tasks at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from mqd.limits import LARGE_REQUESTS_AT_ONCE, READ_AT_ONCE
from mqd.server.connection import Connection
from mqd.server.served_apis import DESCRIBING, LISTING, READING, Handler


class Places:
    """How many requests of one listener are carried out in tasks at once: the rows of each
    take megabytes.
    """

    def __init__(self) -> None:
        self._reading = trio.Semaphore(READ_AT_ONCE)
        self._listing = trio.Semaphore(READ_AT_ONCE)
        self._describing = trio.Semaphore(READ_AT_ONCE)
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
        place, is_taken = self._of(handler, large=large, many_rows=many_rows), False

        def leave() -> None:
            nonlocal is_taken
            if is_taken and place is not None:
                is_taken = False
                place.release()

        if place is not None:
            with until_closed(connection):
                await place.acquire()
                is_taken = True
        try:
            yield leave
        finally:
            leave()

    def _of(self, handler: Handler, *, large: bool, many_rows: bool) -> trio.Semaphore | None:
        """Where this request takes its turn; None: it need not."""
        name = handler.name
        if name in READING:
            return self._reading
        if name in LISTING:
            return self._listing
        if name in DESCRIBING:
            return self._describing
        if many_rows:
            return self._many_rows
        return self._large if large else None


@contextmanager
def until_closed(connection: Connection) -> Iterator[None]:
    """Work that ends when the connection closes, since no one reads the response."""
    with trio.CancelScope() as scope:
        connection.work = scope
        if not connection.open:
            scope.cancel()
        yield
    connection.work = None
