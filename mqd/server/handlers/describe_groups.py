"""DescribeGroups (key 15), versions 0 to 6: state and members of classic groups. Served by the
coordinator of each.

v3 authorized operations (KIP-430). v4 static members. v6 an error for groups that do not exist;
earlier ones call them dead (KIP-1043).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import group_operations, split
from mqd.server.context import Context
from mqd.server.several_groups import rows_of_groups
from mqd.server.slices import Pace, finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    allowed, denied = await finished_in_slices(
        split(context, Operation.DESCRIBE, ResourceType.GROUP, request.groups, str)
    )
    rows = await rows_of_groups(context, "groups", allowed, "groups")
    described: list[dict[str, Any]] = [
        {"group_id": group_id, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        for group_id in denied
    ]
    pace = Pace()
    for row in rows:
        shown = row if request.awaited_wanted else _without_extra_fields(row)
        if request.include_authorized_operations and row["error_code"] == ErrorCode.NONE:
            shown = shown | {"authorized_operations": group_operations(context, row["group_id"])}
        described.append(shown)
        await pace.row()
    return {"groups": described}


def _without_extra_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Without mqd's extra fields of a rebalancing group, for clients that did not request them."""
    if "state_since_ms" not in row:
        return row
    members = [
        {name: value for name, value in member.items() if name != "awaited"}
        for member in row["members"]
    ]
    return {name: value for name, value in row.items() if name != "state_since_ms"} | {
        "members": members
    }


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    rows = []
    for group_id in request.groups:
        rows.append({"group_id": group_id, "error_code": error.code})
        yield 1
    return {"groups": rows}
