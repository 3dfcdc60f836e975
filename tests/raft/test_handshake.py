"""The handshake of two nodes: what each side proves, what an unauthenticated peer learns, and what
the operator reads.
"""

from __future__ import annotations

import struct
from itertools import count
from uuid import UUID

import pytest
from trio.testing import MockClock

from mqd.errors import ProtocolError
from mqd.io.clock import SystemClock
from mqd.limits import UNAUTHENTICATED_FRAME_BYTES_MAX
from mqd.raft import codec
from mqd.raft.handshake import (
    Credentials,
    HandshakeRefused,
    Identity,
    decode_identity,
    encode_identity,
)
from mqd.raft.handshake_caller import CallerHandshake
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.handshake_runner import HandshakeRunner
from mqd.raft.voters import VoterSet, VoterView
from tests.raft.callers import Calling

SECRET, OTHER = b"a secret of the cluster", b"another secret, not it"
THREE = frozenset({1, 2, 3})
_uuids = count(1)


def voter_view(
    configured: frozenset[int] = THREE,
    *,
    voters: frozenset[int] = THREE,
    epoch: int = 1,
    intact: bool = True,
) -> VoterView:
    return VoterView(configured, VoterSet(epoch, voters), VoterSet(epoch, voters), intact)


def credentials(
    node: int,
    *,
    cluster: str = "c",
    secret: bytes | None = SECRET,
    incarnation: int = 7,
    view: VoterView | None = None,
) -> Credentials:
    return Credentials(
        cluster_id=cluster,
        node_id=node,
        nodes=THREE,
        incarnation=UUID(int=incarnation),
        secret=secret,
        new_uuid=lambda: UUID(int=next(_uuids)),
        voter_view=lambda: view if view is not None else voter_view(),
    )


def listener(own: Credentials, address: str = "a:1") -> ListenerHandshake:
    return ListenerHandshake(own, Calling(address), 0.0)


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (
        struct.unpack_from(">hh", frame, 4) == (codec.API_KEY_HANDSHAKE, 0)
        and frame[12:14] == b"\xff\xff"
    )
    return frame[14:]


def reply_to(handshake: ListenerHandshake, frame: bytes) -> bytes:
    answer = handshake.receive(body(frame), 5)
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 5)
    return answer[4:]


def introduce(call: CallerHandshake, handshake: ListenerHandshake) -> Identity:
    proven = reply_to(handshake, call.prove(reply_to(handshake, call.hello())))
    return call.finish(reply_to(handshake, call.name(proven)))


@pytest.mark.parametrize("secret", [SECRET, None])
def test_two_nodes_of_one_cluster_authenticate_each_other(secret: bytes | None) -> None:
    handshake = ListenerHandshake(
        credentials(1, secret=secret, incarnation=8, view=voter_view(epoch=4)), Calling(), 0.0
    )
    assert introduce(CallerHandshake(credentials(2, secret=secret), 1), handshake) == Identity(
        1, 2, UUID(int=8), voter_view(epoch=4)
    )
    assert (handshake.node_id, handshake.incarnation, handshake.voter_view, handshake.refusal) == (
        2,
        UUID(int=7),
        voter_view(),
        None,
    )
    with pytest.raises(ProtocolError, match="second handshake"):
        reply_to(handshake, CallerHandshake(credentials(2), 1).hello())


def test_a_node_that_has_proven_its_identity_may_still_be_refused() -> None:
    handshake, call = listener(credentials(1)), CallerHandshake(credentials(2), 1)
    reply_to(
        handshake, call.name(reply_to(handshake, call.prove(reply_to(handshake, call.hello()))))
    )
    answer = handshake.refuse("two nodes run under id 2", 5)
    with pytest.raises(HandshakeRefused, match="refuses this node: two nodes run under id 2"):
        call.finish(answer[4:])
    assert (handshake.node_id, handshake.incarnation, handshake.refusal) == (
        None,
        None,
        "a:1 claims to be node 2: two nodes run under id 2",
    )


