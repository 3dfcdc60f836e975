"""OffsetCommit (key 8), versions 2 to 10: a group writes down how far it has read. Answered by the group's coordinator.

v2 to v4 may say how long the offsets are kept. v6 leader epoch. v7 static members. v9 member epochs, and an error for a group that
does not exist. v10 topics by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return await context.node.groups.call(request.group_id, call_of(context, request))


def failed(request: Any, error: MqError) -> dict[str, Any]:
    """No version has an error for the whole request: each partition tells it."""
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [{"partition_index": row.partition_index, "error_code": int(error.code)} for row in topic.partitions],
            }
            for topic in request.topics
        ]
    }
