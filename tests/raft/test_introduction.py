"""Two nodes make sure of each other: who proves what, what a stranger learns, and what the operator reads."""

from __future__ import annotations

import struct
from itertools import count
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.raft import codec
from mqd.raft.introduction import Call, Doorkeeper, Hello, Refused, Visit, decode_hello, encode_hello
from tests.raft.callers import Calling

SECRET, OTHER = b"a secret of the cluster", b"another secret, not it"
_uuids = count(1)


def keeper(node: int, *, cluster: str = "c", secret: bytes | None = SECRET, incarnation: int = 7) -> Doorkeeper:
    return Doorkeeper(
        cluster_id=cluster,
        node_id=node,
        nodes=frozenset({1, 2, 3}),
        incarnation=UUID(int=incarnation),
        secret=secret,
        new_uuid=lambda: UUID(int=next(_uuids)),
    )


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert struct.unpack_from(">hh", frame, 4) == (codec.API_KEY_HANDSHAKE, 0) and frame[12:14] == b"\xff\xff"
    return frame[14:]


def hear(visit: Visit, frame: bytes) -> bytes:
    answer = visit.hear(body(frame), 5)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 5)
    return answer[4:]


def introduce(call: Call, visit: Visit) -> UUID:
    return call.finish(hear(visit, call.prove(hear(visit, call.hello()))))


@pytest.mark.parametrize("secret", [SECRET, None])
def test_two_nodes_of_one_cluster_know_each_other(secret: bytes | None) -> None:
    visit = keeper(1, secret=secret, incarnation=8).answer(Calling(), 0.0)
    assert introduce(keeper(2, secret=secret).call(1), visit) == UUID(int=8)
    assert (visit.node_id, visit.incarnation, visit.refusal) == (2, UUID(int=7), None)
    with pytest.raises(ProtocolError, match="second introduction"):
        hear(visit, keeper(2).call(1).hello())


def test_who_has_proven_himself_may_still_be_refused_in_words() -> None:
    visit, call = keeper(1).answer(Calling(), 0.0), keeper(2).call(1)
    hear(visit, call.prove(hear(visit, call.hello())))
    answer = visit.refuse("two nodes run under id 2", 5)
    with pytest.raises(Refused, match="node 1 refuses this node: two nodes run under id 2"):
        call.finish(answer[4:])
    assert (visit.node_id, visit.incarnation, visit.refusal) == (None, None, "a:1 says that it is node 2: two nodes run under id 2")


@pytest.mark.parametrize(
    ("caller", "receiver", "reason"),
    [
        (keeper(2, cluster="d"), 1, "of cluster 'd'; this is cluster 'c'"),
        (keeper(2), 3, "wants node 3; this is node 1: check the peers files"),
        (keeper(1), 1, "two nodes run under one id"),
        (keeper(9), 1, r"no node of this cluster; the nodes are \[1, 2, 3\]"),
        (keeper(2, secret=None), 1, "node 1 has a cluster secret and node 2 has none"),
        (keeper(2, secret=OTHER), 1, "its cluster secret is not that of this node"),
    ],
)
def test_who_is_refused_reads_why_and_so_does_the_log_of_the_listener(caller: Doorkeeper, receiver: int, reason: str) -> None:
    visit = keeper(1).answer(Calling(), 0.0)
    with pytest.raises(Refused, match=f"node {receiver} refuses this node: .*{reason}"):
        introduce(caller.call(receiver), visit)
    assert visit.node_id is None and visit.refusal is not None
    assert visit.refusal.startswith(f"a:1 says that it is node {caller.node_id}: ")


def test_a_listener_without_the_secret_is_found_out() -> None:
    """It cannot have checked the caller's proof; it says yes all the same."""
    call, impostor = keeper(2).call(1), keeper(1, secret=OTHER)
    visit = impostor.answer(Calling(), 0.0)
    proof = call.prove(hear(visit, call.hello()))
    hello = body(call.hello())
    welcome = b"\0\0\0\5\0" + impostor.proof(b"listener", hello, visit._challenge)
    with pytest.raises(Refused, match="who answers as node 1 does not know the cluster secret"):
        call.finish(welcome)
    with pytest.raises(Refused, match="does not know the cluster secret"):
        call.finish(b"\0\0\0\5\0" + body(proof))  # nor can the caller's own proof be sent back to it


def test_a_proof_is_worth_nothing_on_another_connection_to_another_node_or_in_another_life() -> None:
    call = keeper(2).call(1)
    visit = keeper(1).answer(Calling(), 0.0)
    hello = call.hello()
    proof = call.prove(hear(visit, hello))
    again = keeper(1).answer(Calling("a:2"), 0.0)  # the same hello is heard anew: another fresh number
    hear(again, hello)
    hear(again, proof)
    assert again.node_id is None and again.refusal is not None
    for changed in ({"sender": 3}, {"incarnation": UUID(int=99)}, {"nonce": bytes(32)}):
        heard = decode_hello(body(hello))
        forged = Hello(**{**{name: getattr(heard, name) for name in Hello.__slots__}, **changed})  # type: ignore[arg-type]
        visit = keeper(1).answer(Calling("a:3"), 0.0)
        visit.hear(encode_hello(forged), 0)
        visit._challenge = call._challenge  # even if the listener repeated itself
        visit.hear(body(proof), 1)
        assert visit.node_id is None, changed


def test_a_stranger_learns_nothing_to_try_secrets_on() -> None:
    visit = keeper(1).answer(Calling(), 0.0)
    challenge = hear(visit, keeper(2, secret=OTHER).call(1).hello())
    other = keeper(1, secret=OTHER).answer(Calling(), 0.0)
    assert len(challenge) == len(hear(other, keeper(2).call(1).hello())) == 4 + 1 + 16 + 32  # ids and fresh numbers
    assert SECRET.decode() not in repr(keeper(1)) + repr(vars(visit))


def test_malformed_introductions_cost_the_connection() -> None:
    good = encode_hello(Hello("clüster", 2, 1, UUID(int=5), True, bytes(32)))
    assert decode_hello(memoryview(good)).cluster_id == "clüster"
    for bad, reason in [
        (b"", "not an mqd node"),
        (b"GET " + good[4:], "not an mqd node"),
        (good[:4] + b"\x00\x01" + good[6:], "protocol version 1; this node speaks 2"),
        (good[:20], "20 bytes"),
        (good[:-1], "cut or overlong"),
        (good + b"x", "cut or overlong"),
        (good[:-8] + b"\xff" * 8, "not UTF-8"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            keeper(1).answer(Calling(), 0.0).hear(bad, 0)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\0", b"\0\0\0\0\0short", b"\0\0\0\0\7" + bytes(48), b"HTTP/1.1 400"])
def test_a_listener_that_is_none_of_ours_is_no_node(answer: bytes) -> None:
    with pytest.raises(Refused, match="who answers as node 1 is no mqd node"):
        keeper(2).call(1).prove(answer)


def test_what_a_stranger_says_is_kept_from_the_terminal() -> None:
    with pytest.raises(Refused) as caught:
        keeper(2).call(1).prove(b"\0\0\0\0\x01\x1b[31mroot\n" + b"x" * 5000)
    assert caught.value.args[0].startswith("node 1 refuses this node: ?[31mroot?xx") and len(caught.value.args[0]) < 700
