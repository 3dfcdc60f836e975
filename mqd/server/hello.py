"""The peer listener's own requests: another node introduces itself, then sends Raft messages on the
same connection.

They use Kafka frames with private API keys, so that one listener, one framing and one set of limits
serve all. mqd/raft/ defines the bodies (introduction.py, codec.py). Before its introduction, a
connection may only send ApiVersions (a health check), in few and small frames, and has little time.
"""

from __future__ import annotations

from struct import Struct

from mqd.errors import ProtocolError
from mqd.limits import STRANGER_REQUESTS_MAX
from mqd.server.connection import Connection
from mqd.server.context import Node

HANDSHAKE = 32_000
RAFT_MESSAGE = 32_001
API_VERSIONS = 18

_HEAD = Struct(">hhih").unpack_from


def check_stranger(connection: Connection, api_key: int) -> None:
    """Raise ProtocolError for a request that the peer listener does not accept before the
    introduction.
    """
    # Only nodes of this cluster are served (I28).
    if api_key not in (HANDSHAKE, API_VERSIONS):
        raise ProtocolError(
            f"a request with API key {api_key} before an introduction: this port is for the "
            "nodes of the cluster"
        )
    connection.stranger_requests += 1
    if connection.stranger_requests > STRANGER_REQUESTS_MAX:
        raise ProtocolError(f"more than {STRANGER_REQUESTS_MAX} requests before an introduction")


def is_private(api_key: int) -> bool:
    return api_key in (HANDSHAKE, RAFT_MESSAGE)


def handle(node: Node, connection: Connection, api_key: int, frame: memoryview) -> None:
    """Take one private request; only an introduction is answered.

    Raises ProtocolError where the connection must be closed.
    """
    _, _, correlation_id, client_id_bytes = _HEAD(frame)
    body = frame[10 + max(0, client_id_bytes) :]
    visit = connection.visit
    if api_key == HANDSHAKE:
        if visit is None:
            visit = connection.visit = node.raft.begin_introduction(connection)
        answer = node.raft.receive_introduction(visit, body, correlation_id)
        if visit.node_id is not None:
            connection.introduced(visit.node_id)
        connection.slot().complete([answer])
        if visit.refusal is not None:
            connection.finish()
        return
    if connection.peer_node is None or visit is None:
        raise ProtocolError("a Raft message before an introduction")
    node.raft.receive(connection.peer_node, body, visit.incarnation)
