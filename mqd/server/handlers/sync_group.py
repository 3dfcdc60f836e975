"""SyncGroup (key 14), versions 0 to 5: the leader sends a generation's assignments; all members get
theirs when they are committed.

v3 static members (KIP-345). v5 protocol type and name, which are checked (KIP-559). Served by the
group's coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, refusal
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.slices import SLICE_ROWS, Pace

_PROTOCOL_SINCE = 5


def handle(context: Context, request: Any) -> Awaitable[Mapping[str, Any]]:
    if not is_authorized(context, Operation.READ, ResourceType.GROUP, request.group_id):
        if context.header.api_version >= _PROTOCOL_SINCE and (
            request.protocol_type is None or request.protocol_name is None
        ):
            # Apache Kafka checks this first; a shard checks it for authorized members
            raise MqError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        raise refusal(ResourceType.GROUP)
    if len(request.assignments) > SLICE_ROWS:
        return _respond_to_large(context, request)
    for row in request.assignments:
        # the receive buffer is reused before the task begins
        row.assignment = bytes(row.assignment)
    return _respond(context, request)


async def _respond_to_large(context: Context, request: Any) -> Mapping[str, Any]:
    pace = Pace()
    for row in request.assignments:
        row.assignment = bytes(row.assignment)
        await pace.row()
    return await _respond(context, request)


def _respond(context: Context, request: Any) -> Awaitable[Mapping[str, Any]]:
    call = call_of(context, request)
    return context.node.groups.call(request.group_id, call, partial(_waits, context, request))


def _waits(context: Context, request: Any) -> None:
    """Assignments are written, or not wanted of this member: none wait with the request."""
    request.assignments = ()
    context.waits()


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
