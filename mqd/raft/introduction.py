"""How two nodes prove that they are of one cluster before either names anything. Pure: bytes in,
values out.

Six messages, each in a frame of API key 32000 (caller) or the response to one (listener):

    caller    hello      protocol version, a fresh number
    listener  challenge  a fresh number
    caller    proof      HMAC-SHA256(key, "caller proof" + everything above)
    listener  proof      HMAC-SHA256(key, "listener proof" + everything above)
                         or: a refusal, in text
    caller    names      its identity, HMAC-SHA256(key, "caller names" + everything above)
    listener  welcome    its identity, HMAC-SHA256(key, "listener names" + everything above)
                         or: a refusal, in text

The key is made of the cluster secret and the cluster id, so that proofs are worth nothing in
another cluster. An identity: both node ids, the incarnation, and what the node knows of the voters
(voters.py). It is bound to both fresh numbers, and worth nothing on another connection. A stranger
that connects, or that listens at the address of a node, learns the protocol version and nothing
else: neither the cluster id nor the id of a node. The caller proves first: a stranger that calls
gets nothing to try secrets on.

Without a cluster secret the key is made of the cluster id only. Then the introduction keeps out
strangers that mean no harm, and those that do not know the cluster id. What follows on the
connection is neither encrypted nor signed: that is the task of TLS.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from mqd.errors import ProtocolError
from mqd.raft import introduction_v2
from mqd.raft.codec import API_KEY_HANDSHAKE, encode_frame
from mqd.raft.incarnations import Caller
from mqd.raft.voters import Position, VoterSet, decode_set, disagreement, encode_set

PROTOCOL_VERSION = 3
"""1: one frame, not answered, nothing proven.

2: names before the proof; the previous release speaks it (introduction_v2.py).
"""
ANSWER_BYTES_MAX = 1024
"""Of a listener's frame: its caller accepts no more before it knows who sends."""

_MAGIC = b"mqdQ"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_REFUSAL_BYTES_MAX = 800
_HELLO = struct.Struct(f">4sH{_NONCE_BYTES}s")
_IDENTITY = struct.Struct(">ii16s?")
_ANSWER_HEAD = struct.Struct(">ii")
_GRANTED, _REFUSED = b"\x00", b"\x01"


class IntroductionFailed(ConnectionError):
    """The other side closed the connection, or is not the expected one: the text has the reason."""


class Refused(IntroductionFailed):
    """One of the two nodes refuses the other: the text has the reason, for the operator."""


@dataclass(frozen=True, slots=True)
class Identity:
    sender: int
    receiver: int
    incarnation: UUID
    position: Position | None
    """None in introduction version 2, which names no voters."""


def encode_identity(identity: Identity) -> bytes:
    position = identity.position
    assert position is not None
    sets = (VoterSet(0, position.file), position.current, position.committed)
    fixed = _IDENTITY.pack(
        identity.sender, identity.receiver, identity.incarnation.bytes, position.intact
    )
    return fixed + b"".join(map(encode_set, sets))


def decode_identity(data: bytes) -> Identity:
    """Raises ProtocolError."""
    if len(data) < _IDENTITY.size:
        raise ProtocolError(f"An identity of {len(data)} bytes.")
    sender, receiver, incarnation, intact = _IDENTITY.unpack_from(data)
    file, end = decode_set(data, _IDENTITY.size)
    current, end = decode_set(data, end)
    committed, end = decode_set(data, end)
    if end != len(data):
        raise ProtocolError("An identity with bytes after its end.")
    return Identity(
        sender, receiver, UUID(bytes=incarnation), Position(file.voters, current, committed, intact)
    )


def _version_of(body: bytes, *, allow_2: bool) -> int:
    """Of a caller's hello.

    Raises ProtocolError for a stranger or a version that this node does not speak.
    """
    if body[:4] != _MAGIC:
        raise ProtocolError("an introduction without mqd's mark: the caller is not an mqd node")
    version = int.from_bytes(body[4:6], "big")
    if version == introduction_v2.VERSION and allow_2:
        return version
    if version == introduction_v2.VERSION:
        raise ProtocolError(
            f"an introduction of protocol version {version}, which the previous release "
            f"speaks; this node speaks {PROTOCOL_VERSION}:"
            " mqd.metadata.version is finalized, or this node has no metadata yet. Upgrade "
            "the caller"
        )
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"an introduction of protocol version {version}; this node speaks {PROTOCOL_VERSION}"
        )
    if len(body) != _HELLO.size:
        raise ProtocolError(f"an introduction of {len(body)} bytes")
    return version


