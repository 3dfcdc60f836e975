"""Requests of this node to the controller on another: one connection a peer, on its peer listener, opened when needed.

The peer hears nobody who has not introduced himself, so that is done first; it is not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from mqd.client.errors import ClientError
from mqd.client.peer import PeerConnection, start_peer
from mqd.config import Peers
from mqd.io.net import Network
from mqd.protocol import apis
from mqd.types import NodeId


class Forwarder:
    """Callable: (node id, API name, version, request) -> response. OSError when the node cannot be reached."""

    def __init__(self, peers: Peers, node_id: int, network: Network, greeting: Callable[[int], bytes]) -> None:
        """`greeting(node id)`: the frame that introduces this node there."""
        self._peers = peers
        self._client_id = f"mqd-node-{node_id}"
        self._network = network
        self._greeting = greeting
        self._nursery: trio.Nursery | None = None
        self._connections: dict[int, PeerConnection] = {}
        self._connecting: dict[int, trio.Lock] = {}

    async def run(self) -> None:
        """Own the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def __call__(self, node_id: NodeId, api_name: str, version: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
        api = apis.by_name(api_name)
        assert api is not None, api_name
        try:
            connection = await self._connection(node_id)
            response: Mapping[str, Any] = await connection.request(api, request, version)
        except ClientError as error:
            raise OSError(f"node {node_id} cannot be asked: {error}") from error
        return response

    async def _connection(self, node_id: int) -> PeerConnection:
        async with self._connecting.setdefault(node_id, trio.Lock()):
            connection = self._connections.get(node_id)
            if connection is None or connection.failure is not None:
                connection = self._connections[node_id] = await self._introduced(node_id)
            return connection

    async def dial(self, node_id: NodeId) -> PeerConnection:
        """A connection of its own to that node's peer listener, introduced. OSError when it cannot be had."""
        try:
            return await self._introduced(node_id)
        except ClientError as error:
            raise OSError(f"node {node_id} cannot be reached: {error}") from error

    async def _introduced(self, node_id: int) -> PeerConnection:
        peer = self._peers.nodes[node_id]
        assert self._nursery is not None, "the forwarder runs as long as the node does"
        return await start_peer(
            self._nursery,
            self._network,
            peer.host,
            peer.peer_port,
            client_id=self._client_id,
            negotiate=False,
            greeting=self._greeting(node_id),
        )
