"""DeleteTopics (key 20), versions 1 to 6. Runs on the controller.

v4 flexible. v5 error messages. v6 topics by name or by id, both in the response.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from mqd.controller.delete_topics import DeleteTopics, TopicName
from mqd.controller.request_limits import check_topic_count
from mqd.errors import ErrorCode, MqError
from mqd.limits import DELETED_TOPICS_MAX
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller
from mqd.server.slices import listed_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    if not node.config.boolean("delete.topic.enable"):
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.header.api_version >= 3
            else ErrorCode.INVALID_REQUEST
        )
        raise MqError(code, "delete.topic.enable is false on this node.")

    async def here() -> Mapping[str, Any]:
        check_topic_count(request.topics or request.topic_names, DELETED_TOPICS_MAX)
        results = await node.controller.submit(
            DeleteTopics(tuple(await listed_in_slices(_requested(request))))
        )
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


def _requested(request: Any) -> Iterator[TopicName]:
    """Version 6 has `topics`, earlier ones `topic_names`."""
    yield from (TopicName(topic.name, topic.topic_id) for topic in request.topics)
    yield from map(TopicName, request.topic_names)


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    requested: dict[TopicName, None] = {}
    for topic in _requested(request):
        requested[topic] = None
        yield 1
    rows = []
    for name, topic_id in requested:
        rows.append(
            {
                "name": name,
                "topic_id": topic_id,
                "error_code": error.code,
                "error_message": error.message or None,
            }
        )
        yield 1
    return {"responses": rows}