class Doorkeeper:
    """This node's side of every introduction: `call` for one that it makes, `answer` for
    one that it gets.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        nodes: frozenset[int],
        incarnation: UUID,
        secret: bytes | None,
        new_uuid: Callable[[], UUID],
        position: Callable[[], Position],
        allows_2: Callable[[], bool] = lambda: False,
    ) -> None:
        """`nodes`: all of the cluster, this one included. `position()`: what this node now knows of
        the voters. `allows_2()`: whether introduction version 2 is spoken, too (versions.py).
        """
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.nodes = nodes
        self.incarnation = incarnation
        self.has_secret = secret is not None
        self.position = position
        self.allows_2 = allows_2
        self._key_2 = hmac.new(secret or b"", digestmod=sha256)
        self._key = hmac.digest(secret or b"", b"mqd cluster " + cluster_id.encode(), sha256)
        self._new_uuid = new_uuid

    def __repr__(self) -> str:
        return f"Doorkeeper(node {self.node_id} of {self.cluster_id})"  # and never the secret

    def call(self, receiver: int) -> Call:
        return Call(self, receiver)

    def call_2(self, receiver: int) -> CallOfVersion2:
        return CallOfVersion2(self, receiver)

    def own_2(self) -> introduction_v2.Own:
        own = (self.cluster_id, self.node_id, self.nodes, self.incarnation, self.has_secret)
        return introduction_v2.Own(*own, self._key_2, self.fresh)

    def answer(self, caller: Caller, now: float) -> Visit:
        return Visit(self, caller, now)

    def fresh(self) -> bytes:
        return self._new_uuid().bytes + self._new_uuid().bytes

    def proof(self, *transcript: bytes) -> bytes:
        """The first part names the side: one side's proof is never one of the other side."""
        return hmac.digest(
            self._key, b"".join(len(part).to_bytes(4, "big") + part for part in transcript), sha256
        )

    def identity(self, receiver: int) -> bytes:
        return encode_identity(Identity(self.node_id, receiver, self.incarnation, self.position()))


class AnyCall:
    """The caller's side of any version: what it makes of a listener's frames."""

    version: int

    def __init__(self, doorkeeper: Doorkeeper, receiver: int) -> None:
        self._keeper = doorkeeper
        self.receiver = receiver

    def _no_node(self) -> Refused:
        return Refused(
            f"the process at the address of node {self.receiver} is not an mqd node, or of "
            "another release"
        )

    def _no_secret(self) -> Refused:
        return Refused(
            f"the process at the address of node {self.receiver} does not have the cluster "
            "secret of this node:"
            " give all nodes the same cluster_id and cluster_secret in their peers files"
        )

    def _granted(self, answer: bytes) -> bytes:
        """`answer`: a listener's whole frame, without its length."""
        body = answer[4:]
        if body[:1] == _REFUSED:
            text = "".join(
                letter if letter.isprintable() else "?"
                for letter in body[1:].decode("utf-8", "replace")
            )
            raise Refused(f"node {self.receiver} refuses this node: {text[:_REFUSAL_BYTES_MAX]}")
        if body[:1] != _GRANTED:
            raise self._no_node()
        return body[1:]


class CallOfVersion2(AnyCall):
    """A call to a node of the previous release: send `hello()`, pass the response to `prove`, send
    what that returns, and pass the last response to `finish`."""

    version = introduction_v2.VERSION

    def __init__(self, doorkeeper: Doorkeeper, receiver: int) -> None:
        super().__init__(doorkeeper, receiver)
        self._side = introduction_v2.CallerSide(doorkeeper.own_2(), receiver)

    def hello(self) -> bytes:
        return encode_frame(API_KEY_HANDSHAKE, 0, self._side.hello)

    def prove(self, answer: bytes) -> bytes:
        """Raises Refused."""
        if (proof := self._side.proof(self._granted(answer))) is None:
            raise self._no_node()
        return encode_frame(API_KEY_HANDSHAKE, 1, proof)

    def finish(self, answer: bytes) -> Identity:
        """The listener's. Raises Refused."""
        if (incarnation := self._side.incarnation_of(self._granted(answer))) is None:
            raise self._no_secret()
        return Identity(self.receiver, self._keeper.node_id, incarnation, None)


