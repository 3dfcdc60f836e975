"""PySyncObj, held from outside: with pinned.py, the only file that knows its private names.

PySyncObj 0.3.17 keeps the roles, terms, votes, election timers, the commit rule and the order of applying. What it does
unsafely is replaced here, each time in the same place: the append handler (A, B), replies (C, L), snapshots (D, E, I),
callbacks (F), its journal (G, H), back-tracking (J), sending (K, N), forwarding (M), whom it hears (O), silent disk
errors (P), elections that nobody needs and voters that have forgotten (Q). The letters are those of tests/raft/test_defects.py,
where each is shown.

Durability, by construction:
- A turn changes memory only. Whatever it wants to say waits in `outbox` until the journal's flush has returned.
- The commit index is a property (`_SyncObj__raftCommitIndex`): whatever PySyncObj computes, it never passes the journal's
  durable index. So a leader's own copy counts once it is fsynced, in a quorum of one too, and nothing that is not on
  this node's disk is applied here. Where that limit cuts a leader's computation short at an entry of an earlier
  term, it does not move at all: an old entry is committed only through one of the leader's own (Raft, 5.4.2).

No threads, no clock, no dice, no sockets: `now` comes in with each call, chance comes from the `random` it is given.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import pysyncobj.syncobj as core
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from mqd import limits
from mqd.errors import QuorumBroken
from mqd.raft import formats, versions
from mqd.raft.authority import Authority
from mqd.raft.codec import (
    COMMAND,
    NO_OP,
    Account,
    AppendEntries,
    AppendReply,
    Inquiry,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    Vote,
)
from mqd.raft.elections import Amnesia, Poll, impasse
from mqd.raft.fates import Fate, Settle, tell
from mqd.raft.followers import Followers
from mqd.raft.journal import Compaction, Journal
from mqd.raft.machine import Machine, PeerStatus, Role
from mqd.raft.pinned import LogFace, NoPoller, Outbox, at, monotonic, pysyncobj_callback
from mqd.raft.snapshots import Build, Load, Sending, Work, all_steps, build_at_once, load_at_once
from mqd.raft.voters import Position, VoterSet, encode_entry, next_set, obstacle, unreachable_by_one_step

logger = logging.getLogger(__name__)

_FIRST_INDEX = 2
"""Of an entry: index 1 is the empty beginning, the same on every node."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. An election starts after a silence between the two timeouts, drawn anew each time; a leader that has not heard
    a majority for the longer one leads no more."""

    election_timeout_min: float = 0.4
    election_timeout_max: float = 1.4
    heartbeat: float = 0.1
    snapshot_resend: float = 1.0


_Announced = tuple[int, int, int]
"""Index, term and bytes of a snapshot, by the leader that sends it."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A snapshot that a leader sent."""

    snapshot: formats.Snapshot | None
    """None where it cannot be used."""
    damage: str
    take_effect: Callable[[], None] = lambda: None


