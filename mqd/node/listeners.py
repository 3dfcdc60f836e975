"""The addresses of a node: one or more for clients, one for peers; and their TLS."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mqd.config import ConfigError, NodeConfig, PeerNode, Source, StartError
from mqd.controller.endpoints import BrokerEndpoint, Endpoints
from mqd.io.net import Listener, Network
from mqd.io.tls import TlsAcceptor, TlsListener
from mqd.io.tls_contexts import server_context
from mqd.peers import Peers
from mqd.security.client_listeners import (
    ClientListener,
    SecurityProtocol,
    client_listeners,
)
from mqd.security.principal import Principal
from mqd.security.principal_mapping import PrincipalMapping
from mqd.security.sasl_options import SaslOptions, sasl_options
from mqd.security.tls_settings import ClientAuth, server_settings

logger = logging.getLogger(__name__)

_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "stop the process that uses it, or change",
    errno.EACCES: "a port below 1024 needs a privilege: set another one for",
}
_NO_ADDRESS = "it must be an address of this machine: see"


@dataclass(slots=True)
class BoundListeners:
    """All listeners of a node while it runs."""

    peer: Listener
    clients: list[tuple[ClientListener, Listener]] = field(default_factory=list)


def listeners_of(config: NodeConfig, me: PeerNode) -> tuple[ClientListener, ...]:
    """As `client_listeners`. Raises StartError."""
    try:
        return client_listeners(config, me)
    except ConfigError as error:
        raise StartError(str(error)) from error


def sasl_options_of(
    config: NodeConfig, listeners: tuple[ClientListener, ...]
) -> dict[str, SaslOptions]:
    """SASL of each listener that demands it, by its name. Raises StartError."""
    try:
        return {
            listener.name: sasl_options(config, listener.name)
            for listener in listeners
            if listener.protocol.has_sasl
        }
    except ConfigError as error:
        raise StartError(str(error)) from error


@asynccontextmanager
async def listeners(
    network: Network,
    me: PeerNode,
    peers: Peers,
    config: NodeConfig,
    client_listeners: tuple[ClientListener, ...],
) -> AsyncIterator[BoundListeners]:
    """Listen on all addresses. Raises StartError if one cannot be used."""
    acceptors = [client_acceptor(config, one) for one in client_listeners]
    opened: list[Listener] = []

    async def bind(host: str, port: int, kind: str, where: str) -> Listener:
        try:
            listener = await network.listen(host, port)
        except OSError as error:
            raise StartError(
                f"cannot listen on {host}:{port} for {kind} "
                f"({error.strerror or error}); "
                f"{_LISTEN_REMEDIES.get(error.errno or 0, _NO_ADDRESS)} {where}"
            ) from error
        opened.append(listener)
        return listener

    node = f"node {me.id} in {peers.path}"
    try:
        clients: list[tuple[ClientListener, Listener]] = []
        for listener, acceptor in zip(client_listeners, acceptors, strict=True):
            is_of_peers = (listener.host, listener.port) == (me.host, me.port)
            where = node if is_of_peers else f"{listener.name} in listeners"
            bound = await bind(listener.host, listener.port, "clients", where)
            clients.append((listener, TlsListener(bound, acceptor) if acceptor else bound))
        peer = await bind(me.host, me.peer_port, "peers", node)
        yield BoundListeners(peer, clients)
    finally:
        for each in opened:
            each.close()


def client_acceptor(config: NodeConfig, listener: ClientListener) -> TlsAcceptor | None:
    """How a listener for clients accepts TLS; None without TLS. Raises StartError."""
    if not listener.protocol.has_tls:
        return None
    where = f"listener {listener.name}: "
    values = config.of_listener(listener.name)
    try:
        if (
            listener.protocol.has_sasl
            and config.listener_setting(listener.name, "ssl.client.auth") is None
        ):
            # As Kafka: with SASL, only the key of the listener itself counts.
            values = values.replaced(
                {"ssl.client.auth": ClientAuth.NONE.value}, values.source("ssl.client.auth")
            )
        settings = server_settings(values, where=where)
        context = server_context(settings, where=where)
        principal_of: Callable[[bytes | None], Principal] | None = None
        if not listener.protocol.has_sasl and settings.client_auth is not ClientAuth.NONE:
            principal_of = PrincipalMapping(values.text("ssl.principal.mapping.rules")).principal_of
    except ConfigError as error:
        raise StartError(str(error)) from error
    return TlsAcceptor(context, principal_of)


def ready_on(bound: BoundListeners) -> str:
    """The addresses for clients, for the line that says that the node is ready."""
    return ", ".join(
        f"{listener.host}:{opened.port}"
        if listener.protocol is SecurityProtocol.PLAINTEXT
        else f"{listener.name}://{listener.host}:{opened.port}"
        for listener, opened in bound.clients
    )


def broker_endpoints(config: NodeConfig, client_listeners: tuple[ClientListener, ...]) -> Endpoints:
    """The listeners for the metadata. Empty if the peers file has the address."""
    if config.source("listeners") in (Source.DEFAULT, Source.PEERS):
        return ()
    return tuple(
        BrokerEndpoint(
            one.name,
            tuple(SecurityProtocol).index(one.protocol),
            one.advertised_host,
            one.advertised_port,
        )
        for one in client_listeners
    )
