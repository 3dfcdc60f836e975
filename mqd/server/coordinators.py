"""Both coordinators of this node, with their view of the other parts: topics, options, and the
leaders of the internal topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import trio

from mqd.config import NodeConfig
from mqd.controller.configs import CurrentConfig
from mqd.controller.decision_options import MIN_INSYNC_REPLICAS
from mqd.controller.delta import Delta
from mqd.controller.image import TOPIC, MetadataImage
from mqd.coordinator.group import requests
from mqd.coordinator.group.memory import Memory
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.group.state import Group
from mqd.coordinator.service import CoordinatorService
from mqd.coordinator.shard import Call
from mqd.coordinator.share.operations import PruneLog
from mqd.coordinator.share.shard import ShareShard
from mqd.coordinator.txn.marker_sender import MarkerSender
from mqd.coordinator.txn.operations import check
from mqd.coordinator.txn.shard import TransactionShard
from mqd.errors import MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.log.service import LogService
from mqd.memory_plan import MemoryPlan
from mqd.protocol import apis
from mqd.relay.service import RelayService
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.resource_configs import group_option
from mqd.server import acknowledged_retention, producer_access
from mqd.server.context import Context, Node
from mqd.server.dead_letters import DeadLetters
from mqd.server.forward import Forwarder
from mqd.server.handlers.seal_transactions import seal
from mqd.server.handlers.write_txn_markers import write_markers
from mqd.server.node_calls import NodeCalls
from mqd.server.producer_access import refusal
from mqd.server.share_state import ShareStatePersister
from mqd.server.slices import finished_in_slices, finished_with_decompression
from mqd.server.topics_view import ImageTopics
from mqd.share.service import ShareService
from mqd.types import (
    GROUPS_TOPIC,
    NO_NODE,
    NO_PRODUCER_ID,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    NodeId,
    Offset,
    TopicPartition,
)

_MARKERS_VERSION = 2
_SEALS_VERSION = 0


def call_of(context: Context, request: Any, *, spare_producer_id: int = NO_PRODUCER_ID) -> Call:
    """The request of a client, as coordinators take it."""
    api = apis.by_key(context.header.api_key)
    assert api is not None
    host = "/" + context.peer.rpartition(":")[0]
    return Call(
        api.name,
        context.header.api_version,
        request,
        context.header.client_id or "",
        host,
        spare_producer_id,
    )


class _Options:
    """Options as they are now (GroupOptions)."""

    def __init__(
        self, config: NodeConfig, image: Callable[[], MetadataImage], node_id: NodeId
    ) -> None:
        self._current = CurrentConfig(config, image, node_id)
        self._image = image

    def node(self, name: str) -> Any:
        return self._current()[name]

    def min_insync_replicas(self, topic: str) -> int:
        text = self._image().topic_configs(topic).get(MIN_INSYNC_REPLICAS)
        return int(self.node(MIN_INSYNC_REPLICAS) if text is None else text)

    def group(self, group_id: str, name: str) -> Any:
        return group_option(name, self._current(), self._image().group_configs(group_id))


class Coordinators:
    """The coordinators of groups and of transactions."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        config: NodeConfig,
        plan: MemoryPlan,
        image: Callable[[], MetadataImage],
        replica: ReplicaService,
        logs: LogService,
        clock: Clock,
        entropy: Entropy,
        disk: Disk,
        forward: Forwarder,
        new_producer_id: Callable[[], Awaitable[int]],
        create_topic: Callable[[str], None],
    ) -> None:
        """`create_topic(name)`: creates an internal topic soon, if it does not exist."""
        self._replica = replica
        self._topics = ImageTopics(image)
        options = _Options(config, image, node_id)
        memory = Memory(self._all_groups, plan.members)

        def share(topic: str, most: int) -> Callable[[], int]:
            """Bytes that one shard may take: of `most`, the part of one partition of the topic."""
            return lambda: most // max(1, self._topics.partitions(topic))

        self.groups = CoordinatorService(
            topic=GROUPS_TOPIC,
            make_shard=lambda index: GroupShard(
                self._topics,
                options,
                lambda: str(entropy.uuid()),
                memory,
                name=f"{GROUPS_TOPIC}-{index}",
                share=share(GROUPS_TOPIC, plan.groups),
            ),
            check=lambda call: requests.check(call, options),
            partitions=lambda: self._topics.partitions(GROUPS_TOPIC),
            replica=replica,
            logs=logs,
            clock=clock,
            disk=disk,
            commit_seconds=config.integer("offsets.commit.timeout.ms") / 1000,
        )
        self.transactions = CoordinatorService(
            topic=TRANSACTIONS_TOPIC,
            make_shard=lambda index: TransactionShard(
                self._topics,
                options,
                index,
                transaction_version=lambda: image().features.get("transaction.version", 0),
                share=share(TRANSACTIONS_TOPIC, plan.transactions),
                refusal=lambda topic, transactional_id: refusal(image(), topic, transactional_id),
            ),
            check=lambda op: check(op, options),
            partitions=lambda: self._topics.partitions(TRANSACTIONS_TOPIC),
            replica=replica,
            logs=logs,
            clock=clock,
            disk=disk,
            perform=lambda index, epoch, effect, _: self._markers.perform(index, epoch, effect),
        )
        self._prunes: dict[int, Offset] = {}
        """By partition of the share-state topic: the end of the log before the present round."""
        self.shares = CoordinatorService(
            topic=SHARE_STATE_TOPIC,
            make_shard=lambda index: ShareShard(
                self._topics, options, index, share=share(SHARE_STATE_TOPIC, plan.share_states)
            ),
            check=lambda op: None,
            partitions=lambda: self._topics.partitions(SHARE_STATE_TOPIC),
            replica=replica,
            logs=logs,
            clock=clock,
            disk=disk,
            perform=self._prune,
            commit_seconds=config.integer("share.coordinator.write.timeout.ms") / 1000,
        )
        self.share_state = ShareStatePersister(
            node_id=node_id,
            shares=self.shares,
            forward=forward,
            leader_of=self._leader_of,
            create_topic=create_topic,
        )
        self.calls = NodeCalls(
            node_id=node_id,
            node=lambda: self.node,
            forward=forward,
            create_topic=create_topic,
            min_insync_replicas=options.min_insync_replicas,
        )
        self.relay = RelayService(
            replica=replica,
            logs=logs,
            disk=disk,
            clock=clock,
            entropy=entropy,
            calls=self.calls,
            configs_of=lambda topic: image().topic_configs(topic),
            partitions_of=self._topics.partitions,
        )
        self.share = ShareService(
            logs=logs,
            disk=disk,
            clock=clock,
            persister=self.share_state,
            option=options.group,
            offset_for_time=self._offset_for_time,
            dead_letters=DeadLetters(
                image=image,
                options=options,
                calls=self.calls,
                clock=clock,
                entropy=entropy,
                create_topic=create_topic,
            ),
            in_slices=finished_in_slices,
            sessions_max=config.integer("group.share.max.share.sessions"),
            memory_bytes_max=plan.share_partitions,
        )
        self._markers = MarkerSender(
            leader_of=self._leader_of,
            exists=lambda topic_partition: image().partition(*topic_partition) is not None,
            send=self._send_markers,
            seal=self._seal,
            transactions=self.transactions,
            new_producer_id=new_producer_id,
            clock=clock,
            entropy=entropy,
        )
        self._node_id = node_id
        self._image = image
        self._forward = forward
        self.node: Node
        """Whose coordinators these are; set before they run."""

    def _all_groups(self) -> Iterator[Group]:
        for shard in self.groups.shards():
            assert isinstance(shard, GroupShard)
            yield from shard.groups

    def _leader_of(self, topic_partition: TopicPartition) -> NodeId | None:
        partition = self._image().partition(*topic_partition)
        return None if partition is None or partition.leader == NO_NODE else partition.leader

    async def _send_markers(self, node_id: NodeId, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if node_id == self._node_id:
            return await write_markers(self.node, request)
        return await self._forward(node_id, "write_txn_markers", _MARKERS_VERSION, request)

    async def _seal(self, node_id: NodeId, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if node_id == self._node_id:
            return await seal(self.node, request)
        return await self._forward(node_id, "seal_transactions", _SEALS_VERSION, request)

    def _prune(self, index: int, leader_epoch: int, effect: Hashable, end: Offset) -> None:
        """Delete the records of the share-state topic that later snapshots have replaced."""
        assert isinstance(effect, PruneLog), effect
        if effect.begins:
            self._prunes[index] = end
            return
        offset = self._prunes.pop(index, None)
        partition = self._replica.get(TopicPartition(SHARE_STATE_TOPIC, index))
        if (
            offset is not None
            and partition is not None
            and partition.leader_epoch == leader_epoch
            and partition.log.log_start_offset < offset
        ):
            with suppress(MqError):  # the next round deletes them
                self._replica.delete_records(partition, offset)

    async def _offset_for_time(self, partition: Partition, timestamp_ms: int) -> Offset | None:
        """The first committed offset with this timestamp or later."""
        looking = self.node.logs.offset_for_timestamp(
            partition.log, timestamp_ms, partition.high_watermark
        )
        found = await finished_with_decompression(
            looking, self.node.batch_work, "share group", lambda: partition.serves
        )
        return None if found is None else found[0]

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.groups.run)
            nursery.start_soon(self.transactions.run)
            nursery.start_soon(self.shares.run)
            nursery.start_soon(self.share.run)
            nursery.start_soon(self.relay.run)
            nursery.start_soon(self._markers.run)
            nursery.start_soon(acknowledged_retention.run, self.node)
            nursery.start_soon(producer_access.run, self.node)

    def role_changed(self, partition: Partition) -> None:
        """A partition begins or ends to be led here."""
        self.groups.role_changed(partition)
        self.transactions.role_changed(partition)
        self.shares.role_changed(partition)
        self.share.role_changed(partition)
        self.relay.role_changed(partition)

    def metadata_changed(self, delta: Delta, image: MetadataImage) -> None:
        """Topics came, went or grew, their replicas moved, or their configs changed."""
        for kind, name in sorted(delta.configs_changed):
            if kind == TOPIC:
                self.relay.configs_changed(name)
        if self._topics.changed(delta):
            self.groups.topics_changed()
            self.transactions.topics_changed()
            self.shares.topics_changed()
