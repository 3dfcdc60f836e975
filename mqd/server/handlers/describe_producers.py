"""DescribeProducers, v0: the producer ids that a partition's leader remembers (KIP-664)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.partitions import leading


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    topics = []
    for topic in request.topics:
        rows = []
        for index in topic.partition_indexes:
            try:
                partition = leading(context.node, topic.name, index)
            except MqError as error:
                rows.append({"partition_index": index, "error_code": int(error.code), "error_message": error.message or None})
                continue
            producers = [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "last_sequence": producer.last_sequence,
                    "last_timestamp": producer.timestamp,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "current_txn_start_offset": producer.current_txn_first_offset,
                }
                for producer in partition.log.producers.entries()
            ]
            rows.append({"partition_index": index, "error_code": 0, "active_producers": producers})
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}
