"""Which new connections a node accepts. There are bounds on all clients, on one address, on nodes
of the cluster, and on connections that have not completed the handshake. Limits of one listener are
in listener_limits.py.
"""

from __future__ import annotations

import logging
import math
from collections import Counter

import trio

from mqd.config import NodeConfig, connections_per_address
from mqd.errors import ProtocolError
from mqd.io.clock import Clock
from mqd.io.net import Socket
from mqd.limits import HANDSHAKE_SECONDS_MIN, PEER_CONNECTIONS_MAX
from mqd.peers import Peers, is_loopback
from mqd.security.authorizer import canonical_host
from mqd.security.client_listeners import ClientListener
from mqd.server.addresses import Addresses
from mqd.server.client_quotas import NodeQuotas
from mqd.server.connection import Connection
from mqd.server.context import CLIENT, PEER
from mqd.server.listener_limits import CreationRate, ListenerLimits
from mqd.server.unauthenticated import Full, UnauthenticatedConnections
from mqd.types import NodeId

logger = logging.getLogger(__name__)

_FLOOD_WARNING_SECONDS = 30.0


class ConnectionQuotas:
    """Counts the open connections, and closes one for a new one where a limit is reached."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        peers: Peers,
        node_id: NodeId,
        quotas: NodeQuotas,
    ) -> None:
        self._clock = clock
        self._quotas = quotas
        self._config = config
        self._creation_rate = CreationRate(config.integer("max.connection.creation.rate"), clock)
        self._listeners: dict[str, ListenerLimits] = {}
        """The limits of each listener for clients, by its name."""
        self._connections_max = config.integer("max.connections")
        self._connections_per_address_max = config.integer("max.connections.per.ip")
        self._max_of_address = {
            canonical_host(address): count
            for address, count in connections_per_address(config).items()
        }
        """`max.connections.per.ip.overrides`."""
        self._by_listener: Counter[str] = Counter()
        self._clients: Addresses[Connection] = Addresses()
        other_hosts = (peer.host for peer in peers.nodes.values() if peer.id != node_id)
        self.unauthenticated: UnauthenticatedConnections[Connection] = UnauthenticatedConnections(
            other_hosts
        )
        self._flood_warned_at = -math.inf
        self.refused = 0
        self.evicted = 0

    async def admits(self, sock: Socket, listener: ClientListener | None) -> bool:
        """Whether the limits allow this connection. If not, it is closed. Waits while a limit
        delays it. `listener`: None for the peer listener.
        """
        try:
            if listener is None:
                refusal = await self._peer_refusal(sock)
            else:
                limits = self._limits_of(listener)
                await self._wait_for_creation_rate(limits)
                await limits.wait_for_place()
                refusal = self._client_refusal(sock)
        except BaseException:
            sock.close()
            raise
        if refusal is None:
            return True
        self.refused += 1
        logger.warning("refusing a connection peer=%s reason=%s", sock.peer, refusal)
        sock.close()
        return False

    def add(self, connection: Connection) -> None:
        self._by_listener[connection.listener] += 1
        if connection.listener == PEER:
            self.unauthenticated.add(connection, _address(connection.sock))
        else:
            self._clients.add(connection, _address(connection.sock))
            self._limits_of(connection.client_listener).add()

    def authenticated(self, connection: Connection) -> None:
        """The connection is one of a node from now on.

        Raises ProtocolError where there are too many connections of nodes.
        """
        if self._by_listener[PEER] - len(self.unauthenticated) >= PEER_CONNECTIONS_MAX:
            raise ProtocolError(f"{PEER_CONNECTIONS_MAX} connections of other nodes are open")
        self.unauthenticated.authenticated(connection, _address(connection.sock))

    def discard(self, connection: Connection) -> None:
        """The connection is closed."""
        self.unauthenticated.discard(connection)
        self._by_listener[connection.listener] -= 1
        if connection.listener == CLIENT:
            self._clients.discard(_address(connection.sock))
            self._limits_of(connection.client_listener).discard()

    def _limits_of(self, listener: ClientListener | None) -> ListenerLimits:
        assert listener is not None, "a listener for clients"
        limits = self._listeners.get(listener.name)
        if limits is None:
            limits = ListenerLimits(self._config, listener.name, self._clock)
            self._listeners[listener.name] = limits
        return limits

    async def _wait_for_creation_rate(self, limits: ListenerLimits) -> None:
        """Wait until `max.connection.creation.rate` of the node and of the listener allow one more
        client (KIP-612).
        """
        throttle_ms = self._creation_rate.record()
        if limits.creation_rate is not None:
            throttle_ms = max(throttle_ms, limits.creation_rate.record())
        if throttle_ms:
            await trio.sleep(throttle_ms / 1000)

    async def _peer_refusal(self, sock: Socket) -> str | None:
        """Why the peer listener has no place for this connection. The oldest connection of its pool
        makes room where it can.
        """
        address = _address(sock)
        while True:
            try:
                oldest = self.unauthenticated.oldest_if_full(address)
            except Full as full:
                return str(full)
            if oldest is None:
                return None
            now = self._clock.monotonic()
            if self.unauthenticated.may_be_closed(oldest, now):
                self.refused += 1
                self._warn_of_unauthenticated(now, oldest)
                oldest.close()
            elif self.unauthenticated.is_known(address):
                await trio.sleep(HANDSHAKE_SECONDS_MIN / 10)
            else:
                return "too many connections have not completed the handshake"

    def _warn_of_unauthenticated(self, now: float, oldest: Connection) -> None:
        if now - self._flood_warned_at >= _FLOOD_WARNING_SECONDS:
            self._flood_warned_at = now
            logger.warning(
                "too many unauthenticated connections, closing the oldest peer=%s count=%d "
                "remedy='allow only the nodes of the cluster to reach this port'",
                oldest.peer,
                len(self.unauthenticated),
            )

    def _client_refusal(self, sock: Socket) -> str | None:
        """Why there is no place for this client. The address with the most connections makes room
        where it can.
        """
        address = _address(sock)
        if not self._quotas.admits(address, self._clock):
            return "the quota connection_creation_rate of this address is exceeded"
        of_address = self._clients[address]
        override = self._max_of_address.get(canonical_host(address))
        if override is not None and of_address >= override:
            return "max.connections.per.ip.overrides allows no more from this address"
        if (
            override is None
            and of_address >= self._connections_per_address_max
            and not is_loopback(address)
        ):
            return "max.connections.per.ip allows no more from this address"
        count = self._by_listener[CLIENT]
        if count < self._connections_max:
            return None
        idle = self._clients.to_evict_for(address)
        if idle is None:
            return f"{count} connections are open and max.connections allows no more"
        self.evicted += 1
        logger.warning(
            "closing a connection peer=%s reason='max.connections is reached, its address has "
            "the most connections, and this one is idle the longest' of_address=%d replaced_by=%s",
            idle.peer,
            self._clients[_address(idle.sock)],
            sock.peer,
        )
        idle.close()
        return None


def _address(sock: Socket) -> str:
    return sock.peer.rpartition(":")[0]
