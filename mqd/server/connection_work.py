"""The work of a task for one connection, which ends with the connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from mqd.server.connection_owner import Cancellable


class WithWork(Protocol):
    """What this file needs of a connection (server/connection.py)."""

    open: bool
    peer_closed: bool
    work: Cancellable | None
    work_needs_peer: bool

    def close(self) -> None: ...


@contextmanager
def until_closed(connection: WithWork, *, needs_peer: bool = False) -> Iterator[None]:
    """Work that ends when the connection closes, since no one reads the response. `needs_peer`: it
    ends also when the peer sends no more; then the connection closes.
    """
    with trio.CancelScope() as scope:
        connection.work, connection.work_needs_peer = scope, needs_peer
        if connection.peer_closed and needs_peer:
            connection.close()
        if not connection.open:
            scope.cancel()
        yield
    connection.work = None
