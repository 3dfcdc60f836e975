"""Introductions of this node, in both directions: as the caller of a peer listener, and as the
one.

introduction.py has the bytes and the proofs, dialing.py the version to call with, incarnations.py
the process that is accepted as a node. Here they meet the connections.
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
from mqd.raft.dialing import Dialing
from mqd.raft.incarnations import Caller, IncarnationRefused, Incarnations
from mqd.raft.introduction import (
    ANSWER_BYTES_MAX,
    Call,
    CallOfVersion2,
    Doorkeeper,
    Identity,
    IntroductionFailed,
    Refused,
    Visit,
)
from mqd.raft.voters import Position

logger = logging.getLogger(__name__)

INTRODUCTION_TIMEOUT_SECONDS = 3.5
REFUSAL_LOG_SECONDS = 30.0
"""A refused node calls again at once: the same refusal is logged no more often."""

_LENGTH = struct.Struct(">i").unpack


class Introductions:
    def __init__(
        self,
        doorkeeper: Doorkeeper,
        clock: Clock,
        *,
        silence: float,
        on_new_incarnation: Callable[[int], None],
        on_position: Callable[[int, Position], None],
    ) -> None:
        """`silence`: see Incarnations. `on_new_incarnation(node_id)`: a new process is accepted as
        this node. `on_position(node_id, position)`: a node has introduced itself in version 3."""
        self._doorkeeper = doorkeeper
        self._clock = clock
        self._on_new_incarnation = on_new_incarnation
        self._on_position = on_position
        self.dialing = Dialing()
        self.incarnations = Incarnations(silence=silence)
        self._refusals: dict[str, float] = {}
        """When each refusal was last logged."""

    # -- as the caller

    async def introduce(self, stream: Stream, receiver: int) -> None:
        """See RaftService.introduce."""
        use_2 = self.dialing.uses_2(receiver) and self._doorkeeper.allows_2()
        keeper = self._doorkeeper
        done = False
        try:
            with trio.move_on_after(INTRODUCTION_TIMEOUT_SECONDS):
                if use_2:
                    identity = await _introduce_2(stream, keeper.call_2(receiver))
                else:
                    identity = await self._introduce_3(stream, keeper.call(receiver))
                self._on_introduced(receiver, identity.incarnation, identity.position)
                done = True
                return
        finally:
            if use_2 and not done:
                self.dialing.use_3(receiver)
        raise IntroductionFailed(
            f"it took the call and did not introduce itself within {INTRODUCTION_TIMEOUT_SECONDS} s"
        )

    async def _introduce_3(self, stream: Stream, call: Call) -> Identity:
        await stream.send_all(call.hello())
        try:
            challenge = await _receive_answer(stream)
        except Refused:
            raise
        except OSError:
            if self._doorkeeper.allows_2():
                self.dialing.use_2(call.receiver)
            raise
        await stream.send_all(call.prove(challenge))
        await stream.send_all(call.name(await _receive_answer(stream)))
        return call.finish(await _receive_answer(stream))

    # -- as the listener

    def begin(self, caller: Caller) -> Visit:
        """See RaftService.begin_introduction."""
        return self._doorkeeper.answer(caller, self._clock.monotonic())

    def receive(self, visit: Visit, body: bytes | memoryview, correlation_id: int) -> bytes:
        """See RaftService.receive_introduction."""
        answer = visit.receive(body, correlation_id)
        if visit.node_id is not None and visit.incarnation is not None:
            try:
                self._admit(visit, visit.node_id, visit.incarnation)
            except IncarnationRefused as error:
                answer = visit.refuse(str(error), correlation_id)
            else:
                self._on_introduced(visit.node_id, visit.incarnation, visit.position)
        if visit.refusal is not None:
            self._log_refusal(visit.refusal)
        return answer

    def _admit(self, visit: Visit, node_id: int, incarnation: UUID) -> None:
        now = self._clock.monotonic()
        is_new = self.incarnations.admit(
            now, node_id, incarnation, visit.caller, called_at=visit.called_at
        )
        if is_new:
            self._on_new_incarnation(node_id)

    def _on_introduced(self, peer: int, incarnation: UUID, position: Position | None) -> None:
        """`position`: None in introduction version 2."""
        if self.dialing.met(peer, incarnation, in_version_3=position is not None):
            logger.info(
                "raft: node %d runs the previous release, which speaks introduction version 2:"
                " upgrade it, then finalize %s=%d",
                peer,
                versions.FEATURE,
                versions.NEWEST,
            )
        if position is not None:
            self._on_position(peer, position)

    def _log_refusal(self, refusal: str) -> None:
        now = self._clock.monotonic()
        address, _, why = refusal.partition(" ")
        key = f"{address.rpartition(':')[0]} {why}"  # each try comes from another port
        if now - self._refusals.get(key, -math.inf) < REFUSAL_LOG_SECONDS:
            return
        since = now - REFUSAL_LOG_SECONDS
        self._refusals = {known: at for known, at in self._refusals.items() if at > since}
        if len(self._refusals) < limits.RAFT_INBOX_MESSAGES_MAX:
            self._refusals[key] = now
        logger.warning("raft: refused a connection: %s", refusal)


async def _introduce_2(stream: Stream, call: CallOfVersion2) -> Identity:
    await stream.send_all(call.hello())
    await stream.send_all(call.prove(await _receive_answer(stream)))
    return call.finish(await _receive_answer(stream))


async def _receive_answer(stream: Stream) -> bytes:
    """One frame of a listener, without its length and not a byte more."""
    size = _LENGTH(await _receive_exactly(stream, 4))[0]
    if not 4 < size <= ANSWER_BYTES_MAX:
        raise Refused(
            f"an answer of {size} bytes: the listener there is no mqd node, or of another release"
        )
    return await _receive_exactly(stream, size)


async def _receive_exactly(stream: Stream, size: int) -> bytes:
    data = memoryview(bytearray(size))
    position = 0
    while position < size:
        received = await stream.receive_into(data[position:])
        if not received:
            raise IntroductionFailed(
                "it closed the connection during the introduction (its log may say why)"
            )
        position += received
    return bytes(data)
