"""The quorum as a service: one task that turns PySyncObj, one that calls each peer, and fsync off the loop.

The loop: take what came (messages, proposals, connections), turn the node, flush the journal in a worker thread if the turn
changed it, and only then send what the turn said and answer whom it answered. While the flush runs, what comes waits
for the next turn; the event loop itself never waits for the disk. Proposals that arrive together share one flush.

Failures have four fates: a peer's bytes end its connection; a journal that cannot be written stops the node
(StorageError rises out of `run`, never retried); a machine or quorum that breaks its rules does too; a disk without space, its
reserve used up, makes the turn wait until there is some, which to everybody else is a slow disk: nothing of the turn was said.

Every node takes part: voters, and observers, which follow the log and are never counted.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from mqd import limits
from mqd.errors import ErrorCode, MqError, ProtocolError, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.io.net import Network, Stream
from mqd.peers import is_loopback
from mqd.raft import codec, versions
from mqd.raft.building import build, load
from mqd.raft.codec import COMMAND, NO_OP, Message
from mqd.raft.dialing import Dialing
from mqd.raft.elections import Timing
from mqd.raft.incarnations import Caller, IncarnationRefused, Incarnations
from mqd.raft.introduction import ANSWER_BYTES_MAX, Call, CallOfVersion2, Doorkeeper, Identity, IntroductionFailed, Refused, Visit
from mqd.raft.journal import Compaction, Journal, open_journal
from mqd.raft.machine import Machine, NotLeader, OutcomeUnknown, PeerStatus, RaftStatus, Role
from mqd.raft.node import RaftNode
from mqd.raft.proposal_results import ProposalResult
from mqd.raft.snapshots import Work
from mqd.raft.transport import (
    BACKOFF_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    CONNECT_TIMEOUT_SECONDS,
    INTRODUCTION_TIMEOUT_SECONDS,
    SEND_TIMEOUT_SECONDS,
    STEADY_SECONDS,
    PeerQueue,
)
from mqd.raft.voters import Position, VoterSet

__all__ = ["Machine", "NotLeader", "OutcomeUnknown", "PeerStatus", "RaftService", "RaftStatistics", "RaftStatus", "Role", "Timing"]

logger = logging.getLogger(__name__)

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call elsewhere. A simulation on virtual time runs it in place."""

TICK_SECONDS_MAX = 0.1
"""With peers, a turn at least this often; the next election or heartbeat is met exactly."""
ALONE_TICK_SECONDS = 1.0
"""A quorum of one has no heartbeat: this only lets the journal note that it is durable."""
PROPOSAL_TIMEOUT_SECONDS = 10.0
LEADERLESS_TOLD_AFTER_SECONDS = 2.0
"""Without a leader for this long, an operator is told what is missing; elections take less."""
LEADERLESS_TOLD_EVERY_SECONDS = 5.0
SPACE_RETRY_SECONDS = 1.0
"""How often a full disk is tried again."""
SPACE_TOLD_EVERY_SECONDS = 30.0
STAND_DOWN_SECONDS = 1.0
"""How long a stopping leader waits for another one."""
MISFIT_TOLD_EVERY_SECONDS = 10.0
REFUSALS_TOLD_EVERY_SECONDS = 30.0
"""Who is refused calls again at once: the same refusal is told no more often."""

_LENGTH = struct.Struct(">i").unpack


@dataclass(frozen=True, slots=True)
class RaftStatistics:
    """Counters since start."""

    turns: int
    flushes: int
    elections_won: int
    messages_received: int
    messages_sent: int
    messages_dropped: int
    proposals_waiting: int
    entries: int
    """In the journal, since its base."""
    snapshots_taken: int
    snapshots_installed: int
    """Snapshots received from a leader, and restored."""


class _Waiting:
    """One proposal on its way: `propose` waits on the event."""

    __slots__ = ("done", "fate", "index")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.index = 0
        self.fate = ProposalResult.UNKNOWN

    def settle(self, index: int, fate: ProposalResult) -> None:
        self.index, self.fate = index, fate
        self.done.set()


