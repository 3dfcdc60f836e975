"""Applies metadata changes to the replicas of this node (Kafka's BrokerMetadataPublisher)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import trio

from mqd.config import NodeConfig
from mqd.controller.configs import effective_node_config, warn_of_static_overrides
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.log.compactor_options import CompactorOptions
from mqd.log.log_config import LogConfig
from mqd.node.lost_in_memory import LostInMemory
from mqd.replica.assignment import Assignment
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.settings import TopicSettings
from mqd.resource_configs import topic_options
from mqd.types import PRODUCER_ACCESS, SHARED, NodeId, TopicPartition

_ASSIGNED_AT_ONCE = 25
"""A change of more partitions is applied in slices."""
_SLICE = 5
"""Partitions opened or closed between two Trio checkpoints. The creation of a log takes one or two
milliseconds, on a busy machine ten. A longer block of the event loop could cost this node its Raft
leadership: other voters start an election after 400 ms without messages.
"""
_CONFIGURED_AT_ONCE = 5
"""A change of the configuration of more topics is applied in slices of this size. One topic takes
0.1 ms, or 1 ms with long lists of throttled replicas.
"""
_NO_BOUND = 2**63 - 1
"""The default of Kafka's rate options: no limit."""


@dataclass
class MetadataPublisher:
    """Applies each change to the replicas, once this node is registered.

    Before that, Raft replays old commands, which must not affect replicas. Otherwise the node would
    open partitions of topics that a later command deletes. It would also remove directories of
    topics that a later command creates (I18).
    """

    node_id: NodeId
    config: NodeConfig
    replica: ReplicaService
    memory: LostInMemory = field(init=False)
    active: bool = False
    pending: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose newest assignment is not applied yet: to open thousands of logs at once
    would block the event loop.
    """
    retired: deque[Partition] = field(default_factory=deque)
    """Partitions of deleted topics that are not removed yet. The node removes them before it
    opens any other partition, because a new partition may have the same name.
    """
    unopened: deque[TopicPartition] = field(default_factory=deque)
    """Partitions of topics that were deleted before this node opened them. The node also removes
    the logs that it found for them at its start.
    """
    reconfigured: dict[str, None] = field(default_factory=dict)
    """Topics whose newest configuration is not applied yet."""
    more: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.memory = LostInMemory(self.node_id)

    async def activate(self, image: MetadataImage) -> None:
        """The image is current: open the partitions of this node, and remove all others (I18)."""
        self.active = True
        self._apply_node_options(image)
        everything = {
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index in range(len(topic.partitions))
        }
        mine = {
            TopicPartition(topic.name, index): topic.topic_id
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if self.node_id in partition.replicas
        }
        in_memory = [one for one in mine if image.is_in_memory(one.topic)]
        self.memory.started(image, in_memory)
        self.replica.assignments.remove_strays(mine, in_memory)
        self.pending.update(dict.fromkeys(sorted(everything)))
        await self._drain(image)

    async def run(self, image: MetadataImage) -> None:
        """Apply large changes in slices, until cancelled."""
        while True:
            await self.more.wait()
            self.more = trio.Event()
            await self._drain(image)

    async def _drain(self, image: MetadataImage) -> None:
        while self.retired or self.unopened or self.pending or self.reconfigured:
            for name in list(islice(self.reconfigured, _CONFIGURED_AT_ONCE)):
                del self.reconfigured[name]
                self._configure(image, name)
            if self.retired or self.unopened:
                for _ in range(min(_SLICE, len(self.retired))):
                    self.replica.assignments.remove(self.retired.popleft())
                for _ in range(0 if self.retired else min(_SLICE, len(self.unopened))):
                    self.replica.assignments.remove_unopened(self.unopened.popleft())
                await trio.lowlevel.checkpoint()
                continue
            taken = list(islice(self.pending, _SLICE))
            for topic_partition in taken:
                del self.pending[topic_partition]
            self._assign(image, taken)
            await trio.lowlevel.checkpoint()

    def __call__(self, delta: Delta, image: MetadataImage) -> None:
        if not self.active:
            return
        self.memory.changed(delta, image)
        deleted = sum(len(topic.partitions) for topic in delta.topics_deleted)
        for topic in delta.topics_deleted:
            if deleted > _ASSIGNED_AT_ONCE:
                self.retired += self.replica.assignments.retire(topic.name)
                self.more.set()
            else:
                self.replica.assignments.delete(topic.name)
            mine = (
                TopicPartition(topic.name, index)
                for index, one in enumerate(topic.partitions)
                if self.node_id in one.replicas
            )
            self.unopened += [one for one in mine if one in self.pending]
        if (
            self.retired
            or self.unopened
            or self.pending
            or len(delta.partitions_changed) > _ASSIGNED_AT_ONCE
        ):
            self.pending.update(dict.fromkeys(delta.partitions_in_order()))
            self.more.set()
        else:
            self._assign(image, delta.partitions_in_order())
        if delta.brokers_changed:
            self.replica.brokers_changed()
        changed = {
            name for kind, name in delta.configs_changed if kind == "topic" and name in image.topics
        }
        if any(kind == "node" for kind, _ in delta.configs_changed):
            changed = set(image.topics)
            self._apply_node_options(image)
        if self.reconfigured or len(changed) > _CONFIGURED_AT_ONCE:
            self.reconfigured.update(dict.fromkeys(sorted(changed)))
            self.more.set()
            return
        for name in sorted(changed):
            self._configure(image, name)

    def _configure(self, image: MetadataImage, topic: str) -> None:
        """Apply the current configuration of a topic, unless it was deleted meanwhile."""
        if topic in image.topics:
            self.replica.assignments.configure(topic, self._settings(image, topic))

    def _assign(self, image: MetadataImage, changed: Iterable[TopicPartition]) -> None:
        """Apply the current assignments. Partitions of topics deleted meanwhile are skipped."""
        assignments = []
        settings: dict[str, TopicSettings] = {}
        for topic_partition in changed:
            partition = image.partition(*topic_partition)
            if partition is None:
                continue
            topic = image.topics[topic_partition.topic]
            if topic.name not in settings:
                settings[topic.name] = self._settings(image, topic.name)
            assignments.append(
                Assignment(
                    topic_partition=topic_partition,
                    topic_id=topic.topic_id,
                    leader=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replicas=partition.replicas,
                    isr=partition.isr,
                    partition_epoch=partition.partition_epoch,
                    elr=partition.elr,
                    adding=partition.adding,
                    removing=partition.removing,
                    begins_at=self.memory.begins_at(topic_partition),
                    lost=tuple(
                        one
                        for one in partition.replicas
                        if (topic.topic_id, topic_partition.partition, one) in image.lost_replicas
                    ),
                )
            )
        self.replica.assignments.apply(assignments, settings)

    def _settings(self, image: MetadataImage, topic: str) -> TopicSettings:
        config = effective_node_config(self.config, image, self.node_id)
        options: Mapping[str, Any] = topic_options(config, image.topic_configs(topic))
        return TopicSettings(
            LogConfig.from_options(options),
            options["min.insync.replicas"],
            options["leader.replication.throttled.replicas"],
            options["follower.replication.throttled.replicas"],
            options[PRODUCER_ACCESS] == SHARED,
        )

    def _apply_node_options(self, image: MetadataImage) -> None:
        """Apply dynamic options: the replication throttles of this node (KIP-73), and the options
        of its log compactor.
        """
        warn_of_static_overrides(image, self.node_id)
        config = effective_node_config(self.config, image, self.node_id)
        for throttle, role in (
            (self.replica.leader_throttle, "leader"),
            (self.replica.follower_throttle, "follower"),
        ):
            rate = config.integer(f"{role}.replication.throttled.rate")
            throttle.set_rate(rate if rate < _NO_BOUND else None)
        self.replica.logs.compactor.options = CompactorOptions.from_config(config)
