"""How two nodes make sure of each other before anything else is said on a connection to the peer listener. Pure: bytes in, values out.

Four messages, each in a frame of API key 32000 (caller) or an answer to one (listener):

    caller    hello      who calls whom, in which cluster and life, whether it has a cluster secret, a fresh number
    listener  challenge  its life, a fresh number                            or: a refusal, in words
    caller    proof      HMAC-SHA256(secret, "caller" + everything above)
    listener  welcome    HMAC-SHA256(secret, "listener" + everything above)  or: a refusal, in words

So each proves that it knows the cluster secret without saying it; the proofs are bound to the cluster, to both node ids, to both
lives (incarnations) and to both fresh numbers, hence worth nothing anywhere else, and the different words keep one side's proof from
being sent back to it. The caller proves first: a stranger who calls learns nothing to try secrets on.

Without a cluster secret the key is empty: the same four messages, which then only keep strangers out who mean no harm. What follows on
the connection is neither encrypted nor signed: that is the business of TLS.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from mqd.errors import ProtocolError
from mqd.raft.codec import API_KEY_HANDSHAKE, encode_frame
from mqd.raft.lives import Caller

PROTOCOL_VERSION = 2
"""1: one frame, not answered, nothing proven."""
ANSWER_BYTES_MAX = 1024
"""Of a listener's frame: its caller believes no more before it knows who speaks."""

_MAGIC = b"mqdQ"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_REFUSAL_BYTES_MAX = 600
_HELLO = struct.Struct(f">4sHii16s?{_NONCE_BYTES}sH")
_CHALLENGE = struct.Struct(f">16s{_NONCE_BYTES}s")
_ANSWER_HEAD = struct.Struct(">ii")
_GRANTED, _REFUSED = b"\x00", b"\x01"


class IntroductionFailed(ConnectionError):
    """The other side went away, or is not what was expected: in words."""


class Refused(IntroductionFailed):
    """The other node does not take this one for what it says, or this one does not believe the other: why, for the operator."""


@dataclass(frozen=True, slots=True)
class Hello:
    cluster_id: str
    sender: int
    receiver: int
    incarnation: UUID
    has_secret: bool
    nonce: bytes


def encode_hello(hello: Hello) -> bytes:
    cluster = hello.cluster_id.encode()
    fixed = (PROTOCOL_VERSION, hello.sender, hello.receiver, hello.incarnation.bytes, hello.has_secret, hello.nonce, len(cluster))
    return _HELLO.pack(_MAGIC, *fixed) + cluster


def decode_hello(body: bytes | memoryview) -> Hello:
    """Raises ProtocolError for a stranger or another version of this protocol."""
    body = bytes(body)
    if body[:4] != _MAGIC:
        raise ProtocolError("an introduction without mqd's mark: the caller is not an mqd node")
    version = int.from_bytes(body[4:6], "big")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"an introduction of protocol version {version}; this node speaks {PROTOCOL_VERSION}")
    if len(body) < _HELLO.size:
        raise ProtocolError(f"an introduction of {len(body)} bytes")
    _, _, sender, receiver, incarnation, has_secret, nonce, size = _HELLO.unpack_from(body)
    cluster = body[_HELLO.size :]
    if len(cluster) != size:
        raise ProtocolError("an introduction with a cut or overlong cluster id")
    try:
        return Hello(cluster.decode(), sender, receiver, UUID(bytes=incarnation), has_secret, nonce)
    except UnicodeDecodeError as error:
        raise ProtocolError("an introduction with a cluster id that is not UTF-8") from error


class Doorkeeper:
    """This node's side of every introduction: `call` one that it makes, `answer` one that it gets."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        nodes: frozenset[int],
        incarnation: UUID,
        secret: bytes | None,
        new_uuid: Callable[[], UUID],
    ) -> None:
        """`nodes`: all of the cluster, this one included."""
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.nodes = nodes
        self.incarnation = incarnation
        self.has_secret = secret is not None
        self._secret = secret or b""
        self._new_uuid = new_uuid

    def __repr__(self) -> str:
        return f"Doorkeeper(node {self.node_id} of {self.cluster_id})"  # and never the secret

    def call(self, receiver: int) -> Call:
        return Call(self, receiver)

    def answer(self, caller: Caller, now: float) -> Visit:
        return Visit(self, caller, now)

    def fresh(self) -> bytes:
        return self._new_uuid().bytes + self._new_uuid().bytes

    def proof(self, side: bytes, hello: bytes, challenge: bytes) -> bytes:
        transcript = b"".join(len(part).to_bytes(4, "big") + part for part in (b"mqd introduction", side, hello, challenge))
        return hmac.digest(self._secret, transcript, sha256)


class Call:
    """The caller's side, in order: send `hello()`, give the answer to `prove` and send what it returns, give the answer to `finish`."""

    def __init__(self, doorkeeper: Doorkeeper, receiver: int) -> None:
        keeper = self._keeper = doorkeeper
        self.receiver = receiver
        self._hello = encode_hello(
            Hello(keeper.cluster_id, keeper.node_id, receiver, keeper.incarnation, keeper.has_secret, keeper.fresh())
        )
        self._challenge = b""

    def hello(self) -> bytes:
        return encode_frame(API_KEY_HANDSHAKE, 0, self._hello)

    def prove(self, answer: bytes) -> bytes:
        """Raises Refused."""
        self._challenge = self._granted(answer, _CHALLENGE.size)
        return encode_frame(API_KEY_HANDSHAKE, 1, self._keeper.proof(b"caller", self._hello, self._challenge))

    def finish(self, answer: bytes) -> UUID:
        """The listener's incarnation. Raises Refused."""
        proof = self._granted(answer, _PROOF_BYTES)
        if not hmac.compare_digest(proof, self._keeper.proof(b"listener", self._hello, self._challenge)):
            raise Refused(
                f"who answers as node {self.receiver} does not know the cluster secret of this node:"
                " give all nodes the same cluster_secret in their peers files"
            )
        return UUID(bytes=bytes(_CHALLENGE.unpack(self._challenge)[0]))

    def _granted(self, answer: bytes, size: int) -> bytes:
        """`answer`: a listener's whole frame, without its length."""
        body = answer[4:]
        if body[:1] == _REFUSED:
            words = "".join(letter if letter.isprintable() else "?" for letter in body[1:].decode("utf-8", "replace"))
            raise Refused(f"node {self.receiver} refuses this node: {words[:_REFUSAL_BYTES_MAX]}")
        if body[:1] != _GRANTED or len(body) != 1 + size:
            raise Refused(f"who answers as node {self.receiver} is no mqd node, or of another release")
        return body[1:]


