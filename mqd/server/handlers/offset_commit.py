"""OffsetCommit (key 8), versions 2 to 10: a group commits offsets. Served by the group's
coordinator.

v2 to v4 may have a retention time. v6 leader epoch. v7 static members. v9 member
epochs, and an error for a group that does not exist. v10 topics by id.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split, topic_name_of
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import respond_in_portions, with_fields
from mqd.server.slices import finished_in_slices

_BY_ID_SINCE = 10


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    by_id = context.header.api_version >= _BY_ID_SINCE
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    name_of = topic_name_of(context, by_id)
    topics, denied = await finished_in_slices(
        split(context, Operation.READ, ResourceType.TOPIC, request.topics, name_of)
    )
    refused: list[dict[str, Any]] = []
    if denied:
        work = failed(with_fields(request, topics=denied), refusal(ResourceType.TOPIC))
        refused = (await finished_in_slices(work))["topics"]
        if not topics:
            return {"topics": refused}
        request = with_fields(request, topics=topics)

    async def call(portion: Any) -> Mapping[str, Any]:
        return await context.node.groups.call(request.group_id, call_of(context, portion))

    key = "topic_id" if by_id else "name"
    response = await respond_in_portions(request, call, failed, key=key)
    return {**response, "topics": [*refused, *response["topics"]]} if refused else response


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """No version has an error for the whole request: each partition has it."""
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            rows.append({"partition_index": row.partition_index, "error_code": int(error.code)})
            yield 1
        topics.append({"name": topic.name, "topic_id": topic.topic_id, "partitions": rows})
        yield 1
    return {"topics": topics}
