"""How many records of share groups no member accepted, from the partitions that this node leads:
expired ones, and those given up without a dead letter. Pure.

The counts begin when the node begins to lead the partition, as metrics of a process do. Each count
is of one share partition. Beyond SHARE_UNACCEPTED_COUNTS_MAX of them, the oldest one is forgotten.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple
from uuid import UUID

from mqd.limits import SHARE_UNACCEPTED_COUNTS_MAX
from mqd.share.ports import ShareKey

LOG_SECONDS: Final = 60.0
"""The shortest time between two log lines of one kind about a share partition."""


class Unaccepted(NamedTuple):
    """Counts of one share partition."""

    expired: int = 0
    given_up: int = 0
    """Archived without a dead letter: rejected, or delivered as often as allowed."""


class UnacceptedCounts:
    """See the module."""

    def __init__(self) -> None:
        self._counts: dict[ShareKey, Unaccepted] = {}
        self._groups: dict[tuple[UUID, int], dict[str, None]] = {}
        """The groups with a count, by partition."""

    def add(self, key: ShareKey, *, expired: int = 0, given_up: int = 0) -> None:
        if key not in self._counts and len(self._counts) >= SHARE_UNACCEPTED_COUNTS_MAX:
            self._forget(next(iter(self._counts)))
        before = self.get(key)
        self._counts[key] = Unaccepted(before.expired + expired, before.given_up + given_up)
        self._groups.setdefault(key[1:], {})[key.group_id] = None

    def get(self, key: ShareKey) -> Unaccepted:
        return self._counts.get(key, Unaccepted())

    def forget_partition(self, topic_id: UUID, partition: int) -> None:
        """This node does not lead it any more."""
        for group_id in list(self._groups.get((topic_id, partition), ())):
            self._forget(ShareKey(group_id, topic_id, partition))

    def _forget(self, key: ShareKey) -> None:
        del self._counts[key]
        groups = self._groups[key[1:]]
        del groups[key.group_id]
        if not groups:
            del self._groups[key[1:]]


class LineCount:
    """The records of a share partition since the last log line about them."""

    def __init__(self) -> None:
        self._count = 0
        self._logged_at = -math.inf

    def due(self, more: int, now: float) -> int:
        """Count `more` records. Returns the count of the line that is due now; 0 if none is due."""
        self._count += more
        if now < self._logged_at + LOG_SECONDS:
            return 0
        count, self._count, self._logged_at = self._count, 0, now
        return count
