"""Two nodes make sure of each other: who proves what, what a stranger learns, and what the
operator reads.
"""

from __future__ import annotations

import struct
from itertools import count
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.limits import STRANGER_FRAME_BYTES_MAX
from mqd.raft import codec
from mqd.raft.introduction import (
    Call,
    Doorkeeper,
    Identity,
    Refused,
    Visit,
    decode_identity,
    encode_identity,
)
from mqd.raft.voters import Position, VoterSet
from tests.raft.callers import Calling

SECRET, OTHER = b"a secret of the cluster", b"another secret, not it"
THREE = frozenset({1, 2, 3})
_uuids = count(1)


def position(
    file: frozenset[int] = THREE,
    *,
    voters: frozenset[int] = THREE,
    epoch: int = 1,
    intact: bool = True,
) -> Position:
    return Position(file, VoterSet(epoch, voters), VoterSet(epoch, voters), intact)


def keeper(
    node: int,
    *,
    cluster: str = "c",
    secret: bytes | None = SECRET,
    incarnation: int = 7,
    at: Position | None = None,
) -> Doorkeeper:
    return Doorkeeper(
        cluster_id=cluster,
        node_id=node,
        nodes=THREE,
        incarnation=UUID(int=incarnation),
        secret=secret,
        new_uuid=lambda: UUID(int=next(_uuids)),
        position=lambda: at if at is not None else position(),
    )


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (
        struct.unpack_from(">hh", frame, 4) == (codec.API_KEY_HANDSHAKE, 0)
        and frame[12:14] == b"\xff\xff"
    )
    return frame[14:]


def hear(visit: Visit, frame: bytes) -> bytes:
    answer = visit.receive(body(frame), 5)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 5)
    return answer[4:]


def introduce(call: Call, visit: Visit) -> Identity:
    proven = hear(visit, call.prove(hear(visit, call.hello())))
    return call.finish(hear(visit, call.name(proven)))


@pytest.mark.parametrize("secret", [SECRET, None])
def test_two_nodes_of_one_cluster_know_each_other(secret: bytes | None) -> None:
    visit = keeper(1, secret=secret, incarnation=8, at=position(epoch=4)).answer(Calling(), 0.0)
    assert introduce(keeper(2, secret=secret).call(1), visit) == Identity(
        1, 2, UUID(int=8), position(epoch=4)
    )
    assert (visit.node_id, visit.incarnation, visit.position, visit.refusal) == (
        2,
        UUID(int=7),
        position(),
        None,
    )
    with pytest.raises(ProtocolError, match="second introduction"):
        hear(visit, keeper(2).call(1).hello())


def test_a_node_that_has_proven_its_identity_may_still_be_refused() -> None:
    visit, call = keeper(1).answer(Calling(), 0.0), keeper(2).call(1)
    hear(visit, call.name(hear(visit, call.prove(hear(visit, call.hello())))))
    answer = visit.refuse("two nodes run under id 2", 5)
    with pytest.raises(Refused, match="node 1 refuses this node: two nodes run under id 2"):
        call.finish(answer[4:])
    assert (visit.node_id, visit.incarnation, visit.refusal) == (
        None,
        None,
        "a:1 claims to be node 2: two nodes run under id 2",
    )


@pytest.mark.parametrize(
    ("caller", "receiver", "who", "reason"),
    [
        (
            keeper(2),
            3,
            "claims to be node 2",
            "wants node 3; this is node 1: check the peers files",
        ),
        (keeper(1), 1, "claims to be node 1", "two nodes use the same id"),
        (
            keeper(9),
            1,
            "claims to be node 9",
            r"no node of this cluster; the nodes are \[1, 2, 3\]",
        ),
        (
            keeper(2, cluster="d"),
            1,
            "is not of this cluster",
            "cluster ids or the cluster secrets differ",
        ),
        (keeper(2, secret=None), 1, "is not of this cluster", "or only one node has a secret"),
        (
            keeper(2, secret=OTHER),
            1,
            "is not of this cluster",
            "cluster ids or the cluster secrets differ",
        ),
    ],
)
def test_the_refused_node_and_the_log_of_the_listener_get_the_reason(
    caller: Doorkeeper, receiver: int, who: str, reason: str
) -> None:
    visit = keeper(1).answer(Calling(), 0.0)
    with pytest.raises(Refused, match=f"node {receiver} refuses this node: .*{reason}"):
        introduce(caller.call(receiver), visit)
    assert visit.node_id is None and visit.refusal is not None
    assert visit.refusal.startswith(f"a:1 {who}: ")


@pytest.mark.parametrize("side", ["caller", "listener"])
def test_nodes_whose_files_differ_by_more_than_one_voter_refuse_each_other_with_both_sets(
    side: str,
) -> None:
    five = position(frozenset({1, 2, 3, 4, 5}))
    call, visit = keeper(2).call(1), keeper(1, at=five).answer(Calling(), 0.0)
    if side == "caller":
        visit._keeper.position = position
        proven = hear(visit, call.prove(hear(visit, call.hello())))
        named = call.name(proven)
        welcome = hear(visit, named)
        call._keeper.position = lambda: five
    else:
        welcome = hear(visit, call.name(hear(visit, call.prove(hear(visit, call.hello())))))
        assert visit.refusal is not None and "[1, 2, 3, 4, 5]" in visit.refusal
    with pytest.raises(
        Refused,
        match=r"names voters \[1, 2, 3.*Change one voter at a time, and restart node by node",
    ):
        call.finish(welcome)


