"""Runs the handshakes of this node on connections: as the caller of a peer listener, and as the
listener.

handshake.py has the bytes and the proofs, handshake_versions.py the version to call with,
incarnations.py the process that is accepted as a node.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable
from uuid import UUID

import trio

from mqd import limits
from mqd.io.clock import Clock
from mqd.io.net import Stream
from mqd.raft import versions
from mqd.raft.handshake import (
    RESPONSE_BYTES_MAX,
    Credentials,
    HandshakeFailed,
    HandshakeRefused,
    Identity,
)
from mqd.raft.handshake_caller import CallerHandshake, CallerHandshakeV2
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.handshake_versions import HandshakeVersions
from mqd.raft.incarnations import Caller, IncarnationRefused, Incarnations
from mqd.raft.voters import VoterView

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_SECONDS = 3.5
REFUSAL_LOG_SECONDS = 30.0
"""Minimum time between two log lines about the same refusal: a refused node retries immediately."""

_LENGTH = struct.Struct(">i").unpack
_TLS_ALERT = b"\x15\x03"
"""The first bytes of the response of a TLS listener to plaintext (RFC 8446)."""


class HandshakeRunner:
    def __init__(
        self,
        credentials: Credentials,
        clock: Clock,
        *,
        silence: float,
        on_new_incarnation: Callable[[int], None],
        on_voter_view: Callable[[int, VoterView], None],
    ) -> None:
        """`silence`: see Incarnations. `on_new_incarnation(node_id)`: a new process is accepted as
        this node. `on_voter_view(node_id, view)`: a handshake of version 3 is complete."""
        self._credentials = credentials
        self._clock = clock
        self._on_new_incarnation = on_new_incarnation
        self._on_voter_view = on_voter_view
        self.versions = HandshakeVersions()
        self.incarnations = Incarnations(silence=silence)
        self._refusals: dict[str, float] = {}
        """The time of the last log line about each refusal."""

    # -- as the caller

    async def authenticate(self, stream: Stream, receiver: int) -> None:
        """See RaftService.authenticate."""
        own = self._credentials
        use_v2 = self.versions.uses_v2(receiver) and own.allows_v2()
        done = False
        try:
            with trio.move_on_after(HANDSHAKE_TIMEOUT_SECONDS):
                if use_v2:
                    identity = await _call_v2(stream, CallerHandshakeV2(own, receiver))
                else:
                    identity = await self._call(stream, CallerHandshake(own, receiver))
                self._on_complete(receiver, identity.incarnation, identity.voter_view)
                done = True
                return
        finally:
            if use_v2 and not done:
                self.versions.use_v3(receiver)
        raise HandshakeFailed(
            "it accepted the connection and did not complete the handshake within"
            f" {HANDSHAKE_TIMEOUT_SECONDS} s"
        )

    async def _call(self, stream: Stream, handshake: CallerHandshake) -> Identity:
        await stream.send_all(handshake.hello())
        try:
            challenge = await _receive_response(stream, handshake.receiver)
        except HandshakeRefused:
            raise
        except OSError:
            if self._credentials.allows_v2():
                self.versions.use_v2(handshake.receiver)
            raise
        await stream.send_all(handshake.prove(challenge))
        await stream.send_all(handshake.name(await _receive_response(stream, handshake.receiver)))
        return handshake.finish(await _receive_response(stream, handshake.receiver))

    # -- as the listener

    def begin(self, caller: Caller) -> ListenerHandshake:
        """See RaftService.begin_handshake."""
        return ListenerHandshake(self._credentials, caller, self._clock.monotonic())

    def receive(
        self, handshake: ListenerHandshake, body: bytes | memoryview, correlation_id: int
    ) -> bytes:
        """See RaftService.receive_handshake."""
        response = handshake.receive(body, correlation_id)
        if handshake.node_id is not None and handshake.incarnation is not None:
            try:
                self._admit(handshake, handshake.node_id, handshake.incarnation)
            except IncarnationRefused as error:
                response = handshake.refuse(str(error), correlation_id)
            else:
                self._on_complete(handshake.node_id, handshake.incarnation, handshake.voter_view)
        if handshake.refusal is not None:
            self._log_refusal(handshake.refusal)
        return response

    def _admit(self, handshake: ListenerHandshake, node_id: int, incarnation: UUID) -> None:
        now = self._clock.monotonic()
        is_new = self.incarnations.admit(
            now, node_id, incarnation, handshake.caller, called_at=handshake.began_at
        )
        if is_new:
            self._on_new_incarnation(node_id)

    def _on_complete(self, peer: int, incarnation: UUID, view: VoterView | None) -> None:
        """`view`: None in version 2."""
        if self.versions.on_handshake(peer, incarnation, in_v3=view is not None):
            logger.info(
                "a node runs the previous release node=%d handshake_version=2"
                " remedy='upgrade it, then finalize %s=%d'",
                peer,
                versions.FEATURE,
                versions.NEWEST,
            )
        if view is not None:
            self._on_voter_view(peer, view)

    def _log_refusal(self, refusal: str) -> None:
        now = self._clock.monotonic()
        address, _, why = refusal.partition(" ")
        key = f"{address.rpartition(':')[0]} {why}"  # each attempt has another port
        if now - self._refusals.get(key, -math.inf) < REFUSAL_LOG_SECONDS:
            return
        since = now - REFUSAL_LOG_SECONDS
        self._refusals = {
            refused: logged_at for refused, logged_at in self._refusals.items() if logged_at > since
        }
        if len(self._refusals) < limits.RAFT_INBOX_MESSAGES_MAX:
            self._refusals[key] = now
        logger.warning("peer connection refused address=%s reason=%s", address, why)


async def _call_v2(stream: Stream, handshake: CallerHandshakeV2) -> Identity:
    await stream.send_all(handshake.hello())
    await stream.send_all(handshake.prove(await _receive_response(stream, handshake.receiver)))
    return handshake.finish(await _receive_response(stream, handshake.receiver))


async def _receive_response(stream: Stream, receiver: int) -> bytes:
    """One frame of a listener, without its length and not a byte more."""
    length = await _receive_exactly(stream, 4)
    if length.startswith(_TLS_ALERT):
        raise HandshakeRefused(
            f"node {receiver} requires TLS: set peer.ssl=required (or preferred) on this node"
        )
    size = _LENGTH(length)[0]
    if not 4 < size <= RESPONSE_BYTES_MAX:
        raise HandshakeRefused(
            f"a response of {size} bytes. The listener is not an mqd node, or runs another release"
        )
    return await _receive_exactly(stream, size)


async def _receive_exactly(stream: Stream, size: int) -> bytes:
    data = memoryview(bytearray(size))
    position = 0
    while position < size:
        received = await stream.receive_into(data[position:])
        if not received:
            raise HandshakeFailed(
                "it closed the connection during the handshake (see the log of that node)"
            )
        position += received
    return bytes(data)
