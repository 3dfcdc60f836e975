"""LeaveGroup (key 13), versions 0 to 5: members leave a classic group. Served by the group's
coordinator.

v3 several at once, static ones by their instance id (KIP-345): administrators remove members by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import list_in_portions

_SEVERAL_SINCE = 3
_PORTION_MEMBERS = 8
"""A member of a consumer group may have 10,000 topics, which take 4 ms."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)

    async def call(portion: Any) -> Mapping[str, Any]:
        return await context.node.groups.call(request.group_id, call_of(context, portion))

    if context.header.api_version < _SEVERAL_SINCE or len(request.members) <= _PORTION_MEMBERS:
        return await call(request)
    return await list_in_portions(request, "members", call, portion_rows=_PORTION_MEMBERS)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
