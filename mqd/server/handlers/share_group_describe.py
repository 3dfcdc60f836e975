"""ShareGroupDescribe (key 77), version 1: share groups, member by member (KIP-932). Served by each
group's coordinator; the row of a group with another coordinator has an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import group_operations, is_authorized, permissions_of
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.slices import KEY_CHARS_A_ROW, Pace, finished_in_slices

_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = []
    pace = Pace()
    for group_id in dict.fromkeys(request.group_ids):
        await pace.row(1 + len(group_id) // KEY_CHARS_A_ROW)
        if not group_id:
            rows.append({"group_id": "", "error_code": ErrorCode.INVALID_GROUP_ID})
            continue
        if not is_authorized(context, Operation.DESCRIBE, ResourceType.GROUP, group_id):
            rows.append({"group_id": group_id, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED})
            continue
        try:
            response = await context.node.groups.call(
                group_id, call_of(context, SimpleNamespace(group_ids=[group_id]))
            )
        except MqError as error:
            rows.append(_refused(group_id, error))
            continue
        for row in response["groups"]:
            found = await finished_in_slices(_without_hidden_topics(context, row))
            if request.include_authorized_operations and not found["error_code"]:
                found = {**found, "authorized_operations": group_operations(context, group_id)}
            rows.append(found)
    return {"groups": rows}


def _without_hidden_topics(context: Context, row: Mapping[str, Any]) -> Slices[Mapping[str, Any]]:
    """The row of a group, or an error if a member has a topic that the client may not DESCRIBE."""
    if permissions_of(context) is None:
        return row
    seen: set[str] = set()
    for member in row.get("members", ()):
        assigned = (one["topic_name"] for one in member["assignment"]["topic_partitions"])
        for name in (*member["subscribed_topic_names"], *assigned):
            if name in seen:
                continue
            seen.add(name)
            yield 1
            if not is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
                return _refused(
                    row["group_id"],
                    MqError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS),
                )
        yield 1
    return row


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"groups": [_refused(group_id, error) for group_id in request.group_ids]}


def _refused(group_id: str, error: MqError) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": error.code, "error_message": error.message or None}
