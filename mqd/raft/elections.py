"""Whether a voter may stand for election, and help others to: what Raft leaves to good manners, and a memory that was lost. Pure.

`Poll`: before it stands, a voter asks whether it would win (pre-vote; Ongaro's thesis, 9.6). Those who hear from a leader say nothing,
so a node that was cut off comes back without a higher term and deposes nobody. Only when to stand is decided here; votes are Raft's own.

`Amnesia`: a voter that starts from nothing is new, or has forgotten. One that has forgotten may have voted, and may have made entries
committed that it no longer holds: if it voted again, or acknowledged another leader's entries, two leaders could be elected in one term
or committed entries be lost. The two cannot be told apart by looking at its disk, so it asks the other voters, and until it knows enough
it does not vote, stand or acknowledge:

- All other voters say that their logs are empty: nothing was ever committed. It becomes a voter in the highest term that anybody told,
  with its vote in that term used up, for it may have given it away.
- Otherwise it waits until so many voters that have not forgotten anything answered that every majority which it may have been part of
  has one of them. From then on it is in no earlier term than they are: no leader that such a majority has left behind is followed.
  It acknowledges what it then holds, and becomes a voter once it holds all that a leader of that term or a later one had committed, the
  last of it in the leader's own term: all that was ever committed with its help is among that (Leader Completeness).

A vote that was given before the loss may still be under way, to a candidate that nobody named whom it asked. With its next vote
in that term, two leaders could be elected. So a candidate counts votes for one longest election time-out after its term began, and a
voter that starts from nothing votes no sooner than twice that time after its start: until then every candidate that has its old vote
has given up. That needs monotonic clocks that run evenly, and not those of a machine that is suspended.

An answer counts when it was given in this life of the asker (nonce). Not covered: a minority of voters is assumed to forget at a time,
as everywhere in Raft; and a disk that was put back to an earlier state (a restored copy) looks like one that never had more: nobody can
tell. Never restore one voter's metadata directory from a copy: empty it.

"All" and "majority" count voters by the peers file, and by the latest voter set that anybody reports (voters.py): a file may be ahead of
the log, or behind it. A new node takes the same way before it becomes a voter. That it has copied everything as an observer does not help,
and must not. An observer holds what *its* leader has committed. If it is a voter that was wiped, its leader may be one of an earlier term,
left behind by a majority that had the observer's vote and acknowledgements: what that majority committed it would deny.

Not covered either: a voter that is emptied while the set changes. Wait until the change is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from mqd.raft.codec import Account
from mqd.raft.voters import majority

_EMPTY = 1
"""Last index of a log without entries."""


def impasse(voters: int, remembering: Collection[int]) -> str | None:
    """Why nobody can be elected where only these voters remember what they promised, and what to do; None where they are a majority."""
    if len(remembering) * 2 > voters:
        return None
    which = f"of {voters}, only node {', '.join(map(str, sorted(remembering)))}" if remembering else f"of {voters}, none"
    return (
        f"no majority of the voters remembers what was decided ({which}), so no leader can be elected: if the others are new, set"
        " voter = false for them in the peers file of every node and add them one at a time; if they were emptied: docs/OPERATIONS.md, When"
        " the quorum is broken"
    )


class Poll:
    """Pre-votes of one voter: those that it asks for, and whether it gives its own."""

    def __init__(self, node_id: int, voters: Iterable[int], *, patience: float) -> None:
        """`patience`: seconds after a leader was heard during which nobody is helped to replace it; the shortest election time-out."""
        self._node_id = node_id
        self.voters = frozenset(voters)
        self._patience = patience
        self._heard_at = -inf
        self._term = 0
        self._granted: set[int] = set()
        self.won = False
        """A majority would vote for this node: it may stand."""

    def heard_leader(self, now: float) -> None:
        self._heard_at = now
        self.end()

    def leader_gone(self) -> None:
        """Its process seems to have ended: no reason to be patient."""
        self._heard_at = -inf

    def grants(self, now: float) -> bool:
        return now - self._heard_at >= self._patience

    def begin(self, term: int) -> None:
        """Ask everybody about `term`."""
        self._term, self._granted, self.won = term, {self._node_id}, False

    def on_grant(self, sender: int, term: int) -> bool:
        """Whether this one makes the majority."""
        if not self._granted or term != self._term or self.won or sender not in self.voters:
            return False
        self._granted.add(sender)
        self.won = len(self._granted) * 2 > len(self.voters)
        return self.won

    def end(self) -> None:
        self._granted, self.won = set(), False


class Amnesia:
    """What a voter that remembers nothing has been told."""

    def __init__(self, node_id: int, voters: Iterable[int], *, nonce: int, may_form: bool = True) -> None:
        """`voters`: by the peers file. `may_form`: it never took part with another file."""
        self._node_id = node_id
        self._others = frozenset(voters) - {node_id}
        self._may_form = may_form
        self.nonce = nonce
        self._told: dict[int, Account] = {}
        self.ask_at = -inf
        """When to ask (again)."""
        self.follows = False
        """It takes entries from leaders, and acknowledges them."""
        self.whole_at: int | None = None
        """Once everything up to here is committed and durable here, this is a voter like others."""

    def on_account(self, sender: int, account: Account) -> None:
        if sender in self._others and account.nonce == self.nonce:
            self._told[sender] = account

    def first_formation(self, own_last_index: int) -> int | None:
        """The term in which nothing was ever committed, when all others said so; else None."""
        if not self._may_form or self._others - self._told.keys() or own_last_index > _EMPTY:
            return None
        if any(told.last_index > _EMPTY for told in self._told.values()):
            return None
        return self._highest_term()

    def may_follow(self) -> int | None:
        """The term before which no leader may be followed, when enough was told to know it; else None.

        Enough by the peers file, and by the latest voter set that anybody told."""
        remember = {node_id for node_id, told in self._told.items() if told.formed}
        sets = [self._others | {self._node_id}]
        told_sets = [told.voter_set for told in self._told.values() if told.voter_set is not None]
        if told_sets:
            sets.append(max(told_sets, key=lambda known: known.epoch).voters)
        enough = all(len(remember & voters) > len(voters) - majority(voters) for voters in sets)
        return self._highest_term() if enough else None

    def _highest_term(self) -> int:
        return max((told.term for told in self._told.values()), default=0)

    def waits_for(self) -> str:
        """For the operator."""
        possible = [node_id for node_id in self._others if node_id not in self._told or self._told[node_id].formed]
        decided = self.follows or any(told.last_index > _EMPTY for told in self._told.values())
        if decided and (stuck := impasse(len(self._others) + 1, possible)) is not None:
            return stuck
        what = "this voter starts from nothing, so it does not vote yet"
        if self.follows:
            return f"{what}: it waits for a leader from which to catch up"
        silent = sorted(self._others - self._told.keys())
        new = sorted(node_id for node_id, told in self._told.items() if not told.formed)
        reasons = [f"it waits to hear from node {', '.join(map(str, silent))}"] if silent else []
        if new:
            reasons.append(f"node {', '.join(map(str, new))} starts from nothing, too")
        return ": ".join([what, "; ".join(reasons)]) if reasons else what