class RaftService:
    """One voter of the metadata quorum, or an observer. `run` is its life; everything else may be called while it runs, from Trio's
    thread. Before `run` and after it, proposals are refused with NotLeader(None)."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Mapping[int, tuple[str, int]],
        cluster_id: str,
        directory: Path,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        network: Network,
        machine: Machine,
        observers: Mapping[int, tuple[str, int]] | None = None,
        secret: bytes | None = None,
        timing: Timing | None = None,
        compaction: Compaction | None = None,
        on_role_change: Callable[[RaftStatus], None] | None = None,
        proposal_timeout: float = PROPOSAL_TIMEOUT_SECONDS,
        in_thread: InThread | None = None,
        finalized: Callable[[], int] = lambda: 0,
    ) -> None:
        """`voters`, `observers`: ids and the addresses of peer listeners, together all nodes of the cluster, this one included.
        `secret`: the cluster secret, of which every node must prove knowledge before it is heard.
        `finalized()`: the metadata version by what the machine has applied, 0 for none (versions.py).
        `on_role_change(status)`: called after the turn in which role, readiness, term or leader changed."""
        everyone = {**voters, **(observers or {})}
        if node_id not in everyone:
            raise ValueError(f"node {node_id} is not among the nodes {sorted(everyone)}")
        self._node_id = node_id
        self._own_address = everyone[node_id]
        self._file = frozenset(voters)
        """Voters by the peers file; those in force are in the log (voters.py)."""
        self._everyone = frozenset(everyone)
        called = everyone if node_id in self._file else voters  # observers send each other nothing
        self._addresses = {peer: address for peer, address in sorted(called.items()) if peer != node_id}
        self._cluster_id = cluster_id
        self._compaction = compaction
        self._directory = directory
        self._disk, self._clock, self._entropy, self._network = disk, clock, entropy, network
        self._machine = machine
        self._finalized = finalized
        self._timing = timing if timing is not None else Timing()
        self.on_role_change = on_role_change
        self.on_peer_gone: Callable[[int], None] | None = None
        """Called with the id of a node whose process seems to have ended: the connection to it broke, and calling it again at
        once was refused (ECONNREFUSED). A hint, not a proof."""
        self._proposal_timeout = proposal_timeout
        self._blocking: InThread = in_thread if in_thread is not None else disk.offload
        self._doorkeeper = Doorkeeper(
            cluster_id=cluster_id,
            node_id=node_id,
            nodes=frozenset(everyone),
            incarnation=entropy.uuid(),
            secret=secret,
            new_uuid=entropy.uuid,
            position=self._position,
            allows_2=self._allows_introduction_2,
        )
        self._dialing = Dialing()
        self._incarnations = Incarnations(silence=self._timing.election_timeout_max)
        self._refusals: dict[str, float] = {}
        """What was refused, and when that was last told."""
        self._queue_wakes = {peer: trio.Event() for peer in self._addresses}
        self._queues = {peer: PeerQueue(peer, wake=partial(self._wake_sender, peer)) for peer in self._addresses}
        self._inbox: deque[tuple[int, Message]] = deque()
        self._news: deque[Callable[[RaftNode], None]] = deque()
        """Of connections, for the node's next turn, in order."""
        self._proposals: deque[tuple[bytes, _Waiting]] = deque()
        self._unsettled = 0
        self._unreachable = dict.fromkeys(self._addresses, "not tried yet")
        """Of each peer that cannot be called: why."""
        self._heard_at = dict.fromkeys(self._addresses, -math.inf)
        """When each peer last said anything in Raft, or introduced itself to a call of ours."""
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._leaderless_changed = trio.Event()
        self._was_leaderless = True
        self._refusing = False
        self._stopping = False
        self._stop_wanted = trio.Event()
        self._full: str | None = None
        """While the disk has no space for what is due: what to tell those who ask."""
        self._node: RaftNode | None = None
        self._journal: Journal | None = None
        self._status = RaftStatus(
            Role.FOLLOWER, False, 0, None, 0, 0, 0, 0, 0, tuple(sorted(voters)), (), observers=tuple(sorted(self._everyone - self._file))
        )
        self._turns = self._received = self._dropped = 0

    # -- for everyone

    def status(self) -> RaftStatus:
        """As of the last turn."""
        if self._alone and self._status.role is Role.LEADER:
            return replace(self._status, majority_heard_at=self._clock.monotonic(), led_at=self._clock.monotonic())
        return self._status

    @property
    def _voters(self) -> frozenset[int]:
        return self._node.voters if self._node is not None else self._file

    def _position(self) -> Position:
        if self._node is not None:
            return self._node.position
        return Position(self._file, VoterSet(0, self._file), VoterSet(0, self._file), False)

    def _allows_introduction_2(self) -> bool:
        return self._node is not None and versions.allows_introduction_2(self._node.metadata_version)

    def runs_newest(self, node_id: int) -> bool:
        """Whether a node is known to run a release that supports the newest metadata version, in its latest life that was met."""
        return node_id == self._node_id or self._dialing.speaks_3(node_id)

    @property
    def _alone(self) -> bool:
        return self._voters == {self._node_id}

    @property
    def short_of_space(self) -> bool:
        """Whether the disk of the journal is full, or was a moment ago: what can wait should not be proposed."""
        return self._full is not None or (self._journal is not None and self._journal.short_of_space)

    def statistics(self) -> RaftStatistics:
        journal = self._journal
        return RaftStatistics(
            turns=self._turns,
            flushes=journal.flushes if journal is not None else 0,
            elections_won=self._node.elections if self._node is not None else 0,
            messages_received=self._received,
            messages_sent=sum(queue.sent for queue in self._queues.values()),
            messages_dropped=self._dropped + sum(queue.dropped for queue in self._queues.values()),
            proposals_waiting=self._unsettled,
            entries=len(journal.entries) - 1 if journal is not None else 0,
            snapshots_taken=self._node.snapshots_taken if self._node is not None else 0,
            snapshots_installed=self._node.snapshots_installed if self._node is not None else 0,
        )

    async def propose(self, command: bytes, *, timeout: float | None = None) -> int:
        """Wait until `command` is durable, committed and applied here; returns its index.

        Raises NotLeader (it was not accepted, and never will be), OutcomeUnknown (leadership went or `timeout` seconds passed
        first: it may be applied, or be later), MqError when too many wait (it was not accepted). Cancelled: unknown."""
        assert len(command) <= limits.RAFT_COMMAND_BYTES_MAX, len(command)
        return await self._propose(COMMAND + command, timeout)

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        """Wait until this node has applied all that was committed anywhere before this call; returns an index that is applied.

        Costs an entry and an fsync, which callers that come together share. Raises as `propose` does."""
        return await self._propose(NO_OP, timeout)

    async def _propose(self, entry: bytes, timeout: float | None) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._status.ready or self._refusing:
            leader_id = self._status.leader_id
            raise NotLeader(leader_id if leader_id != self._node_id else None)
        if self._full is not None:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, self._full)
        if self._unsettled >= limits.RAFT_PROPOSALS_MAX:
            raise MqError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{self._unsettled} metadata changes wait already; try again later")
        waiting = _Waiting()
        self._unsettled += 1
        self._proposals.append((entry, waiting))
        self._wake.set()
        try:
            with trio.move_on_after(self._proposal_timeout if timeout is None else timeout):
                await waiting.done.wait()
        finally:
            self._unsettled -= 1
        if waiting.done.is_set() and waiting.fate is ProposalResult.APPLIED:
            return waiting.index
        if waiting.done.is_set() and waiting.fate is ProposalResult.REFUSED:
            raise NotLeader(self._status.leader_id)
        raise OutcomeUnknown("leadership was lost, or time ran out, before the command was known to be applied")

    # -- for the peer listener, and for whoever else calls one

    async def introduce(self, stream: Stream, receiver: int) -> None:
        """On a fresh connection to the peer listener of `receiver`: make sure of each other, before any other byte.

        Raises OSError: IntroductionFailed (in words; Refused where one side said no), or the connection's own. The stream is of no use
        then, nor when this was cancelled. A node of the release before closes the connection at the hello of version 3: while that
        release is allowed, the next call uses version 2."""
        use_2 = self._dialing.uses_2(receiver) and self._allows_introduction_2()
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
                self._dialing.use_3(receiver)
        raise IntroductionFailed(f"it took the call and did not introduce itself within {INTRODUCTION_TIMEOUT_SECONDS} s")

    async def _introduce_3(self, stream: Stream, call: Call) -> Identity:
        await stream.send_all(call.hello())
        try:
            challenge = await _receive_answer(stream)
        except Refused:
            raise
        except OSError:
            if self._allows_introduction_2():
                self._dialing.use_2(call.receiver)
            raise
        await stream.send_all(call.prove(challenge))
        await stream.send_all(call.name(await _receive_answer(stream)))
        return call.finish(await _receive_answer(stream))

    def visit(self, caller: Caller) -> Visit:
        """An inbound connection that begins to introduce itself: pass what it says to `hear`."""
        return self._doorkeeper.answer(caller, self._clock.monotonic())

    def hear(self, visit: Visit, body: bytes | memoryview, correlation_id: int) -> bytes:
        """The body (behind the request header) of a frame with api key 32000: the answer, a whole frame to send.

        Then `visit.refusal` is set (close the connection behind the answer; the reason is logged here), or `visit.node_id` is (who
        it is), or more is to come. Raises ProtocolError: close the connection and log it."""
        answer = visit.hear(body, correlation_id)
        if visit.node_id is not None and visit.incarnation is not None:
            try:
                self._admit(visit, visit.node_id, visit.incarnation)
            except IncarnationRefused as error:
                answer = visit.refuse(str(error), correlation_id)
            else:
                self._on_introduced(visit.node_id, visit.incarnation, visit.position)
        if visit.refusal is not None:
            self._tell_refusal(visit.refusal)
        return answer

    def _admit(self, visit: Visit, node_id: int, incarnation: UUID) -> None:
        if not self._incarnations.admit(self._clock.monotonic(), node_id, incarnation, visit.caller, called_at=visit.called_at):
            return
        self._inbox = deque(pair for pair in self._inbox if pair[0] != node_id)
        if node_id in self._addresses:
            self._news.append(lambda node: node.restarted(node_id))
            self._wake.set()

    def _on_introduced(self, peer: int, incarnation: UUID, position: Position | None) -> None:
        """`position`: None in introduction version 2."""
        if self._dialing.met(peer, incarnation, in_version_3=position is not None):
            logger.info(
                "raft: node %d runs the release before, which speaks introduction version 2: upgrade it, then finalize %s=%d",
                peer,
                versions.FEATURE,
                versions.NEWEST,
            )
        if position is not None:
            self._news.append(lambda node: node.introduced(peer, position.file))
            self._wake.set()

    def _tell_refusal(self, refusal: str) -> None:
        now = self._clock.monotonic()
        address, _, why = refusal.partition(" ")
        key = f"{address.rpartition(':')[0]} {why}"  # each try comes from another port
        if now - self._refusals.get(key, -math.inf) >= REFUSALS_TOLD_EVERY_SECONDS:
            self._refusals = {told: at for told, at in self._refusals.items() if now - at < REFUSALS_TOLD_EVERY_SECONDS}
            if len(self._refusals) < limits.RAFT_INBOX_MESSAGES_MAX:
                self._refusals[key] = now
            logger.warning("raft: refused a connection: %s", refusal)

    def receive(self, node_id: int, body: bytes | memoryview, incarnation: UUID | None = None) -> None:
        """The body of a frame with api key 32001, of a connection that introduced itself as `node_id`. Copies what it keeps.

        Raises ProtocolError: close the connection and log it. There is no answer to send."""
        if incarnation is not None and incarnation != self._incarnations.current(node_id):
            raise ProtocolError(
                f"a Raft message of node {node_id} from another life than the one that is heard: do two processes run under one id?"
            )
        message = codec.decode_message(body)
        codec.check_plausible(message, term=self._status.term, last_index=self._status.last_index)
        self._received += 1
        self._heard_at[node_id] = self._clock.monotonic()
        if len(self._inbox) >= limits.RAFT_INBOX_MESSAGES_MAX:
            self._dropped += 1
            return
        self._inbox.append((node_id, message))
        self._wake.set()

    # -- life

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the journal, take part until `stop` or cancellation. `started` when the files are read and sound.

        Raises StorageError when they are not. After `started`, in an ExceptionGroup: StorageError when the journal cannot be
        written any more, QuorumBroken, and what the machine raises."""
        journal = await self._blocking(
            lambda: open_journal(
                self._disk,
                self._directory,
                cluster_id=self._cluster_id,
                node_id=self._node_id,
                new_uuid=self._entropy.uuid,
                sole_voter=self._alone,
                reserve_bytes=limits.RAFT_RESERVE_BYTES,
            )
        )
        self._journal = journal
        self._warn_of_open_door()
        try:
            self._node = RaftNode(
                node_id=self._node_id,
                voters=self._file,
                observers=self._everyone - self._file,
                journal=journal,
                machine=self._machine,
                random=self._entropy.random,
                now=self._clock.monotonic(),
                timing=self._timing,
                cluster_id=self._cluster_id,
                compaction=self._compaction,
                build=lambda pieces, done: nursery.start_soon(self._build_snapshot, pieces, done),
                load=lambda work, done: nursery.start_soon(self._load_snapshot, work, done),
                finalized=self._finalized,
            )
            self._publish(self._node)
            async with trio.open_nursery() as nursery:
                for peer, (host, port) in self._addresses.items():
                    nursery.start_soon(self._call_peer, peer, host, port)
                if self._addresses:
                    nursery.start_soon(self._tell_while_leaderless)
                    nursery.start_soon(self._warn_of_misfit)
                task_status.started()
                await self._turn_until_stopped(self._node, journal)
                nursery.cancel_scope.cancel()
        finally:
            self._end(journal)

    async def _build_snapshot(self, pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
        state = await build(pieces, self._blocking, self._clock)
        self._news.append(lambda _: done(state))
        self._wake.set()

    async def _load_snapshot(self, work: Work[Any], done: Callable[[Any], None]) -> None:
        loaded = await load(work, self._blocking, self._clock)
        self._news.append(lambda _: done(loaded))
        self._wake.set()

    async def transfer_leadership(self) -> bool:
        """Hand leadership to the most advanced follower; True when this node leads no more (or never did)."""
        node = self._node
        if node is None or self._status.role is not Role.LEADER:
            return True
        if self._alone:
            return False
        with trio.move_on_after(STAND_DOWN_SECONDS):
            while self._status.role is Role.LEADER and not node.stand_down():
                await self._changed.wait()  # a follower's answer may make it fit
            self._wake.set()
            while self._status.role is Role.LEADER:
                await self._changed.wait()
        return self._status.role is not Role.LEADER

    async def stop(self) -> None:
        """Stop cleanly: refuse new proposals, finish or give up those that wait, hand over leadership, and let `run` return."""
        self._refusing = True
        with trio.move_on_after(STAND_DOWN_SECONDS):
            while self._unsettled:
                await self._changed.wait()
        await self.transfer_leadership()
        self._stopping = True
        self._stop_wanted.set()
        self._wake.set()

    def _warn_of_open_door(self) -> None:
        host, port = self._own_address
        if not self._doorkeeper.has_secret and self._addresses and not is_loopback(host):
            logger.warning(
                "the peer listener %s:%d is open to the network without a cluster secret: whoever reaches it can pass for a node of this"
                " cluster; set cluster_secret or cluster_secret_file in the peers file of every node",
                host,
                port,
            )

    # -- the loop

    async def _turn_until_stopped(self, node: RaftNode, journal: Journal) -> None:
        tick_max = TICK_SECONDS_MAX if self._addresses else ALONE_TICK_SECONDS
        while not self._stopping:
            due_in = max(node.next_deadline() - self._clock.monotonic(), 0.0) + 0.0005  # PySyncObj wants it past
            with trio.move_on_after(min(due_in, tick_max)):
                await self._wake.wait()
            self._take(node)
            node.turn(self._clock.monotonic())
            await self._settle(node, journal)
            while not journal.dirty and node.can_commit():  # what the flush made durable
                node.turn(self._clock.monotonic())
                await self._settle(node, journal)
            self._publish(node)
        if not journal.short_of_space:
            journal.mark()
        await self._settle(node, journal)

    def _take(self, node: RaftNode) -> None:
        """Hand over all that came since the last turn. No awaits."""
        self._wake = trio.Event()
        while self._news:
            self._news.popleft()(node)
        now = self._clock.monotonic()
        while self._inbox:
            node.receive(now, *self._inbox.popleft())
        while self._proposals:
            entry, waiting = self._proposals.popleft()
            node.propose(entry, waiting.settle)
        self._turns += 1

    async def _settle(self, node: RaftNode, journal: Journal) -> None:
        """Durable first, then said. When it cannot be made durable before the node stops, nothing is said."""
        if journal.dirty and not await self._flush(journal):
            return
        for peer, message in node.flushed():
            if peer in self._queues:  # a voter by the log may be in no file any more
                self._queues[peer].put(message)

    async def _flush(self, journal: Journal) -> bool:
        """Wait for space where there is none. False: the node stops first, with less than all on disk."""
        told_at = -math.inf
        while True:
            try:
                await self._blocking(journal.flush)
                if self._full is not None:
                    logger.info("raft: space again, the metadata is written")
                self._full = None
                return True
            except StorageError as error:
                if not error.out_of_space:
                    raise
                self._full = f"the disk of the metadata is full: {error}; free some space, it goes on by itself"
                if self._stopping:
                    logger.warning("raft: stopped while %s", self._full)
                    return False
                if self._clock.monotonic() - told_at >= SPACE_TOLD_EVERY_SECONDS:
                    told_at = self._clock.monotonic()
                    logger.error("raft: %s", self._full)
            with trio.move_on_after(SPACE_RETRY_SECONDS):
                await self._stop_wanted.wait()

    def _publish(self, node: RaftNode) -> None:
        journal = self._journal
        assert journal is not None
        before = self._status
        self._status = RaftStatus(
            role=node.role,
            ready=node.ready,
            term=node.term,
            leader_id=node.leader_id,
            commit_index=node.commit_index,
            applied_index=node.applied_index,
            last_index=journal.last_index,
            durable_index=journal.durable_index,
            snapshot_index=journal.snapshot_index,
            voters=tuple(sorted(node.voters)),
            connected=tuple(peer for peer in node.connected_peers if peer in node.voters),
            observers=tuple(sorted(self._everyone - node.voters)),
            majority_heard_at=node.majority_replied_at(self._clock.monotonic()),
            led_at=node.led_at(self._clock.monotonic()),
            peers=node.peers(),
            abstains=node.abstains,
        )
        self._announce(before)

    def _announce(self, before: RaftStatus) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._leaderless is not self._was_leaderless:
            self._was_leaderless = not self._was_leaderless
            self._leaderless_changed.set()
            self._leaderless_changed = trio.Event()
        now = self._status
        if (now.role, now.ready, now.term, now.leader_id) == (before.role, before.ready, before.term, before.leader_id):
            return
        logger.info("raft: %s in term %d, leader %s%s", now.role.value, now.term, now.leader_id, ", ready" if now.ready else "")
        if self.on_role_change is not None:
            self.on_role_change(now)

    async def _tell_while_leaderless(self) -> None:
        """As long as there is no leader, say every few seconds who is missing: without one a node does nothing at all."""
        while True:
            while not self._leaderless:
                await self._leaderless_changed.wait()
            since = self._clock.monotonic()
            with trio.move_on_after(LEADERLESS_TOLD_AFTER_SECONDS):
                while self._leaderless:
                    await self._leaderless_changed.wait()
            while self._leaderless:
                logger.warning("%s", self._what_is_missing(since))
                with trio.move_on_after(LEADERLESS_TOLD_EVERY_SECONDS):
                    while self._leaderless:
                        await self._leaderless_changed.wait()

    async def _warn_of_misfit(self) -> None:
        """A peers file that the voters cannot follow is a mistake that only its operator can correct."""
        while True:
            await trio.sleep(MISFIT_TOLD_EVERY_SECONDS)
            if self._node is not None and (why := self._node.peers_file_problem(self._clock.monotonic())) is not None:
                logger.warning("raft: %s", why)

    @property
    def _leaderless(self) -> bool:
        """Whether no leader is known, or the one that is cannot be reached: PySyncObj clings to it while it hears from nobody."""
        status = self._status
        if status.leader_id == self._node_id:
            return (1 + len(status.connected)) * 2 <= len(self._voters)
        return status.leader_id not in status.connected

    def _what_is_missing(self, since: float) -> str:
        """In words; `since` when there is no leader. An open connection is no sign of life: the system keeps it for a process that hangs.
        But a voter without a leader says something to the other voters in every election time-out. To observers it says nothing."""
        now, votes = self._clock.monotonic(), self._node_id in self._voters
        reasons = []
        for peer in sorted(self._voters - {self._node_id}):
            if peer not in self._addresses:
                reasons.append(f"node {peer} is a voter by the log and not by the peers file")
                continue
            name, silent = "node {} at {}:{}".format(peer, *self._addresses[peer]), now - max(since, self._heard_at[peer])
            if peer not in self._status.connected:
                reasons.append(f"no answer from {name} ({self._unreachable[peer]})")
            elif votes and silent > self._timing.election_timeout_max:
                reasons.append(f"{name} is connected but silent for {silent:.0f} s (it hangs, or follows a leader)")
        reachable, voters = len(self._voters) - len(reasons), len(self._voters)
        what = "a leader" if reachable * 2 > voters else "a majority"
        if self._status.abstains is not None:
            reasons.append(self._status.abstains)
        return ", ".join([f"waiting for {what}: {reachable} of {voters} voters {'reachable' if votes else 'connected'}", *reasons])

    def _end(self, journal: Journal) -> None:
        self._refusing = True
        if self._node is not None:
            self._node.abandon()
        while self._proposals:
            self._proposals.popleft()[1].settle(0, ProposalResult.REFUSED)
        for queue in self._queues.values():
            queue.close()
        journal.close()
        before = self._status
        ended = replace(before, role=Role.FOLLOWER, ready=False, leader_id=None, connected=())
        self._status = replace(ended, majority_heard_at=-math.inf, led_at=-math.inf)
        self._announce(before)

    # -- calling a peer

    async def _call_peer(self, peer: int, host: str, port: int) -> None:
        """Keep one connection to `peer`, for ever. A connection that broke is made anew at once: when that is refused, the peer is gone."""
        backoff = BACKOFF_SECONDS_MIN
        broke = False
        while True:
            began: float | None = None
            try:
                stream = await self._network.connect(host, port, timeout=CONNECT_TIMEOUT_SECONDS)
            except OSError as error:
                logger.debug("raft: node %d does not answer at %s:%d: %s", peer, host, port, error)
                self._unreachable[peer] = _reason(error)
                if broke and error.errno == errno.ECONNREFUSED:
                    self._gone(peer)
                broke = False
            else:
                try:
                    reason = await self._introduced(stream, peer)
                    if reason is None:
                        self._heard_at[peer] = began = self._clock.monotonic()
                        broke = True
                        reason = await self._talk(stream, self._queues[peer])
                        logger.info("raft: connection to node %d at %s:%d ended: %s", peer, host, port, reason)
                finally:
                    stream.close()
                    self._set_connected(peer, False)
                    if began is not None:
                        self._dialing.use_3(peer)  # its next process may be of this release
                self._unreachable[peer] = reason
            if began is not None and self._clock.monotonic() - began > STEADY_SECONDS:
                backoff = BACKOFF_SECONDS_MIN
                continue
            await trio.sleep(backoff * (0.5 + self._entropy.random() / 2))
            backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)

    async def _introduced(self, stream: Stream, peer: int) -> str | None:
        """None, or why not."""
        try:
            await self.introduce(stream, peer)
        except OSError as error:
            reason = _reason(error)
            if isinstance(error, Refused) and self._unreachable[peer] != reason:  # it is tried again, and told once
                logger.warning("raft: not connected to node %d at %s:%d: %s", peer, *self._addresses[peer], reason)
            return reason
        return None

    def _gone(self, peer: int) -> None:
        logger.info("raft: node %d is gone: its connection broke and nothing listens at its address", peer)
        now = self._clock.monotonic()
        self._news.append(lambda node: node.peer_gone(now, peer))
        self._wake.set()
        if self.on_peer_gone is not None:
            self.on_peer_gone(peer)

    def _wake_sender(self, peer: int) -> None:
        self._queue_wakes[peer].set()

    def _set_connected(self, peer: int, connected: bool) -> None:
        queue = self._queues[peer]
        if queue.opened != connected:
            queue.open() if connected else queue.close()
            self._news.append(lambda node: node.connected(peer) if connected else node.disconnected(peer))
            self._wake.set()

    async def _talk(self, stream: Stream, queue: PeerQueue) -> str:
        """Send until the connection ends; returns why it did. Cancelled: the connection is to be closed."""
        ended = "closed by the peer (its log may say why)"

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal ended
            view = memoryview(bytearray(64))
            try:
                while await stream.receive_into(view):
                    pass  # nothing is ever answered; whatever it is, it is not ours
            except OSError as error:
                ended = str(error)
            scope.cancel()

        async def send() -> None:
            nonlocal ended
            self._set_connected(queue.peer, True)
            data = b""
            while not queue.overflowed:
                if data:
                    with trio.move_on_after(SEND_TIMEOUT_SECONDS) as slow:
                        try:
                            await stream.send_all(data)
                        except OSError as error:
                            ended = str(error)
                            return
                    if slow.cancelled_caught:
                        ended = f"it took nothing for {SEND_TIMEOUT_SECONDS} s"
                        return
                else:
                    await self._queue_wakes[queue.peer].wait()
                    self._queue_wakes[queue.peer] = trio.Event()
                data = queue.take()
            ended = "too much waited for it"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await send()
            nursery.cancel_scope.cancel()
        return ended


async def _introduce_2(stream: Stream, call: CallOfVersion2) -> Identity:
    await stream.send_all(call.hello())
    await stream.send_all(call.prove(await _receive_answer(stream)))
    return call.finish(await _receive_answer(stream))


async def _receive_answer(stream: Stream) -> bytes:
    """One frame of a listener, without its length and not a byte more."""
    size = _LENGTH(await _receive_exactly(stream, 4))[0]
    if not 4 < size <= ANSWER_BYTES_MAX:
        raise Refused(f"an answer of {size} bytes: who listens there is no mqd node, or of another release")
    return await _receive_exactly(stream, size)


async def _receive_exactly(stream: Stream, size: int) -> bytes:
    data = memoryview(bytearray(size))
    position = 0
    while position < size:
        received = await stream.receive_into(data[position:])
        if not received:
            raise IntroductionFailed("it closed the connection during the introduction (its log may say why)")
        position += received
    return bytes(data)


def _reason(error: OSError) -> str:
    """Without the address, which Trio writes into its text and whoever reports this names anyway."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