class Call(AnyCall):
    """Version 3, in order: send `hello()`; give the response to `prove`, the next to `name`, and
    send what each returns; give the last one to `finish`.
    """

    version = PROTOCOL_VERSION

    def __init__(self, doorkeeper: Doorkeeper, receiver: int) -> None:
        super().__init__(doorkeeper, receiver)
        self._hello = _HELLO.pack(_MAGIC, PROTOCOL_VERSION, doorkeeper.fresh())
        self._challenge = b""
        self._identity = b""

    def hello(self) -> bytes:
        return encode_frame(API_KEY_HANDSHAKE, 0, self._hello)

    def prove(self, answer: bytes) -> bytes:
        """Raises Refused."""
        self._challenge = self._granted(answer)
        if len(self._challenge) != _NONCE_BYTES:
            raise self._no_node()
        return encode_frame(
            API_KEY_HANDSHAKE, 1, self._keeper.proof(b"caller proof", self._hello, self._challenge)
        )

    def name(self, answer: bytes) -> bytes:
        """Raises Refused."""
        keeper = self._keeper
        if not hmac.compare_digest(
            self._granted(answer), keeper.proof(b"listener proof", self._hello, self._challenge)
        ):
            raise self._no_secret()
        self._identity = keeper.identity(self.receiver)
        proof = keeper.proof(b"caller names", self._hello, self._challenge, self._identity)
        return encode_frame(API_KEY_HANDSHAKE, 2, self._identity + proof)

    def finish(self, answer: bytes) -> Identity:
        """The listener's. Raises Refused."""
        keeper = self._keeper
        body = self._granted(answer)
        named, proof = body[:-_PROOF_BYTES], body[-_PROOF_BYTES:]
        if not hmac.compare_digest(
            proof,
            keeper.proof(b"listener names", self._hello, self._challenge, self._identity, named),
        ):
            raise self._no_secret()
        try:
            identity = decode_identity(named)
        except ProtocolError as error:
            raise self._no_node() from error
        if (identity.sender, identity.receiver) != (self.receiver, keeper.node_id):
            raise Refused(
                f"node {identity.sender} listens at the address of node {self.receiver}: "
                "check the peers files"
            )
        ours = keeper.position()
        assert identity.position is not None
        if (
            why := disagreement(keeper.node_id, ours, self.receiver, identity.position)
        ) is not None:
            raise Refused(f"this node refuses node {self.receiver}: {why}")
        return identity


