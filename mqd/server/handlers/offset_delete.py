"""OffsetDelete (key 47), version 0: deletes committed offsets of a group.

Served by the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import respond_in_portions


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    async def call(portion: Any) -> Mapping[str, Any]:
        return await context.node.groups.call(request.group_id, call_of(context, portion))

    return await respond_in_portions(request, call, _refused)


def _refused(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """The response to a later portion. The whole has an error only if nothing was deleted."""
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            rows.append({"partition_index": row.partition_index, "error_code": int(error.code)})
            yield 1
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": int(error.code), "topics": []}
