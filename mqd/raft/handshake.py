"""The handshake of two nodes, version 3: its messages, and the proofs that both are of one
cluster. Pure.

Six messages, each in a frame of API key 32000 (caller) or the response to one (listener):

    caller    hello      protocol version, a nonce
    listener  challenge  a nonce
    caller    proof      HMAC-SHA256(key, "caller proof" + everything above)
    listener  proof      HMAC-SHA256(key, "listener proof" + everything above)
                         or: a refusal, in text
    caller    names      its identity, HMAC-SHA256(key, "caller names" + everything above)
    listener  welcome    its identity, HMAC-SHA256(key, "listener names" + everything above)
                         or: a refusal, in text

The key is derived from the cluster secret and the cluster id, so a proof is worthless in another
cluster. An identity has both node ids, the incarnation, and the voters as the node knows them
(voters.py). It is bound to both nonces, and worthless on another connection. An unauthenticated
caller or listener learns only the protocol version: no cluster id and no node id. The caller sends
its proof first, so an unauthenticated caller gets no proof on which it could try secrets.

Without a cluster secret the key is derived from the cluster id only. Then the handshake refuses
nodes of other clusters, but not an attacker that knows the cluster id. The messages after the
handshake are neither encrypted nor signed: that is the task of TLS.

handshake_caller.py and handshake_listener.py have the two sides, handshake_runner.py runs them on
connections, handshake_v2.py has the version of the previous release.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from mqd.errors import ProtocolError
from mqd.raft import handshake_v2
from mqd.raft.voters import VoterSet, VoterView, decode_set, encode_set

PROTOCOL_VERSION = 3
"""1: one frame without a response and without a proof.

2: names before the proof; the previous release uses it (handshake_v2.py).
"""
RESPONSE_BYTES_MAX = 1024
"""Maximum size of a listener's frame: a caller accepts no more from an unauthenticated listener."""
NONCE_BYTES = 32
PROOF_BYTES = 32
REFUSAL_BYTES_MAX = 800
GRANTED, REFUSED = b"\x00", b"\x01"
"""First byte of a listener's response."""

_MAGIC = b"mqdQ"
_HELLO = struct.Struct(f">4sH{NONCE_BYTES}s")
_IDENTITY = struct.Struct(">ii16s?")


class HandshakeFailed(ConnectionError):
    """The peer closed the connection, or is not the expected one: the text has the reason."""


class HandshakeRefused(HandshakeFailed):
    """One of the two nodes refuses the other: the text has the reason, for the operator."""


@dataclass(frozen=True, slots=True)
class Identity:
    sender: int
    receiver: int
    incarnation: UUID
    voter_view: VoterView | None
    """None in version 2, which names no voters."""


def encode_identity(identity: Identity) -> bytes:
    view = identity.voter_view
    assert view is not None
    sets = (VoterSet(0, view.configured), view.current, view.committed)
    fixed = _IDENTITY.pack(
        identity.sender, identity.receiver, identity.incarnation.bytes, view.intact
    )
    return fixed + b"".join(map(encode_set, sets))


def decode_identity(data: bytes) -> Identity:
    """Raises ProtocolError."""
    if len(data) < _IDENTITY.size:
        raise ProtocolError(f"An identity of {len(data)} bytes.")
    sender, receiver, incarnation, intact = _IDENTITY.unpack_from(data)
    configured, end = decode_set(data, _IDENTITY.size)
    current, end = decode_set(data, end)
    committed, end = decode_set(data, end)
    if end != len(data):
        raise ProtocolError("An identity with bytes after its end.")
    view = VoterView(configured.voters, current, committed, intact)
    return Identity(sender, receiver, UUID(bytes=incarnation), view)


def encode_hello(nonce: bytes) -> bytes:
    return _HELLO.pack(_MAGIC, PROTOCOL_VERSION, nonce)


def version_of_hello(body: bytes, *, allow_v2: bool) -> int:
    """Raises ProtocolError for bytes of another protocol, or a version that this node does not
    speak."""
    if body[:4] != _MAGIC:
        raise ProtocolError("a handshake without mqd's magic bytes: the caller is not an mqd node")
    version = int.from_bytes(body[4:6], "big")
    if version == handshake_v2.VERSION and allow_v2:
        return version
    if version == handshake_v2.VERSION:
        raise ProtocolError(
            f"a handshake of protocol version {version}, which the previous release uses; "
            f"this node uses {PROTOCOL_VERSION}:"
            " mqd.metadata.version is finalized, or this node has no metadata yet. Upgrade "
            "the caller"
        )
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"a handshake of protocol version {version}; this node uses {PROTOCOL_VERSION}"
        )
    if len(body) != _HELLO.size:
        raise ProtocolError(f"a handshake of {len(body)} bytes")
    return version


class Credentials:
    """The data with which this node proves its identity in handshakes."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        nodes: frozenset[int],
        incarnation: UUID,
        secret: bytes | None,
        new_uuid: Callable[[], UUID],
        voter_view: Callable[[], VoterView],
        allows_v2: Callable[[], bool] = lambda: False,
    ) -> None:
        """`nodes`: all nodes of the cluster, this one included. `voter_view()`: the voters as this
        node knows them now. `allows_v2()`: whether this node also supports version 2 (versions.py).
        """
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.nodes = nodes
        self.incarnation = incarnation
        self.has_secret = secret is not None
        self.voter_view = voter_view
        self.allows_v2 = allows_v2
        self._key_v2 = hmac.new(secret or b"", digestmod=sha256)
        self._key = hmac.digest(secret or b"", b"mqd cluster " + cluster_id.encode(), sha256)
        self._new_uuid = new_uuid

    def __repr__(self) -> str:
        return f"Credentials(node {self.node_id} of {self.cluster_id})"  # never the secret

    def of_v2(self) -> handshake_v2.Credentials:
        own = (self.cluster_id, self.node_id, self.nodes, self.incarnation, self.has_secret)
        return handshake_v2.Credentials(*own, self._key_v2, self.new_nonce)

    def new_nonce(self) -> bytes:
        return self._new_uuid().bytes + self._new_uuid().bytes

    def proof(self, *transcript: bytes) -> bytes:
        """The first part names the side, so a proof of one side is never valid for the other."""
        return hmac.digest(
            self._key, b"".join(len(part).to_bytes(4, "big") + part for part in transcript), sha256
        )

    def identity(self, receiver: int) -> bytes:
        return encode_identity(
            Identity(self.node_id, receiver, self.incarnation, self.voter_view())
        )
