"""ConsumerGroupHeartbeat (key 68), versions 0 to 1: joins, stays in and leaves a group of the
consumer protocol (KIP-848).

v1 ids that members generate, and subscriptions by regular expression. Served by the group's
coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import (
    permissions_of,
    refusal,
    require,
    split,
    topic_name_of,
)
from mqd.server.context import Context, Node
from mqd.server.coordinators import call_of
from mqd.server.slices import finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_protocol(context.node)
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if request.subscribed_topic_names:
        _, denied = await finished_in_slices(
            split(
                context,
                Operation.DESCRIBE,
                ResourceType.TOPIC,
                request.subscribed_topic_names,
                str,
            )
        )
        if denied:
            raise refusal(ResourceType.TOPIC)
    response = await context.node.groups.call(request.group_id, call_of(context, request))
    return await _without_hidden_topics(context, response)


async def _without_hidden_topics(
    context: Context, response: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The response without partitions of topics that the member may not DESCRIBE: a regular
    expression matches them, too.
    """
    assignment = response.get("assignment")
    if not assignment or permissions_of(context) is None:
        return response
    name_of = topic_name_of(context, True)
    topics, denied = await finished_in_slices(
        split(
            context,
            Operation.DESCRIBE,
            ResourceType.TOPIC,
            assignment["topic_partitions"],
            lambda topic: name_of(topic) or "",
        )
    )
    return {**response, "assignment": {"topic_partitions": topics}} if denied else response


def require_protocol(node: Node) -> None:
    """Raises MqError UNSUPPORTED_VERSION if the feature group.version is 0, or if the node does not
    enable the consumer protocol.
    """
    if not node.image.features.get("group.version", 0) or "consumer" not in node.config.strings(
        "group.coordinator.rebalance.protocols"
    ):
        raise MqError(ErrorCode.UNSUPPORTED_VERSION)


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
