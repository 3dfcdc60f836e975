"""AlterShareGroupOffsets (key 91), version 0: sets start offsets of an empty share group (KIP-932).
Served by the coordinator of the group. A group that does not exist is created.

Negative offsets are refused, and 2^63-1. Apache Kafka 4.3 stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_OFFSET_MAX
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context
from mqd.server.partitions import no_such_partition
from mqd.server.share_offsets import set_offsets
from mqd.server.share_requests import UNSUPPORTED, require_share_groups
from mqd.server.slices import Pace, finished_in_slices
from mqd.share.sessions import Place
from mqd.types import Offset


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node, UNSUPPORTED)
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if not request.group_id:
        raise MqError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    _, denied = await finished_in_slices(
        split(context, Operation.READ, ResourceType.TOPIC, request.topics, itemgetter("topic_name"))
    )
    denied_names = {topic.topic_name for topic in denied}
    offsets: dict[Place, Offset] = {}
    rows: dict[str, tuple[UUID, list[tuple[int, MqError | None]]]] = {}
    pace = Pace()
    for topic in request.topics:
        found = context.node.image.topics.get(topic.topic_name)
        is_denied = topic.topic_name in denied_names
        topic_id = UUID(int=0) if found is None else found.topic_id
        _, partitions = rows.setdefault(topic.topic_name, (topic_id, []))
        for one in topic.partitions:
            error: MqError | None = None
            if is_denied:
                error = refusal(ResourceType.TOPIC)
            elif found is None or not 0 <= one.partition_index < len(found.partitions):
                error = no_such_partition()
            elif not 0 <= one.start_offset <= SHARE_OFFSET_MAX:
                error = MqError(
                    ErrorCode.INVALID_REQUEST, f"Invalid start offset {one.start_offset}."
                )
            else:
                offsets[Place(topic_id, one.partition_index)] = one.start_offset
            partitions.append((one.partition_index, error))
            await pace.row()
        await pace.row()
    errors = await set_offsets(context, request.group_id, offsets)
    responses = []
    for name, (topic_id, partitions) in rows.items():
        found_rows = []
        for index, error in partitions:
            found_rows.append(_row(index, error or errors.get(Place(topic_id, index))))
            await pace.row()
        responses.append({"topic_name": name, "topic_id": topic_id, "partitions": found_rows})
        await pace.row()
    return {"error_code": ErrorCode.NONE, "responses": responses}


def _row(partition: int, error: MqError | None) -> dict[str, Any]:
    if error is None:
        return {"partition_index": partition, "error_code": ErrorCode.NONE}
    return {
        "partition_index": partition,
        "error_code": error.code,
        "error_message": error.message or None,
    }


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "responses": []}
