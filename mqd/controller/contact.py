"""When this node was last in contact with a controller, so that its knowledge of leaders is current
(I26).

A heartbeat proves that its sender is alive, but not that the sender knows the decisions of the time
when it was silent. So a heartbeat counts only once this node has applied the metadata that the
controller had when it responded.
"""

from __future__ import annotations

import math


class Contact:
    """Times are monotonic seconds, metadata indexes those of images.

    Invariant: `at` never falls.
    """

    __slots__ = ("_at", "_unapplied")

    def __init__(self) -> None:
        self._at = -math.inf
        self._unapplied: list[tuple[float, int]] = []
        """Heartbeats with a response that do not count yet, at most two: when each was sent, and
        the metadata index that it waits for.
        """

    def answered(self, sent_at: float, metadata_index: int) -> None:
        """A controller with a majority has responded to a heartbeat, and had applied
        `metadata_index` then.

        The oldest waiting heartbeat stays: a node that is always a little behind counts it soon.
        """
        self._unapplied[1:] = [(sent_at, metadata_index)]

    def at(self, metadata_index: int) -> float:
        """When the newest heartbeat that counts was sent; `metadata_index` is what this
        node has applied.
        """
        while self._unapplied and self._unapplied[0][1] <= metadata_index:
            self._at = max(self._at, self._unapplied.pop(0)[0])
        return self._at
