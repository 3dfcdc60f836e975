"""The quorum as a service: a task that runs the Raft node, a task for each peer, and syncs off the
event loop.

The loop takes all inputs (messages, proposals, connections) and runs a turn of the node. If the
turn changed the journal, a worker thread flushes it. Only then the service sends the messages of
the turn. Inputs during the flush wait for the next turn; the event loop itself never waits for the
disk. Proposals that arrive together share one flush.

A failure has one of four results. Malformed bytes of a peer close its connection. A journal that
cannot be written stops the node: StorageError leaves `run`, and the write is never retried. A
machine or a quorum that breaks its rules stops the node, too. If the disk and its reserve are full,
the turn waits for free space. No message of the turn was sent, so the other nodes see a slow disk.

Every node runs this service. Observers replicate the log and do not count towards a majority.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from mqd import limits
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.io.net import Network, Stream
from mqd.peers import is_loopback
from mqd.raft import versions
from mqd.raft.codec import COMMAND, NO_OP
from mqd.raft.elections import Timing
from mqd.raft.handshake import Credentials
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.incarnations import Caller
from mqd.raft.journal import Journal
from mqd.raft.journal_flusher import InThread, JournalFlusher
from mqd.raft.journal_start import open_journal
from mqd.raft.machine import Machine, NotLeader, OutcomeUnknown, PeerStatus, RaftStatus, Role
from mqd.raft.node import RaftNode
from mqd.raft.peer_links import PeerLinks
from mqd.raft.proposals import Proposals
from mqd.raft.reports import LeaderlessReport, report_peers_file_problem
from mqd.raft.snapshot_building import build, load
from mqd.raft.snapshots import Compaction, Work
from mqd.raft.voters import VoterSet, VoterView

__all__ = [
    "Machine",
    "NotLeader",
    "OutcomeUnknown",
    "PeerStatus",
    "RaftService",
    "RaftStatistics",
    "RaftStatus",
    "Role",
    "Timing",
]

logger = logging.getLogger(__name__)

TICK_SECONDS_MAX = 0.1
"""Maximum time between two turns with peers; elections and heartbeats are exactly on time."""
ALONE_TICK_SECONDS = 1.0
"""The same for a quorum of one, which has no heartbeat: the journal then records that it is
durable.
"""
PROPOSAL_TIMEOUT_SECONDS = 10.0
TRANSFER_SECONDS = 1.0
"""The maximum time that a stopping leader waits for a new leader."""


@dataclass(frozen=True, slots=True)
class RaftStatistics:
    """Counters since start."""

    turns: int
    flushes: int
    messages_received: int
    snapshots_taken: int
    snapshots_installed: int
    """Snapshots received from a leader, and restored."""


class RaftService:
    """One voter of the metadata quorum, or an observer. While it runs, all methods but `run` may be
    called, from Trio's thread. Before and after, proposals are refused with NotLeader(None).
    """

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
        proposal_timeout: float = PROPOSAL_TIMEOUT_SECONDS,
        in_thread: InThread | None = None,
        finalized: Callable[[], int] = lambda: 0,
    ) -> None:
        """`voters`, `observers`: ids, and addresses of peer listeners; together all nodes of the
        cluster, with this one. `secret`: the cluster secret, which every node must prove.
        `finalized()`: the metadata version that the machine has applied, 0 for none (versions.py).
        """
        addresses = {**voters, **(observers or {})}
        if node_id not in addresses:
            raise ValueError(f"node {node_id} is not among the nodes {sorted(addresses)}")
        self._node_id = node_id
        self._own_address = addresses[node_id]
        self._configured = frozenset(voters)
        """The voters in the peers file. The log has the current voter set (voters.py)."""
        self._everyone = frozenset(addresses)
        self._cluster_id = cluster_id
        self._compaction = compaction
        self._directory = directory
        self._disk, self._clock, self._entropy = disk, clock, entropy
        self._machine = machine
        self._finalized = finalized
        self._timing = timing if timing is not None else Timing()
        self._proposal_timeout = proposal_timeout
        self._blocking: InThread = in_thread if in_thread is not None else disk.offload
        self._flusher = JournalFlusher(self._blocking, clock)
        self._credentials = Credentials(
            cluster_id=cluster_id,
            node_id=node_id,
            nodes=self._everyone,
            incarnation=entropy.uuid(),
            secret=secret,
            new_uuid=entropy.uuid,
            voter_view=self._voter_view,
            allows_v2=self._allows_handshake_v2,
        )
        # observers do not send to each other
        called = addresses if node_id in self._configured else voters
        self.peer_links = PeerLinks(
            {peer: address for peer, address in called.items() if peer != node_id},
            self._credentials,
            network=network,
            clock=clock,
            entropy=entropy,
            silence=self._timing.election_timeout_max,
            before_next_turn=self._before_next_turn,
        )
        self._leaderless_report = LeaderlessReport(
            node_id,
            self.peer_links.links,
            clock,
            silence=self._timing.election_timeout_max,
            status=lambda: self._status,
            voters=lambda: self._voters,
        )
        self._events: deque[Callable[[RaftNode], None]] = deque()
        """Events of connections and snapshots, for the node's next turn, in order."""
        self._proposals = Proposals()
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._refusing = False
        self._stopping = False
        self._node: RaftNode | None = None
        self._journal: Journal | None = None
        self._status = RaftStatus(
            role=Role.FOLLOWER,
            ready=False,
            term=0,
            leader_id=None,
            commit_index=0,
            applied_index=0,
            last_index=0,
            durable_index=0,
            snapshot_index=0,
            voters=tuple(sorted(voters)),
            connected=(),
            observers=tuple(sorted(self._everyone - self._configured)),
        )
        self._turns = 0

    # -- state and proposals

    def status(self) -> RaftStatus:
        """The status after the last turn."""
        if self._alone and self._status.role is Role.LEADER:
            now = self._clock.monotonic()
            return replace(self._status, majority_replied_at=now, led_at=now)
        return self._status

    @property
    def _voters(self) -> frozenset[int]:
        return self._node.voters if self._node is not None else self._configured

    def _voter_view(self) -> VoterView:
        if self._node is not None:
            return self._node.voter_view
        first = VoterSet(0, self._configured)
        return VoterView(self._configured, first, first, False)

    def _allows_handshake_v2(self) -> bool:
        node = self._node
        return node is not None and versions.allows_handshake_v2(node.metadata_version)

    def speaks_handshake_v3(self, node_id: int) -> bool:
        """Whether the newest known process of a node has used handshake version 3, so that it
        supports metadata version 2 at least.
        """
        return node_id == self._node_id or self.peer_links.handshakes.versions.speaks_v3(node_id)

    def no_connection_reason(self, node_id: int) -> str:
        """Why this node has no connection to another node, with a remedy if one of them refuses the
        other. Empty if it has one, or does not connect to that node.
        """
        link = self.peer_links.links.get(node_id)
        return link.no_connection_reason if link is not None else ""

    @property
    def _alone(self) -> bool:
        return self._voters == {self._node_id}

    @property
    def short_of_space(self) -> bool:
        """Whether the disk of the journal is full, or was a moment ago: do not propose what can
        wait.
        """
        journal = self._journal
        if self._flusher.full is not None:
            return True
        return journal is not None and journal.short_of_space

    def statistics(self) -> RaftStatistics:
        """Counters of rare events for the simulation (mqd/testing/coverage.py)."""
        journal, node = self._journal, self._node
        return RaftStatistics(
            turns=self._turns,
            flushes=journal.flushes if journal is not None else 0,
            messages_received=self.peer_links.received,
            snapshots_taken=node.snapshots_taken if node is not None else 0,
            snapshots_installed=node.snapshots_installed if node is not None else 0,
        )

    async def propose(self, command: bytes, *, timeout: float | None = None) -> int:
        """Wait until `command` is durable, committed and applied on this node; returns its index.

        Raises NotLeader: the command was not accepted, and never will be. Raises OutcomeUnknown:
        leadership was lost, or `timeout` seconds passed; the command may be applied, now or later.
        Raises MqError: too many proposals are pending, or the disk is full; it was not accepted.
        After a cancellation the result is unknown.
        """
        assert len(command) <= limits.RAFT_COMMAND_BYTES_MAX, len(command)
        return await self._propose(COMMAND + command, timeout)

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        """Wait until this node has applied everything that was committed before this call; returns
        an applied index.

        A controller calls it before it responds to a heartbeat, if its last proof of leadership is
        too old (I26). It costs an entry and an fsync, which simultaneous callers share. Raises the
        errors of `propose`.
        """
        return await self._propose(NO_OP, timeout)

    async def _propose(self, entry: bytes, timeout: float | None) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._status.ready or self._refusing:
            leader_id = self._status.leader_id
            raise NotLeader(leader_id if leader_id != self._node_id else None)
        if self._flusher.full is not None:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, self._flusher.full)
        waiting = self._proposals.add(entry)
        self._wake.set()
        timeout = self._proposal_timeout if timeout is None else timeout
        index = await self._proposals.wait_applied(waiting, timeout)
        if index is None:
            raise NotLeader(self._status.leader_id)
        return index

    # -- connections with other nodes

    async def authenticate(self, stream: Stream, receiver: int) -> None:
        """Authenticate a new connection to the peer listener of `receiver`: both sides prove their
        identity before any other bytes.

        Raises OSError: an error of the connection, or HandshakeFailed with the reason
        (HandshakeRefused if one side refused). Close the stream then, and after a cancellation. A
        node of the previous release closes the connection at the hello of version 3. While that
        release is allowed, the next call uses version 2.
        """
        await self.peer_links.authenticate(stream, receiver)

    def begin_handshake(self, caller: Caller) -> ListenerHandshake:
        """Begin the handshake of an inbound connection: pass its frames to `receive_handshake`."""
        return self.peer_links.handshakes.begin(caller)

    def receive_handshake(
        self, handshake: ListenerHandshake, body: bytes | memoryview, correlation_id: int
    ) -> bytes:
        """Process the body (after the request header) of a frame with API key 32000. Returns a
        whole frame to send.

        Afterwards `handshake.refusal` is set (close the connection after the frame; the reason is
        logged here), or `handshake.node_id` is set (the caller), or more frames follow. Raises
        ProtocolError: close the connection and log it.
        """
        return self.peer_links.handshakes.receive(handshake, body, correlation_id)

    def receive(
        self, node_id: int, body: bytes | memoryview, incarnation: UUID | None = None
    ) -> None:
        """Process the body of a frame with API key 32001, from a connection whose handshake named
        `node_id`. Copies the data that it keeps.

        Raises ProtocolError: close the connection and log it. There is no response to send.
        """
        if self.peer_links.receive(node_id, body, incarnation, self._status):
            self._wake.set()

    def _before_next_turn(self, event: Callable[[RaftNode], None]) -> None:
        self._events.append(event)
        self._wake.set()

    # -- running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the journal, and run until `stop` or cancellation. `started` when the files are read
        and valid.

        Raises StorageError if they are not. After `started`, raises an ExceptionGroup: StorageError
        if the journal can no longer be written, QuorumBroken, and exceptions of the machine.
        """
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
        self._warn_of_open_listener()
        try:
            self._node = RaftNode(
                node_id=self._node_id,
                voters=self._configured,
                observers=self._everyone - self._configured,
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
                self.peer_links.start(nursery)
                if self.peer_links.links:
                    nursery.start_soon(self._leaderless_report.run)
                    nursery.start_soon(report_peers_file_problem, self._peers_file_problem)
                task_status.started()
                await self._turn_until_stopped(self._node, journal)
                nursery.cancel_scope.cancel()
        finally:
            self._end(journal)

    async def _build_snapshot(self, pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
        state = await build(pieces, self._blocking, self._clock)
        self._before_next_turn(lambda _: done(state))

    async def _load_snapshot(self, work: Work[Any], done: Callable[[Any], None]) -> None:
        loaded = await load(work, self._blocking, self._clock)
        self._before_next_turn(lambda _: done(loaded))

    async def transfer_leadership(self) -> bool:
        """Transfer leadership to the most advanced follower. True when this node no longer
        leads.
        """
        node = self._node
        if node is None or self._status.role is not Role.LEADER:
            return True
        if self._alone:
            return False
        with trio.move_on_after(TRANSFER_SECONDS):
            while self._status.role is Role.LEADER and not node.transfer_leadership():
                await self._changed.wait()  # a follower's reply may make that follower eligible
            self._wake.set()
            while self._status.role is Role.LEADER:
                await self._changed.wait()
        return self._status.role is not Role.LEADER

    async def stop(self) -> None:
        """Stop cleanly: refuse new proposals, wait for pending ones, hand over leadership, and let
        `run` return."""
        self._refusing = True
        with trio.move_on_after(TRANSFER_SECONDS):
            while self._proposals.count:
                await self._changed.wait()
        await self.transfer_leadership()
        self._stopping = True
        self._flusher.stop()
        self._wake.set()

    def _warn_of_open_listener(self) -> None:
        host, port = self._own_address
        if not self._credentials.has_secret and self.peer_links.links and not is_loopback(host):
            logger.warning(
                "the peer listener is open to the network without a cluster secret address=%s:%d"
                " reason='any machine that reaches it can act as a node of this cluster'"
                " remedy='set cluster_secret or cluster_secret_file in the peers file of every"
                " node'",
                host,
                port,
            )

    # -- the loop

    async def _turn_until_stopped(self, node: RaftNode, journal: Journal) -> None:
        tick_max = TICK_SECONDS_MAX if self.peer_links.links else ALONE_TICK_SECONDS
        while not self._stopping:
            if node.has_unapplied:
                await trio.lowlevel.checkpoint()
            else:
                due_in = max(node.next_deadline() - self._clock.monotonic(), 0.0)
                # PySyncObj expects a time in the past
                with trio.move_on_after(min(due_in + 0.0005, tick_max)):
                    await self._wake.wait()
            self._take(node)
            node.turn(self._clock.monotonic())
            await self._flush_and_send(node, journal)
            # entries that the flush made durable
            while not (journal.dirty or node.has_unapplied) and node.can_commit():
                node.turn(self._clock.monotonic())
                await self._flush_and_send(node, journal)
            self._publish(node)
        if not journal.short_of_space:
            journal.mark()
        await self._flush_and_send(node, journal)

    def _take(self, node: RaftNode) -> None:
        """Pass all inputs since the last turn to the node. No awaits."""
        self._wake = trio.Event()
        while self._events:
            self._events.popleft()(node)
        now = self._clock.monotonic()
        for sender, message in self.peer_links.take_messages():
            node.receive(now, sender, message)
        for entry, on_result in self._proposals.take():
            node.propose(entry, on_result)
        self._turns += 1

    async def _flush_and_send(self, node: RaftNode, journal: Journal) -> None:
        """Flush first, then send (I12). If the node stops before the flush, nothing is sent."""
        if journal.dirty and not await self._flusher.flush(journal):
            return
        self.peer_links.send(node.flushed())

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
            majority_replied_at=node.majority_replied_at(self._clock.monotonic()),
            led_at=node.led_at(self._clock.monotonic()),
            peers=node.peers(),
            not_voting_reason=node.not_voting_reason,
        )
        self._announce(before)

    def _announce(self, before: RaftStatus) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._leaderless_report.on_status()
        now = self._status
        if _leadership(now) == _leadership(before):
            return
        logger.info(
            "raft role changed role=%s term=%d leader=%s ready=%s",
            now.role.value,
            now.term,
            now.leader_id,
            now.ready,
        )

    def _peers_file_problem(self) -> str | None:
        node = self._node
        return node.peers_file_problem(self._clock.monotonic()) if node is not None else None

    def _end(self, journal: Journal) -> None:
        self._refusing = True
        if self._node is not None:
            self._node.abandon()
        self._proposals.refuse_all()
        self.peer_links.close()
        journal.close()
        before = self._status
        ended = replace(before, role=Role.FOLLOWER, ready=False, leader_id=None, connected=())
        self._status = replace(ended, majority_replied_at=-math.inf, led_at=-math.inf)
        self._announce(before)


def _leadership(status: RaftStatus) -> tuple[Role, bool, int, int | None]:
    return status.role, status.ready, status.term, status.leader_id
