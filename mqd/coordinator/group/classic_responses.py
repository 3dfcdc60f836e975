"""Responses to members of classic groups, and the parts of requests that depend on the version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.classic_member import ClassicGroupMember
from mqd.coordinator.shard import Call, CoordinatorResult, Ticket
from mqd.errors import ErrorCode

_BATCH_LEAVE_FROM: Final = 3


def join_error(error: ErrorCode, member_id: str = "") -> dict[str, Any]:
    return {"error_code": error, "member_id": member_id, "protocol_name": None}


def refuse_join(ticket: Ticket, error: ErrorCode, member_id: str) -> CoordinatorResult:
    return CoordinatorResult(responses=((ticket, join_error(error, member_id)),))


def is_refusal(reply: Mapping[str, Any]) -> bool:
    return reply["error_code"] not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


def join_response(group: ClassicGroup, member: ClassicGroupMember) -> dict[str, Any]:
    """The JoinGroup response. The leader also gets the metadata of all members."""
    return {
        "error_code": ErrorCode.NONE,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.members.leader,
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": member_rows(group.members.values(), group.protocol)
        if group.members.leader == member.member_id
        else [],
    }


def member_rows(
    members: Iterable[ClassicGroupMember], protocol: str | None
) -> list[dict[str, Any]]:
    return [
        {
            "member_id": one.member_id,
            "group_instance_id": one.instance_id,
            "metadata": one.metadata(protocol),
        }
        for one in members
    ]


def sync_response(group: ClassicGroup, assignment: bytes) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": assignment,
    }


def leaving_members(call: Call) -> list[tuple[str, str | None]]:
    """Member and instance ids that a LeaveGroup of any version names."""
    if call.version >= _BATCH_LEAVE_FROM:
        return [(row.member_id, row.group_instance_id) for row in call.request.members]
    return [(call.request.member_id, None)]


def leave_response(call: Call, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of LeaveGroup. Before version 3 the error of its only member is the error of the
    whole response.
    """
    error = ErrorCode.NONE if call.version >= _BATCH_LEAVE_FROM else rows[0]["error_code"]
    return {"error_code": error, "members": rows}
