"""DeleteShareGroupOffsets (key 92), version 0: deletes start offsets of an empty share group
(KIP-932). Served by the coordinator of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context
from mqd.server.partitions import no_such_partition
from mqd.server.share_offsets import delete_offsets
from mqd.server.share_requests import UNSUPPORTED, require_share_groups
from mqd.server.slices import Pace, finished_in_slices

_NO_TOPIC = UUID(int=0)


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node, UNSUPPORTED)
    require(context, Operation.DELETE, ResourceType.GROUP, request.group_id)
    if not request.group_id:
        raise MqError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    names = dict.fromkeys(topic.topic_name for topic in request.topics)
    allowed, denied = await finished_in_slices(
        split(context, Operation.READ, ResourceType.TOPIC, names, str)
    )
    topics = context.node.image.topics
    ids = {name: topics[name].topic_id for name in allowed if name in topics}
    deleted = await delete_offsets(context, request.group_id, list(ids.values()))
    responses = [_row(name, error=refusal(ResourceType.TOPIC)) for name in denied]
    pace = Pace()
    for name in allowed:
        if name not in ids:
            responses.append(_row(name, error=no_such_partition()))
        elif ids[name] not in deleted:
            responses.append(_row(name, error=_nothing_to_delete()))
        else:
            responses.append(_row(name, ids[name]))
        await pace.row()
    return {"error_code": ErrorCode.NONE, "responses": responses}


def _nothing_to_delete() -> MqError:
    return MqError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete."
    )


def _row(name: str, topic_id: UUID = _NO_TOPIC, error: MqError | None = None) -> dict[str, Any]:
    return {
        "topic_name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or None,
    }


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "responses": []}
