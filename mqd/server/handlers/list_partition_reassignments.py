"""ListPartitionReassignments (key 46), version 0: ongoing reassignments. Runs on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.reassignments import list_reassignments
from mqd.errors import MqError
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller
from mqd.server.slices import listed_in_slices
from mqd.types import TopicPartition


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE)
    requested = None
    if request.topics is not None:
        requested = await listed_in_slices(
            TopicPartition(topic.name, partition)
            for topic in request.topics
            for partition in topic.partition_indexes
        )

    async def here() -> Mapping[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        context.node.controller.check_is_controller()
        for (name, partition), replicas, adding, removing in list_reassignments(
            context.node.image, requested
        ):
            row = {
                "partition_index": partition,
                "replicas": replicas,
                "adding_replicas": adding,
                "removing_replicas": removing,
            }
            topics.setdefault(name, []).append(row)
        return {
            "error_code": 0,
            "error_message": None,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

    return await at_controller(context, request, here, request.timeout_ms)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "topics": []}
