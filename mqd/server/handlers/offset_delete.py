"""OffsetDelete (key 47), version 0: deletes committed offsets of a group.

Served by the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import respond_in_portions, with_fields
from mqd.server.slices import finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.DELETE, ResourceType.GROUP, request.group_id)

    topics, denied = await finished_in_slices(
        split(context, Operation.READ, ResourceType.TOPIC, request.topics)
    )
    refused: list[dict[str, Any]] = []
    if denied:
        work = _refused(with_fields(request, topics=denied), refusal(ResourceType.TOPIC))
        refused = (await finished_in_slices(work))["topics"]
        # even without a topic: as in Kafka, an error of the group replaces all rows
        request = with_fields(request, topics=topics)

    async def call(portion: Any) -> Mapping[str, Any]:
        return await context.node.groups.call(request.group_id, call_of(context, portion))

    response = await respond_in_portions(request, call, _refused)
    if not refused or response.get("error_code"):
        return response
    return {**response, "topics": [*refused, *response["topics"]]}


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
