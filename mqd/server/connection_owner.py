"""What a connection needs of the server, and of the requests that it has in flight.

The protocols are generic in the connection: its class imports them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from mqd.io.net import Poller
from mqd.server.memory import RequestPool, ResponsePool
from mqd.server.receive_buffers import Arena, Buffer
from mqd.server.send_queue import Part

ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)


class QueuedResponse(Protocol):
    """The place of a request in the queue of responses. Code that sets `parts` calls
    `Connection.response_ready`.
    """

    parts: list[Part] | None
    """The response with its length and header. None until it is complete; empty if none is sent
    (acks=0).
    """


class Freeable(Protocol):
    """A parked request that can be woken (replica/waiters.py)."""

    def free(self) -> None: ...


class Cancellable(Protocol):
    """The scope of a task's work."""

    def cancel(self) -> None: ...


class Dispatcher(Protocol[ConnectionT_contra]):
    """Handles frames and makes the responses (server/dispatch.py)."""

    def dispatch(
        self, connection: ConnectionT_contra, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        """Handle the request in buffer[start:end]. Returns False if it must wait for an earlier
        response.

        Raises ProtocolError where the connection must be closed.
        """
        ...

    def bug(self, connection: ConnectionT_contra, api: str) -> None:
        """Log the exception that is being handled, and close the connection."""
        ...


class Memory(Protocol[ConnectionT_contra]):
    """The memory of all connections (server/connection_memory.py)."""

    def request_pool(self, listener: str) -> RequestPool: ...

    def response_pool(self, listener: str) -> ResponsePool: ...

    def want(self, connection: ConnectionT_contra, size: int, frame_bytes: int, now: float) -> None:
        """Call `read_again` once the pool has room for `size` more bytes of a frame of
        `frame_bytes`.
        """
        ...

    async def response_room(self, connection: ConnectionT_contra) -> None:
        """Wait until the unsent responses of all connections are within their memory. Close
        connections, perhaps this one, if they stay beyond it.
        """
        ...


class Owner(Protocol[ConnectionT_contra]):
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
    def dispatcher(self) -> Dispatcher[ConnectionT_contra]: ...

    @property
    def memory(self) -> Memory[ConnectionT_contra]: ...

    def dirty(self, connection: ConnectionT_contra) -> None:
        """This connection has responses to send when the turn ends."""
        ...

    @property
    def slice_is_over(self) -> bool:
        """Whether the connection that is served now has used up its share of this turn."""
        ...

    def resume_later(self, connection: ConnectionT_contra) -> None:
        """Call `resume` after other connections had a turn."""
        ...

    def unmute_later(self, connection: ConnectionT_contra) -> None:
        """Call `unmute` when the time `muted_until` of the connection has come."""
        ...

    def authenticated(self, connection: ConnectionT_contra) -> None:
        """Count it as a node of the cluster. Raises ProtocolError if there are too many of them."""
        ...

    def closed(self, connection: ConnectionT_contra) -> None: ...