def test_a_listener_without_the_secret_is_found_out() -> None:
    """It cannot check the caller's proof, and answers as if it were right."""
    call, impostor = keeper(2).call(1), keeper(1, secret=OTHER)
    visit = impostor.answer(Calling(), 0.0)
    proof = call.prove(hear(visit, call.hello()))
    # nor is the caller's own proof one
    answers = [impostor.proof(b"listener proof", body(call.hello()), visit._challenge), body(proof)]
    for answer in answers:
        with pytest.raises(
            Refused, match="the process at the address of node 1 does not have the cluster secret"
        ):
            call.name(b"\0\0\0\5\0" + answer)


def test_a_listener_must_prove_its_identity_too(monkeypatch: pytest.MonkeyPatch) -> None:
    call, visit = keeper(2).call(1), keeper(1).answer(Calling(), 0.0)
    welcome = hear(visit, call.name(hear(visit, call.prove(hear(visit, call.hello())))))
    for changed in (
        welcome[:-1] + bytes([welcome[-1] ^ 1]),
        welcome[:8] + b"\2" + welcome[9:],
        welcome[:5],
    ):
        with pytest.raises(Refused, match="does not have the cluster secret"):
            call.finish(changed)
    other = keeper(3).answer(Calling(), 0.0)  # a node that takes what is not for it
    other._keeper.node_id = 1
    call = keeper(2).call(1)
    proven = hear(other, call.prove(hear(other, call.hello())))
    named = call.name(proven)
    monkeypatch.setattr(
        other._keeper,
        "identity",
        lambda receiver: encode_identity(Identity(3, receiver, UUID(int=1), position())),
    )
    with pytest.raises(Refused, match="node 3 listens at the address of node 1"):
        call.finish(hear(other, named))


def test_a_proof_is_worth_nothing_on_another_connection_nor_with_other_names() -> None:
    call, visit = keeper(2).call(1), keeper(1).answer(Calling(), 0.0)
    hello = call.hello()
    proof = call.prove(hear(visit, hello))
    again = keeper(1).answer(Calling("a:2"), 0.0)  # the same hello again: another fresh number
    hear(again, hello)
    hear(again, proof)
    assert again.node_id is None and again.refusal is not None
    named = body(call.name(hear(visit, proof)))
    identity = decode_identity(named[:-32])
    for forged in (
        Identity(3, 1, identity.incarnation, identity.position),
        Identity(2, 1, UUID(int=99), identity.position),
    ):
        with pytest.raises(ProtocolError, match="wrong proof"):
            visit.receive(encode_identity(forged) + named[-32:], 1)
        assert visit.node_id is None


def test_a_stranger_learns_neither_names_nor_anything_to_try_secrets_on() -> None:
    visit = keeper(1, cluster="the-cluster").answer(Calling(), 0.0)
    call = keeper(2, cluster="the-cluster", secret=OTHER).call(1)
    challenge = hear(visit, call.hello())
    assert len(challenge) == 4 + 1 + 32  # a correlation id and a fresh number
    refusal = hear(visit, call.prove(challenge))
    for bytes_of_nodes in (call.hello(), challenge, refusal, body(call.prove(challenge))):
        assert b"the-cluster" not in bytes_of_nodes and b"node 1" not in bytes_of_nodes
    assert SECRET.decode() not in repr(keeper(1)) + repr(vars(visit)) + repr(vars(keeper(1)))


def test_every_identity_of_bounded_size_fits_the_frames_of_strangers() -> None:
    largest = frozenset(range(2**31 - 51, 2**31 - 1))
    data = encode_identity(Identity(1, 2, UUID(int=3), position(largest, voters=largest)))
    decoded = decode_identity(data).position
    assert decoded is not None and decoded.file == largest
    assert len(data) + 32 + 14 <= STRANGER_FRAME_BYTES_MAX
    for bad in (data[:20], data[:-1], data + b"x", data[:25] + b"\0\0\0\0\0\0" + data[31:]):
        with pytest.raises(ProtocolError):
            decode_identity(bad)


def test_malformed_introductions_cost_the_connection() -> None:
    good = body(keeper(2).call(1).hello())
    for bad, reason in [
        (b"", "not an mqd node"),
        (b"GET " + good[4:], "not an mqd node"),
        (
            good[:4] + b"\x00\x02" + good[6:],
            "protocol version 2, which the previous release speaks",
        ),
        (good[:20], "20 bytes"),
        (good + b"x", "39 bytes"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            keeper(1).answer(Calling(), 0.0).receive(bad, 0)


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\0", b"\0\0\0\0\0short", b"\0\0\0\0\7" + bytes(48), b"HTTP/1.1 400"]
)
def test_a_listener_that_is_none_of_ours_is_no_node(answer: bytes) -> None:
    with pytest.raises(Refused, match="the process at the address of node 1 is not an mqd node"):
        keeper(2).call(1).prove(answer)


def test_what_a_stranger_says_is_kept_from_the_terminal() -> None:
    with pytest.raises(Refused) as caught:
        keeper(2).call(1).prove(b"\0\0\0\0\x01\x1b[31mroot\n" + b"x" * 5000)
    assert (
        caught.value.args[0].startswith("node 1 refuses this node: ?[31mroot?xx")
        and len(caught.value.args[0]) < 900
    )
