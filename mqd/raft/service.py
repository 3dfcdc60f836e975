"""The quorum as a service: a task that runs the Raft node, one for each peer, and syncs off the
loop.

The loop: take what came (messages, proposals, connections), run a turn of the node, flush the
journal in a worker thread if the turn changed it, and only then send the messages of the turn.
While the flush runs, arrivals wait for the next turn; the event loop itself never waits for the
disk. Proposals that arrive together share one flush.

A failure has one of four results. A peer's malformed bytes end its connection. A journal that
cannot be written stops the node (StorageError leaves `run`, never retried). So does a machine or
a quorum that breaks its rules. A disk without space, its reserve used up, makes the turn wait
until there is some: to all other nodes that is a slow disk, since no message of the turn was
sent.

Every node takes part: voters, and observers, which follow the log and are never counted.
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
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.io.net import Network, Stream
from mqd.peers import is_loopback
from mqd.raft import codec, versions
from mqd.raft.building import build, load
from mqd.raft.codec import COMMAND, NO_OP, Message
from mqd.raft.elections import Timing
from mqd.raft.flushing import InThread, JournalFlusher
from mqd.raft.incarnations import Caller
from mqd.raft.introduction import Doorkeeper, Visit
from mqd.raft.introductions import Introductions
from mqd.raft.journal import Compaction, Journal, open_journal
from mqd.raft.leaderless import is_leaderless, missing_voters
from mqd.raft.machine import Machine, NotLeader, OutcomeUnknown, PeerStatus, RaftStatus, Role
from mqd.raft.node import RaftNode
from mqd.raft.proposals import Proposals
from mqd.raft.snapshots import Work
from mqd.raft.transport import PeerLink
from mqd.raft.voters import Position, VoterSet

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
"""With peers, a turn at least this often; the next election or heartbeat is met exactly."""
ALONE_TICK_SECONDS = 1.0
"""A quorum of one has no heartbeat: this only lets the journal note that it is durable."""
PROPOSAL_TIMEOUT_SECONDS = 10.0
LEADERLESS_GRACE_SECONDS = 2.0
"""Without a leader for this long, the log names the missing voters; elections take less."""
LEADERLESS_LOG_SECONDS = 5.0
STAND_DOWN_SECONDS = 1.0
"""How long a stopping leader waits for another one."""
PEERS_FILE_LOG_SECONDS = 10.0


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
    """One voter of the metadata quorum, or an observer. Everything but `run` may be called while it
    runs, from Trio's thread. Before and after, proposals are refused with NotLeader(None)."""

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
        """`voters`, `observers`: ids and the addresses of peer listeners, together all nodes of
        the cluster, this one included. `secret`: the cluster secret, which every node must prove
        that it knows. `finalized()`: the metadata version by what the machine has applied, 0 for
        none (versions.py). `on_role_change(status)`: called after the turn in which role,
        readiness, term or leader changed."""
        everyone = {**voters, **(observers or {})}
        if node_id not in everyone:
            raise ValueError(f"node {node_id} is not among the nodes {sorted(everyone)}")
        self._node_id = node_id
        self._own_address = everyone[node_id]
        self._file = frozenset(voters)
        """Voters by the peers file; those in force are in the log (voters.py)."""
        self._everyone = frozenset(everyone)
        called = everyone if node_id in self._file else voters  # observers send each other nothing
        self._cluster_id = cluster_id
        self._compaction = compaction
        self._directory = directory
        self._disk, self._clock, self._entropy, self._network = disk, clock, entropy, network
        self._machine = machine
        self._finalized = finalized
        self._timing = timing if timing is not None else Timing()
        self.on_role_change = on_role_change
        self.on_peer_gone: Callable[[int], None] | None = None
        """Called with the id of a node whose process seems to have ended: the connection to it
        broke, and a new one was refused at once (ECONNREFUSED). A hint, not a proof."""
        self._proposal_timeout = proposal_timeout
        self._blocking: InThread = in_thread if in_thread is not None else disk.offload
        self._flusher = JournalFlusher(self._blocking, clock)
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
        self._introductions = Introductions(
            self._doorkeeper,
            clock,
            silence=self._timing.election_timeout_max,
            on_new_incarnation=self._on_new_incarnation,
            on_position=self._on_position,
        )
        self._links = {
            peer: PeerLink(peer, address, self, network=network, clock=clock, entropy=entropy)
            for peer, address in sorted(called.items())
            if peer != node_id
        }
        self._inbox: deque[tuple[int, Message]] = deque()
        self._events: deque[Callable[[RaftNode], None]] = deque()
        """Events of connections and snapshots, for the node's next turn, in order."""
        self._proposals = Proposals()
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._leaderless_changed = trio.Event()
        self._was_leaderless = True
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
            observers=tuple(sorted(self._everyone - self._file)),
        )
        self._turns = self._received = 0

    # -- for everyone

    def status(self) -> RaftStatus:
        """As of the last turn."""
        if self._alone and self._status.role is Role.LEADER:
            now = self._clock.monotonic()
            return replace(self._status, majority_replied_at=now, led_at=now)
        return self._status

    @property
    def _voters(self) -> frozenset[int]:
        return self._node.voters if self._node is not None else self._file

    def _position(self) -> Position:
        if self._node is not None:
            return self._node.position
        return Position(self._file, VoterSet(0, self._file), VoterSet(0, self._file), False)

    def _allows_introduction_2(self) -> bool:
        node = self._node
        return node is not None and versions.allows_introduction_2(node.metadata_version)

    def runs_newest(self, node_id: int) -> bool:
        """Whether the newest known process of a node supports the newest metadata version."""
        return node_id == self._node_id or self._introductions.dialing.speaks_3(node_id)

    @property
    def _alone(self) -> bool:
        return self._voters == {self._node_id}

    @property
    def short_of_space(self) -> bool:
        """The disk of the journal is full, or was a moment ago: do not propose what can wait."""
        journal = self._journal
        if self._flusher.full is not None:
            return True
        return journal is not None and journal.short_of_space

    def statistics(self) -> RaftStatistics:
        journal, node = self._journal, self._node
        return RaftStatistics(
            turns=self._turns,
            flushes=journal.flushes if journal is not None else 0,
            messages_received=self._received,
            snapshots_taken=node.snapshots_taken if node is not None else 0,
            snapshots_installed=node.snapshots_installed if node is not None else 0,
        )

    async def propose(self, command: bytes, *, timeout: float | None = None) -> int:
        """Wait until `command` is durable, committed and applied here; returns its index.

        Raises NotLeader (it was not accepted, and never will be), OutcomeUnknown (leadership was
        lost, or `timeout` seconds passed first: it may be applied, now or later), MqError when too
        many wait or the disk is full (it was not accepted). Cancelled: unknown."""
        assert len(command) <= limits.RAFT_COMMAND_BYTES_MAX, len(command)
        return await self._propose(COMMAND + command, timeout)

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        """Wait until this node has applied all that was committed anywhere before this call;
        returns an index that is applied.

        Costs an entry and an fsync, which simultaneous callers share. Raises as `propose` does."""
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

    # -- for the peer listener, and for callers of other ones

    async def introduce(self, stream: Stream, receiver: int) -> None:
        """On a fresh connection to the peer listener of `receiver`: each side proves who it is,
        before any other byte.

        Raises OSError: IntroductionFailed (with the reason; Refused where one side refused), or
        the connection's own. The stream is of no use then, nor after a cancellation. A node of the
        previous release closes the connection at the hello of version 3: while that release is
        allowed, the next call uses version 2."""
        await self._introductions.introduce(stream, receiver)

    def begin_introduction(self, caller: Caller) -> Visit:
        """An inbound connection begins to introduce itself: pass its frames to
        `receive_introduction`."""
        return self._introductions.begin(caller)

    def receive_introduction(
        self, visit: Visit, body: bytes | memoryview, correlation_id: int
    ) -> bytes:
        """The body (behind the request header) of a frame with api key 32000. Returns a whole
        frame to send.

        Then `visit.refusal` is set (close the connection behind the frame; the reason is logged
        here), or `visit.node_id` is (the caller), or more frames are due. Raises ProtocolError:
        close the connection and log it."""
        return self._introductions.receive(visit, body, correlation_id)

    def _on_new_incarnation(self, node_id: int) -> None:
        """Messages of the earlier process must not be mixed with its own."""
        self._inbox = deque(pair for pair in self._inbox if pair[0] != node_id)
        if node_id in self._links:
            self._before_next_turn(lambda node: node.restarted(node_id))

    def _on_position(self, peer: int, position: Position) -> None:
        self._before_next_turn(lambda node: node.introduced(peer, position.file))

    def _before_next_turn(self, event: Callable[[RaftNode], None]) -> None:
        self._events.append(event)
        self._wake.set()

    def receive(
        self, node_id: int, body: bytes | memoryview, incarnation: UUID | None = None
    ) -> None:
        """The body of a frame with api key 32001, of a connection that introduced itself as
        `node_id`. Copies what it keeps.

        Raises ProtocolError: close the connection and log it. There is no response to send."""
        current = self._introductions.incarnations.current(node_id)
        if incarnation is not None and incarnation != current:
            raise ProtocolError(
                f"a Raft message of node {node_id} from another process than the current one:"
                " do two processes use the same id?"
            )
        message = codec.decode_message(body)
        codec.check_plausible(message, term=self._status.term, last_index=self._status.last_index)
        self._received += 1
        if node_id in self._links:
            self._links[node_id].received_at = self._clock.monotonic()
        if len(self._inbox) < limits.RAFT_INBOX_MESSAGES_MAX:
            self._inbox.append((node_id, message))
            self._wake.set()

    # -- running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the journal, take part until `stop` or cancellation. `started` when the files are
        read and intact.

        Raises StorageError when they are not. After `started`, in an ExceptionGroup: StorageError
        when the journal cannot be written any more, QuorumBroken, and what the machine raises."""
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
                for link in self._links.values():
                    nursery.start_soon(link.run)
                if self._links:
                    nursery.start_soon(self._report_while_leaderless)
                    nursery.start_soon(self._report_peers_file_problem)
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
        """Hand leadership to the most advanced follower. True when this node leads no more."""
        node = self._node
        if node is None or self._status.role is not Role.LEADER:
            return True
        if self._alone:
            return False
        with trio.move_on_after(STAND_DOWN_SECONDS):
            while self._status.role is Role.LEADER and not node.stand_down():
                await self._changed.wait()  # a follower's reply may make it eligible
            self._wake.set()
            while self._status.role is Role.LEADER:
                await self._changed.wait()
        return self._status.role is not Role.LEADER

    async def stop(self) -> None:
        """Stop cleanly: refuse new proposals, wait for pending ones, hand over leadership, and let
        `run` return."""
        self._refusing = True
        with trio.move_on_after(STAND_DOWN_SECONDS):
            while self._proposals.count:
                await self._changed.wait()
        await self.transfer_leadership()
        self._stopping = True
        self._flusher.stop()
        self._wake.set()

    def _warn_of_open_listener(self) -> None:
        host, port = self._own_address
        if not self._doorkeeper.has_secret and self._links and not is_loopback(host):
            logger.warning(
                "the peer listener %s:%d is open to the network without a cluster secret: "
                "any machine that"
                " reaches it can act as a node of this cluster; set cluster_secret or"
                " cluster_secret_file in the peers file of every node",
                host,
                port,
            )

    # -- the loop

    async def _turn_until_stopped(self, node: RaftNode, journal: Journal) -> None:
        tick_max = TICK_SECONDS_MAX if self._links else ALONE_TICK_SECONDS
        while not self._stopping:
            due_in = max(node.next_deadline() - self._clock.monotonic(), 0.0)
            with trio.move_on_after(min(due_in + 0.0005, tick_max)):  # PySyncObj wants it past
                await self._wake.wait()
            self._take(node)
            node.turn(self._clock.monotonic())
            await self._flush_and_send(node, journal)
            while not journal.dirty and node.can_commit():  # what the flush made durable
                node.turn(self._clock.monotonic())
                await self._flush_and_send(node, journal)
            self._publish(node)
        if not journal.short_of_space:
            journal.mark()
        await self._flush_and_send(node, journal)

    def _take(self, node: RaftNode) -> None:
        """Pass on all that came since the last turn. No awaits."""
        self._wake = trio.Event()
        while self._events:
            self._events.popleft()(node)
        now = self._clock.monotonic()
        while self._inbox:
            node.receive(now, *self._inbox.popleft())
        for entry, on_result in self._proposals.take():
            node.propose(entry, on_result)
        self._turns += 1

    async def _flush_and_send(self, node: RaftNode, journal: Journal) -> None:
        """Durable first, then sent. Where the node stops before the flush, nothing is sent."""
        if journal.dirty and not await self._flusher.flush(journal):
            return
        for peer, message in node.flushed():
            if peer in self._links:  # a voter by the log may be in no file any more
                self._links[peer].queue.put(message)

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
        if _leadership(now) == _leadership(before):
            return
        ready = ", ready" if now.ready else ""
        role, leader_id = now.role.value, now.leader_id
        logger.info("raft: %s in term %d, leader %s%s", role, now.term, leader_id, ready)
        if self.on_role_change is not None:
            self.on_role_change(now)

    async def _report_while_leaderless(self) -> None:
        """Without a leader a node does nothing. So log every few seconds which voters are
        missing."""
        while True:
            while not self._leaderless:
                await self._leaderless_changed.wait()
            since = self._clock.monotonic()
            with trio.move_on_after(LEADERLESS_GRACE_SECONDS):
                while self._leaderless:
                    await self._leaderless_changed.wait()
            while self._leaderless:
                logger.warning("%s", self._missing_voters(since))
                with trio.move_on_after(LEADERLESS_LOG_SECONDS):
                    while self._leaderless:
                        await self._leaderless_changed.wait()

    async def _report_peers_file_problem(self) -> None:
        """A peers file that the voters cannot reach: only the operator can correct it."""
        while True:
            await trio.sleep(PEERS_FILE_LOG_SECONDS)
            if self._node is None:
                continue
            why = self._node.peers_file_problem(self._clock.monotonic())
            if why is not None:
                logger.warning("raft: %s", why)

    @property
    def _leaderless(self) -> bool:
        return is_leaderless(self._node_id, self._voters, self._status)

    def _missing_voters(self, since: float) -> str:
        return missing_voters(
            self._node_id,
            self._voters,
            self._status,
            self._links,
            since=since,
            now=self._clock.monotonic(),
            silence=self._timing.election_timeout_max,
        )

    # -- connections to peers (transport.LinkOwner)

    def on_link_opened(self, peer: int) -> None:
        self._before_next_turn(lambda node: node.connected(peer))

    def on_link_closed(self, peer: int) -> None:
        self._before_next_turn(lambda node: node.disconnected(peer))
        self._introductions.dialing.use_3(peer)  # its next process may be of this release

    def on_link_gone(self, peer: int) -> None:
        logger.info("raft: node %d is down: its connection broke and its port is closed", peer)
        now = self._clock.monotonic()
        self._before_next_turn(lambda node: node.peer_gone(now, peer))
        if self.on_peer_gone is not None:
            self.on_peer_gone(peer)

    def _end(self, journal: Journal) -> None:
        self._refusing = True
        if self._node is not None:
            self._node.abandon()
        self._proposals.refuse_all()
        for link in self._links.values():
            link.queue.close()
        journal.close()
        before = self._status
        ended = replace(before, role=Role.FOLLOWER, ready=False, leader_id=None, connected=())
        self._status = replace(ended, majority_replied_at=-math.inf, led_at=-math.inf)
        self._announce(before)


def _leadership(status: RaftStatus) -> tuple[Role, bool, int, int | None]:
    return status.role, status.ready, status.term, status.leader_id
