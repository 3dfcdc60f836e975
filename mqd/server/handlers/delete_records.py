"""DeleteRecords, v0 to v2: move a partition's start to an offset below its high watermark; -1 means the high watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.types import NO_OFFSET

_HIGH_WATERMARK = -1


def handle(context: Context, request: Any) -> Mapping[str, Any]:
    topics = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            try:
                row = {"low_watermark": _delete(context, topic.name, one.partition_index, one.offset), "error_code": 0}
            except MqError as error:
                row = {"low_watermark": NO_OFFSET, "error_code": int(error.code)}
            except StorageError:
                row = {"low_watermark": NO_OFFSET, "error_code": int(ErrorCode.KAFKA_STORAGE_ERROR)}
            rows.append({"partition_index": one.partition_index, **row})
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


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
