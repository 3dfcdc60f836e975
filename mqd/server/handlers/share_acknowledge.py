"""ShareAcknowledge (key 79), versions 1 to 2: a member acknowledges records that it has acquired
(KIP-932). Served by the leaders of the partitions.

v2 renewed acquisition locks (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.share_requests import (
    Leading,
    acknowledgements_of,
    by_topic,
    require_share_groups,
    session_key,
)
from mqd.server.slices import Pace
from mqd.share.sessions import FINAL_EPOCH, INITIAL_EPOCH


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    key = session_key(request)
    require(context, Operation.READ, ResourceType.GROUP, key.group_id)
    if request.share_session_epoch == INITIAL_EPOCH:
        raise MqError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    share = context.node.share
    session = share.sessions.use(key, request.share_session_epoch)
    acknowledgements = await acknowledgements_of(context, request)
    leading = Leading(context, key.group_id)
    request.topics = ()
    results = await leading.acknowledge(key.member_id, acknowledgements)
    if request.share_session_epoch == FINAL_EPOCH and session.is_open:
        share.sessions.end(key)
        await share.release(session)
    rows, pace = [], Pace()
    for place, error in results.items():
        await pace.row()
        row: dict[str, Any] = {"error_code": ErrorCode.NONE}
        if error is not None:
            row["error_code"], row["error_message"] = error.code, error.message or None
            row["current_leader"] = leading.leader_of(place, error)
        rows.append((place, row))
    return {
        "error_code": ErrorCode.NONE,
        "acquisition_lock_timeout_ms": share.options.lock_ms(key.group_id),
        "responses": await by_topic(rows),
        "node_endpoints": leading.endpoints(),
    }


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
