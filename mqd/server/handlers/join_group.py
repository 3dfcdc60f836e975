"""JoinGroup (key 11), versions 0 to 9: become a member of a classic group's next generation;
the response waits until it is complete.

v1 rebalance timeout. v4 new members get an id first (KIP-394). v5 static members (KIP-345). v7
protocol type in the response. v9 a static leader that returns may skip the assignment (KIP-814).
Served by the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.limits import JOIN_PROTOCOLS_MAX
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.coordinators import call_of

_PROTOCOL_MAY_BE_NULL_FROM = 7
_OF_THE_REQUEST = (ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_SESSION_TIMEOUT)
"""Refusals that repeat the member id."""


def handle(context: Context, request: Any) -> Awaitable[Mapping[str, Any]]:
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if len(request.protocols) > JOIN_PROTOCOLS_MAX:
        raise MqError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"A member names at most {JOIN_PROTOCOLS_MAX} protocols.",
        )
    for row in request.protocols:
        # the receive buffer is reused before the task begins
        row.metadata = bytes(row.metadata)
    return _respond(context, request)


async def _respond(context: Context, request: Any) -> Mapping[str, Any]:
    try:
        call = call_of(context, request)
        response = await context.node.groups.call(
            request.group_id, call, partial(_waits, context, request)
        )
    except MqError as error:
        member_id = request.member_id if error.code in _OF_THE_REQUEST else ""
        response = {**failed(request, error), "member_id": member_id, "protocol_name": None}
    if (
        context.header.api_version < _PROTOCOL_MAY_BE_NULL_FROM
        and response.get("protocol_name") is None
    ):
        return {**response, "protocol_name": ""}
    return response


def _waits(context: Context, request: Any) -> None:
    """The member holds the received data, within its bounds: the waiting request holds
    nothing large.
    """
    request.protocols, request.reason = (), None
    context.waits()


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
