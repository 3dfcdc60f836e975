"""Early retention of topics with `mqd.retention.acknowledged=true`: leaders delete segments below
what every group has acknowledged (I61).

At each `log.retention.check.interval.ms`, the leader of such a partition asks every node that
coordinates groups, in one request for many topics. It deletes nothing unless the responses cover
all partitions of `__consumer_offsets` and `__share_group_state`: an unknown group may be far
behind. Groups that were never seen do not count, and a topic without groups loses nothing early.
Only the log start moves, to the end of a segment below the high watermark. Followers follow it, as
after DeleteRecords.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import trio

from mqd.errors import MqError
from mqd.replica.partition import Partition
from mqd.server.context import Node
from mqd.server.handlers.describe_acknowledged_offsets import describe
from mqd.server.slices import others_first
from mqd.types import GROUPS_TOPIC, NO_NODE, SHARE_STATE_TOPIC, NodeId, Offset, TopicPartition

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE: Final = 100
"""Topics of one request."""
TIMEOUT_SECONDS: Final = 30.0
"""The timeout of the requests of one round."""


async def run(node: Node) -> None:
    """Until cancelled."""
    interval_s = node.config.integer("log.retention.check.interval.ms") / 1000
    while True:
        await trio.sleep(interval_s)
        await check(node)


async def check(node: Node) -> None:
    """One round for all partitions that this node leads."""
    by_topic: dict[str, list[Partition]] = {}
    for partition in node.replica.partitions():
        config = partition.log.config
        # The relay of a delay topic decides what is pending there.
        if partition.serves and config.retention_acknowledged and not config.mqd_delay_target:
            by_topic.setdefault(partition.assignment.topic_partition.topic, []).append(partition)
    topics = sorted(by_topic)
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[first : first + TOPICS_AT_ONCE]
        led = [partition for topic in some for partition in by_topic[topic]]
        epochs = [partition.leader_epoch for partition in led]
        responses = await _ask(node, led)
        if responses is None:
            continue
        bounds = acknowledged(responses)
        for partition, leader_epoch in zip(led, epochs, strict=True):
            await others_first()
            bound = bounds.get(partition.assignment.topic_partition, 0)
            if partition.serves and partition.leader_epoch == leader_epoch:
                _delete_below(node, partition, bound)


def acknowledged(responses: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, Offset]:
    """The offset below which all groups of all responses have acknowledged each partition. Without
    a partition: no group was seen there, or a group waits for its first record.
    """
    offsets: dict[TopicPartition, Offset] = {}
    awaited: list[tuple[str, set[int]]] = []
    """Topic, and the partitions of which all subscribed groups of one response have offsets."""
    for response in responses:
        for topic in response["topics"]:
            name = topic["name"]
            for row in topic["partitions"]:
                place = TopicPartition(name, row["partition"])
                offsets[place] = min(row["offset"], offsets.get(place, row["offset"]))
            if topic["is_awaited"]:
                awaited.append((name, {row["partition"] for row in topic["partitions"]}))
    for name, partitions in awaited:
        for place in [one for one in offsets if one.topic == name]:
            if place.partition not in partitions:
                del offsets[place]
    return offsets


async def _ask(node: Node, led: Sequence[Partition]) -> list[Mapping[str, Any]] | None:
    """The responses of all coordinators. None if a group may be unknown to them."""
    image = node.image
    wanted = {
        topic: set(range(len(image.topics[topic].partitions)))
        for topic in (GROUPS_TOPIC, SHARE_STATE_TOPIC)
        if topic in image.topics
    }
    coordinators: set[NodeId] = set()
    for topic, indexes in wanted.items():
        coordinators |= {image.topics[topic].partitions[index].leader for index in indexes}
    if NO_NODE in coordinators:
        return None
    ids = {
        partition.assignment.topic_partition.topic: partition.assignment.topic_id
        for partition in led
    }
    responses: list[Mapping[str, Any]] = []

    async def ask(node_id: NodeId) -> None:
        try:
            if node_id == node.node_id:
                responses.append(await describe(node, ids))
                return
            rows = [{"name": name, "topic_id": topic_id} for name, topic_id in ids.items()]
            response = await node.forward(
                node_id, "DescribeAcknowledgedOffsets", 0, {"topics": rows}
            )
        except (OSError, MqError):
            return
        if not response["error_code"]:
            responses.append(response)

    with trio.move_on_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            for node_id in sorted(coordinators):
                nursery.start_soon(ask, node_id)
    for response in responses:
        wanted.get(GROUPS_TOPIC, set()).difference_update(response["group_shards"])
        wanted.get(SHARE_STATE_TOPIC, set()).difference_update(response["share_shards"])
    return None if any(wanted.values()) else responses


def _delete_below(node: Node, partition: Partition, bound: Offset) -> None:
    """Move the log start to the last end of a segment that is not above `bound`."""
    log = partition.log
    bound = min(bound, partition.high_watermark)
    ends = [segment.next_offset for segment in log.segments[:-1] if segment.next_offset <= bound]
    if not ends or ends[-1] <= log.log_start_offset or "delete" not in log.config.cleanup_policy:
        return
    # Every group has acknowledged all records below (I61).
    assert log.log_start_offset < ends[-1] <= partition.high_watermark
    logger.info(
        "deleting acknowledged records partition=%s up_to=%d acknowledged=%d",
        log.topic_partition,
        ends[-1],
        bound,
    )
    try:
        node.replica.delete_records(partition, ends[-1])
    except MqError as error:
        logger.warning(
            "cannot delete acknowledged records partition=%s reason=%s", log.topic_partition, error
        )
