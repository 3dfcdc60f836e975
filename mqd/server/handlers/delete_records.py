"""DeleteRecords, v0 to v2: move a partition's start to an offset below its high watermark; -1 means the high watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trio.lowlevel import checkpoint

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.types import NO_OFFSET

_HIGH_WATERMARK = -1


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    """One partition after another, each a turn: checkpoints and files change. Of a partition named twice the last offset counts."""
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update((one.partition_index, one.offset) for one in topic.partitions)
    topics = []
    for name, offsets in wanted.items():
        rows = []
        for index, offset in offsets.items():
            await checkpoint()
            rows.append({"partition_index": index, **_row(context, name, index, offset)})
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _row(context: Context, topic: str, index: int, offset: int) -> Mapping[str, Any]:
    try:
        return {"low_watermark": _delete(context, topic, index, offset), "error_code": 0}
    except MqError as error:
        return {"low_watermark": NO_OFFSET, "error_code": int(error.code)}
    except StorageError:
        return {"low_watermark": NO_OFFSET, "error_code": int(ErrorCode.KAFKA_STORAGE_ERROR)}


def _delete(context: Context, topic: str, index: int, offset: int) -> int:
    """The partition's start afterwards."""
    partition = leading(context.node, topic, index)
    log = partition.log
    if "delete" not in log.config.cleanup_policy:
        raise MqError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted by offset")
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise MqError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is beyond the high watermark {partition.high_watermark}")
    if offset > log.log_start_offset:
        context.node.logs.delete_records(log, offset)
    return log.log_start_offset
