"""When a voter may become a candidate, and which votes count. Pure: `now` is a parameter.

`PreVotePoll` (pre-vote; Ongaro's thesis, 9.6): before a voter becomes a candidate, it requests
pre-votes, to know whether it would win. Nodes that receive messages from a leader do not reply. So
a node that returns from a network partition has no higher term, and does not depose the leader. The
votes themselves are Raft's own.

`VoteCount`: a voter has one vote per term, and a late vote does not count. The reason is that a
voter that lost its log may vote twice in a term (voter_recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from mqd.raft.codec import PreVote, PreVoteReply


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    A voter starts an election if it receives no message from a leader for a random time, which is
    between the two election timeouts. A leader steps down if no majority has replied for the longer
    timeout.
    """

    election_timeout_min: float = 0.4
    election_timeout_max: float = 1.4
    heartbeat: float = 0.1
    snapshot_resend: float = 1.0

    def draw_election_timeout(self, random: Callable[[], float]) -> float:
        spread = self.election_timeout_max - self.election_timeout_min
        return self.election_timeout_min + spread * random()


class PreVotePoll:
    """The pre-votes of one voter: those that it requests, and those that it grants to others."""

    def __init__(self, node_id: int, voters: Iterable[int], *, patience: float) -> None:
        """`patience`: seconds after a leader's message during which this node grants no pre-vote;
        the shortest election timeout.
        """
        self._node_id = node_id
        self.voters = frozenset(voters)
        self._patience = patience
        self._leader_seen_at = -inf
        self._term = 0
        self._granted: set[int] = set()
        self.won = False
        """A majority would vote for this node: it may become a candidate."""

    def leader_seen(self, now: float) -> None:
        self._leader_seen_at = now
        self.end()

    def leader_gone(self) -> None:
        """The leader's process seems to have ended: grant pre-votes immediately."""
        self._leader_seen_at = -inf

    def grants(self, now: float) -> bool:
        return now - self._leader_seen_at >= self._patience

    def reply_to(
        self,
        request: PreVote,
        *,
        now: float,
        term: int,
        voted: bool,
        leads: bool,
        last: tuple[int, int],
    ) -> PreVoteReply | None:
        """The reply to a request; None for no reply. The parameters describe this node: its `term`,
        whether it `voted` in that term, whether it `leads`, and the term and index of its `last`
        entry.
        """
        if request.term < term or (request.term == term and voted):
            return PreVoteReply(term, False)
        if not leads and self.grants(now) and (request.last_term, request.last_index) >= last:
            return PreVoteReply(request.term, True)
        return None

    def begin(self, term: int) -> None:
        """Request pre-votes of all voters for `term`."""
        self._term, self._granted, self.won = term, {self._node_id}, False

    def on_grant(self, sender: int, term: int) -> bool:
        """Count a granted pre-vote. Returns whether it completes a majority."""
        if not self._granted or term != self._term or self.won or sender not in self.voters:
            return False
        self._granted.add(sender)
        self.won = len(self._granted) * 2 > len(self.voters)
        return self.won

    def end(self) -> None:
        self._granted, self.won = set(), False


class VoteCount:
    """Votes for this node in the current term."""

    def __init__(self, now: float, *, patience: float) -> None:
        """`patience`: seconds from the start of the term during which votes count; the longest
        election timeout.
        """
        self._patience = patience
        self.term_began_at = now
        self._counted: set[int] = set()

    def begin_term(self, now: float) -> None:
        self.term_began_at = now
        self.clear()

    def clear(self) -> None:
        self._counted.clear()

    def counts(self, voter: int, now: float) -> bool:
        """Count a vote of `voter` in this term. Returns False if it is late or a repeat."""
        if now - self.term_began_at > self._patience or voter in self._counted:
            return False
        self._counted.add(voter)
        return True
