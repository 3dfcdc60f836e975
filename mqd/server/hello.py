"""The peer listener's own requests: another node introduces itself, then sends Raft messages on the same connection.

They travel in Kafka frames with private API keys, so that one listener, one framing and one set of limits serve all; the
bodies are mqd/raft/'s. From a connection that has not introduced itself nothing is heard but ApiVersions, with which
whoever watches a node may see that it lives.
"""

from __future__ import annotations

from struct import Struct

from mqd.errors import ProtocolError
from mqd.server.connection import Connection
from mqd.server.context import Node

HANDSHAKE = 32_000
RAFT_MESSAGE = 32_001
API_VERSIONS = 18

_HEAD = Struct(">hhih").unpack_from


def check_stranger(api_key: int) -> None:
    """Raise ProtocolError for what a connection of the peer listener may not ask before it has introduced itself."""
    if api_key not in (HANDSHAKE, API_VERSIONS):
        raise ProtocolError(f"a request with API key {api_key} before an introduction: this port is for the nodes of the cluster")


def is_private(api_key: int) -> bool:
    return api_key in (HANDSHAKE, RAFT_MESSAGE)


def handle(node: Node, connection: Connection, api_key: int, frame: memoryview) -> None:
    """Take one private request; none is answered. Raises ProtocolError where the connection must be closed."""
    body = frame[10 + max(0, _HEAD(frame)[3]) :]  # behind the client id
    if api_key == HANDSHAKE:
        if connection.peer_node is not None:
            raise ProtocolError("a second introduction on one connection")
        connection.peer_node = node.raft.accept_handshake(body, connection.peer)
        return
    if connection.peer_node is None:
        raise ProtocolError("a Raft message before an introduction")
    node.raft.receive(connection.peer_node, body)
