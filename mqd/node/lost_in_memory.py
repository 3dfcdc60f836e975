"""The partitions in memory (`mqd.storage=memory`) whose records ended with the last process of this
node, until it has copied them or leads without them (I59). A core.

A start loses all of them. If another replica has the records, this node copies them and joins the
ISR of that leader. If none has them, the controller elects one of the nodes that have reported the
loss, and that node begins an empty log. It may have begun to copy from a leader that has then lost
its log, too. So the state of its log does not show which of the two has happened, but the metadata
does: a replica joins the ISR either beside a leader, or as the leader without the records. A
reassignment may complete in the same step and leave the joined replica alone. So replicas that are
being added are never elected without the records.

Every change counts, so this looks at each one when it is applied, and not only at the newest.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.log.memory_logs import first_offset
from mqd.types import NodeId, Offset, TopicPartition


class LostInMemory:
    """See the head of this file."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._lost: dict[TopicPartition, bool] = {}
        """Partitions without all records -> whether a reassignment adds this replica."""
        self._begun: dict[TopicPartition, Offset] = {}
        """Where the logs begin that this node begins without the records."""

    def started(self, image: MetadataImage, in_memory: Iterable[TopicPartition]) -> None:
        """The process has started, and the replicas `in_memory` are assigned to this node."""
        for topic_partition in in_memory:
            partition = image.partition(*topic_partition)
            assert partition is not None and self._node_id not in partition.isr, topic_partition
            self._lost[topic_partition] = self._node_id in partition.adding

    def changed(self, delta: Delta, image: MetadataImage) -> None:
        """A command was applied."""
        if not self._lost and not self._begun:
            return
        for topic in delta.topics_deleted:
            for index in range(len(topic.partitions)):
                self._lost.pop(TopicPartition(topic.name, index), None)
                self._begun.pop(TopicPartition(topic.name, index), None)
        for topic_partition in delta.partitions_changed:
            if topic_partition in self._lost:
                self._partition_changed(image, topic_partition)

    def _partition_changed(self, image: MetadataImage, topic_partition: TopicPartition) -> None:
        partition = image.partition(*topic_partition)
        if partition is None or self._node_id not in partition.replicas:
            del self._lost[topic_partition]
        elif self._node_id not in partition.isr:
            self._lost[topic_partition] = self._node_id in partition.adding
        else:
            was_added = self._lost.pop(topic_partition)
            if partition.leader == self._node_id and len(partition.isr) == 1 and not was_added:
                self._begun[topic_partition] = first_offset(partition.leader_epoch)

    def begins_at(self, topic_partition: TopicPartition) -> Offset | None:
        """Where this node begins or has begun the log without the records. None: it has not."""
        return self._begun.get(topic_partition)
