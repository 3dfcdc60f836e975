"""The caller's side of a handshake: which frames it sends, and what it accepts from the listener.
Pure.

A refusal of the listener, a wrong proof, or another node than the expected one raises
HandshakeRefused, with a text for the operator.
"""

from __future__ import annotations

import hmac

from mqd.errors import ProtocolError
from mqd.raft import handshake_v2
from mqd.raft.codec import API_KEY_HANDSHAKE, encode_frame
from mqd.raft.handshake import (
    GRANTED,
    NONCE_BYTES,
    PROOF_BYTES,
    REFUSAL_BYTES_MAX,
    REFUSED,
    Credentials,
    HandshakeRefused,
    Identity,
    decode_identity,
    encode_hello,
)
from mqd.raft.voters import disagreement


class _Caller:
    """The common part of both versions."""

    def __init__(self, credentials: Credentials, receiver: int) -> None:
        self._credentials = credentials
        self.receiver = receiver

    def _not_a_node(self) -> HandshakeRefused:
        return HandshakeRefused(
            f"the process at the address of node {self.receiver} is not an mqd node, or of "
            "another release"
        )

    def _other_secret(self) -> HandshakeRefused:
        return HandshakeRefused(
            f"the process at the address of node {self.receiver} does not have the cluster "
            "secret of this node."
            " Give all nodes the same cluster_id and cluster_secret in their peers files"
        )

    def _granted(self, response: bytes) -> bytes:
        """`response`: a listener's whole frame, without its length."""
        body = response[4:]
        if body[:1] == REFUSED:
            text = "".join(
                letter if letter.isprintable() else "?"
                for letter in body[1:].decode("utf-8", "replace")
            )
            raise HandshakeRefused(
                f"node {self.receiver} refuses this node: {text[:REFUSAL_BYTES_MAX]}"
            )
        if body[:1] != GRANTED:
            raise self._not_a_node()
        return body[1:]


class CallerHandshakeV2(_Caller):
    """The handshake with a node of the previous release. Send `hello()`, pass the response to
    `prove`, send its result, and pass the last response to `finish`.
    """

    def __init__(self, credentials: Credentials, receiver: int) -> None:
        super().__init__(credentials, receiver)
        self._side = handshake_v2.CallerSide(credentials.of_v2(), receiver)

    def hello(self) -> bytes:
        return encode_frame(API_KEY_HANDSHAKE, 0, self._side.hello)

    def prove(self, response: bytes) -> bytes:
        """Raises HandshakeRefused."""
        if (proof := self._side.proof(self._granted(response))) is None:
            raise self._not_a_node()
        return encode_frame(API_KEY_HANDSHAKE, 1, proof)

    def finish(self, response: bytes) -> Identity:
        """The listener's. Raises HandshakeRefused."""
        if (incarnation := self._side.incarnation_of(self._granted(response))) is None:
            raise self._other_secret()
        return Identity(self.receiver, self._credentials.node_id, incarnation, None)


class CallerHandshake(_Caller):
    """The handshake in version 3. Send `hello()`. Pass the response to `prove`, the next one to
    `name`, and send their results. Pass the last response to `finish`.
    """

    def __init__(self, credentials: Credentials, receiver: int) -> None:
        super().__init__(credentials, receiver)
        self._hello = encode_hello(credentials.new_nonce())
        self._challenge = b""
        self._identity = b""

    def hello(self) -> bytes:
        return encode_frame(API_KEY_HANDSHAKE, 0, self._hello)

    def prove(self, response: bytes) -> bytes:
        """Raises HandshakeRefused."""
        self._challenge = self._granted(response)
        if len(self._challenge) != NONCE_BYTES:
            raise self._not_a_node()
        proof = self._credentials.proof(b"caller proof", self._hello, self._challenge)
        return encode_frame(API_KEY_HANDSHAKE, 1, proof)

    def name(self, response: bytes) -> bytes:
        """Raises HandshakeRefused."""
        own = self._credentials
        expected = own.proof(b"listener proof", self._hello, self._challenge)
        if not hmac.compare_digest(self._granted(response), expected):
            raise self._other_secret()
        self._identity = own.identity(self.receiver)
        proof = own.proof(b"caller names", self._hello, self._challenge, self._identity)
        return encode_frame(API_KEY_HANDSHAKE, 2, self._identity + proof)

    def finish(self, response: bytes) -> Identity:
        """The listener's. Raises HandshakeRefused."""
        own = self._credentials
        body = self._granted(response)
        named, proof = body[:-PROOF_BYTES], body[-PROOF_BYTES:]
        expected = own.proof(b"listener names", self._hello, self._challenge, self._identity, named)
        if not hmac.compare_digest(proof, expected):
            raise self._other_secret()
        try:
            identity = decode_identity(named)
        except ProtocolError as error:
            raise self._not_a_node() from error
        if (identity.sender, identity.receiver) != (self.receiver, own.node_id):
            raise HandshakeRefused(
                f"node {identity.sender} listens at the address of node {self.receiver}: "
                "check the peers files"
            )
        assert identity.voter_view is not None
        why = disagreement(own.node_id, own.voter_view(), self.receiver, identity.voter_view)
        if why is not None:
            raise HandshakeRefused(f"this node refuses node {self.receiver}: {why}")
        return identity
