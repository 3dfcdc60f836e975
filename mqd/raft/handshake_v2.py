"""The handshake of two nodes, version 2, of the previous release: both sides, for rolling upgrades.
Pure.

Four messages, in the frames of handshake.py:

    caller    hello      cluster id, both node ids, its incarnation, whether it has a secret, a
                         nonce
    listener  challenge  its incarnation, a nonce
                         or: a refusal
    caller    proof      HMAC-SHA256(secret, "caller" + everything above)
    listener  welcome    HMAC-SHA256(secret, "listener" + everything above)
                         or: a refusal

Version 3 replaced it for two reasons. The caller names the cluster and the nodes before any proof.
An impostor at the address of a node gets a proof on which it can try secrets.

Version 2 is used only while the finalized metadata version is 1 (versions.py). Unlike in the
previous release, the listener's refusals before the proof name nothing. No message has the voters.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from mqd.errors import ProtocolError

VERSION = 2

_MAGIC = b"mqdQ"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_HELLO = struct.Struct(f">4sHii16s?{_NONCE_BYTES}sH")
_CHALLENGE = struct.Struct(f">16s{_NONCE_BYTES}s")


class Credentials(NamedTuple):
    """The identity and the key that this node uses in a handshake."""

    cluster_id: str
    node_id: int
    nodes: frozenset[int]
    incarnation: UUID
    has_secret: bool
    key: hmac.HMAC
    """An HMAC with the cluster secret, or with an empty one."""
    new_nonce: Callable[[], bytes]
    """Returns 32 bytes that were never used before."""

    def proof(self, side: bytes, hello: bytes, challenge: bytes) -> bytes:
        transcript = (b"mqd introduction", side, hello, challenge)
        keyed = self.key.copy()
        keyed.update(b"".join(len(part).to_bytes(4, "big") + part for part in transcript))
        return keyed.digest()


class Hello(NamedTuple):
    cluster_id: str
    sender: int
    receiver: int
    incarnation: UUID
    has_secret: bool
    nonce: bytes


def encode_hello(hello: Hello) -> bytes:
    cluster = hello.cluster_id.encode()
    fixed = (
        hello.sender,
        hello.receiver,
        hello.incarnation.bytes,
        hello.has_secret,
        hello.nonce,
        len(cluster),
    )
    return _HELLO.pack(_MAGIC, VERSION, *fixed) + cluster


def decode_hello(body: bytes) -> Hello:
    """Decode a body that begins with the magic bytes and this version. Raises ProtocolError."""
    if len(body) < _HELLO.size:
        raise ProtocolError(f"a handshake of {len(body)} bytes")
    _, _, sender, receiver, incarnation, has_secret, nonce, size = _HELLO.unpack_from(body)
    cluster = body[_HELLO.size :]
    if len(cluster) != size:
        raise ProtocolError("a handshake with a cut or overlong cluster id")
    try:
        return Hello(cluster.decode(), sender, receiver, UUID(bytes=incarnation), has_secret, nonce)
    except UnicodeDecodeError as error:
        raise ProtocolError("a handshake with a cluster id that is not UTF-8") from error


class CallerSide:
    """The caller's side: `hello`, then `proof` for the challenge, then `incarnation_of` the
    welcome.
    """

    def __init__(self, own: Credentials, receiver: int) -> None:
        self._own = own
        self.hello = encode_hello(
            Hello(
                own.cluster_id,
                own.node_id,
                receiver,
                own.incarnation,
                own.has_secret,
                own.new_nonce(),
            )
        )
        self._challenge = b""

    def proof(self, challenge: bytes) -> bytes | None:
        """The proof for the challenge; None if the challenge is malformed."""
        if len(challenge) != _CHALLENGE.size:
            return None
        self._challenge = challenge
        return self._own.proof(b"caller", self.hello, challenge)

    def incarnation_of(self, welcome: bytes) -> UUID | None:
        """The listener's incarnation; None if it does not have the secret."""
        if not hmac.compare_digest(
            welcome, self._own.proof(b"listener", self.hello, self._challenge)
        ):
            return None
        return UUID(bytes=bytes(_CHALLENGE.unpack(self._challenge)[0]))


class ListenerSide:
    """The listener's side: `challenge` for the hello, then `welcome` for the proof. Each returns
    None to refuse.
    """

    def __init__(self, own: Credentials) -> None:
        self._own = own
        self._hello_bytes = self._challenge = b""
        self.hello: Hello | None = None
        """The caller's claims; proven once `welcome` has returned a response."""

    def challenge(self, body: bytes) -> bytes | None:
        """Raises ProtocolError for a malformed hello."""
        own, hello = self._own, decode_hello(body)
        self.hello, self._hello_bytes = hello, body
        names_this_node = (hello.cluster_id, hello.receiver, hello.has_secret) == (
            own.cluster_id,
            own.node_id,
            own.has_secret,
        )
        if not names_this_node or hello.sender == own.node_id or hello.sender not in own.nodes:
            return None
        self._challenge = _CHALLENGE.pack(own.incarnation.bytes, own.new_nonce())
        return self._challenge

    def welcome(self, body: bytes) -> bytes | None:
        if not hmac.compare_digest(
            body, self._own.proof(b"caller", self._hello_bytes, self._challenge)
        ):
            return None
        return self._own.proof(b"listener", self._hello_bytes, self._challenge)
