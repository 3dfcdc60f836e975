"""Limits of one listener for clients, beside those of the node (KIP-402, KIP-612):
`listener.name.NAME.max.connections` and `listener.name.NAME.max.connection.creation.rate`.

As in Apache Kafka, a listener at its limit accepts no connection until one of its own closes. The
others wait in the backlog of the socket, and other listeners go on.
"""

from __future__ import annotations

import logging
import math

import trio

from mqd.config import NodeConfig
from mqd.io.clock import Clock
from mqd.options import INT_MAX
from mqd.security.quotas import TokenBucket, Window

logger = logging.getLogger(__name__)

_RATE_WINDOW = Window(1, 1000.0)
"""A second of `max.connection.creation.rate` may come at once."""
_WARNING_SECONDS = 30.0


class CreationRate:
    """How fast new connections are accepted: `max.connection.creation.rate` of a node or of a
    listener.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        """`limit`: connections per second."""
        self._limit = limit
        self._clock = clock
        self._tokens = TokenBucket(limit, _RATE_WINDOW, clock.monotonic() * 1000)

    def record(self) -> int:
        """Count a new connection. Returns for how many milliseconds it must wait."""
        if self._limit == INT_MAX:
            return 0
        self._tokens.refill(self._limit, _RATE_WINDOW, self._clock.monotonic() * 1000)
        self._tokens.take(1)
        return self._tokens.throttle_ms(self._limit)


class ListenerLimits:
    """The limits of one listener, and its open connections. Only the task that accepts the
    connections of the listener calls `wait_for_place`.
    """

    def __init__(self, config: NodeConfig, name: str, clock: Clock) -> None:
        rate = config.integer_of_listener(name, "max.connection.creation.rate")
        connections_max = config.integer_of_listener(name, "max.connections")
        self.creation_rate = None if rate is None else CreationRate(rate, clock)
        self._name = name
        self._clock = clock
        self._connections_max = math.inf if connections_max is None else connections_max
        self._open = 0
        self._closed = trio.Event()
        self._warned_at = -math.inf

    def add(self) -> None:
        """A connection is accepted."""
        self._open += 1

    def discard(self) -> None:
        """A connection is closed."""
        assert self._open > 0
        self._open -= 1
        self._closed.set()

    async def wait_for_place(self) -> None:
        """Wait until fewer connections than `max.connections` are open. Cancel-safe."""
        while self._open >= self._connections_max:
            self._warn()
            self._closed = trio.Event()
            await self._closed.wait()

    def _warn(self) -> None:
        now = self._clock.monotonic()
        if now - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = now
            logger.warning(
                "a listener has its maximum of connections, new ones wait listener=%s "
                "connections=%d remedy='close connections, or raise listener.name.%s."
                "max.connections'",
                self._name,
                self._open,
                self._name.lower(),
            )
