"""The partitions of a node, by topic name and by topic id."""

from __future__ import annotations

from mqd.replica.partition import Partition
from mqd.types import TopicPartition


class PartitionTable:
    def __init__(self) -> None:
        self.by_name: dict[bytes, dict[int, Partition]] = {}
        """Topic name in UTF-8 -> partition index -> Partition: the lookup of the hot path."""
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        """The 16 bytes of the topic id -> partition index -> Partition."""

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self.by_name.get(topic_partition.topic.encode(), {}).get(topic_partition.partition)

    def partitions(self) -> list[Partition]:
        return [
            partition for partitions in self.by_name.values() for partition in partitions.values()
        ]

    def of_topic(self, topic: str) -> list[Partition]:
        return list(self.by_name.get(topic.encode(), {}).values())

    def add(self, partition: Partition) -> None:
        assignment = partition.assignment
        topic, index = assignment.topic_partition
        self.by_name.setdefault(topic.encode(), {})[index] = partition
        self.by_id.setdefault(assignment.topic_id.bytes, {})[index] = partition

    def remove(self, partition: Partition) -> None:
        assignment = partition.assignment
        topic, index = assignment.topic_partition
        for table, key in (
            (self.by_name, topic.encode()),
            (self.by_id, assignment.topic_id.bytes),
        ):
            partitions = table[key]
            del partitions[index]
            if not partitions:
                del table[key]

    def remove_topic(self, topic: str) -> list[Partition]:
        """Remove the partitions of a topic, and return them."""
        removed = list(self.by_name.pop(topic.encode(), {}).values())
        for partition in removed:
            self.by_id.pop(partition.assignment.topic_id.bytes, None)
        return removed
