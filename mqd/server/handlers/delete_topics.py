"""DeleteTopics (key 20), versions 1 to 6. Runs on the controller.

v4 flexible. v5 error messages. v6 topics by name or by id, both in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.topics import DeleteTopics, TopicName
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    if not node.config.boolean("delete.topic.enable"):
        code = ErrorCode.TOPIC_DELETION_DISABLED if context.header.api_version >= 3 else ErrorCode.INVALID_REQUEST
        raise MqError(code, "delete.topic.enable is false on this node.")

    async def here() -> Mapping[str, Any]:
        results = await node.controller.submit(DeleteTopics(tuple(_wishes(request))))
        return {
            "responses": [
                {
                    "name": result.name,
                    "topic_id": result.topic_id,
                    "error_code": result.error_code,
                    "error_message": result.error_message,
                }
                for result in results
            ]
        }

    return await at_controller(context, request, here, request.timeout_ms)


def _wishes(request: Any) -> list[TopicName]:
    """Version 6 has `topics`, earlier ones `topic_names`."""
    return [TopicName(topic.name, topic.topic_id) for topic in request.topics] + [TopicName(name) for name in request.topic_names]


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "responses": [
            {"name": wish.name, "topic_id": wish.topic_id, "error_code": error.code, "error_message": error.message or None}
            for wish in dict.fromkeys(_wishes(request))
        ]
    }
