"""One node of the quorum: its inputs are messages, proposals and time, its outputs are journal
changes and messages.

Durability, by construction: a turn changes memory only. Messages to send wait in the outbox until
the journal's flush has returned. The commit index never passes the journal's durable index
(pysyncobj_node.py).

The parts:
- pysyncobj_node.py: PySyncObj, with roles, terms, votes, the commit rule
- elections.py: pre-votes, vote count
- voter_recovery.py: a voter with an empty log
- membership.py: the voter set
- append_check.py: a follower's log
- replication.py: a leader's followers
- snapshot_transfer.py, snapshots.py

No threads, no clock, no randomness, no sockets: `now` comes in with each call, and `random` is a
parameter.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mqd import limits
from mqd.raft.append_check import Mismatch, check_append
from mqd.raft.codec import (
    COMMAND,
    NO_OP,
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RecoveryQuery,
    RecoveryReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    Vote,
)
from mqd.raft.elections import Timing
from mqd.raft.journal import Journal
from mqd.raft.machine import Machine, PeerStatus, Role
from mqd.raft.proposal_results import OnResult, ProposalResult, report_result
from mqd.raft.pysyncobj_node import AT_ONCE, NEVER
from mqd.raft.pysyncobj_pinned import at, monotonic
from mqd.raft.replication import Replication
from mqd.raft.snapshot_transfer import SnapshotReceiver
from mqd.raft.snapshots import (
    Build,
    Compaction,
    Load,
    OwnSnapshots,
    all_steps,
    build_at_once,
    load_at_once,
)
from mqd.raft.voting_node import VotingNode

logger = logging.getLogger(__name__)


class RaftNode(VotingNode):
    """One voter, or an observer: a node that follows the log, never votes, and counts for no
    majority.

    The owner makes one call at a time. It first makes any of `receive`, `connected`,
    `peer_configured`, `disconnected`, `restarted`, `peer_gone`, `propose`. Then follow `turn`, the
    journal's `flush` if it is dirty, and `flushed`. The real owner is service.py.
    """

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        journal: Journal,
        machine: Machine,
        random: Callable[[], float],
        now: float,
        timing: Timing,
        cluster_id: str,
        observers: Iterable[int] = (),
        compaction: Compaction | None = None,
        build: Build = build_at_once,
        load: Load = load_at_once,
        finalized: Callable[[], int] = lambda: 0,
    ) -> None:
        """`voters`: by the peers file.

        `build(pieces, done)`: join the pieces of a snapshot and call `done(state)`, immediately or
        between two later turns. `load(work, done)`: run the work and call `done` with its result;
        until then, no entry is applied. `finalized()`: the metadata version that the machine has
        applied, 0 for none (versions.py).
        """
        self._machine = machine
        self.snapshots_installed = 0
        self._announced_commit = 0
        self._proposals: deque[tuple[bytes, OnResult]] = deque()
        self._snapshots = OwnSnapshots(journal, compaction or Compaction(), build)
        self._receiver = SnapshotReceiver(cluster_id, machine, load)
        super().__init__(
            node_id=node_id,
            voters=voters,
            observers=observers,
            journal=journal,
            random=random,
            now=now,
            timing=timing,
            finalized=finalized,
        )
        self._replication = Replication(
            journal,
            self._indexes,
            self._followers,
            self._enqueue,
            resend_after=timing.snapshot_resend,
        )
        if (snapshot := journal.take_boot_snapshot()) is not None:
            all_steps(machine.restoring(snapshot.state))()
            journal.set_metadata_version(finalized())

    # -- state for the owner

    @property
    def snapshots_taken(self) -> int:
        return self._snapshots.taken

    def majority_replied_at(self, now: float) -> float:
        """When a majority, including this leader, had last replied; -inf unless this node leads."""
        if not self.is_leader:
            return float("-inf")
        replied = [self._replied_at(peer) for peer in self.voters - {self._node_id}]
        return sorted([now, *replied], reverse=True)[len(self.voters) // 2]

    def led_at(self, now: float) -> float:
        """The latest time at which no other node can have led (leader_lease.py); -inf unless this
        node leads.
        """
        if not self.is_leader:
            return float("-inf")
        return self._replication.lease.sole_leader_at(self._node_id, self.voters, now)

    def peers(self) -> tuple[PeerStatus, ...]:
        """All other nodes, by id, as a leader sees them."""
        followers = self._followers
        if not self.is_leader:
            return followers.statuses(None)
        match = self._indexes.match
        return followers.statuses({peer: match[node] for peer, node in self._nodes.items()})

    def next_deadline(self) -> float:
        """When the next turn is due if nothing happens; immediately if in the past."""
        if self._recovery is not None:
            return self._recovery.query_at
        if not self.is_leader:
            return self._election_at
        return NEVER if self._is_alone else self._next_heartbeat_at()

    # -- inputs of the owner

    def connected(self, peer: int) -> None:
        """Messages to `peer` from now on arrive in order, or the connection ends."""
        self._on_connected(peer)
        if self._recovery is not None:
            self._recovery.query_at = AT_ONCE

    def peer_configured(self, peer: int, configured: frozenset[int]) -> None:
        """The peers file of `peer` names these voters."""
        self._members.peer_configured(peer, configured)

    def disconnected(self, peer: int) -> None:
        self._replication.snapshots.stop(peer)
        self._recovering_peers.discard(peer)
        self._on_disconnected(peer)

    def restarted(self, peer: int) -> None:
        """`peer` runs a new process, and no more messages of the earlier one will arrive. Its
        acknowledgements may be lost.
        """
        if self.is_leader:
            self._replication.restarted(self._nodes[peer])

    def peer_gone(self, now: float, peer: int) -> None:
        """The process of `peer` seems to have ended. If it was the leader, start an election soon;
        every follower that notices it chooses a short timeout.
        """
        if self.leader_id != peer:
            return
        self._forget_leader()
        self._pre_votes.leader_gone()
        if not self._members.observing and self._recovery is None:
            soon = now + self._timing.election_timeout_min / 2 * self._random()
            self._election_at = min(self._election_at, soon)

    def propose(self, command: bytes, on_result: OnResult) -> None:
        """Queue a command (with its first byte, see codec.py) for the next turn; `on_result` is
        called once, now or later."""
        assert command[:1] == COMMAND or command == NO_OP
        assert len(command) <= limits.RAFT_COMMAND_BYTES_MAX + 1, len(command)
        self._proposals.append((command, on_result))

    def receive(self, now: float, sender: int, message: Message) -> None:
        """One message of another node. Raises QuorumBroken, StorageError.

        A leader or candidate need not be a voter by the log of this node, which may be behind
        (Ongaro, 4.1). A candidate that is no voter by any file either is ignored."""
        node = self._nodes.get(sender)
        is_voters_only = isinstance(message, PreVote | RequestVote | RecoveryQuery)
        if node is None or (is_voters_only and not self._members.may_be_voter(sender)):
            logger.warning("message ignored, its sender is not a voter node=%d", sender)
            return
        if isinstance(message, RecoveryQuery):
            self._recovering_peers.add(sender)
            self._recovery_queried_at[sender] = now
        else:
            self._recovering_peers.discard(sender)
        if not self._accepts(message):
            return
        with at(now):
            match message:
                case PreVote():
                    self._on_pre_vote(node, message)
                case PreVoteReply():
                    self._on_pre_vote_reply(node, message)
                case RecoveryQuery():
                    self.restarted(sender)
                    self._on_recovery_query(node, message)
                case RecoveryReply() if self._recovery is not None:
                    self._recovery.on_reply(sender, message)
                case AppendEntries():
                    self._on_append(node, message)
                case AppendReply():
                    self._on_append_reply(node, message)
                case Vote():
                    self._on_vote(node, message)
                case RequestVote():
                    self._on_request_vote(node, message)
                case InstallSnapshot():
                    self._on_snapshot(node, message)
                case SnapshotReply():
                    if self._counts(node, message.term):
                        self._replication.on_snapshot_reply(node, message, self.term, now)
                case TimeoutNow():
                    self._on_timeout_now(node, message)

    def turn(self, now: float) -> None:
        """Time passed, or messages and proposals arrived: elect, commit, apply, send. Raises the
        exceptions of the machine.
        """
        with at(now):
            self._install_loaded()
            self._recover(now)
            self._request_pre_votes(now)
            self._change_voters(now)
            self._tick()
            if self.is_leader and self._announced_commit < self._commit:
                self._send_all()

    def can_commit(self) -> bool:
        """Whether a turn can apply something immediately, after more entries became durable."""
        if not self._may_apply():
            return False
        if self.has_unapplied:
            return True
        if self.is_leader:
            return self._is_alone and self._commit < self._journal.durable_index
        return self._commit < min(self._proven_commit, self._journal.durable_index)

    def abandon(self) -> None:
        """The node stops: the results of all proposals are reported as they are now."""
        self._fail_waiting()
        while self._proposals:
            self._proposals.popleft()[1](0, ProposalResult.REFUSED)

    # -- callbacks of PySyncObj (pysyncobj_node.py)

    def _durable_index(self) -> int:
        return self._commit if self._receiver.is_loading else self._journal.durable_index

    def _on_role(self, old: Role, new: Role) -> None:
        if new is Role.LEADER:
            self._announced_commit = 0
            self._replication.begin_term()
        if old is Role.LEADER:
            self._replication.snapshots.clear()
        self._votes.clear()

    def _may_apply(self) -> bool:
        return not self._receiver.is_loading

    def _apply(self, index: int, command: bytes) -> int:
        self._snapshots.on_applied(command)
        if command[:1] != COMMAND:
            return 1
        rows = self._machine.apply(index, command[1:])
        self._journal.set_metadata_version(self._finalized())
        return rows

    def _append_proposals(self) -> None:
        if not self._proposals:
            return
        while self._proposals:
            command, on_result = self._proposals.popleft()
            if not self.is_leader:
                report_result(on_result, 0, ProposalResult.REFUSED)
                continue
            index = self._journal.last_index + 1
            self._journal.append(command, index, self.term)
            self._replication.lease.appended(index, monotonic())
            self._wait_commit(index, on_result)
        if self.is_leader:
            self._send_all()

    def _send_appends(self) -> None:
        self._announced_commit = self._commit
        for node in self._nodes.values():
            self._send_entries(node, heartbeat=True)

    def _compact_when_due(self) -> None:
        if self._snapshots.is_due(self.applied_index):
            pieces = self._machine.snapshot()
            self._snapshots.take(self.applied_index, pieces, lambda: self.applied_index)

    # -- entries

    def _reply_to_append(
        self, peer: int, next_index: int, *, success: bool = False, reset: bool = False
    ) -> None:
        self._enqueue(peer, AppendReply(self.term, next_index, success, reset))

    def _on_append(self, node: Any, message: AppendEntries) -> None:
        if message.term < self.term:
            self._reply_to_append(node.id, 0)  # the higher term shows that it no longer leads
            return
        self._follow(node, message.term)
        journal, committed = self._journal, message.commit_index
        found = check_append(
            journal, message, commit_index=self._commit, proven_commit=self._proven_commit
        )
        if isinstance(found, Mismatch):
            self._reply_to_append(node.id, found.next_index, reset=True)
            return
        if found.truncate_from is not None:
            journal.truncate_from(found.truncate_from)
        for entry in found.entries:
            journal.append(*entry)
        self._on_voters()
        matched = found.matched
        self._proven_commit = max(self._proven_commit, min(committed, matched))
        holds_all = matched >= committed and journal.holds(committed, message.term)
        if self._recovery is not None and holds_all:
            self._recovery.complete_at = committed
        self._reply_to_append(node.id, matched + 1, success=True)

    def _counts(self, node: Any, term: int) -> bool:
        """Whether a reply of `term` is a reply to this leader in this term."""
        if term > self.term:
            self._step_down(term)
        if not self.is_leader or term != self.term:
            return False
        self._count_reply(node)
        self._replication.on_reply(node, monotonic())
        return True

    def _on_append_reply(self, node: Any, message: AppendReply) -> None:
        if not self._counts(node, message.term):
            return
        if self._replication.on_append_reply(node, message, monotonic()):
            self._send_entries(node, heartbeat=False)

    def _send_entries(self, node: Any, *, heartbeat: bool) -> None:
        if self._is_connected(node):
            self._replication.send_to(
                node,
                term=self.term,
                commit_index=self._commit,
                heartbeat=heartbeat,
                now=monotonic(),
            )

    # -- a leader's snapshot

    def _on_snapshot(self, node: Any, message: InstallSnapshot) -> None:
        if message.term < self.term:
            self._enqueue(node.id, SnapshotReply(self.term, message.index, 0))
            return
        self._follow(node, message.term)
        if message.index <= self._commit:  # committed entries equal the leader's
            self._reply_to_append(node.id, self._commit + 1, success=True)
            return
        if self._journal.holds(message.index, message.index_term):
            self._proven_commit = max(
                self._proven_commit, message.index
            )  # keep the entries after it
            self._reply_to_append(node.id, message.index + 1, success=True)
            return
        if not self._receiver.is_loading and self._receiver.add(message):
            self._install_loaded()
            if self._commit >= message.index:
                return
        held = self._receiver.bytes_held(message)
        self._enqueue(node.id, SnapshotReply(self.term, message.index, held))

    def _install_loaded(self) -> None:
        """Install the loaded snapshot. No entry was applied meanwhile, but more entries may have
        arrived.
        """
        loaded = self._receiver.take_loaded()
        if loaded is None:
            return
        snapshot = loaded.snapshot
        if snapshot is None:
            logger.error(
                "cannot use the leader's snapshot, requesting it again reason=%s", loaded.damage
            )
            return
        assert self._commit < snapshot.index, (self._commit, snapshot.index)
        if self._journal.holds(snapshot.index, snapshot.term):  # received from a later leader
            self._proven_commit = max(self._proven_commit, snapshot.index)
            return
        self._journal.install(snapshot)
        self._on_voters()
        self._snapshots.on_installed()
        loaded.take_effect()
        self._journal.set_metadata_version(self._finalized())
        self.snapshots_installed += 1
        self._restart_at(snapshot.index)
        self._fail_waiting()
        leader = self.leader_id
        if leader is not None and leader != self._node_id:
            self._reply_to_append(leader, snapshot.index + 1, success=True)
