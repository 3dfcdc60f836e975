"""CreatePartitions (key 37), versions 0 to 3. Runs on the controller.

v2 flexible. v3 as v2; its clients know the error THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.create_partitions import CreatePartitions, MorePartitions
from mqd.controller.request_limits import check_topic_count
from mqd.errors import MqError
from mqd.limits import CREATED_TOPICS_MAX
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    check_topic_count(request.topics, CREATED_TOPICS_MAX)
    op = CreatePartitions(
        tuple(
            MorePartitions(
                topic.name,
                topic["count"],
                None
                if topic.assignments is None
                else tuple(tuple(row.broker_ids) for row in topic.assignments),
            )
            for topic in request.topics
        ),
        validate_only=request.validate_only,
    )

    async def here() -> Mapping[str, Any]:
        results = await context.node.controller.submit(op)
        return {
            "results": [
                {
                    "name": result.name,
                    "error_code": result.error_code,
                    "error_message": result.error_message,
                }
                for result in results
            ]
        }

    return await at_controller(context, request, here, request.timeout_ms)


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    names: dict[str, None] = {}
    for topic in request.topics:
        names[topic.name] = None
        yield 1
    rows = []
    for name in names:
        rows.append(
            {"name": name, "error_code": error.code, "error_message": error.message or None}
        )
        yield 1
    return {"results": rows}
