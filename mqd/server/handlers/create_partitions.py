"""CreatePartitions (key 37), versions 0 to 3. Runs on the controller.

v2 flexible. v3 as v2; its clients know the error THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from mqd.controller.create_partitions import CreatePartitions, MorePartitions
from mqd.controller.request_limits import check_topic_count
from mqd.errors import ErrorCode, MqError
from mqd.limits import CREATED_TOPICS_MAX
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, permissions_of
from mqd.server.context import Context
from mqd.server.mutation_quotas import THROTTLED, at_counting_controller, without_throttled
from mqd.server.portions import with_fields
from mqd.server.slices import finished_in_slices

_STRICT_SINCE = 3
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    check_topic_count(request.topics, CREATED_TOPICS_MAX)
    request, denied = await finished_in_slices(_without_denied(context, request))
    if denied and not request.topics:
        return {"results": denied}

    async def here() -> Mapping[str, Any]:
        context.node.controller.check_is_controller()
        topics, throttled, throttle_ms = await finished_in_slices(
            _without_throttled(context, request)
        )
        results = (
            await context.node.controller.submit(_operation(topics, request.validate_only))
            if topics or not throttled
            else ()
        )
        rows = [
            {
                "name": result.name,
                "error_code": result.error_code,
                "error_message": result.error_message,
            }
            for result in results
        ]
        return {"throttle_time_ms": throttle_ms, "results": [*throttled, *rows]}

    response = await at_counting_controller(context, request, here, request.timeout_ms)
    return {**response, "results": [*denied, *response["results"]]} if denied else response


def _without_denied(context: Context, request: Any) -> Slices[tuple[Any, list[dict[str, Any]]]]:
    """The request without topics that the client may not ALTER, and a row for each of these. A
    topic that is named twice stays: the controller refuses it.
    """
    if permissions_of(context) is None:
        return request, []
    times = Counter(topic.name for topic in request.topics)
    allowed, denied = [], []
    for topic in request.topics:
        yield 1
        if times[topic.name] > 1 or is_authorized(
            context, Operation.ALTER, ResourceType.TOPIC, topic.name
        ):
            allowed.append(topic)
        else:
            denied.append({"name": topic.name, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    return with_fields(request, topics=allowed), denied


def _operation(topics: Iterable[Any], validate_only: bool) -> CreatePartitions:
    return CreatePartitions(
        tuple(
            MorePartitions(
                topic.name,
                topic["count"],
                None
                if topic.assignments is None
                else tuple(tuple(row.broker_ids) for row in topic.assignments),
            )
            for topic in topics
        ),
        validate_only=validate_only,
    )


def _without_throttled(
    context: Context, request: Any
) -> Slices[tuple[list[Any], list[dict[str, Any]], int]]:
    """The topics that the client's quota allows, rows for the others, and the throttle time."""
    topics = context.node.image.topics

    def new_partitions_of(row: Any) -> int:
        topic = topics.get(row.name)
        if request.validate_only or topic is None:
            return 0
        added: int = row["count"] - len(topic.partitions)
        return max(0, added)

    allowed, refused, throttle_ms = yield from without_throttled(
        context, request, request.topics, new_partitions_of, _STRICT_SINCE
    )
    return allowed, [{"name": topic.name, **THROTTLED} for topic in refused], throttle_ms


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
