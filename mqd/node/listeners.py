"""The addresses of a node: one or more for clients, one for peers; and their TLS."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mqd.config import ConfigError, NodeConfig, PeerNode, StartError
from mqd.config_sources import Source
from mqd.controller.endpoints import BrokerEndpoint, Endpoints
from mqd.io.net import Listener, Network
from mqd.io.tls import TlsAcceptor, TlsListener
from mqd.io.tls_contexts import server_context
from mqd.node.certificates import CertificateSource
from mqd.node.peer_tls import PeerTls
from mqd.peers import Peers
from mqd.security.client_listeners import (
    PEER_LISTENER,
    ClientListener,
    SecurityProtocol,
    client_listeners,
)
from mqd.security.principal import Principal
from mqd.security.principal_mapping import PrincipalMapping
from mqd.security.sasl_options import SaslOptions, sasl_options
from mqd.security.tls_settings import ClientAuth, TlsSettings, server_settings

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
    certificates: list[CertificateSource]
    clients: list[tuple[ClientListener, Listener]]


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
        found = {
            listener.name: sasl_options(config, listener.name)
            for listener in listeners
            if listener.protocol.has_sasl
        }
    except ConfigError as error:
        raise StartError(str(error)) from error
    for options in found.values():
        for warning in options.warnings:
            logger.warning("configuration without effect detail=%r", warning)
    return found


@asynccontextmanager
async def listeners(
    network: Network,
    me: PeerNode,
    peers: Peers,
    config: NodeConfig,
    client_listeners: tuple[ClientListener, ...],
    peer_tls: PeerTls,
) -> AsyncIterator[BoundListeners]:
    """Listen on all addresses. Raises StartError if one cannot be used."""
    tls = [ClientTls(config, one) for one in client_listeners]
    opened: list[Listener] = []

    async def bind(host: str, port: int, kind: str, where: str) -> Listener:
        try:
            listener = await network.listen(host, port)
        except OSError as error:
            raise StartError(
                f"cannot listen on {host or '*'}:{port} for {kind} "
                f"({error.strerror or error}); "
                f"{_LISTEN_REMEDIES.get(error.errno or 0, _NO_ADDRESS)} {where}"
            ) from error
        opened.append(listener)
        return listener

    node = f"node {me.id} in {peers.path}"
    try:
        clients: list[tuple[ClientListener, Listener]] = []
        for listener, one in zip(client_listeners, tls, strict=True):
            is_of_peers = (listener.host, listener.port) == (me.host, me.port)
            where = node if is_of_peers else f"{listener.name} in listeners"
            bound = await bind(listener.host, listener.port, "clients", where)
            clients.append((listener, one.wrapped(bound)))
        peer = await bind(me.host, me.peer_port, "peers", node)
        sources: list[CertificateSource] = []
        key_files: set[str | None] = set()

        def watch(name: str, settings: TlsSettings, load: Callable[[], None]) -> None:
            file = None if settings.key_store is None else settings.key_store.location
            is_new = file not in key_files
            sources.append(CertificateSource(name, settings, load, checks_mode=is_new))
            key_files.add(file)

        for one in tls:
            if one.settings is not None:
                watch(one.listener.name, one.settings, one.load)
        if peer_tls.acceptor is not None:
            wrapped = peer = TlsListener(peer, peer_tls.acceptor)

            def load() -> None:
                peer_tls.load()
                assert peer_tls.acceptor is not None
                wrapped.acceptor = peer_tls.acceptor

            watch(PEER_LISTENER, peer_tls.settings(), load)
        yield BoundListeners(peer, sources, clients)
    finally:
        for each in opened:
            each.close()


class ClientTls:
    """The TLS of one listener for clients. `load` replaces it by that of changed files."""

    def __init__(self, config: NodeConfig, listener: ClientListener) -> None:
        """Raises StartError."""
        self.listener = listener
        self.settings: TlsSettings | None = None
        """None: no TLS."""
        self._config = config
        self._bound: TlsListener | None = None
        self._acceptor = self._accept() if listener.protocol.has_tls else None

    def wrapped(self, bound: Listener) -> Listener:
        """The listener with TLS, if it has TLS."""
        if self._acceptor is None:
            return bound
        self._bound = TlsListener(bound, self._acceptor)
        return self._bound

    def load(self) -> None:
        """Read the files. Raises StartError, and then changes nothing."""
        assert self._bound is not None
        self._bound.acceptor = self._accept()

    def _accept(self) -> TlsAcceptor:
        listener, config = self.listener, self._config
        where = f"listener {listener.name}: "
        values = config.of_listener(listener.name)
        own_client_auth = config.listener_setting(listener.name, "ssl.client.auth")
        if listener.protocol.has_sasl and own_client_auth is None:
            # As Kafka: with SASL, only the key of the listener itself counts.
            values = values.replaced(
                {"ssl.client.auth": ClientAuth.NONE.value}, values.source("ssl.client.auth")
            )
        principal_of: Callable[[bytes | None], Principal] | None = None
        try:
            settings = server_settings(values, where=where)
            context = server_context(settings, where=where)
            if not listener.protocol.has_sasl and settings.client_auth is not ClientAuth.NONE:
                rules = values.text("ssl.principal.mapping.rules")
                principal_of = PrincipalMapping(rules).principal_of
        except ConfigError as error:
            raise StartError(str(error)) from error
        self.settings = settings
        return TlsAcceptor(context, principal_of)


def ready_on(bound: BoundListeners) -> str:
    """The addresses for clients, for the line that says that the node is ready."""
    return ", ".join(
        f"{listener.host or '*'}:{opened.port}"
        if listener.protocol is SecurityProtocol.PLAINTEXT
        else f"{listener.name}://{listener.host or '*'}:{opened.port}"
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
