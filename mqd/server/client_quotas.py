"""Client quotas on one node: counts what clients use, and mutes connections that use too much.

A client beyond its quota gets its response at once, with the throttle time. For that time, the node
does not read its connection (KIP-219). A fetch beyond its quota returns no records. The quotas come
from the metadata (AlterClientQuotas), `mqd/security/quotas.py` computes the times.

Each node counts for itself, as in Apache Kafka; the controller counts changes of the metadata for
all nodes (mutation_quotas.py). Nodes of the cluster have no quotas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, Protocol

from mqd.config import NodeConfig
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.io.clock import Clock
from mqd.security.principal import Principal
from mqd.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    QuotaTable,
    Window,
)

logger = logging.getLogger(__name__)

_PERCENT: Final = 100.0
_UNBOUNDED: Final = 2**31 - 1
_RESTORED_AT_ONCE: Final = 500
"""Quotas of one step of `NodeQuotas.restored`: two milliseconds."""


class Turn(Protocol):
    """The server, as a throttled connection sees it."""

    now: float
    """Monotonic seconds at which this turn began."""


class Throttled(Protocol):
    """A connection (server/connection.py)."""

    principal: Principal
    client_id: bytes | bytearray
    peer: str
    peer_node: int | None
    """None: a client. Nodes have no quotas."""

    @property
    def owner(self) -> Turn: ...

    def mute(self, seconds: float) -> None: ...


class NodeQuotas:
    """See the head of this file. The hot paths first check whether `keys` has the key."""

    def __init__(self, config: NodeConfig) -> None:
        self._window = Window(
            config.integer("quota.window.num"),
            1000.0 * config.integer("quota.window.size.seconds"),
        )
        self._quotas = ClientQuotas(
            self._window,
            Window(
                config.integer("controller.quota.window.num"),
                1000.0 * config.integer("controller.quota.window.size.seconds"),
            ),
        )
        self.keys: frozenset[str] = frozenset()
        """The keys of quotas that exist. A node without quotas counts nothing."""
        self.throttled = 0
        """Responses that throttled a client."""

    def changed(self, delta: Delta, image: MetadataImage) -> None:
        """Apply a change of the metadata."""
        for entity in delta.client_quotas_changed:
            self._quotas.table.change(entity, image.client_quotas.get(entity))
        self.keys = self._quotas.table.keys

    def restored(self, _: Delta, image: MetadataImage) -> Generator[None, None, Callable[[], None]]:
        """`changed` for a snapshot, which may have 100,000 quotas: half a second."""
        table = QuotaTable()
        for number, (entity, limits) in enumerate(image.client_quotas.items()):
            table.change(entity, limits)
            if number % _RESTORED_AT_ONCE == _RESTORED_AT_ONCE - 1:
                yield
        return partial(self._replace, table)

    def _replace(self, table: QuotaTable) -> None:
        self._quotas.table = table
        self.keys = table.keys

    def throttle_for_produce(self, connection: Throttled, size: int) -> int:
        """Count a produce request of `size` bytes. Returns the throttle time of its response in
        milliseconds; the connection is muted for that time.
        """
        throttle_ms = 0
        if PRODUCER_BYTE_RATE in self.keys:
            throttle_ms = self._record(PRODUCER_BYTE_RATE, connection, size)
        return self._mute(connection, max(throttle_ms, self.throttle_for_request(connection)))

    def fetch_bytes_max(self, connection: Throttled) -> int:
        """How many bytes a fetch of this client may return: as many as its quota allows in a whole
        window. Otherwise a large response would never be within the quota.
        """
        table = self._quotas.table
        name = connection.principal.name
        quota = table.quota_of(CONSUMER_BYTE_RATE, name, connection.client_id.decode())
        if quota is None:
            return _UNBOUNDED
        window = self._window
        return round(quota.limit * (window.samples - 1) * window.sample_ms / 1000)

    def throttle_for_fetch(self, connection: Throttled, size: int) -> int:
        """Count a fetch response with `size` bytes of records. Returns the throttle time, as
        `throttle_for_produce`. If it is not 0, the caller sends no records, and the bytes do not
        count.
        """
        throttle_ms = 0
        if CONSUMER_BYTE_RATE in self.keys:
            throttle_ms = self._record(CONSUMER_BYTE_RATE, connection, size)
        throttle_ms = max(throttle_ms, self.throttle_for_request(connection))
        if throttle_ms and CONSUMER_BYTE_RATE in self.keys:
            self._quotas.unrecord(
                CONSUMER_BYTE_RATE,
                connection.principal,
                connection.client_id.decode(),
                size,
                _milliseconds(connection),
            )
        return self._mute(connection, throttle_ms)

    def consumed(self, connection: Throttled, size: int) -> int:
        """Count `size` bytes of records that a request other than Fetch returns. Returns the
        throttle time, and mutes the connection.
        """
        if CONSUMER_BYTE_RATE not in self.keys or connection.peer_node is not None:
            return 0
        return self._mute(connection, self._record(CONSUMER_BYTE_RATE, connection, size))

    def throttle_for_request(self, connection: Throttled) -> int:
        """The throttle time for the processor time that the client has used, in milliseconds."""
        if REQUEST_PERCENTAGE not in self.keys or connection.peer_node is not None:
            return 0
        return self._record(REQUEST_PERCENTAGE, connection, 0.0)

    def throttle_for_other_request(self, connection: Throttled) -> int:
        """As `throttle_for_request`, for all but Produce and Fetch. Mutes the connection."""
        return self._mute(connection, self.throttle_for_request(connection))

    def used(self, connection: Throttled, seconds: float) -> None:
        """Count processor time. The next response may be throttled."""
        if connection.peer_node is None:
            self._record(REQUEST_PERCENTAGE, connection, seconds * _PERCENT)

    def mutate(self, connection: Throttled, mutations: int, *, strict: bool) -> tuple[bool, int]:
        """Count changes of the metadata: as `ClientQuotas.mutate`. Mutes the connection."""
        if CONTROLLER_MUTATION_RATE not in self.keys or connection.peer_node is not None:
            return True, 0
        is_allowed, throttle_ms = self._quotas.mutate(
            connection.principal,
            connection.client_id.decode(),
            mutations,
            _milliseconds(connection),
            strict=strict,
        )
        return is_allowed, self._mute(connection, throttle_ms)

    def mutate_for(
        self, principal: Principal, client_id: str, mutations: int, now: float, *, strict: bool
    ) -> tuple[bool, int]:
        """The same on the controller for a client of another node, which mutes its connection.
        `now`: monotonic seconds.
        """
        return self._quotas.mutate(principal, client_id, mutations, now * 1000, strict=strict)

    def throttle(self, connection: Throttled, throttle_ms: int) -> int:
        """Mute the connection for a time that the controller has decided, and return that."""
        return self._mute(connection, throttle_ms)

    def admits(self, address: str, clock: Clock) -> bool:
        """Whether the quota of this address allows one more new connection now."""
        return CONNECTION_CREATION_RATE not in self.keys or self._quotas.connect(
            address, clock.monotonic() * 1000
        )

    def _record(self, key: str, connection: Throttled, amount: float) -> int:
        return self._quotas.record(
            key,
            connection.principal,
            connection.client_id.decode(),
            amount,
            _milliseconds(connection),
        )

    def _mute(self, connection: Throttled, throttle_ms: int) -> int:
        if throttle_ms:
            self.throttled += 1
            logger.debug(
                "throttling a client principal=%s client_id=%s peer=%s milliseconds=%d",
                connection.principal,
                connection.client_id.decode(),
                connection.peer,
                throttle_ms,
            )
            connection.mute(throttle_ms / 1000)
        return throttle_ms


def _milliseconds(connection: Throttled) -> float:
    return connection.owner.now * 1000
