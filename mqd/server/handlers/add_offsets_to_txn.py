"""AddOffsetsToTxn (key 25), versions 0 to 4: offsets of a group will be committed in a transaction.

v2 PRODUCER_FENCED. v3 flexible. v4 TRANSACTION_ABORTABLE. To the coordinator of transactions this
is one more partition: that of `__consumer_offsets` which has the group.
"""

from __future__ import annotations

from typing import Any

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import AddPartitions
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.handlers.transactions import known_to
from mqd.types import TopicPartition

_FENCED_SINCE = 2


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if not request.transactional_id:
        raise MqError(ErrorCode.INVALID_REQUEST, "A transactional id has at least one character.")
    groups = context.node.groups
    # the producer has not searched for the group's coordinator
    if groups.topic not in context.node.image.topics:
        context.node.controller.create_topic_soon(groups.topic)
    partition = TopicPartition(groups.topic, groups.partition_of(request.group_id))
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        await context.node.transactions.call(
            request.transactional_id,
            AddPartitions(request.transactional_id, producer, (partition,)),
        )
    except MqError as error:
        raise known_to(context.header.api_version, error, fenced_since=_FENCED_SINCE) from error
    return {"error_code": ErrorCode.NONE}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
