"""DeleteTopics (key 20), versions 1 to 6. Runs on the controller.

v4 flexible. v5 error messages. v6 topics by name or by id, both in the response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from mqd.controller.delete_topics import DeleteTopics, TopicName
from mqd.controller.request_limits import check_topic_count
from mqd.errors import ErrorCode, MqError
from mqd.limits import DELETED_TOPICS_MAX
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import REFUSALS, is_authorized, is_authorized_for_cluster
from mqd.server.context import Context
from mqd.server.mutation_quotas import THROTTLED, at_counting_controller, without_throttled
from mqd.server.portions import with_fields
from mqd.server.slices import finished_in_slices, listed_in_slices
from mqd.types import ZERO_UUID

_STRICT_SINCE = 5
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    if not node.config.boolean("delete.topic.enable"):
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.header.api_version >= 3
            else ErrorCode.INVALID_REQUEST
        )
        raise MqError(code, "delete.topic.enable is false on this node.")

    request, denied = await finished_in_slices(_without_denied(context, request))
    if denied and not request.topics and not request.topic_names:
        return {"responses": denied}

    async def here() -> Mapping[str, Any]:
        check_topic_count(request.topics or request.topic_names, DELETED_TOPICS_MAX)
        node.controller.check_is_controller()
        allowed, throttled, throttle_ms = await finished_in_slices(
            _without_throttled(context, request)
        )
        names = tuple(await listed_in_slices(_requested(allowed)))
        results = (
            await node.controller.submit(DeleteTopics(names)) if names or not throttled else ()
        )
        rows = [
            {
                "name": result.name,
                "topic_id": result.topic_id,
                "error_code": result.error_code,
                "error_message": result.error_message,
            }
            for result in results
        ]
        return {"throttle_time_ms": throttle_ms, "responses": [*throttled, *rows]}

    response = await at_counting_controller(context, request, here, request.timeout_ms)
    return {**response, "responses": [*denied, *response["responses"]]} if denied else response


def _without_denied(context: Context, request: Any) -> Slices[tuple[Any, list[dict[str, Any]]]]:
    """The request without topics that the client may not DELETE, and a row for each of these. A
    topic that is named twice stays: the controller refuses it.

    A name is repeated in the response only if the request has it, or if the client may DESCRIBE it.
    An id that this node does not know is unknown: its topic, and so its ACLs, are unknown, too.
    """
    if is_authorized_for_cluster(context, Operation.DELETE, is_logged=False):
        return request, []
    times = Counter(_requested(request))
    denied: list[dict[str, Any]] = []
    refused: set[TopicName] = set()
    for one in times:
        yield 1
        known = context.node.image.topics_by_id.get(one.topic_id)
        name = one.name if one.name is not None else known.name if known is not None else None
        if times[one] > 1 or (one.name is None) == (one.topic_id == ZERO_UUID):
            continue  # an invalid row
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif is_authorized(context, Operation.DELETE, ResourceType.TOPIC, name):
            continue
        else:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            may_describe = is_authorized(
                context, Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=False
            )
            if one.name is None and not may_describe:
                name = None
            elif may_describe and name not in context.node.image.topics:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused.add(one)
        message = REFUSALS[ResourceType.TOPIC][1]
        denied.append(
            {
                "name": name,
                "topic_id": one.topic_id,
                "error_code": code,
                "error_message": message if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else None,
            }
        )
    return (
        with_fields(
            request,
            topics=[
                topic
                for topic in request.topics
                if TopicName(topic.name, topic.topic_id) not in refused
            ],
            topic_names=[name for name in request.topic_names if TopicName(name) not in refused],
        ),
        denied,
    )


def _requested(request: Any) -> Iterator[TopicName]:
    """Version 6 has `topics`, earlier ones `topic_names`."""
    yield from (TopicName(topic.name, topic.topic_id) for topic in request.topics)
    yield from map(TopicName, request.topic_names)


def _without_throttled(
    context: Context, request: Any
) -> Slices[tuple[Any, list[dict[str, Any]], int]]:
    """The request without topics that the client's quota does not allow, a row for each of these,
    and the throttle time.
    """
    image = context.node.image

    def partitions_of(row: Any) -> int:
        """`row`: a name, or a row with a name or an id."""
        if isinstance(row, str):
            topic = image.topics.get(row)
        elif row.name is not None:
            topic = image.topics.get(row.name)
        else:
            topic = image.topics_by_id.get(row.topic_id)
        return len(topic.partitions) if topic is not None else 0

    def topic_of(row: Any) -> TopicName:
        return TopicName(row) if isinstance(row, str) else TopicName(row.name, row.topic_id)

    field = "topics" if request.topics else "topic_names"
    allowed, refused, throttle_ms = yield from without_throttled(
        context, request, request[field], partitions_of, _STRICT_SINCE, topic_of=topic_of
    )
    if not refused:
        return request, [], throttle_ms
    rows = [
        {
            "name": row if isinstance(row, str) else row.name,
            "topic_id": ZERO_UUID if isinstance(row, str) else row.topic_id,
            **THROTTLED,
        }
        for row in refused
    ]
    return with_fields(request, **{field: allowed}), rows, throttle_ms


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
