"""The peer listener's own requests: another node completes a handshake, then sends Raft messages on
the same connection.

They use Kafka frames with private API keys, so that one listener, one framing and one set of limits
serve all. The bodies are defined in mqd/raft/ (handshake.py, codec.py). Before its handshake, a
connection may only send ApiVersions (a health check), in few and small frames, and has little time.
"""

from __future__ import annotations

from struct import Struct

from mqd.errors import ProtocolError
from mqd.io.tls import TlsSocket
from mqd.limits import UNAUTHENTICATED_REQUESTS_MAX
from mqd.server.connection import Connection
from mqd.server.context import Node

HANDSHAKE = 32_000
RAFT_MESSAGE = 32_001
API_VERSIONS = 18

_HEAD = Struct(">hhih").unpack_from


def check_unauthenticated(connection: Connection, api_key: int) -> None:
    """Raise ProtocolError for a request that the peer listener does not accept before the
    handshake.
    """
    # Only nodes of this cluster are served (I28).
    if api_key not in (HANDSHAKE, API_VERSIONS):
        raise ProtocolError(
            f"a request with API key {api_key} before a handshake: this port is for the "
            "nodes of the cluster"
        )
    connection.unauthenticated_requests += 1
    if connection.unauthenticated_requests > UNAUTHENTICATED_REQUESTS_MAX:
        raise ProtocolError(f"more than {UNAUTHENTICATED_REQUESTS_MAX} requests before a handshake")


def is_private(api_key: int) -> bool:
    return api_key in (HANDSHAKE, RAFT_MESSAGE)


def handle(node: Node, connection: Connection, api_key: int, frame: memoryview) -> None:
    """Handle one private request. Only a handshake gets responses.

    Raises ProtocolError where the connection must be closed.
    """
    _, _, correlation_id, client_id_bytes = _HEAD(frame)
    body = frame[10 + max(0, client_id_bytes) :]
    handshake = connection.handshake
    if api_key == HANDSHAKE:
        if handshake is None:
            handshake = connection.handshake = node.raft.begin_handshake(connection)
        response = node.raft.receive_handshake(handshake, body, correlation_id)
        if handshake.node_id is not None:
            authenticated(connection, handshake.node_id)
        connection.slot().complete([response])
        if handshake.refusal is not None:
            connection.finish()
        return
    if connection.peer_node is None or handshake is None:
        raise ProtocolError("a Raft message before a handshake")
    node.raft.receive(connection.peer_node, body, handshake.incarnation)


def authenticated(connection: Connection, node_id: int) -> None:
    """The peer has proved that it is the node `node_id`. Its next request is served. Raises
    ProtocolError if there are too many connections of nodes.
    """
    if isinstance(connection.sock, TlsSocket):
        refusal = connection.sock.refusal_of_node(node_id)
        if refusal is not None:
            raise ProtocolError(refusal)
    connection.owner.authenticated(connection)
    connection.peer_node = node_id
    connection.frames.accept_requests()
