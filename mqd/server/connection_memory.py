"""The memory of all connections of a node: which connections wait for memory, and which are closed
to free it.

Clients and nodes of the cluster have pools of their own (memory.py). A connection that needs more
for a request is not read until there is room. If no memory becomes free, the node closes another
connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from mqd.config import NodeConfig
from mqd.io.clock import Clock
from mqd.limits import PEER_REQUESTS_BYTES_MAX, PEER_RESPONSES_BYTES_MAX
from mqd.server.connection import Connection
from mqd.server.context import CLIENT, PEER
from mqd.server.memory import (
    EVICT_SECONDS,
    RequestPool,
    ResponsePool,
    Shares,
)

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.02


class ConnectionMemory:
    """The pools of both listeners, and the evictions."""

    def __init__(
        self, config: NodeConfig, clock: Clock, connections: Iterable[Connection], budget_bytes: int
    ) -> None:
        """`connections`: the open ones, at any time. `budget_bytes`: of all clients together."""
        self._clock = clock
        self._connections = connections
        shares = Shares.of(budget_bytes)
        self.request_pools = {
            CLIENT: RequestPool(shares.requests),
            PEER: RequestPool(PEER_REQUESTS_BYTES_MAX),
        }
        self.response_pools = {
            CLIENT: ResponsePool(shares.responses),
            PEER: ResponsePool(PEER_RESPONSES_BYTES_MAX),
        }
        self._wanted = trio.Event()
        self._stall_seconds = config.integer("connections.max.write.stall.ms") / 1000
        self.evicted = 0
        self.stalled = 0
        """Evicted connections that took no byte for `_stall_seconds`."""
        self.waits = 0

    def request_pool(self, listener: str) -> RequestPool:
        return self.request_pools[listener]

    def response_pool(self, listener: str) -> ResponsePool:
        return self.response_pools[listener]

    @property
    def request_bytes(self) -> int:
        """Memory of the unfinished requests of all connections."""
        return sum(pool.bytes for pool in self.request_pools.values())

    def want(self, connection: Connection, size: int, frame_bytes: int, now: float) -> None:
        """`connection` is not read until its pool has room for `size` more bytes of a frame of
        `frame_bytes`.
        """
        self.waits += 1
        pool = connection.request_pool
        pool.wait(connection, size, frame_bytes, now)
        for other in self._connections:  # each buffer takes milliseconds to free
            if pool.fits(size):
                break
            other.frames.drop_spare()
        self._wanted.set()

    async def share(self) -> None:
        """A task: let connections read again when there is memory for them, and close others where
        there is none.
        """
        while True:
            if not any(pool.is_wanted for pool in self.request_pools.values()):
                await self._wanted.wait()
                self._wanted = trio.Event()
            await trio.sleep(_RETRY_SECONDS)
            now = self._clock.monotonic()
            for listener, pool in self.request_pools.items():
                pool.grant(now)
                victims = pool.to_evict(
                    [one for one in self._connections if one.listener == listener], now
                )
                for victim in victims:
                    assert isinstance(victim, Connection)
                    held, state = victim.held_bytes, "incomplete"
                    if victim.task_bytes > held:
                        held, state = victim.task_bytes, "in-flight"
                    self._evict(
                        victim, f"other connections need the {held} bytes of its {state} request"
                    )
                if victims:
                    pool.grant(now)

    def evict_slow_readers(self, now: float) -> None:
        """Close connections that do not read their responses: stalled ones, and the largest ones
        while the pool is over its limit.
        """
        for connection in list(self._connections):
            queue = connection.send_queue
            if queue.parts and now - queue.sent_at > self._stall_seconds:
                self.stalled += 1
                self._evict(
                    connection, f"it has read no response bytes for {self._stall_seconds:g} s"
                )
        for listener in self.response_pools:
            self._evict_greediest(listener)

    async def response_room(self, connection: Connection) -> None:
        """See connection_owner.py."""
        pool = self.response_pools[connection.listener]
        until = self._clock.monotonic() + EVICT_SECONDS
        while pool.is_over and connection.open:
            if self._clock.monotonic() >= until:
                self._evict_greediest(connection.listener)
            else:
                await trio.sleep(_RETRY_SECONDS)

    def _evict_greediest(self, listener: str) -> None:
        """While unsent responses hold too much: close the connection that holds the most."""
        pool = self.response_pools[listener]
        while pool.is_over:
            greediest = max(
                (one for one in self._connections if one.listener == listener),
                key=lambda one: one.send_queue.held_bytes,
            )
            self._evict(
                greediest,
                f"{greediest.send_queue.held_bytes} bytes of unsent responses exceed the "
                "memory for all connections; request less at once, or raise memory.budget.bytes",
            )

    def _evict(self, connection: Connection, reason: str) -> None:
        self.evicted += 1
        logger.warning(
            "closing a connection peer=%s listener=%s reason=%s",
            connection.peer,
            connection.listener,
            reason,
        )
        connection.close()
