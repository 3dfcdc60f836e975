"""Heartbeat (key 12), versions 0 to 4: a member of a classic group is alive, and learns of
rebalances. Served by the group's coordinator.

v3 static members (KIP-345). While the coordinator is loading, the response has no error, as in
Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.coordinators import call_of


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    return await context.node.groups.call(request.group_id, call_of(context, request))


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        else error.code
    }
