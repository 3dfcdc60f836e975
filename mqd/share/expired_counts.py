"""How many expired records the share groups did not get, from the partitions that this node leads.
Pure.

The counts begin when the node begins to lead the partition, as metrics of a process do. Each count
is of one share partition. Beyond SHARE_EXPIRED_COUNTS_MAX of them, the oldest one is forgotten.
"""

from __future__ import annotations

from uuid import UUID

from mqd.limits import SHARE_EXPIRED_COUNTS_MAX
from mqd.share.ports import ShareKey


class ExpiredCounts:
    """See the module."""

    def __init__(self) -> None:
        self._counts: dict[ShareKey, int] = {}
        self._groups: dict[tuple[UUID, int], dict[str, None]] = {}
        """The groups with a count, by partition."""

    def add(self, key: ShareKey, count: int) -> None:
        if key not in self._counts and len(self._counts) >= SHARE_EXPIRED_COUNTS_MAX:
            self._forget(next(iter(self._counts)))
        self._counts[key] = self._counts.get(key, 0) + count
        self._groups.setdefault(key[1:], {})[key.group_id] = None

    def get(self, key: ShareKey) -> int:
        return self._counts.get(key, 0)

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
