"""The server and its dispatcher, as a connection sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqd.io.net import Poller
from mqd.server.memory import Answers, FramePool
from mqd.server.receive_buffers import Arena, Buffer

if TYPE_CHECKING:
    from mqd.server.connection import Connection


class Freeable(Protocol):
    """A parked request that can be woken (replica/waiters.py)."""

    def free(self) -> None: ...


class Cancellable(Protocol):
    """The scope of a task's work."""

    def cancel(self) -> None: ...


class Dispatcher(Protocol):
    """Handles frames and makes the responses (server/dispatch.py)."""

    def dispatch(
        self, connection: Connection, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        """Take up the request in buffer[start:end]. False if it must wait for an earlier response.

        Raises ProtocolError where the connection must be closed.
        """
        ...

    def bug(self, connection: Connection, api: str) -> None:
        """Log the exception that is being handled, and close the connection."""
        ...


class Owner(Protocol):
    """The server, as a connection sees it (server/service.py)."""

    arena: Arena
    request_bytes_max: int
    now: float
    """Monotonic seconds at which this turn began."""
    now_ms: int
    """The same moment in milliseconds since the Unix epoch."""
    turns: int
    """Turns that have ended."""

    @property
    def poller(self) -> Poller: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    def dirty(self, connection: Connection) -> None:
        """This connection has responses to send when the turn ends."""
        ...

    def pool(self, listener: str) -> FramePool:
        """Memory of the unfinished frames of one listener."""
        ...

    def answers(self, listener: str) -> Answers:
        """Memory of the unsent responses of one listener."""
        ...

    def memory_wanted(self, connection: Connection, size: int, frame_bytes: int) -> None:
        """`connection` is not read until its pool has room for `size` more bytes, for a frame of
        `frame_bytes`.
        """
        ...

    @property
    def slice_is_over(self) -> bool:
        """Whether the connection that is served now has had its share of this turn."""
        ...

    def resume_later(self, connection: Connection) -> None:
        """Call `resume` after other connections had a turn."""
        ...

    def introduced(self, connection: Connection) -> None:
        """It is a node of the cluster from now on. Raises ProtocolError where it has no room."""
        ...

    def closed(self, connection: Connection) -> None: ...
