"""The lease of a leader: the latest time at which no other node can have led. Pure: `now` comes in.

A reply shows that its sender was in the leader's term after it received the message. The time of
its arrival shows nothing: it may have waited while this process did not run, or on the network. So
a lease counts from the time when the leader sent the message that a reply answers. A node answers
each message at most once, and in order. So its n-th reply in a term answers the n-th message of
that term or a later one; lost messages only make the result earlier. A reply that acknowledges an
entry answers a message that was sent after the entry was appended.

Where a majority answered messages sent at time t or later, every later leader is elected after t: a
majority votes for it, and a node that has voted in a later term sends no more replies in this one
(I26).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import inf

_TIMES_MAX = 256
"""Of one node's unanswered messages, and of entries: further ones count as the last one, which is
earlier."""


class LeaderLease:
    """Of one leader, in one term; `clear` begins the next."""

    def __init__(self) -> None:
        self._unanswered: dict[int, deque[list[float]]] = {}
        """For each node, messages in order: [when they were sent, how many]."""
        self._appended: deque[tuple[int, float]] = deque(maxlen=_TIMES_MAX)
        self._proven: dict[int, float] = {}

    def clear(self) -> None:
        self._unanswered.clear()
        self._appended.clear()
        self._proven.clear()

    def sent(self, peer: int, now: float) -> None:
        """One message that `peer` answers."""
        times = self._unanswered.setdefault(peer, deque())
        if times and (times[-1][0] == now or len(times) == _TIMES_MAX):
            times[-1][1] += 1
        else:
            times.append([now, 1])

    def answered(self, peer: int) -> None:
        """A reply in this term."""
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
        """A reply in this term: `peer` holds entries up to `index`."""
        found = next((at for appended, at in reversed(self._appended) if appended <= index), None)
        if found is not None:
            self._prove(peer, found)

    def _prove(self, peer: int, at: float) -> None:
        self._proven[peer] = max(at, self._proven.get(peer, -inf))

    def proven_at(self, node_id: int, voters: Collection[int], now: float) -> float:
        """Monotonic seconds: no other node than leader `node_id` led then; -inf where no majority
        has replied yet."""
        times = sorted(
            (now if voter == node_id else self._proven.get(voter, -inf) for voter in voters),
            reverse=True,
        )
        return times[len(times) // 2]
