"""Connections of this node to the peer listeners of others: a few to each peer for requests, and
more for `dial`. A node handles one administrative request of a connection after the other. So
requests of clients have a connection of their own, and do not delay heartbeats and ISR changes.

Each connection starts with the handshake that the peer requires. If a response is overdue and the
connection has been silent for a while, it gets no new requests. A cut cable or a stopped process
would delay them all. Earlier requests keep waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mqd.client.errors import ClientError
from mqd.client.line import Line
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import connect_stream, start_peer
from mqd.config import Peers
from mqd.errors import ProtocolError
from mqd.io.net import Network, Stream
from mqd.protocol import apis
from mqd.protocol.schema import Api
from mqd.server.slices import finished_soon
from mqd.types import NodeId

CONNECT_TIMEOUT_SECONDS = 2.0
HUNG_SECONDS = 1.0
"""After this much silence, a connection with an overdue response gets no more requests."""
ABANDONED_SECONDS = 30.0
"""The timeout of a request."""

_OF_COORDINATORS = ("WriteTxnMarkers", "AddPartitionsToTxn")
_NODES, _SHARES, _CLIENTS = "nodes", "share groups", "clients"
_RETENTION = "retention"
"""The kinds of requests that have a connection of their own."""

RELAY_CONNECTIONS = 4
"""To each node, for the transactions of mqd/relay/: a transaction waits for others on its
connection."""

Authenticate = Callable[[Stream, int], Awaitable[None]]


class Forwarder:
    """Callable: (node id, API name, version, request, kind) -> response.

    Raises OSError when the node cannot be reached. `kind` names a connection for such requests;
    None for that of the API.
    """

    def __init__(
        self, peers: Peers, node_id: int, network: Network, authenticate: Authenticate
    ) -> None:
        """`authenticate(stream, node id)`: completes the handshake on a new connection."""
        self._peers = peers
        self._client_id = f"mqd-node-{node_id}"
        self._network = network
        self._authenticate = authenticate
        self._nursery: trio.Nursery | None = None
        self._connections: dict[tuple[int, str], PeerConnection] = {}
        """By node, and kind of requests."""
        self._hung: list[PeerConnection] = []
        self._connecting: dict[tuple[int, str], trio.Lock] = {}

    async def run(self) -> None:
        """Own the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def __call__(
        self,
        node_id: NodeId,
        api_name: str,
        version: int,
        request: Mapping[str, Any],
        kind: str | None = None,
    ) -> Mapping[str, Any]:
        api = apis.by_name(api_name)
        assert api is not None, api_name
        try:
            body = await finished_soon(api.encode_request_in_slices(version, request))
            connection = await self._connection(node_id, kind or _kind_of(api))
            frame, position = await connection.exchange(api, version, body)
        except ClientError as error:
            raise OSError(f"the request to node {node_id} failed: {error}") from error
        try:
            response: Mapping[str, Any] = await finished_soon(
                api.decode_response_in_slices(version, frame, position)
            )
        except ProtocolError as error:
            connection.close(f"its response cannot be decoded: {error}")
            raise OSError(f"the response of node {node_id} cannot be decoded: {error}") from error
        return response

    async def dial(self, node_id: NodeId) -> Line:
        """Open a connection for the caller, which closes it.

        Raises OSError if that fails.
        """
        peer = self._peers.nodes[node_id]
        try:
            stream = await connect_stream(
                self._network,
                peer.host,
                peer.peer_port,
                timeout_s=CONNECT_TIMEOUT_SECONDS,
                authenticate=lambda stream: self._authenticate(stream, node_id),
            )
        except ClientError as error:
            raise OSError(f"node {node_id} cannot be reached: {error}") from error
        return Line(stream, peer=f"{peer.host}:{peer.peer_port}", client_id=self._client_id)

    async def _dial(self, node_id: int) -> PeerConnection:
        peer = self._peers.nodes[node_id]
        assert self._nursery is not None, "the forwarder runs as long as the node does"
        return await start_peer(
            self._nursery,
            self._network,
            peer.host,
            peer.peer_port,
            client_id=self._client_id,
            timeout_s=CONNECT_TIMEOUT_SECONDS,
            negotiate=False,
            authenticate=lambda stream: self._authenticate(stream, node_id),
        )

    async def _connection(self, node_id: int, kind: str) -> PeerConnection:
        key = node_id, kind
        async with self._connecting.setdefault(key, trio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and connection.silent_for > HUNG_SECONDS:
                self._hung.append(self._connections.pop(key))
                connection = None
            self._close_hung()
            if connection is None or connection.failure is not None:
                connection = self._connections[key] = await self._dial(node_id)
            return connection

    def _close_hung(self) -> None:
        for connection in self._hung:
            if connection.idle or connection.silent_for > ABANDONED_SECONDS:
                connection.close("it hung, and was replaced")
        self._hung = [connection for connection in self._hung if connection.failure is None]


def _kind_of(api: Api) -> str:
    if api.name.endswith(("ShareGroupState", "ShareGroupStateSummary")):
        return _SHARES
    if api.name == "DescribeAcknowledgedOffsets":  # it may take long
        return _RETENTION
    if api.advertised is None or api.name in _OF_COORDINATORS:
        return _NODES  # nodes send such requests for themselves, and not for a client
    return _CLIENTS
