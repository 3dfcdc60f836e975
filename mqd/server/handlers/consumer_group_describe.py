"""ConsumerGroupDescribe (key 69), versions 0 to 1: groups of the consumer protocol, member by
member (KIP-848).

v1 the protocol of each member. Served by each group's coordinator; the row of a group with another
coordinator has an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.handlers.consumer_group_heartbeat import require_protocol
from mqd.server.slices import KEY_CHARS_A_ROW, Pace


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_protocol(context.node)
    rows = []
    pace = Pace()
    # a group may have many members: each gets one row, however often it is named
    for group_id in dict.fromkeys(request.group_ids):
        await pace.row(1 + len(group_id) // KEY_CHARS_A_ROW)
        if not group_id:
            rows.append({"group_id": "", "error_code": ErrorCode.INVALID_GROUP_ID})
            continue
        try:
            response = await context.node.groups.call(
                group_id, call_of(context, SimpleNamespace(group_ids=[group_id]))
            )
        except MqError as error:
            rows.append(_refused(group_id, error))
        else:
            rows += response["groups"]
    return {"groups": rows}


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"groups": [_refused(group_id, error) for group_id in request.group_ids]}


def _refused(group_id: str, error: MqError) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": error.code, "error_message": error.message or None}
