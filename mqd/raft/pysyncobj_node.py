"""PySyncObj with mqd's names: with pysyncobj_pinned.py, the only file that uses its private names.

PySyncObj 0.3.17 keeps the roles, terms, votes, election timers, the commit rule and the order of
applying. Its unsafe parts are replaced here and in node.py. The letters are those of
tests/raft/test_defects.py, which shows each one.
- A, B: the append handler
- C, L: replies
- D, E, I: snapshots
- F: callbacks
- G, H: its journal
- J: back-tracking
- K, N: sending
- M: forwarding
- O: the senders that it accepts
- P: silent disk errors
- Q: needless elections, and voters that lost their log

The commit index is a property (`_SyncObj__raftCommitIndex`): whatever PySyncObj computes, it never
passes the journal's durable index. So a leader's own copy counts once it is synced, also in a
quorum of one, and this node applies only entries on its disk. If that limit ends the leader's
computation at an entry of an earlier term, the commit index does not move. Only an entry of the
leader's own term commits older entries (Raft, 5.4.2).

No threads, no clock, no randomness, no sockets: each call is made within
`pysyncobj_pinned.at(now)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pysyncobj.syncobj as core
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from mqd import limits
from mqd.raft.codec import Message, RequestVote, TimeoutNow
from mqd.raft.elections import Timing
from mqd.raft.journal import Journal
from mqd.raft.machine import Role
from mqd.raft.proposal_results import OnResult
from mqd.raft.pysyncobj_pinned import (
    JournalAdapter,
    NoPoller,
    Outbox,
    monotonic,
    pysyncobj_callback,
)
from mqd.raft.replication import Indexes

NEVER = float("inf")
AT_ONCE = float("-inf")


class PySyncObjNode(SyncObj):  # type: ignore[misc]
    """One node of the quorum as PySyncObj has it. A subclass provides what PySyncObj calls:
    `_durable_index`, `_election_timeout`, `_on_term`, `_on_role`, `_may_apply`, `_apply`,
    `_append_proposals`, `_send_appends` and `_compact_when_due`.

    PySyncObj reads every attribute of the object while it is built: those of a subclass, its
    properties included, must work before `super().__init__`.
    """

    def __init__(
        self,
        *,
        node_id: int,
        peers: Iterable[int],
        observers: Iterable[int],
        journal: Journal,
        timing: Timing,
    ) -> None:
        """`peers`: the other voters. `observers`: the other nodes that are none."""
        self._node_id = node_id
        self._journal = journal
        self._commit = journal.snapshot_index
        self._proven_commit = journal.snapshot_index
        """Committed according to leaders or replies; the commit index follows when it is
        durable.
        """
        self._rows_left = 0
        self._heartbeat_seconds = timing.heartbeat
        self._outbox = Outbox()
        self._nodes: dict[int, Any] = {}
        """PySyncObj's node objects of all other nodes, by id."""
        for peer in sorted({*peers, *observers}):
            self._nodes[peer] = Node(peer)
        configuration = SyncObjConf(
            autoTick=False,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
            useFork=False,
            journalFile=JournalAdapter(journal),
            raftMinTimeout=timing.election_timeout_min,
            raftMaxTimeout=timing.election_timeout_max,
            connectionTimeout=timing.election_timeout_max * 2.5,
            appendEntriesPeriod=timing.heartbeat,
            appendEntriesBatchSizeBytes=limits.RAFT_BATCH_BYTES,
            leaderFallbackTimeout=timing.election_timeout_max,
            onStateChanged=self._on_state,
        )
        others = [self._nodes[peer] for peer in sorted(peers)]
        super().__init__(Node(node_id), others, configuration, transport=self._outbox)
        self._set_members(peers)
        self._poller = NoPoller()
        self._SyncObj__serializer = None  # no files, no pickle
        self._SyncObj__raftLastApplied = journal.snapshot_index

    # -- reads

    @property
    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    @property
    def is_leader(self) -> bool:
        return bool(self.__dict__.get("_SyncObj__raftState") == core._RAFT_STATE.LEADER)

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def leader_id(self) -> int | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    @property
    def ready(self) -> bool:
        """Whether this node leads and has applied its own first entry, so that its state contains
        every committed entry.
        """
        return self.is_leader and self.applied_index >= self._SyncObj__noopIDx

    @property
    def commit_index(self) -> int:
        return self._commit

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @property
    def has_unapplied(self) -> bool:
        """The last turn left committed entries, which the next one may apply."""
        return self.applied_index < self._commit and self._may_apply()

    @property
    def connected_peers(self) -> tuple[int, ...]:
        return tuple(sorted(node.id for node in self._SyncObj__connectedNodes))

    @property
    def _voted(self) -> bool:
        """Whether this node has voted in the current term."""
        return self._SyncObj__votedForNodeId is not None

    @property
    def _transfer_in_progress(self) -> bool:
        """Whether the leader has sent TimeoutNow to this node."""
        return bool(self._SyncObj__transferInProgress)

    def _next_heartbeat_at(self) -> float:
        return float(self._SyncObj__newAppendEntriesTime)

    @property
    def _indexes(self) -> Indexes:
        return Indexes(self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex)

    def _replied_at(self, peer: int) -> float:
        """When this peer last replied to this leader in its term, or when the term began."""
        return float(self._SyncObj__lastResponseTime[self._nodes[peer]])

    # -- writes

    @property
    def _election_at(self) -> float:
        """When this node becomes a candidate, if there is no leader and a majority granted its
        pre-votes.
        """
        return float(self._SyncObj__raftElectionDeadline)

    @_election_at.setter
    def _election_at(self, at: float) -> None:
        self._SyncObj__raftElectionDeadline = at

    def _draw_election(self) -> None:
        self._election_at = monotonic() + self._election_timeout()

    def _forget_leader(self) -> None:
        self._SyncObj__raftLeader = None

    def _enter_term(self, term: int, vote: int | None = None) -> None:
        self._SyncObj__setCurrentTerm(term, vote)

    def _step_down(self, term: int) -> None:
        """A later term is known: become a follower, without a known leader."""
        self._enter_term(term)
        self._SyncObj__setState(core._RAFT_STATE.FOLLOWER)
        self._forget_leader()
        self._draw_election()

    def _follow_leader(self, node: Any, term: int) -> None:
        """`node` leads `term`, which is the current term or a later one."""
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self._enter_term(term)
        if not self._SyncObj__transferInProgress:
            self._draw_election()
        self._SyncObj__raftLeader = node
        self._SyncObj__setState(core._RAFT_STATE.FOLLOWER)

    def _count_reply(self, node: Any) -> None:
        self._SyncObj__lastResponseTime[node] = monotonic()

    def _count_vote(self, node: Any) -> None:
        self._pass_on(node, "response_vote", term=self.term)

    def _on_request_vote(self, node: Any, request: RequestVote) -> None:
        last = {"last_log_index": request.last_index, "last_log_term": request.last_term}
        self._pass_on(node, "request_vote", term=request.term, **last)

    def _on_timeout_now(self, node: Any, request: TimeoutNow) -> None:
        self._pass_on(node, "timeout_now", term=request.term)

    def _pass_on(self, node: Any, kind: str, **fields: int) -> None:
        SyncObj._SyncObj__onMessageReceived(self, node, {"type": kind, **fields})

    def _on_connected(self, peer: int) -> None:
        self._SyncObj__onNodeConnected(self._nodes[peer])

    def _on_disconnected(self, peer: int) -> None:
        self._SyncObj__onNodeDisconnected(self._nodes[peer])

    def _is_connected(self, node: Any) -> bool:
        return node in self._SyncObj__connectedNodes

    def _set_members(self, peers: Iterable[int]) -> None:
        """Count these peers for votes and commits, and no other nodes."""
        counted = set()
        for peer in peers:
            counted.add(self._nodes.setdefault(peer, Node(peer)))
        self._SyncObj__otherNodes = counted
        self._SyncObj__readonlyNodes = set(self._nodes.values()) - counted

    def _tick(self) -> None:
        """Start an election, commit, apply, send and take proposals, each when it is due."""
        self._SyncObj__raftCommitIndex = self._proven_commit
        self.doTick(0.0)

    def _send_all(self) -> None:
        """Send missing entries or a heartbeat to each other node, and restart the heartbeat
        timer.
        """
        self._SyncObj__sendAppendEntries()

    def _wait_commit(self, index: int, on_result: OnResult) -> None:
        """Report the result of the proposal that is entry `index` of the current term."""
        waiting = self._SyncObj__commandsWaitingCommit[index]
        waiting.append((self.term, pysyncobj_callback(on_result)))

    def _fail_waiting(self) -> None:
        """Report all pending proposals as unknown."""
        waiting = self._SyncObj__commandsWaitingCommit
        for index in sorted(waiting):
            for _term, callback in waiting.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _restart_at(self, snapshot_index: int) -> None:
        """The machine has the state of a leader's snapshot."""
        self._SyncObj__raftLastApplied = snapshot_index
        self._proven_commit = self._commit = snapshot_index

    def transfer_leadership(self) -> bool:
        """Send TimeoutNow to the most advanced follower. False if none has all entries."""
        reasons: list[int] = []
        self.transferLeadership(None, lambda _result, reason: reasons.append(reason))
        return reasons == [FAIL_REASON.SUCCESS]

    def flushed(self) -> list[tuple[int, Message]]:
        """The journal is durable: these messages may leave, in this order. Another turn may commit
        more."""
        # Term and vote are durable before a message that depends on them leaves (I12).
        assert not self._journal.dirty
        messages, self._outbox.messages = self._outbox.messages, []
        return messages

    # -- callbacks of PySyncObj

    @property
    def _SyncObj__raftCommitIndex(self) -> int:  # noqa: N802
        return self._commit

    @_SyncObj__raftCommitIndex.setter
    def _SyncObj__raftCommitIndex(self, index: int) -> None:  # noqa: N802
        # Entries that are not synced here are not committed here (I11).
        durable = self._durable_index()
        if index > durable:
            index = durable
            if (
                index > self._commit
                and self.is_leader
                and self._journal.term_at(index) != self.term
            ):
                return
        self._commit = max(self._commit, index)
        self._proven_commit = max(self._proven_commit, self._commit)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        timeout: float = self._election_timeout()
        return timeout

    def _SyncObj__setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        self._on_term()
        SyncObj._SyncObj__setCurrentTerm(self, term, vote)

    def _SyncObj__applyLogEntries(self) -> None:  # noqa: N802
        """Apply committed entries one by one, until the rows of this turn are used up."""
        self._rows_left = limits.RAFT_ROWS_PER_TURN
        commit = self._commit
        try:
            while self.applied_index < commit and self._rows_left > 0 and self._may_apply():
                self._commit = self.applied_index + 1
                SyncObj._SyncObj__applyLogEntries(self)
        finally:
            self._commit = commit

    def _SyncObj__doApplyCommand(self, command: bytes) -> int:  # noqa: N802
        index = self.applied_index + 1
        self._rows_left -= self._apply(index, command)
        return index

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        self._append_proposals()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._SyncObj__newAppendEntriesTime = monotonic() + self._heartbeat_seconds
        self._send_appends()

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        self._compact_when_due()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> NoReturn:  # noqa: N802, N803
        raise AssertionError("pysyncobj has no files")

    def _on_state(self, old: int, new: int) -> None:
        self._on_role(_ROLES[old], _ROLES[new])
        if old == core._RAFT_STATE.LEADER:
            self._fail_waiting()
            self._draw_election()


_ROLES = {
    core._RAFT_STATE.FOLLOWER: Role.FOLLOWER,
    core._RAFT_STATE.CANDIDATE: Role.CANDIDATE,
    core._RAFT_STATE.LEADER: Role.LEADER,
}
