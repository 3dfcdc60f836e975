"""The terms of the leaders of share partitions: a term is one leader in one leader epoch, without a
loss of contact in between. A leader keeps acquisition locks for one term.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mqd.types import TopicPartition


class ShareTerms:
    """Looks at the partitions of share groups after each step of a node."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = tuple(partitions)
        self._seen: dict[tuple[int, TopicPartition], tuple[Any, int, bool]] = {}
        self._terms: dict[tuple[int, TopicPartition], int] = {}

    def look(self, node_id: int, daemon: Any) -> None:
        for place in self._partitions:
            partition = daemon.replica.get(place)
            if partition is None:
                continue
            key, now = (node_id, place), (partition, partition.leader_epoch, partition.serves)
            if self._seen.get(key) != now:
                self._seen[key] = now
                self._terms[key] = self._terms.get(key, 0) + 1

    def term(self, node_id: int, place: TopicPartition) -> tuple[int, int] | None:
        """The present term of a node that leads the partition; None if it does not serve it."""
        seen = self._seen.get((node_id, place))
        if seen is None or not seen[2]:
            return None
        return node_id, self._terms[node_id, place]
