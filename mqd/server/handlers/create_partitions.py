"""CreatePartitions (key 37), versions 0 to 3. Runs on the controller.

v2 flexible. v3 as v2; a client of it knows what a throttling answer means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.topics import CreatePartitions, MorePartitions
from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    op = CreatePartitions(
        tuple(
            MorePartitions(
                topic.name,
                topic["count"],
                None if topic.assignments is None else tuple(tuple(row.broker_ids) for row in topic.assignments),
            )
            for topic in request.topics
        ),
        validate_only=request.validate_only,
    )

    async def here() -> Mapping[str, Any]:
        results = await context.node.controller.submit(op)
        return {
            "results": [{"name": result.name, "error_code": result.error_code, "error_message": result.error_message} for result in results]
        }

    return await at_controller(context, request, here, request.timeout_ms)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "results": [
            {"name": name, "error_code": error.code, "error_message": error.message or None}
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    }
