"""OffsetCommit (key 8), versions 2 to 10: a group commits offsets. Served by the group's
coordinator.

v2 to v4 may have a retention time. v6 leader epoch. v7 static members. v9 member
epochs, and an error for a group that does not exist. v10 topics by id.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import respond_in_portions

_BY_ID_SINCE = 10


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    async def call(portion: Any) -> Mapping[str, Any]:
        return await context.node.groups.call(request.group_id, call_of(context, portion))

    key = "topic_id" if context.header.api_version >= _BY_ID_SINCE else "name"
    return await respond_in_portions(request, call, failed, key=key)


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
