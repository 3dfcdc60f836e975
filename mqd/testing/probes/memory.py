"""The highest high watermark of each incarnation of the partitions in memory
(`mqd.storage=memory`): what any leader has committed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mqd.testing.memory_ledger import incarnation
from mqd.types import TopicPartition


class MemoryProbe:
    """Looks at the partitions after each step of a node."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = tuple(partitions)
        self._ends: dict[tuple[TopicPartition, int], int] = {}

    def look(self, daemon: Any) -> None:
        for place in self._partitions:
            partition = daemon.replica.get(place)
            if partition is not None and partition.is_leader:
                end = partition.high_watermark
                key = place, incarnation(end)
                if end > self._ends.get(key, -1):
                    self._ends[key] = end

    def committed_end(self, place: TopicPartition, number: int) -> int:
        return self._ends.get((place, number), -1)
