"""The peer listener's own requests: a peer must complete the handshake before other requests."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.limits import MIB, UNAUTHENTICATED_FRAME_BYTES_MAX, UNAUTHENTICATED_REQUESTS_MAX
from mqd.server.frame_buffer import FrameBuffer
from mqd.server.memory import RequestPool
from mqd.server.peer_requests import (
    API_VERSIONS,
    HANDSHAKE,
    RAFT_MESSAGE,
    check_unauthenticated,
    handle,
    is_private,
)

LIFE = UUID(int=7)
REQUEST_BYTES_MAX = 100 * MIB


class Raft:
    """Its handshakes have two messages: hello and proof."""

    def __init__(self) -> None:
        self.received: list[tuple[int | str, bytes]] = []

    def begin_handshake(self, caller: Connection) -> SimpleNamespace:
        return SimpleNamespace(address=caller.peer, node_id=None, incarnation=None, refusal=None)

    def receive_handshake(
        self, handshake: SimpleNamespace, body: memoryview, correlation_id: int
    ) -> bytes:
        if handshake.node_id is not None:
            raise ProtocolError("a second handshake on one connection")
        self.received.append((handshake.address, bytes(body)))
        if bytes(body) == b"proof":
            handshake.node_id, handshake.incarnation = 3, LIFE
        elif bytes(body) == b"lie":
            handshake.refusal = "another cluster"
        return b"response %d" % correlation_id

    def receive(self, node_id: int, body: memoryview, incarnation: UUID) -> None:
        assert incarnation == LIFE
        self.received.append((node_id, bytes(body)))


class Connection:
    def __init__(self) -> None:
        self.peer = "10.0.0.3:5"
        self.peer_node: int | None = None
        self.handshake: Any = None
        self.unauthenticated_requests = 0
        self.responses: list[bytes] = []
        self.finished = False
        self.sock = None
        self.frames = FrameBuffer(RequestPool(MIB), REQUEST_BYTES_MAX, is_of_nodes=True)
        self.frames.restrict(UNAUTHENTICATED_FRAME_BYTES_MAX)
        self.nodes: list[Any] = []
        self.owner = SimpleNamespace(authenticated=self.nodes.append)

    def slot(self) -> Any:
        return SimpleNamespace(complete=self.responses.extend)

    def finish(self) -> None:
        self.finished = True


def request(
    api_key: int, body: bytes, client_id: bytes | None = None, correlation_id: int = 1
) -> memoryview:
    size = -1 if client_id is None else len(client_id)
    return memoryview(pack(">hhih", api_key, 0, correlation_id, size) + (client_id or b"") + body)


@pytest.fixture
def raft() -> Raft:
    return Raft()


@pytest.fixture
def node(raft: Raft) -> Any:
    return SimpleNamespace(raft=raft)


@pytest.fixture
def connection() -> Any:
    return Connection()


@pytest.mark.parametrize("client_id", [None, b"", b"mqd-node-3"])
def test_the_body_follows_the_client_id(
    node: Any, raft: Raft, connection: Any, client_id: bytes | None
) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello", client_id))
    authenticated_as = [connection.peer_node]
    frame_bytes_max = [connection.frames.frame_bytes_max]
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"proof", client_id, 2))
    authenticated_as.append(connection.peer_node)
    frame_bytes_max.append(connection.frames.frame_bytes_max)
    assert authenticated_as == [None, 3] and connection.nodes == [connection]
    assert frame_bytes_max == [UNAUTHENTICATED_FRAME_BYTES_MAX, REQUEST_BYTES_MAX]
    assert connection.responses == [b"response 1", b"response 2"] and not connection.finished
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote", client_id))
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"", client_id))
    assert raft.received == [
        ("10.0.0.3:5", b"hello"),
        ("10.0.0.3:5", b"proof"),
        (3, b"vote"),
        (3, b""),
    ]
    assert len(connection.responses) == 2  # Raft's messages have none


@pytest.mark.parametrize("messages", [[], [b"hello"]])
def test_raft_messages_before_the_handshake_are_refused(
    node: Any, raft: Raft, connection: Any, messages: list[bytes]
) -> None:
    for message in messages:
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, message))
    with pytest.raises(ProtocolError, match="before a handshake"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))
    assert len(raft.received) == len(messages)


def test_one_connection_is_one_node(node: Any, connection: Any) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"proof"))
    with pytest.raises(ProtocolError, match="second handshake"):
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))


def test_a_refused_peer_gets_a_response_and_sends_no_more(node: Any, connection: Any) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"lie"))
    assert (
        connection.responses == [b"response 1"]
        and connection.finished
        and connection.peer_node is None
    )
    with pytest.raises(ProtocolError, match="before a handshake"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))


def test_the_private_api_keys_are_not_keys_of_kafka() -> None:
    assert [key for key in range(-1, 33_000) if is_private(key)] == [HANDSHAKE, RAFT_MESSAGE]


def test_before_the_handshake_only_handshakes_and_api_versions_are_accepted() -> None:
    accepted = []
    for api_key in (*range(-1, 100), HANDSHAKE, RAFT_MESSAGE):
        try:
            check_unauthenticated(Connection(), api_key)  # type: ignore[arg-type]  # a fake connection
        except ProtocolError:
            continue
        accepted.append(api_key)
    assert accepted == [API_VERSIONS, HANDSHAKE]


def test_the_requests_before_the_handshake_are_bounded(connection: Any) -> None:
    for _ in range(UNAUTHENTICATED_REQUESTS_MAX):
        check_unauthenticated(connection, API_VERSIONS)
    with pytest.raises(
        ProtocolError, match=f"more than {UNAUTHENTICATED_REQUESTS_MAX} requests before a handshake"
    ):
        check_unauthenticated(connection, API_VERSIONS)
