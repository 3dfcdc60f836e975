"""The peer listener's own requests: nothing is heard from who has not introduced himself."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.limits import STRANGER_REQUESTS_MAX
from mqd.server.hello import (
    API_VERSIONS,
    HANDSHAKE,
    RAFT_MESSAGE,
    check_stranger,
    handle,
    is_private,
)

LIFE = UUID(int=7)


class Raft:
    """Its introductions have two words: hello, and a proof."""

    def __init__(self) -> None:
        self.heard: list[tuple[int | str, bytes]] = []

    def begin_handshake(self, caller: Connection) -> SimpleNamespace:
        return SimpleNamespace(address=caller.peer, node_id=None, incarnation=None, refusal=None)

    def receive_handshake(
        self, handshake: SimpleNamespace, body: memoryview, correlation_id: int
    ) -> bytes:
        if handshake.node_id is not None:
            raise ProtocolError("a second handshake on one connection")
        self.heard.append((handshake.address, bytes(body)))
        if bytes(body) == b"proof":
            handshake.node_id, handshake.incarnation = 3, LIFE
        elif bytes(body) == b"lie":
            handshake.refusal = "another cluster"
        return b"answer %d" % correlation_id

    def receive(self, node_id: int, body: memoryview, incarnation: UUID) -> None:
        assert incarnation == LIFE
        self.heard.append((node_id, bytes(body)))


class Connection:
    def __init__(self) -> None:
        self.peer = "10.0.0.3:5"
        self.peer_node: int | None = None
        self.handshake: Any = None
        self.stranger_requests = 0
        self.answers: list[bytes] = []
        self.finished = False

    def slot(self) -> Any:
        return SimpleNamespace(complete=self.answers.extend)

    def introduced(self, node_id: int) -> None:
        self.peer_node = node_id

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
def test_bodies_are_what_stands_behind_the_client_id(
    node: Any, raft: Raft, connection: Any, client_id: bytes | None
) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello", client_id))
    introduced_as = [connection.peer_node]
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"proof", client_id, 2))
    introduced_as.append(connection.peer_node)
    assert introduced_as == [None, 3]
    assert connection.answers == [b"answer 1", b"answer 2"] and not connection.finished
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote", client_id))
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"", client_id))
    assert raft.heard == [
        ("10.0.0.3:5", b"hello"),
        ("10.0.0.3:5", b"proof"),
        (3, b"vote"),
        (3, b""),
    ]
    assert len(connection.answers) == 2  # Raft's messages have none


@pytest.mark.parametrize("words", [[], [b"hello"]])
def test_a_stranger_is_not_heard(
    node: Any, raft: Raft, connection: Any, words: list[bytes]
) -> None:
    for word in words:
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, word))
    with pytest.raises(ProtocolError, match="before a handshake"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))
    assert len(raft.heard) == len(words)


def test_one_connection_is_one_node(node: Any, connection: Any) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"proof"))
    with pytest.raises(ProtocolError, match="second handshake"):
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))


def test_who_is_refused_is_told_stays_a_stranger_and_is_heard_no_more(
    node: Any, connection: Any
) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"lie"))
    assert (
        connection.answers == [b"answer 1"] and connection.finished and connection.peer_node is None
    )
    with pytest.raises(ProtocolError, match="before a handshake"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))


def test_private_keys_are_no_key_of_kafka_s() -> None:
    assert [key for key in range(-1, 33_000) if is_private(key)] == [HANDSHAKE, RAFT_MESSAGE]


def test_a_stranger_may_introduce_himself_and_see_that_the_node_lives() -> None:
    heard = []
    for api_key in (*range(-1, 100), HANDSHAKE, RAFT_MESSAGE):
        try:
            check_stranger(Connection(), api_key)  # type: ignore[arg-type]
        except ProtocolError:
            continue
        heard.append(api_key)
    assert heard == [API_VERSIONS, HANDSHAKE]


def test_a_stranger_may_not_go_on_asking(connection: Any) -> None:
    for _ in range(STRANGER_REQUESTS_MAX):
        check_stranger(connection, API_VERSIONS)
    with pytest.raises(
        ProtocolError, match=f"more than {STRANGER_REQUESTS_MAX} requests before a handshake"
    ):
        check_stranger(connection, API_VERSIONS)
