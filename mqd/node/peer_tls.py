"""Mutual TLS between nodes, beside the cluster secret: `peer.ssl`.

    disabled     plaintext
    preferred    connect with TLS, and with plaintext to a node that has no TLS yet; accept both
    required     TLS only

So a running cluster changes in two rolling restarts: all nodes to preferred, then all to required.
Certificate and trusted CA are those of `listener.name.peer.ssl.*`, else of `ssl.*`. Both
sides check that a certificate names the node (security/node_certificate.py).
"""

from __future__ import annotations

import logging
import ssl

from mqd.config import ConfigError, NodeConfig, StartError
from mqd.io.net import Listener, Network, Poller, Stream
from mqd.io.tls import TlsAcceptor
from mqd.io.tls_contexts import client_context, server_context
from mqd.io.tls_errors import TlsFailed
from mqd.io.tls_stream import TlsNetwork
from mqd.peers import Peers
from mqd.security.client_listeners import PEER_LISTENER
from mqd.security.node_certificate import refusal_of_node
from mqd.security.tls_settings import ClientAuth, TlsSettings, tls_settings

logger = logging.getLogger(__name__)

_WHERE = "connections between nodes: "
DISABLED, PREFERRED, REQUIRED = "disabled", "preferred", "required"


class PeerTls:
    """The contexts of both sides. `load` replaces them by those of changed files."""

    def __init__(self, config: NodeConfig, peers: Peers) -> None:
        """Raises StartError."""
        self._config = config
        self._peers = peers
        self.mode = config.text("peer.ssl")
        self._client: ssl.SSLContext | None = None
        self.acceptor: TlsAcceptor | None = None
        """None: disabled."""
        self.load()

    def load(self) -> None:
        """Read the files. Raises StartError, and then changes nothing."""
        if self.mode == DISABLED:
            return
        settings = self.settings()
        try:
            server = server_context(settings, where=_WHERE)
            self._client = client_context(settings, check_host_name=False, where=_WHERE)
        except ConfigError as error:
            raise StartError(str(error)) from error
        self.acceptor = TlsAcceptor(
            server,
            allows_plaintext=self.mode == PREFERRED,
            is_of_nodes=True,
            refusal_of_node=self.refusal_of_node,
            plaintext_remedy="the other node needs peer.ssl=preferred or required",
        )

    def settings(self) -> TlsSettings:
        """Raises StartError."""
        values = self._config.of_listener(PEER_LISTENER)
        values = values.replaced(
            {"ssl.client.auth": ClientAuth.REQUIRED.value}, values.source("ssl.client.auth")
        )
        try:
            settings = tls_settings(values, where=_WHERE)
        except ConfigError as error:
            raise StartError(f"peer.ssl={self.mode}: {error}") from error
        for store, kind, key in (
            (settings.key_store, "certificate", "ssl.keystore.location"),
            (settings.trust_store, "truststore", "ssl.truststore.location"),
        ):
            if store is None:
                raise StartError(
                    f"peer.ssl={self.mode} needs a {kind}: set {key}, or listener.name.peer.{key}; "
                    "`mqctl cert init` creates the files"
                )
        return settings

    def refusal_of_node(self, certificate: bytes | None, node_id: int) -> str | None:
        """See node_certificate.py."""
        node = self._peers.nodes.get(node_id)
        hosts = () if node is None else (node.host,)
        return refusal_of_node(certificate, self._peers.cluster_id, node_id, hosts)

    def network(self, inner: Network) -> Network:
        """The network for connections to other nodes."""
        return inner if self.mode == DISABLED else _PeerNetwork(self, inner, self._peers)

    def client_context(self) -> ssl.SSLContext:
        assert self._client is not None
        return self._client


class _PeerNetwork:
    """Connects to nodes with TLS."""

    def __init__(self, tls: PeerTls, inner: Network, peers: Peers) -> None:
        self._tls = tls
        self._inner = inner
        self._ids = {(node.host, node.peer_port): node.id for node in peers.nodes.values()}
        self._reasons: dict[int, str] = {}
        """The last failure with each node, logged once."""
        self._connected: set[int] = set()
        """Nodes with which a TLS handshake was completed."""

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> Stream:
        node_id = self._ids[host, port]
        network = TlsNetwork(self._inner, self._tls.client_context())
        try:
            stream = await network.connect(host, port, timeout=timeout)
        except TlsFailed as failed:
            if self._tls.mode == PREFERRED and failed.is_plaintext:
                plain = await self._inner.connect(host, port, timeout=timeout)
                self._note_plaintext(node_id)
                return plain
            if failed.is_closed and node_id in self._connected:
                # It stops: its listener closes before its process ends.
                logger.info("peer connection failed node=%d reason=%s", node_id, failed.message)
            else:
                self._note(node_id, str(failed))
            raise
        refusal = self._tls.refusal_of_node(stream.certificate, node_id)
        if refusal is not None:
            stream.close()
            self._note(node_id, refusal)
            raise TlsFailed(refusal, "issue a certificate for this node: `mqctl cert init`")
        self._reasons.pop(node_id, None)
        self._connected.add(node_id)
        return stream

    def _note_plaintext(self, node_id: int) -> None:
        reason = "the node has no TLS, and peer.ssl=preferred allows plaintext"
        if self._reasons.get(node_id) != reason:
            self._reasons[node_id] = reason
            logger.warning("peer connection without TLS node=%d reason=%s", node_id, reason)

    def _note(self, node_id: int, reason: str) -> None:
        if self._reasons.get(node_id) != reason:
            self._reasons[node_id] = reason
            logger.warning("secure peer connection failed node=%d reason=%s", node_id, reason)

    async def listen(self, host: str, port: int) -> Listener:
        return await self._inner.listen(host, port)

    def poller(self) -> Poller:
        return self._inner.poller()
