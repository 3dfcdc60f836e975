"""ConsumerGroupHeartbeat (key 68), versions 0 to 1: joins, stays in and leaves a group of the
consumer protocol (KIP-848).

v1 ids that members generate, and subscriptions by regular expression. Served by the group's
coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context, Node
from mqd.server.coordinators import call_of


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_protocol(context.node)
    return await context.node.groups.call(request.group_id, call_of(context, request))


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