class Visit:
    """The listener's side: `hear` takes the body of each frame of the caller."""

    def __init__(self, doorkeeper: Doorkeeper, caller: Caller, now: float) -> None:
        self._keeper = doorkeeper
        self.caller = caller
        self.called_at = now
        """Monotonic seconds; before the challenge, so whoever proves anything lived after this."""
        self._hello: Hello | None = None
        self._hello_bytes = b""
        self._challenge = b""
        self.node_id: int | None = None
        """Who it is, once it has proven it."""
        self.incarnation: UUID | None = None
        self.refusal: str | None = None
        """Why the connection is to be closed, behind the answer."""

    def hear(self, body: bytes | memoryview, correlation_id: int) -> bytes:
        """The answer to send, a whole frame. Afterwards exactly one holds: `refusal` is set, `node_id` is, or more is to be heard.

        Raises ProtocolError for what cannot be a node's: close the connection without an answer."""
        if self.refusal is not None or self.node_id is not None:
            raise ProtocolError("a second introduction on one connection")
        try:
            granted = self._on_hello(bytes(body)) if self._hello is None else self._on_proof(self._hello, bytes(body))
        except _No as no:
            self.refusal = f"{no.who}{no.why}"
            return _answer(correlation_id, _REFUSED + no.why.encode()[:_REFUSAL_BYTES_MAX])
        return _answer(correlation_id, _GRANTED + granted)

    def refuse(self, why: str, correlation_id: int) -> bytes:
        """Who has proven who it is, and is not to be heard all the same: the answer to send in place of the welcome."""
        self.refusal = f"{self.caller.peer} says that it is node {self.node_id}: {why}"
        self.node_id = self.incarnation = None
        return _answer(correlation_id, _REFUSED + why.encode()[:_REFUSAL_BYTES_MAX])

    def _on_hello(self, body: bytes) -> bytes:
        keeper = self._keeper
        hello = decode_hello(body)
        who = f"{self.caller.peer} says that it is node {hello.sender}: "
        if hello.cluster_id != keeper.cluster_id:
            raise _No(who, f"it is of cluster {hello.cluster_id!r}; this is cluster {keeper.cluster_id!r}")
        if hello.receiver != keeper.node_id:
            raise _No(who, f"it wants node {hello.receiver}; this is node {keeper.node_id}: check the peers files")
        if hello.sender == keeper.node_id:
            raise _No(who, "which is this node's own id: two nodes run under one id")
        if hello.sender not in keeper.nodes:
            raise _No(who, f"which is no node of this cluster; the nodes are {sorted(keeper.nodes)}")
        if hello.has_secret != keeper.has_secret:
            has, lacks = (hello.sender, keeper.node_id) if hello.has_secret else (keeper.node_id, hello.sender)
            raise _No(who, f"node {has} has a cluster secret and node {lacks} has none: give all nodes the same in their peers files")
        self._hello, self._hello_bytes = hello, body
        self._challenge = _CHALLENGE.pack(keeper.incarnation.bytes, keeper.fresh())
        return self._challenge

    def _on_proof(self, hello: Hello, body: bytes) -> bytes:
        keeper = self._keeper
        if not hmac.compare_digest(body, keeper.proof(b"caller", self._hello_bytes, self._challenge)):
            who = f"{self.caller.peer} says that it is node {hello.sender}: "
            raise _No(who, "its cluster secret is not that of this node: give all nodes the same cluster_secret in their peers files")
        self.node_id, self.incarnation = hello.sender, hello.incarnation
        return keeper.proof(b"listener", self._hello_bytes, self._challenge)


class _No(Exception):
    def __init__(self, who: str, why: str) -> None:
        self.who, self.why = who, why


def _answer(correlation_id: int, body: bytes) -> bytes:
    return _ANSWER_HEAD.pack(4 + len(body), correlation_id) + body
