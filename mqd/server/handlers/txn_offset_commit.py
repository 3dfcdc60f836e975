"""TxnOffsetCommit (key 28), versions 0 to 5: a transaction commits offsets of a group; they take
effect when the transaction commits. Served by the group's coordinator, after the transaction
coordinator has confirmed that the transaction is open (KIP-890).

v3 adds the member and generation that commit (KIP-447). v5 adds the coordinator's partition to the
transaction implicitly.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.portions import respond_in_portions, with_fields
from mqd.server.slices import finished_in_slices
from mqd.server.verification import SupportedOperation, offsets_confirmed

_LOADING_IS_KNOWN_SINCE = 2
_ABORTABLE_FROM, _ADDS_FROM = 4, 5


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    topics, denied = await finished_in_slices(
        split(context, Operation.READ, ResourceType.TOPIC, request.topics)
    )
    refused: list[dict[str, Any]] = []
    if denied:
        work = failed(with_fields(request, topics=denied), refusal(ResourceType.TOPIC))
        refused = (await finished_in_slices(work))["topics"]
        if not topics:
            return {"topics": refused}
        request = with_fields(request, topics=topics)
    if not request.group_id:
        raise MqError(ErrorCode.INVALID_GROUP_ID)
    producer = request.producer_id, request.producer_epoch
    supported = SupportedOperation.of(context.header.api_version, _ABORTABLE_FROM, _ADDS_FROM)

    async def call(portion: Any) -> Mapping[str, Any]:
        async with offsets_confirmed(
            context.node, request.group_id, request.transactional_id, producer, supported
        ):
            return await context.node.groups.call(request.group_id, call_of(context, portion))

    try:
        response = await respond_in_portions(request, call, failed)
    except MqError as error:
        if (
            error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            and context.header.api_version < _LOADING_IS_KNOWN_SINCE
        ):
            # the other stops Java's producers before 2.0 (KAFKA-7296)
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
        raise
    return {**response, "topics": [*refused, *response["topics"]]} if refused else response


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """There is no error for the whole request: each partition has it."""
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            rows.append({"partition_index": row.partition_index, "error_code": int(error.code)})
            yield 1
        topics.append({"name": topic.name, "partitions": rows})
        yield 1
    return {"topics": topics}