class Visit:
    """The listener's side of both versions: `receive` takes the body of each frame of the
    caller.
    """

    def __init__(self, doorkeeper: Doorkeeper, caller: Caller, now: float) -> None:
        self._keeper = doorkeeper
        self.caller = caller
        self.called_at = now
        """Monotonic seconds; before the challenge, so a caller that proves anything lived
        after this.
        """
        self._hello = b""
        self._challenge = b""
        self._proven = False
        self._version_2: introduction_v2.ListenerSide | None = None
        self.version = PROTOCOL_VERSION
        """In which the caller introduces itself."""
        self.node_id: int | None = None
        """The caller, once it has proven it."""
        self.incarnation: UUID | None = None
        self.position: Position | None = None
        """None in version 2."""
        self.refusal: str | None = None
        """Why the connection is to be closed, behind the answer."""

    def receive(self, body: bytes | memoryview, correlation_id: int) -> bytes:
        """The response, a whole frame. Afterwards exactly one holds: `refusal` is set, `node_id`
        is, or more is to come.

        Raises ProtocolError for what cannot be a node's: close the connection without a response.
        """
        if self.refusal is not None or self.node_id is not None:
            raise ProtocolError("a second introduction on one connection")
        try:
            if self._version_2 is not None:
                granted = self._on_proof_2(self._version_2, bytes(body))
            elif not self._hello:
                granted = self._on_hello(bytes(body))
            elif not self._proven:
                granted = self._on_proof(bytes(body))
            else:
                granted = self._on_names(bytes(body))
        except _No as no:
            self.refusal = f"{self.caller.peer} {no.who}{no.why}"
            return _answer(correlation_id, _REFUSED + no.why.encode()[:_REFUSAL_BYTES_MAX])
        return _answer(correlation_id, _GRANTED + granted)

    def refuse(self, why: str, correlation_id: int) -> bytes:
        """A caller that has proven its identity is not accepted all the same: the response
        in place of the welcome.
        """
        self.refusal = f"{self.caller.peer} claims to be node {self.node_id}: {why}"
        self.node_id = self.incarnation = self.position = None
        return _answer(correlation_id, _REFUSED + why.encode()[:_REFUSAL_BYTES_MAX])

    def _on_hello(self, body: bytes) -> bytes:
        self.version = _version_of(body, allow_2=self._keeper.allows_2())
        if self.version == introduction_v2.VERSION:
            self._version_2 = introduction_v2.ListenerSide(self._keeper.own_2())
            if (challenge := self._version_2.challenge(body)) is None:
                raise _No(
                    "in introduction version 2: ",
                    "cluster id, node ids or the presence of a secret do not fit: check the "
                    "peers files",
                )
            return challenge
        self._hello, self._challenge = body, self._keeper.fresh()
        return self._challenge

    def _on_proof_2(self, side: introduction_v2.ListenerSide, body: bytes) -> bytes:
        assert side.hello is not None
        if (welcome := side.welcome(body)) is None:
            raise _No(
                f"claims to be node {side.hello.sender}: ",
                "its cluster secret is not that of this node: give all nodes the same "
                "cluster_secret in their peers files",
            )
        self.node_id, self.incarnation = side.hello.sender, side.hello.incarnation
        return welcome

    def _on_proof(self, body: bytes) -> bytes:
        keeper = self._keeper
        if not hmac.compare_digest(
            body, keeper.proof(b"caller proof", self._hello, self._challenge)
        ):
            raise _No(
                "is not of this cluster: ",
                "the proof is wrong. The cluster ids or the cluster secrets differ, or only "
                "one node has a secret:"
                " give all nodes the same cluster_id and cluster_secret in their peers files",
            )
        self._proven = True
        return keeper.proof(b"listener proof", self._hello, self._challenge)

    def _on_names(self, body: bytes) -> bytes:
        keeper = self._keeper
        named, proof = body[:-_PROOF_BYTES], body[-_PROOF_BYTES:]
        if not hmac.compare_digest(
            proof, keeper.proof(b"caller names", self._hello, self._challenge, named)
        ):
            raise ProtocolError("an identity with a wrong proof")
        identity = decode_identity(named)
        who = f"claims to be node {identity.sender}: "
        if identity.receiver != keeper.node_id:
            raise _No(
                who,
                f"it wants node {identity.receiver}; this is node {keeper.node_id}: check the "
                "peers files",
            )
        if identity.sender == keeper.node_id:
            raise _No(who, "which is the id of this node: two nodes use the same id")
        if identity.sender not in keeper.nodes:
            raise _No(
                who, f"which is no node of this cluster; the nodes are {sorted(keeper.nodes)}"
            )
        assert identity.position is not None
        if (
            why := disagreement(
                keeper.node_id, keeper.position(), identity.sender, identity.position
            )
        ) is not None:
            raise _No(who, why)
        self.node_id, self.incarnation, self.position = (
            identity.sender,
            identity.incarnation,
            identity.position,
        )
        welcome = keeper.identity(identity.sender)
        return welcome + keeper.proof(
            b"listener names", self._hello, self._challenge, named, welcome
        )


class _No(Exception):
    def __init__(self, who: str, why: str) -> None:
        self.who, self.why = who, why


def _answer(correlation_id: int, body: bytes) -> bytes:
    return _ANSWER_HEAD.pack(4 + len(body), correlation_id) + body
