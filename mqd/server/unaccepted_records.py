"""Records of a share group that no member accepted: the leaders of its partitions count them, and
its coordinator returns the counts beside the lag (DescribeShareGroupOffsets, `unaccepted_wanted`).
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
from mqd.share.unaccepted_counts import Unaccepted
from mqd.types import NO_NODE, NodeId

_PARTITIONS_PER_REQUEST: Final = 5_000


def counts_of(node: Node, group_id: str, place: Place) -> Unaccepted | None:
    """None if this node does not lead the partition."""
    topic = node.image.topics_by_id.get(place.topic_id)
    if topic is None:
        return None
    assigned = node.image.partition(topic.name, place.partition)
    if assigned is None or assigned.leader != node.node_id:
        return None
    return node.share.unaccepted.get(ShareKey(group_id, *place))


async def unaccepted_counts(
    node: Node, group_id: str, places: Collection[Place]
) -> dict[Place, Unaccepted]:
    """By partition. Those whose leader does not respond are left out."""
    counts: dict[Place, Unaccepted] = {}
    elsewhere: dict[NodeId, list[Place]] = {}

    def look_up() -> Iterator[None]:
        for place in places:
            found = counts_of(node, group_id, place)
            if found is not None:
                counts[place] = found
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
    node: Node,
    leader: NodeId,
    group_id: str,
    places: Sequence[Place],
    counts: dict[Place, Unaccepted],
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
                response: Any = await node.forward(leader, "DescribeUnacceptedRecords", 0, body)
            except (OSError, MqError):
                return
            for topic in response["topics"]:
                for row in topic["partitions"]:
                    place = Place(topic["topic_id"], row["partition"])
                    counts[place] = Unaccepted(row["expired"], row["given_up"])
