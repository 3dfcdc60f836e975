"""DescribeGroups (key 15), versions 0 to 6: state and members of classic groups. Answered by the coordinator of each.

v3 what the asker may do (KIP-430). v4 static members. v6 an error for groups that do not exist; earlier ones call them dead (KIP-1043).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import group_operations
from mqd.server.several_groups import ask_each


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    rows = await ask_each(context, "groups", request.groups, "groups")
    operations = group_operations(request.include_authorized_operations)
    return {
        "groups": [row | {"authorized_operations": operations} if row["error_code"] == ErrorCode.NONE else row for row in rows],
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"groups": [{"group_id": group_id, "error_code": error.code} for group_id in request.groups]}