@pytest.mark.parametrize(
    ("caller", "receiver", "who", "reason"),
    [
        (
            credentials(2),
            3,
            "claims to be node 2",
            "calls node 3; this is node 1: check the peers files",
        ),
        (credentials(1), 1, "claims to be node 1", "two nodes use the same id"),
        (
            credentials(9),
            1,
            "claims to be node 9",
            r"no node of this cluster; the nodes are \[1, 2, 3\]",
        ),
        (
            credentials(2, cluster="d"),
            1,
            "is not of this cluster",
            "cluster ids or the cluster secrets differ",
        ),
        (credentials(2, secret=None), 1, "is not of this cluster", "or only one node has a secret"),
        (
            credentials(2, secret=OTHER),
            1,
            "is not of this cluster",
            "cluster ids or the cluster secrets differ",
        ),
    ],
)
def test_the_reason_of_a_refusal_is_sent_and_logged(
    caller: Credentials, receiver: int, who: str, reason: str
) -> None:
    handshake = listener(credentials(1))
    with pytest.raises(HandshakeRefused, match=f"node {receiver} refuses this node: .*{reason}"):
        introduce(CallerHandshake(caller, receiver), handshake)
    assert handshake.node_id is None and handshake.refusal is not None
    assert handshake.refusal.startswith(f"a:1 {who}: ")


@pytest.mark.parametrize("side", ["caller", "listener"])
def test_nodes_whose_files_differ_by_two_voters_refuse_each_other(
    side: str,
) -> None:
    five = voter_view(frozenset({1, 2, 3, 4, 5}))
    call, handshake = CallerHandshake(credentials(2), 1), listener(credentials(1, view=five))
    if side == "caller":
        handshake._credentials.voter_view = voter_view
        proven = reply_to(handshake, call.prove(reply_to(handshake, call.hello())))
        named = call.name(proven)
        welcome = reply_to(handshake, named)
        call._credentials.voter_view = lambda: five
    else:
        welcome = reply_to(
            handshake, call.name(reply_to(handshake, call.prove(reply_to(handshake, call.hello()))))
        )
        assert handshake.refusal is not None and "[1, 2, 3, 4, 5]" in handshake.refusal
    with pytest.raises(
        HandshakeRefused,
        match=r"names voters \[1, 2, 3.*Change one voter at a time, and restart node by node",
    ):
        call.finish(welcome)


def test_a_listener_without_the_secret_is_detected() -> None:
    """The listener cannot check the caller's proof, and responds as if the proof were valid."""
    call, impostor = CallerHandshake(credentials(2), 1), credentials(1, secret=OTHER)
    handshake = listener(impostor)
    proof = call.prove(reply_to(handshake, call.hello()))
    # the caller's own proof is not valid either
    answers = [
        impostor.proof(b"listener proof", body(call.hello()), handshake._challenge),
        body(proof),
    ]
    for answer in answers:
        with pytest.raises(
            HandshakeRefused,
            match="at the address of node 1 does not have the cluster secret",
        ):
            call.name(b"\0\0\0\5\0" + answer)


def test_a_listener_must_prove_its_identity_too(monkeypatch: pytest.MonkeyPatch) -> None:
    call, handshake = CallerHandshake(credentials(2), 1), listener(credentials(1))
    welcome = reply_to(
        handshake, call.name(reply_to(handshake, call.prove(reply_to(handshake, call.hello()))))
    )
    for changed in (
        welcome[:-1] + bytes([welcome[-1] ^ 1]),
        welcome[:8] + b"\2" + welcome[9:],
        welcome[:5],
    ):
        with pytest.raises(HandshakeRefused, match="does not have the cluster secret"):
            call.finish(changed)
    other = listener(credentials(3))  # a node that accepts calls to another node
    other._credentials.node_id = 1
    call = CallerHandshake(credentials(2), 1)
    proven = reply_to(other, call.prove(reply_to(other, call.hello())))
    named = call.name(proven)
    monkeypatch.setattr(
        other._credentials,
        "identity",
        lambda receiver: encode_identity(Identity(3, receiver, UUID(int=1), voter_view())),
    )
    with pytest.raises(HandshakeRefused, match="node 3 listens at the address of node 1"):
        call.finish(reply_to(other, named))


