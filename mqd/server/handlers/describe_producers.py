"""DescribeProducers, v0: the producer ids that a partition's leader remembers (KIP-664)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio.lowlevel import checkpoint

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import listed_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    """In slices: one partition may remember a hundred thousand. A partition that is named twice is answered once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        rows = []
        for index in indexes:
            await checkpoint()
            rows.append(await _partition(context, name, index))
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


async def _partition(context: Context, topic: str, index: int) -> Mapping[str, Any]:
    try:
        partition = leading(context.node, topic, index)
    except MqError as error:
        return {"partition_index": index, "error_code": int(error.code), "error_message": error.message or None}
    producers = (
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "current_txn_start_offset": producer.current_txn_first_offset,
        }
        for producer in list(partition.log.producers.entries())
    )
    return {"partition_index": index, "error_code": 0, "active_producers": await listed_in_slices(producers)}
