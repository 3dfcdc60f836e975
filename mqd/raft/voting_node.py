"""Elections, recovery and the voter set of one node.

Built on pysyncobj_node.py, where PySyncObj keeps terms and votes. The decisions are in
elections.py, voter_recovery.py, membership.py and voters.py; this file applies them to the node's
log and messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from mqd.errors import QuorumBroken
from mqd.raft import versions
from mqd.raft.codec import (
    AppendEntries,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RecoveryQuery,
    RecoveryReply,
    Vote,
)
from mqd.raft.elections import PreVotePoll, Timing, VoteCount
from mqd.raft.followers import Followers
from mqd.raft.journal import Journal
from mqd.raft.membership import Membership
from mqd.raft.pysyncobj_node import AT_ONCE, NEVER, PySyncObjNode
from mqd.raft.pysyncobj_pinned import at, monotonic
from mqd.raft.voter_recovery import VoterRecovery, quorum_lost_reason
from mqd.raft.voters import VoterSet, VoterView, encode_entry

logger = logging.getLogger(__name__)


class VotingNode(PySyncObjNode):
    """A voter or an observer, without its part in replication (node.py)."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        observers: Iterable[int],
        journal: Journal,
        random: Callable[[], float],
        now: float,
        timing: Timing,
        finalized: Callable[[], int],
    ) -> None:
        """`voters`: by the peers file. `finalized`: see RaftNode."""
        self._node_id, self._journal = node_id, journal
        self._random = random
        self._timing = timing
        self._finalized = finalized
        self._recovering_peers: set[int] = set()
        """Voters whose last message was a RecoveryQuery."""
        self._recovery_queried_at: dict[int, float] = {}
        """When each node last sent a RecoveryQuery (monotonic seconds)."""
        self._transferred_at = float("-inf")
        self._members = members = Membership(node_id, voters, journal)
        patience = timing.election_timeout_min
        self._pre_votes = PreVotePoll(node_id, members.voters, patience=patience)
        self._votes = VoteCount(now, patience=timing.election_timeout_max)
        self._recovery: VoterRecovery | None = None
        if journal.intact:
            members.keep_first_voters()
        elif node_id in members.configured | members.voters:
            is_new = journal.voter_set in (None, VoterSet(0, members.configured))
            self._start_from_nothing(is_new=is_new)
        others = (members.configured | members.voters | frozenset(observers)) - {node_id}
        peers = members.voters - {node_id}
        self._followers = Followers(members.voters, others)
        with at(now):
            super().__init__(
                node_id=node_id,
                peers=sorted(peers),
                observers=others - peers,
                journal=journal,
                timing=timing,
            )
        if not peers and not members.observing and self._recovery is None:
            self._election_at = AT_ONCE

    @property
    def metadata_version(self) -> int:
        """The current version, as far as this node knows (versions.py)."""
        return versions.in_force(self._finalized(), self._journal.metadata_version)

    @property
    def voters(self) -> frozenset[int]:
        """The current voters in the log of this node."""
        return self._members.voters

    @property
    def voter_view(self) -> VoterView:
        return self._members.view(self._commit)

    @property
    def not_voting_reason(self) -> str | None:
        """Why this voter does not vote yet, or why no leader can be elected; for the operator."""
        if self._recovery is not None:
            return self._recovery.waits_for()
        if self._journal.is_empty or self._members.observing:
            return None
        return quorum_lost_reason(len(self.voters), self.voters - self._recovering_peers)

    def peers_file_problem(self, now: float) -> str | None:
        """Why the peers file has no effect on the voters, or has none yet, for the operator."""
        return self._members.peers_file_problem(
            self._commit,
            leads=self.ready,
            caught_up=self._caught_up(now),
            recovering=self._recovering(now),
        )

    @property
    def _is_alone(self) -> bool:
        """Whether there are no other voters: as a leader, this node is a quorum of one."""
        return not self.voters - {self._node_id}

    def _enqueue(self, peer: int, message: Message) -> None:
        self._outbox.messages.append((peer, message))

    def _accepts(self, message: Message) -> bool:
        """An observer accepts only messages of its leader. So does a recovering voter, once it may
        follow a leader.

        An intact node votes for a candidate in whose log it is a voter, even if it is not a voter
        in its own log. Otherwise one lost voter could stop a quorum in the middle of a change
        (Ongaro, 4.1).
        """
        from_leader = isinstance(message, AppendEntries | InstallSnapshot)
        if self._recovery is not None:
            if isinstance(message, RecoveryQuery | RecoveryReply):
                return True
            return self._recovery.follows and from_leader
        # A voter that starts with an empty log does not vote: it may have voted before (I27).
        return self._journal.intact or from_leader

    # -- elections

    def _request_pre_votes(self, now: float) -> None:
        """After the election timeout, request pre-votes first. PySyncObj becomes a candidate by
        itself after the timeout: here the timeout is drawn again, unless the pre-votes are won."""
        peers = self.voters - {self._node_id}
        if self.is_leader or self._members.observing or self._recovery is not None or not peers:
            return
        if self._transfer_in_progress or self._election_at >= now:
            return
        if self._pre_votes.won:
            self._pre_votes.end()
            return
        self._election_at = now + self._election_timeout()
        self._forget_leader()
        self._pre_votes.begin(self.term + 1)
        last_term, last_index = self._last_entry()
        for peer in sorted(peers):
            self._enqueue(peer, PreVote(self.term + 1, last_index, last_term))

    def _last_entry(self) -> tuple[int, int]:
        return self._journal.entries[-1].term, self._journal.last_index

    def _on_pre_vote(self, node: Any, message: PreVote) -> None:
        reply = self._pre_votes.reply_to(
            message,
            now=monotonic(),
            term=self.term,
            voted=self._voted,
            leads=self.is_leader,
            last=self._last_entry(),
        )
        if reply is not None:
            self._enqueue(node.id, reply)

    def _on_pre_vote_reply(self, node: Any, message: PreVoteReply) -> None:
        if not message.granted:
            if message.term > self.term:
                self._pre_votes.end()
                self._step_down(message.term)
            return
        is_awaited = message.term == self.term + 1 and not self.is_leader
        if is_awaited and self._pre_votes.on_grant(node.id, message.term):
            self._election_at = AT_ONCE

    def _on_vote(self, node: Any, message: Vote) -> None:
        if message.term > self.term:
            self._step_down(message.term)
        is_ours = message.term == self.term and node.id in self.voters
        if is_ours and self._votes.counts(node.id, monotonic()):
            self._count_vote(node)

    def _election_timeout(self) -> float:
        if self._members.observing or not self._journal.intact:
            return NEVER
        return self._timing.draw_election_timeout(self._random)

    def _on_term(self) -> None:
        self._votes.begin_term(monotonic())

    def _follow(self, node: Any, term: int) -> None:
        """`node` leads `term`, which is at least the current term."""
        self._pre_votes.leader_seen(monotonic())
        if term == self.term and self.is_leader:
            raise QuorumBroken(f"node {node.id} leads term {term}, and so does this one")
        self._follow_leader(node, term)

    # -- recovery of a voter with an empty log

    def _start_from_nothing(self, *, is_new: bool) -> None:
        members = self._members
        if is_new and members.configured | members.voters == {
            self._node_id
        }:  # it cannot contradict any other voter
            members.keep_first_voters()
            self._journal.set_intact()
            return
        self._recovery = VoterRecovery(
            self._node_id,
            members.configured,
            nonce=int(self._random() * (1 << 53)),
            may_form=is_new,
            votes_from=self._votes.term_began_at + 2 * self._timing.election_timeout_max,
        )

    def _recover(self, now: float) -> None:
        recovery, members = self._recovery, self._members
        if recovery is None:
            return
        if members.current.epoch == 0:
            term = recovery.first_formation(self._journal.last_index)
            if term is not None:
                members.keep_first_voters()
                self._enter_term_without_vote(term)
                self._end_recovery()
                return
        if not recovery.follows and (term := recovery.may_follow()) is not None:
            self._enter_term_without_vote(term)
            recovery.follows = True
        if recovery.is_complete(self._commit, now):
            self._end_recovery()
        elif now >= recovery.query_at:  # also while it follows: the voters may wait for each other
            recovery.query_at = now + self._timing.heartbeat
            for peer in sorted((members.configured | members.voters) - {self._node_id}):
                self._enqueue(peer, RecoveryQuery(self.term, recovery.nonce))

    def _enter_term_without_vote(self, term: int) -> None:
        term = max(term, self.term)
        if term > 0:
            self._enter_term(term, vote=self._node_id)

    def _end_recovery(self) -> None:
        self._recovery = None
        self._journal.set_intact()
        self._on_voters()
        self._draw_election()
        logger.info("this voter can vote now after_term=%d", self.term)

    def _on_recovery_query(self, node: Any, message: RecoveryQuery) -> None:
        self._members.keep_first_voters()
        allowed = versions.allows_voter_sets(self.metadata_version)
        voter_set = self._members.current if allowed else None
        journal = self._journal
        last_index, intact = journal.last_index, journal.intact
        reply = RecoveryReply(self.term, message.nonce, last_index, intact, voter_set)
        self._enqueue(node.id, reply)

    # -- the voters

    def _on_voters(self) -> None:
        """The log may name another voter set now: it is in force at once (voters.py)."""
        members = self._members
        observed = members.observing
        if not members.refresh():
            return
        logger.info(
            "raft voters changed voters=%s epoch=%d",
            sorted(members.current.voters),
            members.current.epoch,
        )
        for peer in sorted(members.voters - self._nodes.keys() - {self._node_id}):
            self._followers.add(peer)
        self._set_members(sorted(members.voters - {self._node_id}))
        self._followers.voters = self._pre_votes.voters = members.voters
        self._pre_votes.end()
        if not members.observing and not self._journal.intact and self._recovery is None:
            self._start_from_nothing(is_new=False)
        if observed != members.observing and not self.is_leader:
            self._draw_election()

    def _caught_up(self, now: float) -> frozenset[int]:
        since = now - self._timing.election_timeout_max
        return self._followers.caught_up_since(since)

    def _recovering(self, now: float) -> frozenset[int]:
        """Nodes in recovery: they send a query with each heartbeat."""
        since = now - self._timing.election_timeout_max
        return frozenset(peer for peer, at in self._recovery_queried_at.items() if at >= since)

    def _change_voters(self, now: float) -> None:
        """As leader, append the next voter set towards that of the peers file, if it may."""
        members = self._members
        if not self.ready or members.matches_peers_file:
            return
        if not versions.allows_voter_sets(self.metadata_version):
            return
        is_removed = self._node_id not in members.configured and members.current.epoch
        if is_removed and now - self._transferred_at > self._timing.heartbeat:
            self._transferred_at = now
            self.transfer_leadership()
            return
        voter_set = members.next_set(self._commit, self._caught_up(now), self._recovering(now))
        if voter_set is not None:
            self._journal.append(encode_entry(voter_set), self._journal.last_index + 1, self.term)
            self._on_voters()
            self._send_all()