class RaftNode(SyncObj):  # type: ignore[misc]
    """One voter, or an observer: a node that follows the log, is never counted, and never votes.

    The owner calls, in this order and never two at once: any of `receive`, `connected`, `disconnected`,
    `reborn`, `peer_gone`, `propose`; `turn`; the journal's `flush` if it is dirty; `flushed`. See service.py for the real owner."""

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
        """`build(pieces, done)`: have `done(state)` called with the joined pieces of a snapshot, at once or between two later turns.
        `load(work, done)`: likewise with what the work returns; until then, no entry is applied.
        `finalized()`: the metadata version by what the machine has applied, 0 for none (versions.py)."""
        self._journal = journal
        self._machine = machine
        self._random = random
        self._timing = timing
        self._cluster_id = cluster_id
        self._finalized = finalized
        self._compaction = compaction or Compaction()
        self.snapshots_taken = self.snapshots_installed = 0
        self._commit = journal.snapshot_index
        self._proven_commit = journal.snapshot_index
        self._announced_commit = 0
        self._applied_bytes = 0
        """Of commands applied since the last snapshot."""
        self._build = build
        self._building = False
        self._compact_from = 0
        """No snapshot before this entry is applied: there was no space for one."""
        self._proposals: deque[tuple[bytes, Settle]] = deque()
        self._votes: set[int] = set()
        self._term_since = now
        """When the present term began here."""
        self._forgetful: set[int] = set()
        """Voters that asked what was promised (Inquiry), and have said nothing else since."""
        self._sending: dict[int, Sending] = {}
        self._incoming: tuple[_Announced, bytearray] | None = None
        self._load = load
        self._loading: _Announced | None = None
        """The snapshot of a leader that has arrived and is not installed yet. Until then the commit index stays where it is."""
        self._loaded: _Loaded | None = None
        self._outbox = Outbox()
        self.elections = 0
        self._node_id = node_id
        self.file = frozenset(voters)
        """The voters by this node's peers file: what the operator wants (voters.py)."""
        self._files: dict[int, frozenset[int]] = {}
        """The same of other nodes, as last introduced."""
        self._set = self._voters_in_force()
        """The voters in force."""
        known = (self.file | self._set.voters | frozenset(observers)) - {node_id}
        self._everyone = {peer: Node(peer) for peer in sorted(known)}
        self._peers = self._others_of(self._set.voters)
        self._followers = Followers(self._set.voters, self._everyone)
        self._authority = Authority()
        self._poll = Poll(node_id, self._set.voters, patience=timing.election_timeout_min)
        self._stood_down_at = float("-inf")
        self._amnesia: Amnesia | None = None
        if journal.formed:
            self._keep_first_voters()
        elif node_id in self.file | self._set.voters:
            self._start_from_nothing(new=journal.voter_set in (None, VoterSet(0, self.file)))
        configuration = SyncObjConf(
            autoTick=False,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
            useFork=False,
            journalFile=LogFace(journal),
            raftMinTimeout=timing.election_timeout_min,
            raftMaxTimeout=timing.election_timeout_max,
            connectionTimeout=timing.election_timeout_max * 2.5,
            appendEntriesPeriod=timing.heartbeat,
            appendEntriesBatchSizeBytes=limits.RAFT_BATCH_BYTES,
            leaderFallbackTimeout=timing.election_timeout_max,
            onStateChanged=self._on_role,
        )
        with at(now):
            super().__init__(Node(node_id), list(self._peers.values()), configuration, transport=self._outbox)
        self._SyncObj__readonlyNodes = set(self._everyone.values()) - set(self._peers.values())
        self._poller = NoPoller()
        self._SyncObj__serializer = None  # files and pickle: never again
        if (snapshot := journal.take_boot_snapshot()) is not None:
            all_steps(machine.restoring(snapshot.state))()
            journal.set_metadata_version(finalized())
        self._SyncObj__raftLastApplied = journal.snapshot_index
        if not self._peers and not self._observing and self._amnesia is None:
            self._SyncObj__raftElectionDeadline = float("-inf")  # nobody to wait for

    # -- what the owner sees

    @property
    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def leader_id(self) -> int | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    @property
    def ready(self) -> bool:
        """Leader, with its own first entry applied: the state holds everything that was ever committed."""
        return self._is_leader and self.applied_index >= self._SyncObj__noopIDx

    @property
    def commit_index(self) -> int:
        return self._commit

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @property
    def metadata_version(self) -> int:
        """In force, as far as this node knows (versions.py)."""
        return versions.in_force(self._finalized(), self._journal.metadata_version)

    @property
    def voters(self) -> frozenset[int]:
        """In force by the log of this node."""
        return self._set.voters

    @property
    def position(self) -> Position:
        first = VoterSet(0, self.file)
        current = self._journal.voter_set or first
        return Position(self.file, current, self._journal.voter_set_at(self._commit) or first, self._journal.formed)

    def misfit(self, now: float) -> str | None:
        """Why the peers file of this node has no effect, or has none yet, for the operator."""
        committed = self.position.committed
        if not committed.epoch or self.file == self._set.voters:
            return None
        if (why := unreachable_by_one_step(self.file, committed)) is not None or not self.ready:
            return why
        why = obstacle(self._node_id, self.file, self._set, files=self._files, caught_up=self._caught_up(now))
        return None if why is None else f"the change of the voters from {self._set} to {sorted(self.file)} waits: {why}"

    def _caught_up(self, now: float) -> frozenset[int]:
        return self._followers.caught_up_since(now - self._timing.election_timeout_max)

    @property
    def _observing(self) -> bool:
        return self._node_id not in self._set.voters

    @property
    def connected_peers(self) -> tuple[int, ...]:
        return tuple(sorted(node.id for node in self._SyncObj__connectedNodes))

    @property
    def abstains(self) -> str | None:
        """Why this voter does not vote yet, or cannot be elected by those that do, for the operator."""
        if self._amnesia is not None:
            return self._amnesia.waits_for()
        decided = self._journal.last_index >= _FIRST_INDEX
        return impasse(len(self.voters), self.voters - self._forgetful) if decided and not self._observing else None

    def majority_heard_at(self, now: float) -> float:
        """When a majority, this leader included, had last been heard; -inf for who does not lead."""
        if not self._is_leader:
            return float("-inf")
        heard = self._SyncObj__lastResponseTime
        return float(sorted([now, *(heard[node] for node in self._peers.values())], reverse=True)[len(self.voters) // 2])

    def led_at(self, now: float) -> float:
        """When this leader surely led, and no other one (authority.py); -inf for one that does not lead."""
        return self._authority.proven_at(self._node_id, self.voters, now) if self._is_leader else float("-inf")

    def peers(self) -> tuple[PeerStatus, ...]:
        """Everybody else, by id, as a leader sees them."""
        match = self._SyncObj__raftMatchIndex
        return self._followers.statuses({peer: match[node] for peer, node in self._everyone.items()} if self._is_leader else None)

    def next_deadline(self) -> float:
        """When the next turn is due if nothing happens. In the past: now."""
        if self._amnesia is not None:
            return self._amnesia.ask_at
        if not self._is_leader:
            return float(self._SyncObj__raftElectionDeadline)
        return float(self._SyncObj__newAppendEntriesTime) if self._peers else float("inf")

    # -- what the owner does

    def connected(self, peer: int) -> None:
        """What is sent to `peer` from now on arrives in order, or the connection ends."""
        self._SyncObj__onNodeConnected(self._everyone[peer])
        if self._amnesia is not None:
            self._amnesia.ask_at = float("-inf")

    def introduced(self, peer: int, file: frozenset[int]) -> None:
        """`peer` runs with a peers file that names these voters."""
        self._files[peer] = file

    def disconnected(self, peer: int) -> None:
        self._sending.pop(peer, None)
        self._forgetful.discard(peer)
        self._SyncObj__onNodeDisconnected(self._everyone[peer])

    def reborn(self, peer: int) -> None:
        """`peer` runs anew; nothing that its earlier life said comes any more. What that one acknowledged may be forgotten."""
        if self._is_leader:
            node = self._everyone[peer]
            self._sending.pop(peer, None)
            self._SyncObj__raftMatchIndex[node] = 0  # a match is what is known, so that less is always right
            self._SyncObj__raftNextIndex[node] = self._journal.last_index + 1

    def peer_gone(self, now: float, peer: int) -> None:
        """The process of `peer` seems to have ended. If it led, stand soon: all who noticed draw a short time-out."""
        if self.leader_id != peer:
            return
        self._SyncObj__raftLeader = None
        self._poll.leader_gone()
        if not self._observing and self._amnesia is None:
            soon = now + self._timing.election_timeout_min / 2 * self._random()
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def propose(self, command: bytes, settle: Settle) -> None:
        """Queue a command (with its first byte, see codec.py) for the next turn; `settle` is told, now or later."""
        assert command[:1] == COMMAND or command == NO_OP
        assert len(command) <= limits.RAFT_COMMAND_BYTES_MAX + 1, len(command)
        self._proposals.append((command, settle))

    def receive(self, now: float, sender: int, message: Message) -> None:
        """A node said something. Raises QuorumBroken, StorageError.

        A leader or candidate need not be a voter by the log of this node, which may be behind (Ongaro, 4.1). A candidate that is no
        voter by any file either is ignored."""
        node = self._everyone.get(sender)
        if node is None or (isinstance(message, PreVote | RequestVote | Inquiry) and not self._may_vote(sender)):
            logger.warning("raft: ignored a message from %d, which is no voter", sender)
            return
        if isinstance(message, Inquiry):
            self._forgetful.add(sender)
        else:
            self._forgetful.discard(sender)
        if not self._may_hear(message):
            return
        with at(now):
            match message:
                case PreVote():
                    self._on_pre_vote(node, message)
                case PreVoteReply():
                    self._on_pre_vote_reply(node, message)
                case Inquiry(_, nonce):
                    self.reborn(sender)
                    self._keep_first_voters()
                    known = self._set if versions.allows_voter_sets(self.metadata_version) else None
                    self._say(node, Account(self.term, nonce, self._journal.last_index, self._journal.formed, known))
                case Account() if self._amnesia is not None:
                    self._amnesia.on_account(sender, message)
                case AppendEntries():
                    self._on_append(node, message)
                case AppendReply():
                    self._on_append_reply(node, message)
                case Vote():
                    self._on_vote(node, message)
                case RequestVote(term, last_index, last_term):
                    self._hand_over(node, "request_vote", term=term, last_log_index=last_index, last_log_term=last_term)
                case InstallSnapshot():
                    self._on_snapshot(node, message)
                case SnapshotReply():
                    self._on_snapshot_reply(node, message)
                case TimeoutNow(term):
                    self._hand_over(node, "timeout_now", term=term)

    def turn(self, now: float) -> None:
        """Time passed, or messages and proposals came: elect, commit, apply, send. Raises what the machine raises."""
        with at(now):
            self._tend_loading()
            self._tend_memory(now)
            self._tend_poll(now)
            self._tend_voters(now)
            self._SyncObj__raftCommitIndex = self._proven_commit
            self.doTick(0.0)
            if self._is_leader and self._announced_commit < self._commit:
                self._SyncObj__sendAppendEntries()

    def flushed(self) -> list[tuple[int, Message]]:
        """The journal is durable: what was said may leave, in this order. Another turn may commit more."""
        assert not self._journal.dirty
        messages, self._outbox.messages = self._outbox.messages, []
        return messages

    def can_commit(self) -> bool:
        """Whether a turn at once could apply something, now that more is durable."""
        if self._loading is not None:
            return False
        if self._is_leader:
            return self._commit < self._journal.durable_index and not self._peers
        return self._commit < min(self._proven_commit, self._journal.durable_index)

    def stand_down(self) -> bool:
        """Ask the most advanced follower to take over. False when none has everything."""
        fates: list[int] = []
        self.transferLeadership(None, lambda _result, reason: fates.append(reason))
        return fates == [FAIL_REASON.SUCCESS]

    def abandon(self) -> None:
        """The node stops: nobody will learn what became of what waits."""
        self._fail_waiting()
        while self._proposals:
            self._proposals.popleft()[1](0, Fate.REFUSED)

    # -- the commit index

    @property
    def _SyncObj__raftCommitIndex(self) -> int:  # noqa: N802
        return self._commit

    @_SyncObj__raftCommitIndex.setter
    def _SyncObj__raftCommitIndex(self, index: int) -> None:  # noqa: N802
        durable = self._durable_index()
        if index > durable:
            index = durable
            if index > self._commit and self._is_leader and self._journal.term_at(index) != self.term:
                return
        self._commit = max(self._commit, index)
        self._proven_commit = max(self._proven_commit, self._commit)

    def _durable_index(self) -> int:
        return self._journal.durable_index if self._loading is None else self._commit

    # -- PySyncObj asks

    @property
    def _is_leader(self) -> bool:
        return bool(self.__dict__.get("_SyncObj__raftState") == core._RAFT_STATE.LEADER)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        timing = self._timing
        if self._observing or not self._journal.formed:
            return float("inf")  # never stands
        return timing.election_timeout_min + (timing.election_timeout_max - timing.election_timeout_min) * self._random()

    def _SyncObj__doApplyCommand(self, command: bytes) -> int:  # noqa: N802
        index = self.applied_index + 1
        self._applied_bytes += len(command)
        if command[:1] == COMMAND:
            self._machine.apply(index, command[1:])
            self._journal.set_metadata_version(self._finalized())
        return index

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        if not self._proposals:
            return
        while self._proposals:
            command, settle = self._proposals.popleft()
            if not self._is_leader:
                tell(settle, 0, Fate.REFUSED)
                continue
            index = self._journal.last_index + 1
            self._journal.append(command, index, self.term)
            self._authority.appended(index, monotonic())
            self._SyncObj__commandsWaitingCommit[index].append((self.term, pysyncobj_callback(settle)))
        if self._is_leader:
            self._SyncObj__sendAppendEntries()

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        journal = self._journal
        due = self._compaction
        if self.applied_index - journal.snapshot_index < due.entries_max and self._applied_bytes < due.bytes_max:
            return
        if self._building or self.applied_index < self._compact_from:
            return
        self._building = True
        self._build(self._machine.snapshot(), partial(self._on_snapshot_built, self.applied_index, self._applied_bytes))

    def _on_snapshot_built(self, index: int, applied_bytes: int, state: bytes) -> None:
        """`state` is that after entry `index`, when so many bytes had been applied. What was applied since stays in the log."""
        self._building = False
        if index <= self._journal.snapshot_index:
            return  # a leader's snapshot came first
        entries_kept = self._compaction.entries_kept
        if not self._journal.has_room_for(len(state)):
            self._compact_from = self.applied_index + entries_kept  # the log grows a little longer
            return
        self._journal.compact(index, state, entries_kept=entries_kept)
        self.snapshots_taken += 1
        self._applied_bytes -= applied_bytes

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> NoReturn:  # noqa: N802, N803
        raise AssertionError("pysyncobj has no files")

    def _on_role(self, old: int, new: int) -> None:
        if new == core._RAFT_STATE.LEADER:
            self.elections += 1
            self._announced_commit = 0
            self._sending.clear()
            self._followers.clear()
            self._authority.clear()
        if old == core._RAFT_STATE.LEADER:
            self._sending.clear()
            self._fail_waiting()
            self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()
        self._votes.clear()

    def _fail_waiting(self) -> None:
        waiting = self._SyncObj__commandsWaitingCommit
        for index in sorted(waiting):
            for _term, callback in waiting.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)

    # -- elections

    def _may_hear(self, message: Message) -> bool:
        """An observer hears its leader only; so does a voter that has forgotten, once it knows whom to follow.

        A node that remembers what it promised votes for those by whose log it is a voter, also when by its own it is none yet, or none
        any more: else one lost voter could stop a quorum in the middle of a change (Ongaro, 4.1)."""
        if self._amnesia is not None:
            if isinstance(message, Inquiry | Account):
                return True
            return self._amnesia.follows and isinstance(message, AppendEntries | InstallSnapshot)
        return self._journal.formed or isinstance(message, AppendEntries | InstallSnapshot)

    def _may_vote(self, node_id: int) -> bool:
        return node_id in self._set.voters or node_id in self.file or node_id in self._files.get(node_id, ())

    def _tend_poll(self, now: float) -> None:
        """When it is time to stand, ask first. PySyncObj stands by itself once the time-out is over: it is not, unless it may."""
        if self._is_leader or self._observing or self._amnesia is not None or not self._peers or self._SyncObj__transferInProgress:
            return
        if self._SyncObj__raftElectionDeadline >= now:
            return
        if self._poll.won:
            self._poll.end()
            return
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftLeader = None
        self._poll.begin(self.term + 1)
        for node in self._peers.values():
            self._say(node, PreVote(self.term + 1, self._journal.last_index, self._journal.entries[-1].term))

    def _on_pre_vote(self, node: Any, message: PreVote) -> None:
        if message.term < self.term or (message.term == self.term and self._SyncObj__votedForNodeId is not None):
            self._say(node, PreVoteReply(self.term, False))
            return
        last = (self._journal.entries[-1].term, self._journal.last_index)
        if not self._is_leader and self._poll.grants(monotonic()) and (message.last_term, message.last_index) >= last:
            self._say(node, PreVoteReply(message.term, True))

    def _on_pre_vote_reply(self, node: Any, message: PreVoteReply) -> None:
        if message.granted:
            if message.term == self.term + 1 and not self._is_leader and self._poll.on_grant(node.id, message.term):
                self._SyncObj__raftElectionDeadline = float("-inf")
        elif message.term > self.term:
            self._poll.end()
            self._step_down(message.term)

    def _tend_memory(self, now: float) -> None:
        """Of a voter that starts from nothing: ask, and decide."""
        amnesia = self._amnesia
        if amnesia is None:
            return
        if self._set.epoch == 0 and (term := amnesia.first_formation(self._journal.last_index)) is not None:
            self._keep_first_voters()
            self._enter_term_without_vote(term)
            self._remember()
            return
        if not amnesia.follows and (term := amnesia.may_follow()) is not None:
            self._enter_term_without_vote(term)
            amnesia.follows = True
        if amnesia.whole_at is not None and self._commit >= amnesia.whole_at and now >= self._votes_from:
            self._remember()
        elif now >= amnesia.ask_at:  # also while it follows: of an even number of voters, half may wait so for the other half
            amnesia.ask_at = now + self._timing.heartbeat
            for node in self._others_of(self.file | self._set.voters).values():
                self._say(node, Inquiry(self.term, amnesia.nonce))

    def _enter_term_without_vote(self, term: int) -> None:
        term = max(term, self.term)
        if term > 0:
            self._SyncObj__setCurrentTerm(term, self._SyncObj__selfNode.id)

    def _remember(self) -> None:
        self._amnesia = None
        self._journal.set_formed()
        self._on_voters()
        self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()
        logger.info("raft: this voter votes from now on, in terms after %d", self.term)

    # -- the voters

    def _others_of(self, voters: frozenset[int]) -> dict[int, Node]:
        return {peer: self._everyone[peer] for peer in sorted(voters - {self._node_id})}

    def _start_from_nothing(self, *, new: bool) -> None:
        voters = self.file | self._set.voters
        if new and voters == {self._node_id}:  # there is nobody whom it could contradict
            self._keep_first_voters()
            self._journal.set_formed()
        else:
            self._amnesia = Amnesia(self._node_id, self.file, nonce=int(self._random() * (1 << 53)), may_form=new)
            self._votes_from = self._term_since + 2 * self._timing.election_timeout_max

    def _keep_first_voters(self) -> None:
        """Before this node takes part in anything: with which set it does."""
        if self._journal.voter_set is None:
            self._journal.set_first_voters(self.file)

    def _voters_in_force(self) -> VoterSet:
        """By the log. What a node without a log, and without a promise, once answered (epoch 0) only keeps it from forming a cluster."""
        found = self._journal.voter_set
        if found is None or (found.epoch == 0 and not self._journal.formed):
            return VoterSet(0, self.file)
        return found

    def _on_voters(self) -> None:
        """The log may have another set now: it is in force at once (voters.py)."""
        found = self._voters_in_force()
        if found == self._set:
            return
        logger.info("raft: the voters are %s", found)
        observed, self._set = self._observing, found
        for peer in sorted(found.voters - self._everyone.keys() - {self._node_id}):
            self._everyone[peer] = Node(peer)
            self._followers.add(peer)
        self._peers = self._others_of(found.voters)
        self._SyncObj__otherNodes = set(self._peers.values())
        self._SyncObj__readonlyNodes = set(self._everyone.values()) - self._SyncObj__otherNodes
        self._followers.voters = self._poll.voters = found.voters
        self._poll.end()
        if not self._observing and not self._journal.formed and self._amnesia is None:
            self._start_from_nothing(new=False)
        if observed != self._observing and not self._is_leader:
            self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()

    def _tend_voters(self, now: float) -> None:
        """Of a leader: append the set that the operator wants, when it may."""
        if not self.ready or (self.file == self._set.voters and self._journal.records_voters):
            return
        if not versions.allows_voter_sets(self.metadata_version):
            return
        if self._node_id not in self.file and self._set.epoch and now - self._stood_down_at > self._timing.heartbeat:
            self._stood_down_at = now
            self.stand_down()
            return
        wanted = next_set(
            self._node_id,
            self.file,
            self._set,
            recorded=self._journal.records_voters,
            committed=self._journal.voter_set_at(self._commit) == self._set,
            files=self._files,
            caught_up=self._caught_up(now),
        )
        if wanted is not None:
            self._journal.append(encode_entry(wanted), self._journal.last_index + 1, self.term)
            self._on_voters()
            self._SyncObj__sendAppendEntries()

    def _hand_over(self, node: Any, kind: str, **fields: int) -> None:
        SyncObj._SyncObj__onMessageReceived(self, node, {"type": kind, **fields})

    def _on_vote(self, node: Any, message: Vote) -> None:
        if message.term > self.term:
            self._step_down(message.term)
        if monotonic() - self._term_since > self._timing.election_timeout_max:
            return  # its sender may have forgotten it (elections.py)
        if message.term == self.term and node.id in self.voters and node.id not in self._votes:  # a voter has one vote
            self._votes.add(node.id)
            self._hand_over(node, "response_vote", term=message.term)

    def _SyncObj__setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        self._votes.clear()
        self._term_since = monotonic()
        SyncObj._SyncObj__setCurrentTerm(self, term, vote)

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(core._RAFT_STATE.FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()

    def _follow(self, node: Any, term: int) -> None:
        """`node` leads `term`, which is not behind ours."""
        self._poll.heard_leader(monotonic())
        if term == self.term and self._is_leader:
            raise QuorumBroken(f"node {node.id} leads term {term}, and so does this one")
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self._SyncObj__setCurrentTerm(term, None)
        if not self._SyncObj__transferInProgress:
            self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftLeader = node
        self._SyncObj__setState(core._RAFT_STATE.FOLLOWER)

    # -- entries

    def _say(self, node: Any, message: Message) -> None:
        if isinstance(message, AppendEntries | InstallSnapshot):
            self._authority.sent(node.id, monotonic())
        self._outbox.messages.append((node.id, message))

    def _reply(self, node: Any, next_index: int, *, success: bool = False, reset: bool = False) -> None:
        self._say(node, AppendReply(self.term, next_index, success, reset))

    def _on_append(self, node: Any, message: AppendEntries) -> None:
        if message.term < self.term:
            self._reply(node, 0)  # our term tells it that it leads no more
            return
        self._follow(node, message.term)
        journal = self._journal
        previous, previous_term, entries = message.previous_index, message.previous_term, message.entries
        if previous > journal.last_index:
            self._reply(node, journal.last_index + 1, reset=True)
            return
        if previous < journal.base_index:  # that prefix is in our snapshot, hence committed
            previous, previous_term = journal.base_index, journal.term_at(journal.base_index)
            entries = tuple(entry for entry in entries if entry.index > previous)
        conflict = journal.term_at(previous)
        if conflict != previous_term:
            if previous <= self._commit:
                raise QuorumBroken(f"entry {previous} is committed here in term {conflict}, the leader has it in {previous_term}")
            while previous - 1 > self._commit and journal.term_at(previous - 1) == conflict:
                previous -= 1  # skip the whole term that contradicts
            self._reply(node, previous, reset=True)
            return
        for entry in entries:
            if entry.index <= journal.last_index:
                if journal.term_at(entry.index) == entry.term:
                    continue  # already here: agreement never truncates
                if entry.index <= self._proven_commit:
                    raise QuorumBroken(f"the leader of term {message.term} would replace committed entry {entry.index}")
                journal.truncate_from(entry.index)
            journal.append(*entry)
        self._on_voters()
        known = previous + len(entries)  # the last index proven equal to the leader's
        self._proven_commit = max(self._proven_commit, min(message.commit_index, known))
        if self._amnesia is not None and known >= message.commit_index and journal.holds(message.commit_index, message.term):
            self._amnesia.whole_at = message.commit_index
        self._reply(node, known + 1, success=True)

    def _on_append_reply(self, node: Any, message: AppendReply) -> None:
        if not self._counts(node, message.term):
            return
        next_index, match_index = self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex
        before = next_index[node]
        if message.next_index > self._journal.last_index + 1:
            logger.error("raft: node %d claims entries up to %d, which do not exist", node.id, message.next_index - 1)
            return
        if message.success:
            match_index[node] = max(match_index[node], message.next_index - 1)
            self._authority.acknowledged(node.id, match_index[node])
            self._followers.on_success(node.id, match_index[node], self._journal.last_index, monotonic())
            next_index[node] = max(before, message.next_index)  # never back over what is in flight
            if (sending := self._sending.get(node.id)) is not None and match_index[node] >= sending.index:
                del self._sending[node.id]
        elif message.reset:
            next_index[node] = max(match_index[node] + 1, _FIRST_INDEX, min(before, message.next_index))
        if next_index[node] != before or (message.success and before <= self._journal.last_index):
            self._send_to(node, heartbeat=False)

    def _counts(self, node: Any, term: int) -> bool:
        """Whether a reply of `term` is an answer to this leader in this term."""
        if term > self.term:
            self._step_down(term)
        if not self._is_leader or term != self.term:
            return False
        self._SyncObj__lastResponseTime[node] = monotonic()
        self._followers.on_heard(node.id, monotonic())
        self._authority.answered(node.id)
        return True

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._SyncObj__newAppendEntriesTime = monotonic() + self._timing.heartbeat
        self._announced_commit = self._commit
        for node in self._everyone.values():
            self._send_to(node, heartbeat=True)

    def _send_to(self, node: Any, *, heartbeat: bool) -> None:
        """Everything that this follower lacks, up to a bound; with `heartbeat`, at least one message."""
        if node not in self._SyncObj__connectedNodes:
            return
        journal = self._journal
        first = self._SyncObj__raftNextIndex[node]
        if first <= journal.base_index:
            self._send_snapshot(node)
            return
        for _ in range(limits.RAFT_APPENDS_PER_ROUND):
            if first > journal.last_index and not heartbeat:
                break
            entries = journal.batch(first, limits.RAFT_BATCH_BYTES) if first <= journal.last_index else ()
            self._say(node, AppendEntries(self.term, self._commit, first - 1, journal.term_at(first - 1), entries))
            first += len(entries)
            heartbeat = False
        self._SyncObj__raftNextIndex[node] = first

    # -- snapshots

    def _send_snapshot(self, node: Any) -> None:
        """Begin, or keep the follower awake with an empty chunk, or repeat what was not acknowledged for long."""
        sending = self._sending.get(node.id)
        if sending is None:
            snapshot_index, snapshot_term = self._journal.snapshot_index, self._journal.snapshot_term
            sending = Sending(snapshot_index, snapshot_term, self._journal.snapshot_source(), 0, monotonic())
            self._sending[node.id] = sending
            self._send_chunk(node, sending)
        elif monotonic() - sending.sent_at > self._timing.snapshot_resend:
            self._send_chunk(node, sending)
        else:
            self._say(node, InstallSnapshot(self.term, sending.index, sending.term, sending.source.size, sending.acknowledged, b""))

    def _send_chunk(self, node: Any, sending: Sending) -> None:
        sending.sent_at = monotonic()
        start = sending.acknowledged
        data = sending.source.read_at(start, limits.RAFT_SNAPSHOT_CHUNK_BYTES)
        self._say(node, InstallSnapshot(self.term, sending.index, sending.term, sending.source.size, start, data))

    def _on_snapshot_reply(self, node: Any, message: SnapshotReply) -> None:
        if not self._counts(node, message.term):
            return
        sending = self._sending.get(node.id)
        if sending is None or sending.index != message.index or message.offset > sending.source.size:
            return
        if message.offset != sending.acknowledged:  # further, or the follower began anew
            sending.acknowledged = message.offset
            self._send_chunk(node, sending)

    def _on_snapshot(self, node: Any, message: InstallSnapshot) -> None:
        if message.term < self.term:
            self._say(node, SnapshotReply(self.term, message.index, 0))
            return
        self._follow(node, message.term)
        if message.index <= self._commit:
            self._reply(node, self._commit + 1, success=True)  # what is committed here is the leader's too
            return
        if self._journal.holds(message.index, message.index_term):
            self._proven_commit = max(self._proven_commit, message.index)  # that very entry: keep what follows it
            self._reply(node, message.index + 1, success=True)
            return
        key = (message.index, message.index_term, message.size)
        if self._loading is not None:  # one at a time: the leader of another one waits
            self._say(node, SnapshotReply(self.term, message.index, message.size if self._loading == key else 0))
            return
        if self._incoming is None or self._incoming[0] != key:
            self._incoming = (key, bytearray())
        data = self._incoming[1]
        if message.offset == len(data):
            data += message.data
        if len(data) < message.size:
            self._say(node, SnapshotReply(self.term, message.index, len(data)))
            return
        self._incoming, self._loading = None, key
        self._load(self._loading_steps(key, data), self._on_loaded)
        self._tend_loading()
        if self._commit < message.index:  # it is being loaded, or it arrived damaged
            self._say(node, SnapshotReply(self.term, message.index, message.size if self._is_loading else 0))

    @property
    def _is_loading(self) -> bool:
        return self._loading is not None

    def _loading_steps(self, key: _Announced, data: bytearray) -> Work[_Loaded]:
        """The snapshot, and what puts its state in force; without them where it is damaged."""
        try:
            snapshot = formats.decode_snapshot(bytes(data))
        except formats.Damaged as damage:
            return _Loaded(None, str(damage))
        if (snapshot.cluster_id, snapshot.index, snapshot.term) != (self._cluster_id, *key[:2]):
            return _Loaded(None, "it is not the one that was announced")
        yield
        take_effect = yield from self._machine.restoring(snapshot.state)
        return _Loaded(snapshot, "", take_effect)

    def _on_loaded(self, loaded: _Loaded) -> None:
        self._loaded = loaded

    def _tend_loading(self) -> None:
        """Install what is loaded. No entry was applied meanwhile, but more may have come."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        self._loading = None
        snapshot = loaded.snapshot
        if snapshot is None:
            logger.error("raft: the leader's snapshot cannot be used, asking again: %s", loaded.damage)
            return
        assert self._commit < snapshot.index, (self._commit, snapshot.index)
        if self._journal.holds(snapshot.index, snapshot.term):
            self._proven_commit = max(self._proven_commit, snapshot.index)  # a later leader sent that very entry
            return
        self._journal.install(snapshot)
        self._on_voters()
        self._applied_bytes = 0
        loaded.take_effect()
        self._journal.set_metadata_version(self._finalized())
        self.snapshots_installed += 1
        self._SyncObj__raftLastApplied = snapshot.index
        self._proven_commit = self._commit = snapshot.index
        self._fail_waiting()
        leader = self.leader_id
        if leader is not None and leader != self._node_id:
            self._reply(self._everyone[leader], snapshot.index + 1, success=True)


_ROLES = {
    core._RAFT_STATE.FOLLOWER: Role.FOLLOWER,
    core._RAFT_STATE.CANDIDATE: Role.CANDIDATE,
    core._RAFT_STATE.LEADER: Role.LEADER,
}
