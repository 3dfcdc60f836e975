"""Introduction version 2, byte for byte as the release before speaks it, and when it is spoken."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.raft.handshake import Credentials, HandshakeRefused, Identity
from mqd.raft.handshake_caller import CallerHandshake, CallerHandshakeV2
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.voters import VoterSet, VoterView
from tests.raft.callers import Calling

SECRET = b"a secret of the cluster"
CLUSTER = "bXFkLWNsdXN0ZXItb2xkLQ"
THREE = frozenset({1, 2, 3})

# recorded from the release before: node 2 (life 0x22, numbers from 0xA0) calls node 1 (life 0x11,
# numbers from 0xB0)
HELLO = bytes.fromhex(
    "000000617d00000000000000ffff6d7164510002000000020000000100000000000000000000000000000022"
    "01000000000000000000000000000000a0"
    "000000000000000000000000000000a100166258466b4c574e7364584e305a5849746232786b4c51"
)
CHALLENGE = bytes.fromhex(
    "00000035000000000000000000000000000000000000000011000000000000000000000000000000b0000000"
    "000000000000000000000000b1"
)
PROOF = bytes.fromhex(
    "0000002a7d00000000000001ffff2e87164744f606e070112295f8cdf795e954a29dfb98a77f8bf8db9e170154dc"
)
WELCOME = bytes.fromhex(
    "000000250000000100f57bce5f9609093ce393c8ba88f0c4bc624af7062901466f122e550c86ccf368"
)


def credentials(
    node: int, *, allows_v2: bool = True, cluster: str = CLUSTER, secret: bytes | None = SECRET
) -> Credentials:
    numbers = count(0xA0 if node == 2 else 0xB0)
    position = VoterView(THREE, VoterSet(0, THREE), VoterSet(0, THREE), intact=True)
    return Credentials(
        cluster_id=cluster,
        node_id=node,
        nodes=THREE,
        incarnation=UUID(int=0x22 if node == 2 else 0x11),
        secret=secret,
        new_uuid=lambda: UUID(int=next(numbers)),
        voter_view=lambda: position,
        allows_v2=lambda: allows_v2,
    )


def listener(own: Credentials) -> ListenerHandshake:
    return ListenerHandshake(own, Calling(), 0.0)


def hear(handshake: ListenerHandshake, frame: bytes, correlation_id: int = 0) -> bytes:
    return handshake.receive(frame[14:], correlation_id)


def test_this_release_calls_the_one_before() -> None:
    call = CallerHandshakeV2(credentials(2), 1)
    assert call.hello() == HELLO
    assert call.prove(CHALLENGE[4:]) == PROOF
    assert call.finish(WELCOME[4:]) == Identity(1, 2, UUID(int=0x11), None)


def test_this_release_responds_to_the_previous_one() -> None:
    handshake = listener(credentials(1))
    assert hear(handshake, HELLO) == CHALLENGE
    claimed = handshake.node_id
    assert claimed is None
    assert hear(handshake, PROOF, 1) == WELCOME
    assert (handshake.node_id, handshake.incarnation, handshake.voter_view, handshake.version) == (
        2,
        UUID(int=0x22),
        None,
        2,
    )
    with pytest.raises(ProtocolError, match="second handshake"):
        hear(handshake, PROOF)


def test_once_the_new_version_is_finalized_version_2_costs_the_connection() -> None:
    handshake = listener(credentials(1, allows_v2=False))
    with pytest.raises(ProtocolError, match=r"which the previous release uses.*Upgrade the caller"):
        hear(handshake, HELLO)
    assert handshake.node_id is None and handshake.refusal is None


def test_version_3_is_spoken_beside_version_2() -> None:
    call, handshake = (
        CallerHandshake(credentials(2), 1),
        listener(credentials(1)),
    )
    named = call.name(hear(handshake, call.prove(hear(handshake, call.hello())[4:]))[4:])
    assert call.finish(hear(handshake, named)[4:]).voter_view is not None
    assert handshake.version == 3


@pytest.mark.parametrize(
    "other", [credentials(1, cluster="other"), credentials(1, secret=None), credentials(3)]
)
def test_a_caller_that_does_not_fit_is_refused_and_learns_no_name(other: Credentials) -> None:
    handshake = listener(other)
    refusal = hear(handshake, HELLO)
    assert handshake.refusal is not None and handshake.node_id is None
    assert other.cluster_id.encode() not in refusal and b"node 1" not in refusal
    with pytest.raises(
        HandshakeRefused,
        match="refuses this node: cluster id, node ids or the presence of a secret do not fit",
    ):
        CallerHandshakeV2(credentials(2), 1).prove(refusal[4:])


def test_a_node_without_the_secret_is_refused_on_both_sides() -> None:
    handshake = listener(credentials(1, secret=b"another"))
    hear(handshake, HELLO)
    assert b"its cluster secret is not that of this node" in hear(handshake, PROOF, 1)
    assert handshake.node_id is None and handshake.refusal is not None
    call = CallerHandshakeV2(credentials(2), 1)
    call.prove(CHALLENGE[4:])
    with pytest.raises(HandshakeRefused, match="does not have the cluster secret"):
        call.finish(WELCOME[4:-1] + b"\0")
    with pytest.raises(HandshakeRefused, match="does not have the cluster secret"):
        call.finish(WELCOME[4:9])


@pytest.mark.parametrize("cut", [20, len(HELLO) - 15, len(HELLO) - 14 + 1])
def test_a_malformed_hello_costs_the_connection(cut: int) -> None:
    with pytest.raises(ProtocolError):
        listener(credentials(1)).receive((HELLO[14:] + b"x")[:cut], 0)
    with pytest.raises(HandshakeRefused, match="not an mqd node"):
        CallerHandshakeV2(credentials(2), 1).prove(CHALLENGE[4:30])


def test_the_secret_is_in_no_representation() -> None:
    one = credentials(1)
    call, handshake = CallerHandshakeV2(credentials(2), 1), listener(one)
    hear(handshake, call.hello())
    assert SECRET.decode() not in repr(vars(one)) + repr(one.of_v2()) + repr(vars(call)) + repr(
        vars(handshake)
    )
