"""The listener's side of a handshake, in both versions: which callers it accepts, and how it
refuses the others. Pure."""

from __future__ import annotations

import hmac
import struct
from uuid import UUID

from mqd.errors import ProtocolError
from mqd.raft import handshake_v2
from mqd.raft.handshake import (
    GRANTED,
    PROOF_BYTES,
    PROTOCOL_VERSION,
    REFUSAL_BYTES_MAX,
    REFUSED,
    Credentials,
    decode_identity,
    version_of_hello,
)
from mqd.raft.incarnations import Caller
from mqd.raft.voters import VoterView, disagreement

_RESPONSE_HEAD = struct.Struct(">ii")


class ListenerHandshake:
    """`receive` processes the body of each frame of the caller."""

    def __init__(self, credentials: Credentials, caller: Caller, now: float) -> None:
        self._credentials = credentials
        self.caller = caller
        self.began_at = now
        """Monotonic seconds, before the challenge. A caller that proves its identity ran after this
        time.
        """
        self._hello = b""
        self._challenge = b""
        self._proven = False
        self._version_2: handshake_v2.ListenerSide | None = None
        self.version = PROTOCOL_VERSION
        """The version of the caller's hello."""
        self.node_id: int | None = None
        """The caller's node id, once it is proven."""
        self.incarnation: UUID | None = None
        self.voter_view: VoterView | None = None
        """The caller's view of the voters; None in version 2."""
        self.refusal: str | None = None
        """Why the connection must be closed after the response."""

    def receive(self, body: bytes | memoryview, correlation_id: int) -> bytes:
        """The response, a whole frame. Afterwards `refusal` is set, or `node_id` is, or more frames
        are due.

        Raises ProtocolError for bytes that no node sends: close the connection without a response.
        """
        if self.refusal is not None or self.node_id is not None:
            raise ProtocolError("a second handshake on one connection")
        try:
            if self._version_2 is not None:
                granted = self._on_proof_v2(self._version_2, bytes(body))
            elif not self._hello:
                granted = self._on_hello(bytes(body))
            elif not self._proven:
                granted = self._on_proof(bytes(body))
            else:
                granted = self._on_names(bytes(body))
        except _CallerRefused as refused:
            self.refusal = f"{self.caller.peer} {refused.claim}{refused.why}"
            return _refusal(correlation_id, refused.why)
        return _response(correlation_id, GRANTED + granted)

    def refuse(self, why: str, correlation_id: int) -> bytes:
        """Refuse a caller with a proven identity: the response that replaces the welcome."""
        self.refusal = f"{self.caller.peer} claims to be node {self.node_id}: {why}"
        self.node_id = self.incarnation = self.voter_view = None
        return _refusal(correlation_id, why)

    def _on_hello(self, body: bytes) -> bytes:
        self.version = version_of_hello(body, allow_v2=self._credentials.allows_v2())
        if self.version == handshake_v2.VERSION:
            self._version_2 = handshake_v2.ListenerSide(self._credentials.of_v2())
            if (challenge := self._version_2.challenge(body)) is None:
                raise _CallerRefused(
                    "in handshake version 2: ",
                    "cluster id, node ids or the presence of a secret do not fit: check the "
                    "peers files",
                )
            return challenge
        self._hello, self._challenge = body, self._credentials.new_nonce()
        return self._challenge

    def _on_proof_v2(self, side: handshake_v2.ListenerSide, body: bytes) -> bytes:
        assert side.hello is not None
        if (welcome := side.welcome(body)) is None:
            raise _CallerRefused(
                f"claims to be node {side.hello.sender}: ",
                "its cluster secret is not that of this node: give all nodes the same "
                "cluster_secret in their peers files",
            )
        self.node_id, self.incarnation = side.hello.sender, side.hello.incarnation
        return welcome

    def _on_proof(self, body: bytes) -> bytes:
        own = self._credentials
        expected = own.proof(b"caller proof", self._hello, self._challenge)
        if not hmac.compare_digest(body, expected):
            raise _CallerRefused(
                "is not of this cluster: ",
                "the proof is wrong. The cluster ids or the cluster secrets differ, or only "
                "one node has a secret."
                " Give all nodes the same cluster_id and cluster_secret in their peers files",
            )
        self._proven = True
        return own.proof(b"listener proof", self._hello, self._challenge)

    def _on_names(self, body: bytes) -> bytes:
        own = self._credentials
        named, proof = body[:-PROOF_BYTES], body[-PROOF_BYTES:]
        expected = own.proof(b"caller names", self._hello, self._challenge, named)
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError("an identity with a wrong proof")
        identity = decode_identity(named)
        claim = f"claims to be node {identity.sender}: "
        if identity.receiver != own.node_id:
            raise _CallerRefused(
                claim,
                f"it calls node {identity.receiver}; this is node {own.node_id}: check the "
                "peers files",
            )
        if identity.sender == own.node_id:
            raise _CallerRefused(claim, "which is the id of this node: two nodes use the same id")
        if identity.sender not in own.nodes:
            raise _CallerRefused(
                claim, f"which is no node of this cluster; the nodes are {sorted(own.nodes)}"
            )
        view = identity.voter_view
        assert view is not None
        why = disagreement(own.node_id, own.voter_view(), identity.sender, view)
        if why is not None:
            raise _CallerRefused(claim, why)
        self.node_id, self.incarnation, self.voter_view = (
            identity.sender,
            identity.incarnation,
            view,
        )
        welcome = own.identity(identity.sender)
        return welcome + own.proof(b"listener names", self._hello, self._challenge, named, welcome)


class _CallerRefused(Exception):
    def __init__(self, claim: str, why: str) -> None:
        """`why` is in the response and in the log; `claim` is only in the log."""
        self.claim, self.why = claim, why


def _response(correlation_id: int, body: bytes) -> bytes:
    return _RESPONSE_HEAD.pack(4 + len(body), correlation_id) + body


def _refusal(correlation_id: int, why: str) -> bytes:
    return _response(correlation_id, REFUSED + why.encode()[:REFUSAL_BYTES_MAX])
