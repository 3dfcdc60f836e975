"""OffsetForLeaderEpoch, v2 to v4: where a leader epoch ends in this log, to find where two
logs part (KIP-101, KIP-320).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, is_authorized_for_cluster
from mqd.server.context import Context
from mqd.server.partitions import leading


def handle(context: Context, request: Any) -> Generator[int, None, Mapping[str, Any]]:
    topics = []
    for_all = is_authorized_for_cluster(context, Operation.CLUSTER_ACTION, is_logged=False)
    for topic in request.topics:
        rows: list[Mapping[str, Any]] = []
        allowed = for_all or is_authorized(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic
        )
        for one in topic.partitions:
            rows.append(
                _row(context, topic.topic, one)
                if allowed
                else {
                    "partition": one.partition,
                    "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                }
            )
            yield 1
        topics.append({"topic": topic.topic, "partitions": rows})
        yield 1
    return {"topics": topics}


def _row(context: Context, topic: str, one: Any) -> Mapping[str, Any]:
    try:
        partition = leading(context.node, topic, one.partition, one.current_leader_epoch)
    except MqError as error:
        return {"partition": one.partition, "error_code": int(error.code)}
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for(one.leader_epoch, log.written_end_offset)
    return {
        "partition": one.partition,
        "error_code": 0,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }
