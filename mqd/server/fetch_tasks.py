"""The tasks of large fetches. Later requests of a connection wait while a task has its fetch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mqd.errors import ProtocolError
from mqd.server.bugs import raised_in_core
from mqd.server.connection import Connection
from mqd.server.context import PEER

_TASKS_MAX = 4
"""Large fetches that are planned together, without the parked ones: a garbage collection walks the
rows of all of them.
"""


class FetchTasks:
    """Starts and bounds the tasks of one node; followers do not wait for clients."""

    def __init__(self, spawn: Callable[..., None], bug: Callable[[Connection, str], None]) -> None:
        """`spawn(connection, function, *args)` starts a task for the connection; `bug` is
        Dispatcher.bug.
        """
        self._spawn = spawn
        self._bug = bug
        self._of_clients = trio.Semaphore(_TASKS_MAX)
        self._of_peers = trio.Semaphore(_TASKS_MAX)

    def start(self, connection: Connection, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task. Later requests of the connection wait until `resume`."""
        connection.barrier = True
        self._spawn(connection, self._run, connection, work)

    async def _run(self, connection: Connection, work: Callable[[], Awaitable[None]]) -> None:
        """A task: one part of a large fetch."""
        try:
            async with self._of_peers if connection.listener == PEER else self._of_clients:
                await work()
        except ProtocolError as error:
            connection.refuse(error)
        except Exception as error:
            if raised_in_core(error):
                raise
            self._bug(connection, "fetch")

    @staticmethod
    def resume(connection: Connection) -> None:
        """Later requests of the connection need not wait."""
        connection.barrier = False
        if connection.open:
            connection.owner.resume_later(connection)
