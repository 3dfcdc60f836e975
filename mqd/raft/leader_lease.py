"""The lease of a leader: the latest time at which no other node can have led. Pure: callers pass
`now`.

A reply proves that its sender was in the leader's term when it received the message. The arrival
time of the reply proves nothing: the network may have delayed the reply, or this process may have
been suspended. So a lease counts from the time when the leader sent the message that a reply
responds to. A node replies to each message at most once, and in order. So the n-th reply in a term
answers the n-th message or a later one. A lost message makes the lease shorter, never longer. A
reply that acknowledges an entry belongs to a message that was sent after the append of the entry.

If a majority has replied to messages sent at time t or later, every later leader is elected after
t. A majority must vote for it, and a node that has voted in a later term sends no more replies in
this one (I26).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf

_TIMES_MAX = 256
"""Bound of the send times for each node, and of the append times. Beyond it, a message counts as
sent at the last stored time, which is earlier. The oldest append times are dropped:
acknowledgements of those entries prove nothing.
"""


class LeaderLease:
    """The lease of one leader in one term. Call `clear` at the start of the next term."""

    def __init__(self) -> None:
        self._unanswered: dict[int, deque[list[float]]] = {}
        """For each node, messages without a reply, in order: [send time, number of messages]."""
        self._appended: deque[tuple[int, float]] = deque(maxlen=_TIMES_MAX)
        self._proven: dict[int, float] = {}

    def clear(self) -> None:
        self._unanswered.clear()
        self._appended.clear()
        self._proven.clear()

    def sent(self, peer: int, now: float) -> None:
        """This node has sent a message to which `peer` replies."""
        times = self._unanswered.setdefault(peer, deque())
        if times and (times[-1][0] == now or len(times) == _TIMES_MAX):
            times[-1][1] += 1
        else:
            times.append([now, 1])

    def replied(self, peer: int) -> None:
        """`peer` has sent a reply in this term."""
        if times := self._unanswered.get(peer):
            sent_at = times[0][0]
            times[0][1] -= 1
            if not times[0][1]:
                times.popleft()
            self._prove(peer, sent_at)

    def appended(self, index: int, now: float) -> None:
        """The leader has appended entries up to `index`."""
        self._appended.append((index, now))

    def acknowledged(self, peer: int, index: int) -> None:
        """`peer` has sent a reply in this term: it has all entries up to `index`."""
        proven_time = next(
            (
                appended_at
                for appended, appended_at in reversed(self._appended)
                if appended <= index
            ),
            None,
        )
        if proven_time is not None:
            self._prove(peer, proven_time)

    def _prove(self, peer: int, proven_time: float) -> None:
        self._proven[peer] = max(proven_time, self._proven.get(peer, -inf))

    def sole_leader_at(self, node_id: int, voters: Collection[int], now: float) -> float:
        """The latest monotonic time at which no node but the leader `node_id` can have led; -inf
        if no majority has replied yet.
        """
        times = sorted(
            (now if voter == node_id else self._proven.get(voter, -inf) for voter in voters),
            reverse=True,
        )
        return times[len(times) // 2]
