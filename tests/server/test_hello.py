"""The peer listener's own requests: nothing is heard from who has not introduced himself."""

from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.errors import ProtocolError
from mqd.server.hello import API_VERSIONS, HANDSHAKE, RAFT_MESSAGE, check_stranger, handle, is_private


class Raft:
    def __init__(self) -> None:
        self.heard: list[tuple[int | str, bytes]] = []
        self.refusal: ProtocolError | None = None

    def accept_handshake(self, body: memoryview, peer: str) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.heard.append((peer, bytes(body)))
        return 3

    def receive(self, node_id: int, body: memoryview) -> None:
        self.heard.append((node_id, bytes(body)))


def request(api_key: int, body: bytes, client_id: bytes | None = None) -> memoryview:
    return memoryview(pack(">hhih", api_key, 0, 1, -1 if client_id is None else len(client_id)) + (client_id or b"") + body)


@pytest.fixture
def raft() -> Raft:
    return Raft()


@pytest.fixture
def node(raft: Raft) -> Any:
    return SimpleNamespace(raft=raft)


@pytest.fixture
def connection() -> Any:
    return SimpleNamespace(peer_node=None, peer="10.0.0.3:5")


@pytest.mark.parametrize("client_id", [None, b"", b"mqd-node-3"])
def test_bodies_are_what_stands_behind_the_client_id(node: Any, raft: Raft, connection: Any, client_id: bytes | None) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello", client_id))
    assert connection.peer_node == 3
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote", client_id))
    handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"", client_id))
    assert raft.heard == [("10.0.0.3:5", b"hello"), (3, b"vote"), (3, b"")]


def test_a_stranger_is_not_heard(node: Any, raft: Raft, connection: Any) -> None:
    with pytest.raises(ProtocolError, match="before an introduction"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))
    assert raft.heard == []


def test_one_connection_is_one_node(node: Any, raft: Raft, connection: Any) -> None:
    handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))
    with pytest.raises(ProtocolError, match="second introduction"):
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))
    assert len(raft.heard) == 1


def test_who_is_refused_stays_a_stranger(node: Any, raft: Raft, connection: Any) -> None:
    raft.refusal = ProtocolError("another cluster")
    with pytest.raises(ProtocolError, match="another cluster"):
        handle(node, connection, HANDSHAKE, request(HANDSHAKE, b"hello"))
    with pytest.raises(ProtocolError, match="before an introduction"):
        handle(node, connection, RAFT_MESSAGE, request(RAFT_MESSAGE, b"vote"))


def test_private_keys_are_no_key_of_kafka_s() -> None:
    assert [key for key in range(-1, 33_000) if is_private(key)] == [HANDSHAKE, RAFT_MESSAGE]


def test_a_stranger_may_introduce_himself_and_see_that_the_node_lives() -> None:
    heard = []
    for api_key in (*range(-1, 100), HANDSHAKE, RAFT_MESSAGE):
        try:
            check_stranger(api_key)
        except ProtocolError:
            continue
        heard.append(api_key)
    assert heard == [API_VERSIONS, HANDSHAKE]
