"""OffsetForLeaderEpoch, v2 to v4: where a leader epoch ends in this log, to find where two logs part (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from trio.lowlevel import checkpoint

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import SLICE_ROWS, listed_in_slices


def handle(context: Context, request: Any) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    if sum(len(topic.partitions) for topic in request.topics) > SLICE_ROWS:
        return _answer_in_slices(context, request)
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [_row(context, topic.topic, one) for one in topic.partitions]}
            for topic in request.topics
        ]
    }


async def _answer_in_slices(context: Context, request: Any) -> Mapping[str, Any]:
    topics = []
    for topic in request.topics:
        rows = await listed_in_slices(_row(context, topic.topic, one) for one in topic.partitions)
        topics.append({"topic": topic.topic, "partitions": rows})
        await checkpoint()
    return {"topics": topics}


def _row(context: Context, topic: str, one: Any) -> Mapping[str, Any]:
    try:
        partition = leading(context.node, topic, one.partition, one.current_leader_epoch)
    except MqError as error:
        return {"partition": one.partition, "error_code": int(error.code)}
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for(one.leader_epoch, log.written_end_offset)
    return {"partition": one.partition, "error_code": 0, "leader_epoch": epoch, "end_offset": end_offset}
