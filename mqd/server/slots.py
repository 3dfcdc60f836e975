"""Places in a connection's queue of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqd.io.disk import FileRange

if TYPE_CHECKING:
    from mqd.server.connection import Connection

Part = bytes | bytearray | memoryview | FileRange


class QueuedResponse(Protocol):
    """A place in a connection's queue of responses. Code that sets `parts` calls
    `Connection.answered`.
    """

    parts: list[Part] | None


class Slot:
    """A queued response that is completed once, in the same turn or later."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[Part] | None = None

    def complete(self, parts: list[Part]) -> None:
        """`parts`: the response with its length and header. Empty if none is sent (acks=0)."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        self.connection.answered()
