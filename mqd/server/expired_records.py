"""Expired records that a share group did not get: the leaders of its partitions count them, and its
coordinator returns the counts beside the lag (DescribeShareGroupOffsets, `expired_wanted`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import trio

from mqd.errors import MqError
from mqd.server.context import Node
from mqd.server.lag import TIMEOUT_SECONDS
from mqd.server.slices import listed_in_slices
from mqd.share.ports import ShareKey
from mqd.share.sessions import Place
from mqd.types import NO_NODE, NodeId

_PARTITIONS_PER_REQUEST: Final = 5_000


def count_of(node: Node, group_id: str, place: Place) -> int | None:
    """None if this node does not lead the partition."""
    topic = node.image.topics_by_id.get(place.topic_id)
    if topic is None:
        return None
    assigned = node.image.partition(topic.name, place.partition)
    if assigned is None or assigned.leader != node.node_id:
        return None
    return node.share.expired.get(ShareKey(group_id, *place))


async def expired_counts(node: Node, group_id: str, places: Collection[Place]) -> dict[Place, int]:
    """By partition. Those whose leader does not respond are left out."""
    counts: dict[Place, int] = {}
    elsewhere: dict[NodeId, list[Place]] = {}

    def look_up() -> Iterator[None]:
        for place in places:
            count = count_of(node, group_id, place)
            if count is not None:
                counts[place] = count
                continue
            topic = node.image.topics_by_id.get(place.topic_id)
            assigned = topic and node.image.partition(topic.name, place.partition)
            if assigned and assigned.leader != NO_NODE:
                elsewhere.setdefault(assigned.leader, []).append(place)
            yield None

    await listed_in_slices(look_up())
    async with trio.open_nursery() as nursery:
        for leader, some in elsewhere.items():
            nursery.start_soon(_query, node, leader, group_id, some, counts)
    return counts


async def _query(
    node: Node, leader: NodeId, group_id: str, places: Sequence[Place], counts: dict[Place, int]
) -> None:
    """Raises nothing."""
    with trio.move_on_after(TIMEOUT_SECONDS):
        for first in range(0, len(places), _PARTITIONS_PER_REQUEST):
            topics: dict[UUID, list[int]] = {}
            for topic_id, partition in places[first : first + _PARTITIONS_PER_REQUEST]:
                topics.setdefault(topic_id, []).append(partition)
            rows = [{"topic_id": one, "partitions": some} for one, some in topics.items()]
            body = {"group_id": group_id, "topics": rows}
            try:
                response: Any = await node.forward(leader, "DescribeExpiredRecords", 0, body)
            except (OSError, MqError):
                return
            for topic in response["topics"]:
                for row in topic["partitions"]:
                    counts[Place(topic["topic_id"], row["partition"])] = row["count"]
