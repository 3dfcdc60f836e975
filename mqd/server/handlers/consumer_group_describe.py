"""ConsumerGroupDescribe (key 69), versions 0 to 1: groups of the consumer protocol, member by
member (KIP-848).

v1 the protocol of each member. Served by each group's coordinator; the row of a group with another
coordinator has an error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import group_operations, is_authorized, permissions_of
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.handlers.consumer_group_heartbeat import require_protocol
from mqd.server.slices import KEY_CHARS_A_ROW, Pace, finished_in_slices

_ASSIGNMENTS = ("assignment", "target_assignment")
"""The assignments of a member. A member of a share group has only the first one."""
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_protocol(context.node)
    return await described_groups(context, request)


async def described_groups(context: Context, request: Any) -> Mapping[str, Any]:
    """The response, also to ShareGroupDescribe."""
    rows: list[Mapping[str, Any]] = []
    pace = Pace()
    wants_operations = request.include_authorized_operations
    # a group may have many members: each gets one row, however often it is named
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
        else:
            for row in response["groups"]:
                found = await finished_in_slices(_without_hidden_topics(context, row))
                if wants_operations and not found["error_code"]:
                    found = {
                        **found,
                        "authorized_operations": group_operations(context, group_id),
                    }
                rows.append(found)
    return {"groups": rows}


def _without_hidden_topics(context: Context, row: Mapping[str, Any]) -> Slices[Mapping[str, Any]]:
    """The row of a group, or an error if a member has a topic that the client may not DESCRIBE.

    An expression also matches topics that its member may not DESCRIBE. With Apache Kafka, the
    member has no partitions of them. Here they are only left out of the response.
    """
    if permissions_of(context) is None:
        return row
    visible: dict[str, bool] = {}
    members = []
    for member in row.get("members", ()):
        hidden = False
        for name in (
            *member["subscribed_topic_names"],
            *(name for part in _ASSIGNMENTS for name in _assigned(member.get(part))),
        ):
            if name not in visible:
                yield 1
                visible[name] = is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
            hidden = hidden or not visible[name]
        if hidden and (
            not member.get("subscribed_topic_regex")
            or not all(visible[name] for name in member["subscribed_topic_names"])
        ):
            return _refused(
                row["group_id"], MqError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS)
            )
        if hidden:
            member = {
                **member,
                **{part: _visible_part(member[part], visible) for part in _ASSIGNMENTS},
            }
        members.append(member)
        yield 1
    return {**row, "members": members} if "members" in row else row


def _assigned(assignment: Mapping[str, Any] | None) -> Iterator[str]:
    topics = () if assignment is None else assignment["topic_partitions"]
    return (topic["topic_name"] for topic in topics)


def _visible_part(
    assignment: Mapping[str, Any], visible: Mapping[str, bool]
) -> dict[str, list[Any]]:
    topics = assignment["topic_partitions"]
    return {"topic_partitions": [topic for topic in topics if visible[topic["topic_name"]]]}


def failed(request: Any, error: MqError) -> Generator[int, None, Mapping[str, Any]]:
    rows = []
    for group_id in request.group_ids:
        rows.append(_refused(group_id, error))
        yield 1
    return {"groups": rows}


def _refused(group_id: str, error: MqError) -> dict[str, Any]:
    return {"group_id": group_id, "error_code": error.code, "error_message": error.message or None}
