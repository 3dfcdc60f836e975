"""DeleteRecords, v0 to v2: move a partition's start to an offset below its high watermark; -1 means
the high watermark.

Answered when the records are gone from every in-sync replica (the low watermark), or with
REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.replica.partition import Partition
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import Pace, listed_in_slices, others_first
from mqd.types import NO_OFFSET, Offset

_HIGH_WATERMARK = -1


class _Waiting(NamedTuple):
    """A row of the answer that is complete when every in-sync replica begins at `offset`."""

    row: dict[str, Any]
    partition: Partition
    offset: Offset


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    """One partition after another, each a turn: checkpoints and files change. Of a partition named
    twice the last offset counts.

    Then the followers: they learn the new start with their next fetch, and tell with the one after
    that (`timeout_ms` bounds it).
    """
    deadline = context.node.clock.monotonic() + request.timeout_ms / 1000
    wanted: dict[str, dict[int, int]] = {}
    pace = Pace()
    for topic in request.topics:
        await pace.row()
        wanted.setdefault(topic.name, {}).update(
            await listed_in_slices((one.partition_index, one.offset) for one in topic.partitions)
        )
    topics = []
    waiting: list[_Waiting] = []
    for name, offsets in wanted.items():
        rows: list[dict[str, Any]] = []
        await pace.row()
        for index, offset in offsets.items():
            await others_first()
            row: dict[str, Any] = {
                "partition_index": index,
                "low_watermark": NO_OFFSET,
                "error_code": 0,
            }
            rows.append(row)
            try:
                partition, start = _delete(context, name, index, offset)
            except MqError as error:
                row["error_code"] = int(error.code)
            except StorageError:
                row["error_code"] = int(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                waiting.append(_Waiting(row, partition, start))
        topics.append({"name": name, "partitions": rows})
    await _wait_for_followers(context, waiting, deadline)
    return {"topics": topics}


async def _wait_for_followers(context: Context, waiting: list[_Waiting], deadline: float) -> None:
    replica, clock = context.node.replica, context.node.clock
    with trio.move_on_after(max(0.0, deadline - clock.monotonic())):
        while True:
            moved = replica.low_watermark_moved
            waiting = [one for one in waiting if not _is_done(one)]
            if not waiting:
                return
            await moved.wait()
    for row, partition, _ in waiting:
        row.update(
            low_watermark=partition.membership.low_watermark(),
            error_code=int(ErrorCode.REQUEST_TIMED_OUT),
        )


def _is_done(one: _Waiting) -> bool:
    """Completes the row where nothing is left to wait for."""
    partition = one.partition
    if not partition.serves:
        one.row["error_code"] = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return True
    low = partition.membership.low_watermark()
    if low < one.offset:
        return False
    one.row["low_watermark"] = low
    return True


def _delete(context: Context, topic: str, index: int, offset: int) -> tuple[Partition, Offset]:
    """The partition, and where it begins from now on."""
    partition = leading(context.node, topic, index)
    log = partition.log
    if partition.is_internal:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"records of {topic} are not deleted: they are what its coordinators know",
        )
    if "delete" not in log.config.cleanup_policy:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            "records of a topic that is only compacted cannot be deleted by offset",
        )
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise MqError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is beyond the high watermark {partition.high_watermark}",
        )
    if offset > log.log_start_offset:
        context.node.replica.delete_records(partition, offset)
    return partition, offset