def test_a_proof_is_invalid_on_another_connection_and_with_other_names() -> None:
    call, handshake = CallerHandshake(credentials(2), 1), listener(credentials(1))
    hello = call.hello()
    proof = call.prove(reply_to(handshake, hello))
    again = listener(credentials(1), "a:2")  # the same hello with another nonce
    reply_to(again, hello)
    reply_to(again, proof)
    assert again.node_id is None and again.refusal is not None
    named = body(call.name(reply_to(handshake, proof)))
    identity = decode_identity(named[:-32])
    for forged in (
        Identity(3, 1, identity.incarnation, identity.voter_view),
        Identity(2, 1, UUID(int=99), identity.voter_view),
    ):
        with pytest.raises(ProtocolError, match="wrong proof"):
            handshake.receive(encode_identity(forged) + named[-32:], 1)
        assert handshake.node_id is None


def test_an_unauthenticated_peer_learns_no_names_and_nothing_about_secrets() -> None:
    handshake = listener(credentials(1, cluster="the-cluster"))
    call = CallerHandshake(credentials(2, cluster="the-cluster", secret=OTHER), 1)
    challenge = reply_to(handshake, call.hello())
    assert len(challenge) == 4 + 1 + 32  # a correlation id and a fresh number
    refusal = reply_to(handshake, call.prove(challenge))
    for bytes_of_nodes in (call.hello(), challenge, refusal, body(call.prove(challenge))):
        assert b"the-cluster" not in bytes_of_nodes and b"node 1" not in bytes_of_nodes
    assert SECRET.decode() not in repr(credentials(1)) + repr(vars(handshake)) + repr(
        vars(credentials(1))
    )


def test_every_allowed_identity_fits_the_frames_of_the_handshake() -> None:
    largest = frozenset(range(2**31 - 51, 2**31 - 1))
    data = encode_identity(Identity(1, 2, UUID(int=3), voter_view(largest, voters=largest)))
    decoded = decode_identity(data).voter_view
    assert decoded is not None and decoded.configured == largest
    assert len(data) + 32 + 14 <= UNAUTHENTICATED_FRAME_BYTES_MAX
    for bad in (data[:20], data[:-1], data + b"x", data[:25] + b"\0\0\0\0\0\0" + data[31:]):
        with pytest.raises(ProtocolError):
            decode_identity(bad)


def test_malformed_handshakes_close_the_connection() -> None:
    good = body(CallerHandshake(credentials(2), 1).hello())
    for bad, reason in [
        (b"", "not an mqd node"),
        (b"GET " + good[4:], "not an mqd node"),
        (
            good[:4] + b"\x00\x02" + good[6:],
            "protocol version 2, which the previous release uses",
        ),
        (good[:20], "20 bytes"),
        (good + b"x", "39 bytes"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            listener(credentials(1)).receive(bad, 0)


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\0", b"\0\0\0\0\0short", b"\0\0\0\0\7" + bytes(48), b"HTTP/1.1 400"]
)
def test_a_listener_of_another_protocol_is_not_a_node(answer: bytes) -> None:
    with pytest.raises(HandshakeRefused, match="at the address of node 1 is not an mqd node"):
        CallerHandshake(credentials(2), 1).prove(answer)


def test_messages_of_an_unauthenticated_peer_are_escaped() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        CallerHandshake(credentials(2), 1).prove(b"\0\0\0\0\x01\x1b[31mroot\n" + b"x" * 5000)
    assert (
        caught.value.args[0].startswith("node 1 refuses this node: ?[31mroot?xx")
        and len(caught.value.args[0]) < 900
    )


class ScriptedStream:
    """Receives fixed bytes, and ignores what is sent."""

    def __init__(self, received: bytes) -> None:
        self.received = bytearray(received)

    async def receive_into(self, view: memoryview) -> int:
        count = min(len(view), len(self.received))
        view[:count] = self.received[:count]
        del self.received[:count]
        return count

    async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("received", "reason"),
    [
        (bytes.fromhex("15030300020246"), "node 1 requires TLS: set peer.ssl=required"),
        (b"HTTP/1.1 400", "The listener is not an mqd node, or runs another release"),
    ],
)
async def test_a_response_that_is_no_handshake_names_its_cause(
    received: bytes, reason: str, autojump_clock: MockClock
) -> None:
    runner = HandshakeRunner(
        credentials(2),
        SystemClock(),
        silence=1.0,
        on_new_incarnation=lambda node_id: None,
        on_voter_view=lambda node_id, view: None,
    )
    with pytest.raises(HandshakeRefused, match=reason):
        await runner.authenticate(ScriptedStream(received), 1)
