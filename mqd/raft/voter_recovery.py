"""How a voter that starts with an empty log becomes a full voter and keeps its promises. Pure.

A voter with an empty log is new, or its disk was emptied. In the second case it may have voted, and
may have acknowledged entries that it no longer has. If it voted again, two leaders could be elected
in one term. If it acknowledged another leader's entries, committed entries could be lost. Its disk
cannot distinguish the two cases, so it queries the other voters. Until their replies suffice, it
does not vote, become a candidate, or acknowledge entries:

- All other voters reply that their logs are empty: nothing was ever committed. It becomes a full
  voter in the highest term of the replies. Its vote in that term counts as used, because it may
  have voted.
- Otherwise it waits for replies from enough intact voters: one of them must be in every majority
  that may include this voter. From then on its term is at least theirs, so it follows no leader
  that such a majority has replaced. It acknowledges the entries that it then receives. It becomes a
  full voter once it has all entries that a leader of that term, or of a later one, had committed.
  The last of them must be from the leader's own term. So it has every entry that was committed with
  its help (Leader Completeness).

A vote from before the loss may still be in flight, to a candidate that no reply mentions. With a
new vote in that term, two leaders could be elected. So a candidate counts votes only for the
longest election timeout after the start of its term (`elections.VoteCount`). A recovering voter
does not vote for twice that time after its start. By then every candidate with its old vote has
given up. This assumes monotonic clocks of equal rate; the clock of a suspended machine breaks the
assumption.

A reply counts if it has the nonce of this process's query.

Limits: as in Raft in general, only a minority of voters may lose their disks at the same time. A
restored older copy of a disk looks like a disk that never had more entries; no node can detect it.
Never restore one voter's metadata directory from a copy: empty it.

"All" and "majority" refer to the voters of the peers file, and to the latest voter set of any reply
(voters.py). The peers file may be newer or older than the log. A new node recovers in the same way
before it becomes a voter, even if it has copied everything as an observer. An observer has the
entries that *its* leader committed. If the observer is an emptied voter, a majority with its vote
and acknowledgements may have replaced that leader. With its vote now, entries that this majority
committed could be lost.

Not covered: a voter that is emptied while the voter set changes. Wait until the change is
committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from mqd.raft.codec import RecoveryReply
from mqd.raft.voters import majority

_EMPTY = 1
"""The last index of a log without entries."""


def quorum_lost_reason(voters: int, intact: Collection[int]) -> str | None:
    """Why no leader can be elected if only `intact` of `voters` voters have their log, and what to
    do. None if they are a majority.
    """
    if len(intact) * 2 > voters:
        return None
    if intact:
        which = f"of {voters}, only node {', '.join(map(str, sorted(intact)))}"
    else:
        which = f"of {voters}, none"
    return (
        f"no majority of the voters has its log ({which}), so no leader can be"
        " elected. If the others are new, set voter = false for them in the peers file of every"
        " node and add them one at a time. If they were emptied, see docs/OPERATIONS.md, When the"
        " quorum is broken"
    )


class VoterRecovery:
    """The state of one recovering voter, from the replies of the others."""

    def __init__(
        self,
        node_id: int,
        voters: Iterable[int],
        *,
        nonce: int,
        may_form: bool = True,
        votes_from: float = -inf,
    ) -> None:
        """`voters`: by the peers file. `may_form`: whether this node never ran with another peers
        file. `votes_from`: monotonic seconds before which it does not vote."""
        self._node_id = node_id
        self._others = frozenset(voters) - {node_id}
        self._may_form = may_form
        self._votes_from = votes_from
        self.nonce = nonce
        self._replies: dict[int, RecoveryReply] = {}
        self.query_at = -inf
        """When to send the next query."""
        self.follows = False
        """Whether it accepts and acknowledges entries of leaders."""
        self.complete_at: int | None = None
        """When everything up to this index is committed and durable here, this node is a full
        voter.
        """

    def on_reply(self, sender: int, reply: RecoveryReply) -> None:
        """`sender`: any node. A voter by the log may have left the peers file already. Without its
        reply a majority of the voters by the log may be out of reach."""
        if reply.nonce == self.nonce:
            self._replies[sender] = reply

    def first_formation(self, own_last_index: int) -> int | None:
        """The term in which nothing was ever committed, if all other voters report that; otherwise
        None.
        """
        if not self._may_form or self._others - self._replies.keys() or own_last_index > _EMPTY:
            return None
        if any(reply.last_index > _EMPTY for reply in self._replies.values()):
            return None
        return self._highest_term()

    def may_follow(self) -> int | None:
        """The term before which no leader may be followed, if the replies suffice; else None.

        They must suffice by the peers file, and by the latest voter set of any reply."""
        intact = {node_id for node_id, reply in self._replies.items() if reply.intact}
        sets = [self._others | {self._node_id}, self._latest_voters()]
        suffices = all(len(intact & voters) > len(voters) - majority(voters) for voters in sets)
        return self._highest_term() if suffices else None

    def is_complete(self, commit_index: int, now: float) -> bool:
        """Whether this node is a full voter from now on."""
        complete_at = self.complete_at
        return complete_at is not None and commit_index >= complete_at and now >= self._votes_from

    def _latest_voters(self) -> frozenset[int]:
        """The voters by the replies; by the peers file until a reply has voters."""
        voter_sets = [
            reply.voter_set for reply in self._replies.values() if reply.voter_set is not None
        ]
        if not voter_sets:
            return self._others | {self._node_id}
        return max(voter_sets, key=lambda voter_set: voter_set.epoch).voters

    def _highest_term(self) -> int:
        return max((reply.term for reply in self._replies.values()), default=0)

    def waits_for(self) -> str:
        """The reason why it waits, for the operator."""
        replies = self._replies
        lost = {node_id for node_id, reply in replies.items() if not reply.intact}
        voters = self._latest_voters()
        others = voters - {self._node_id}
        decided = self.follows or any(reply.last_index > _EMPTY for reply in replies.values())
        if decided and (stuck := quorum_lost_reason(len(voters), others - lost)) is not None:
            return stuck
        state = "this voter starts with an empty log, so it does not vote yet"
        if self.follows:
            return f"{state}: it waits for a leader from which to catch up"
        silent = sorted((self._others | others) - replies.keys())
        reasons = []
        if silent:
            names = " and ".join(f"node {node_id}" for node_id in silent)
            reasons.append(f"it waits for a reply from {names}")
        if lost:
            names = " and ".join(f"node {node_id}" for node_id in sorted(lost))
            reasons.append(f"{names}: also with an empty log")
        return ": ".join([state, "; ".join(reasons)]) if reasons else state
