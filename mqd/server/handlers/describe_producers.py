"""DescribeProducers, v0: the producer ids in the state of a replica (KIP-664).

Followers respond too, as in Apache Kafka: a search for hanging transactions may query one broker
for all of its replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, refusal
from mqd.server.context import Context
from mqd.server.partitions import unknown_partition
from mqd.server.slices import Pace, listed_in_slices, others_first
from mqd.topic_names import validate_topic_name
from mqd.types import TopicPartition


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    """In slices: one partition may have a hundred thousand producer ids.

    A partition that is named twice gets one row.
    """
    wanted: dict[str, dict[int, None]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.row(1 + len(topic.partition_indexes))
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        rows: list[Mapping[str, Any]] = []
        await pace.row()
        refused = _topic_error(context, name)
        for index in indexes:
            await others_first()
            if refused is not None:
                rows.append({"partition_index": index, **refused})
                continue
            rows.append(await _partition(context, name, index))
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _topic_error(context: Context, name: str) -> Mapping[str, Any] | None:
    """The error of each partition of a topic that the client may not READ."""
    try:
        validate_topic_name(name)
    except MqError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    if is_authorized(context, Operation.READ, ResourceType.TOPIC, name):
        return None
    denied = refusal(ResourceType.TOPIC)
    return {"error_code": denied.code, "error_message": denied.message}


async def _partition(context: Context, topic: str, index: int) -> Mapping[str, Any]:
    partition = context.node.replica.get(TopicPartition(topic, index))
    if partition is None or partition.is_lost:
        error = unknown_partition(context.node, topic.encode(), None, index)
        if partition is not None:
            failure = partition.log.failure
            reason = failure.reason if failure is not None else ""
            error = MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        return {
            "partition_index": index,
            "error_code": int(error.code),
            "error_message": error.message or None,
        }
    producers = (
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "current_txn_start_offset": producer.current_txn_first_offset,
        }
        for producer in partition.log.producers.entries()
    )
    return {
        "partition_index": index,
        "error_code": 0,
        "active_producers": await listed_in_slices(producers),
    }
