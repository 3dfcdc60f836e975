"""AlterPartitionReassignments (key 45), versions 0 and 1: move partitions, or stop moving them.
Runs on the controller.

v1 a request may forbid that the number of replicas changes (KIP-860).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.reassignments import AlterReassignments, Reassigned, Reassignment, in_portions
from mqd.controller.request_limits import check_partition_count
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller
from mqd.types import TopicPartition


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)
    check_partition_count(len(request.topics))
    check_partition_count(sum(len(topic.partitions) for topic in request.topics))
    reassignments = tuple(
        Reassignment(
            TopicPartition(topic.name, row.partition_index),
            None if row.replicas is None else tuple(row.replicas),
        )
        for topic in request.topics
        for row in topic.partitions
    )
    may_change = (
        request.allow_replication_factor_change if context.header.api_version >= 1 else True
    )
    op = AlterReassignments(reassignments, may_change)

    async def here() -> Mapping[str, Any]:
        portions, refused = in_portions(op)
        results: list[Reassigned] = []
        for portion in portions:
            results += await context.node.controller.submit(portion)
        topics: dict[str, list[dict[str, Any]]] = {}
        for (name, partition), code, message in (*results, *refused):
            topics.setdefault(name, []).append(
                {"partition_index": partition, "error_code": code, "error_message": message}
            )
        return {
            "allow_replication_factor_change": may_change,
            "error_code": 0,
            "error_message": None,
            "responses": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

    return await at_controller(context, request, here, request.timeout_ms)


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """If the client may not do this, partitions have the error, too, as in Apache Kafka."""
    topics = []
    is_denied = error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for topic in request.topics if is_denied else ():
        rows = []
        for row in topic.partitions:
            rows.append({"partition_index": row.partition_index, "error_code": error.code})
            yield 1
        topics.append({"name": topic.name, "partitions": rows})
        yield 1
    return {"error_code": error.code, "error_message": error.message or None, "responses": topics}
