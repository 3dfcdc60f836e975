"""DescribeAcknowledgedOffsets (key 32022), version 0: how far the groups of this node have
acknowledged some topics. Peer listener only.

Groups are looked at in portions, and other requests go between them. The response waits until all
that it depends on is committed, as every response of a coordinator does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mqd.coordinator.group.acknowledged import (
    ACKNOWLEDGED,
    LIST_IDS,
    AcknowledgedQuery,
    Seen,
)
from mqd.coordinator.shard import Call
from mqd.coordinator.share.operations import ListStates
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context, Node
from mqd.server.slices import others_first
from mqd.types import NO_OFFSET, Offset, TopicPartition

GROUPS_AT_ONCE = 100
"""Groups of one call of a shard."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return await describe(context.node, {row.name: row.topic_id for row in request.topics})


async def describe(node: Node, topics: Mapping[str, UUID]) -> dict[str, Any]:
    """Also for the node itself. Shards that are not loaded are left out."""
    found = _Acknowledged(topics)
    for index in node.groups.led():
        try:
            await _add_groups(node, index, found)
        except MqError:
            continue
        found.group_shards.append(index)
    for index in node.shares.led():
        try:
            listed = await node.shares.call_shard(index, ListStates(frozenset(topics.values())))
        except MqError:
            continue
        found.add_share_states(listed["states"])
        found.share_shards.append(index)
        await others_first()
    return found.response()


async def _add_groups(node: Node, index: int, found: _Acknowledged) -> None:
    listed = await node.groups.call_shard(index, Call(LIST_IDS, 0, None))
    group_ids = listed["group_ids"]
    for first in range(0, len(group_ids), GROUPS_AT_ONCE):
        query = AcknowledgedQuery(
            tuple(group_ids[first : first + GROUPS_AT_ONCE]), tuple(found.topics)
        )
        response = await node.groups.call_shard(index, Call(ACKNOWLEDGED, 0, query))
        for topic, seen in response["seen"]:
            found.add(topic, seen)
        await others_first()


class _Acknowledged:
    """The lowest offset of each partition."""

    def __init__(self, topics: Mapping[str, UUID]) -> None:
        self.topics = topics
        self.group_shards: list[int] = []
        self.share_shards: list[int] = []
        self._names = {topic_id: name for name, topic_id in topics.items()}
        self._offsets: dict[TopicPartition, Offset] = {}
        self._subscribed: dict[str, list[Mapping[int, Offset]]] = {}
        """The offsets of each subscribed group, by topic."""

    def add(self, topic: str, seen: Seen) -> None:
        for partition, offset in seen.offsets.items():
            self._lower(TopicPartition(topic, partition), offset)
        if seen.subscribed:
            self._subscribed.setdefault(topic, []).append(seen.offsets)

    def add_share_states(self, states: Any) -> None:
        for key, start_offset in states:
            place = TopicPartition(self._names[key.topic_id], key.partition)
            self._lower(place, 0 if start_offset == NO_OFFSET else start_offset)

    def _lower(self, place: TopicPartition, offset: Offset) -> None:
        self._offsets[place] = min(offset, self._offsets.get(place, offset))

    def response(self) -> dict[str, Any]:
        rows: dict[str, list[dict[str, int]]] = {name: [] for name in self.topics}
        for (topic, partition), offset in self._offsets.items():
            if all(partition in each for each in self._subscribed.get(topic, ())):
                rows[topic].append({"partition": partition, "offset": offset})
            else:
                rows[topic].append({"partition": partition, "offset": 0})
        return {
            "error_code": ErrorCode.NONE,
            "group_shards": self.group_shards,
            "share_shards": self.share_shards,
            "topics": [
                {
                    "name": topic,
                    "is_awaited": int(topic in self._subscribed),
                    "partitions": partitions,
                }
                for topic, partitions in rows.items()
            ],
        }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "group_shards": [],
        "share_shards": [],
        "topics": [],
    }
