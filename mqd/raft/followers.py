"""When each node last replied to the leader, and was last caught up (KIP-836). Pure.

Only `caught_up_since` affects decisions: when a new voter may be added (voters.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from mqd.raft.machine import PeerStatus


@dataclass(slots=True)
class _Seen:
    replied_at: float = -inf
    matched_at: float = -inf
    """When its last match index arrived."""
    end_then: int = 0
    """The last index of the leader's log at that time."""
    caught_up_at: float = -inf


class Followers:
    """The replies in one term of one leader; `clear` begins the next term."""

    def __init__(self, voters: Iterable[int], everyone: Iterable[int]) -> None:
        self.voters = frozenset(voters)
        self._everyone = sorted(everyone)
        self._seen = {peer: _Seen() for peer in self._everyone}

    def add(self, peer: int) -> None:
        self._everyone = sorted({*self._everyone, peer})
        self._seen[peer] = _Seen()

    def clear(self) -> None:
        self._seen = {peer: _Seen() for peer in self._everyone}

    def caught_up_since(self, moment: float) -> frozenset[int]:
        """Nodes that were caught up at some time since then."""
        return frozenset(peer for peer, seen in self._seen.items() if seen.caught_up_at >= moment)

    def on_reply(self, peer: int, now: float) -> None:
        self._seen[peer].replied_at = now

    def on_success(self, peer: int, match_index: int, last_index: int, now: float) -> None:
        """`peer` has all entries up to `match_index`, and the leader's log ends at `last_index`.

        A follower of a busy leader never has all entries. If it now has the entries that the log
        had at its last reply, it was caught up at that time.
        """
        seen = self._seen[peer]
        if match_index >= last_index:
            seen.caught_up_at = now
        elif match_index >= seen.end_then:
            seen.caught_up_at = max(seen.caught_up_at, seen.matched_at)
        seen.matched_at, seen.end_then = now, last_index

    def statuses(self, match_index: Mapping[int, int] | None) -> tuple[PeerStatus, ...]:
        """`match_index`: of each node; None if this node does not lead, and knows none."""
        if match_index is None:
            return tuple(
                PeerStatus(peer, peer in self.voters, 0, -inf, -inf) for peer in self._everyone
            )
        return tuple(
            PeerStatus(
                peer, peer in self.voters, match_index[peer], seen.replied_at, seen.caught_up_at
            )
            for peer, seen in self._seen.items()
        )
