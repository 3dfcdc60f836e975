"""A client's view of the cluster: brokers, topics, partition leaders. Pure values; `cluster.py`
refreshes them.

A view is never changed, only replaced: `merge` takes a Metadata response and returns the next view.
Invariant: the leader epoch of a known partition of the same topic id never decreases. So a response
from a broker that lags behind cannot direct the client to a deposed leader (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from mqd.types import NO_EPOCH, NO_NODE, ZERO_UUID, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker with its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition.

    `leader` is -1 while there is none; `error_code` is Kafka's, 0 when all is well.
    """

    partition: int
    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic.

    `partitions` is in the order of their numbers; with an `error_code` it is empty.
    """

    name: str
    topic_id: UUID = ZERO_UUID
    internal: bool = False
    partitions: tuple[PartitionInfo, ...] = ()
    error_code: int = 0

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A client's view of the cluster. `generation` counts the merged responses."""

    cluster_id: str | None = None
    controller_id: int = NO_NODE
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    generation: int = 0

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        if topic is None or topic.error_code:
            return None
        index = tp.partition
        if 0 <= index < len(topic.partitions) and topic.partitions[index].partition == index:
            return topic.partitions[index]
        return next((each for each in topic.partitions if each.partition == index), None)

    def leader_of(self, tp: TopicPartition) -> BrokerInfo | None:
        """The broker that leads `tp`, if it has a leader whose address is known."""
        partition = self.partition(tp)
        return None if partition is None else self.brokers.get(partition.leader)

    def leader_epoch_of(self, tp: TopicPartition) -> int:
        partition = self.partition(tp)
        return NO_EPOCH if partition is None else partition.leader_epoch

    def name_of(self, topic_id: UUID) -> str | None:
        return next(
            (topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None
        )

    def partitions_of(self, name: str) -> Iterator[TopicPartition]:
        topic = self.topics.get(name)
        for each in topic.partitions if topic is not None else ():
            yield TopicPartition(name, each.partition)

    def without(self, name: str) -> ClusterView:
        """The view without one topic."""
        return replace(
            self, topics={key: topic for key, topic in self.topics.items() if key != name}
        )

    def merge(self, response: Any, *, all_topics: bool) -> ClusterView:
        """The view after a Metadata response.

        `everything`: it named all topics, so those it lacks are gone.
        """
        brokers = {
            row.node_id: BrokerInfo(row.node_id, row.host, row.port, row.rack)
            for row in response.brokers
        }
        topics: dict[str, TopicInfo] = {} if all_topics else dict(self.topics)
        for row in response.topics:
            if row.name is None:  # requested by id, and the topic does not exist
                continue
            topics[row.name] = self._merge_topic(row)
        return ClusterView(
            cluster_id=self.cluster_id if response.cluster_id is None else response.cluster_id,
            controller_id=response.controller_id,
            brokers=brokers or self.brokers,
            topics=topics,
            generation=self.generation + 1,
        )

    def _merge_topic(self, row: Any) -> TopicInfo:
        topic_id = row.topic_id
        known = self.topics.get(row.name)
        partitions = []
        for found in sorted(row.partitions, key=lambda each: int(each.partition_index)):
            partition = PartitionInfo(
                partition=found.partition_index,
                leader=found.leader_id,
                leader_epoch=found.leader_epoch,
                replicas=tuple(found.replica_nodes),
                isr=tuple(found.isr_nodes),
                offline=tuple(found.offline_replicas),
                error_code=found.error_code,
            )
            before = (
                self.partition(TopicPartition(row.name, partition.partition))
                if known is not None
                else None
            )
            if (
                before is not None
                and known is not None
                and known.topic_id == topic_id
                and partition.leader_epoch < before.leader_epoch
            ):
                partition = before
            partitions.append(partition)
        return TopicInfo(row.name, topic_id, row.is_internal, tuple(partitions), row.error_code)
