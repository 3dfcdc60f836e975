"""DeleteRecords, v0 to v2: move a partition's start to an offset below its high watermark; -1 means
the high watermark.

The response waits until every in-sync replica has deleted the records (the low watermark). Its
timeout is REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.replica.partition import Partition
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import Pace, listed_in_slices, others_first
from mqd.types import NO_OFFSET, Offset

_HIGH_WATERMARK = -1


class _Waiting(NamedTuple):
    """A row of the response. It is complete when every in-sync replica begins at `offset`."""

    row: dict[str, Any]
    partition: Partition
    offset: Offset


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    """Delete from one partition after another, each in a slice: checkpoints and files change. If a
    partition is repeated, its last offset counts.

    Then wait for the followers, up to `timeout_ms`. They get the new start with their next fetch,
    and report it with the one after that.
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
        may_delete = is_authorized(context, Operation.DELETE, ResourceType.TOPIC, name)
        for index, offset in offsets.items():
            await others_first()
            row: dict[str, Any] = {
                "partition_index": index,
                "low_watermark": NO_OFFSET,
                "error_code": 0,
            }
            rows.append(row)
            if not may_delete:
                row["error_code"] = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
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
    """Whether the row is complete now."""
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
            f"Records of the internal topic '{topic}' cannot be deleted: they are the state of "
            "coordinators.",
        )
    if "delete" not in log.config.cleanup_policy:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"Records of topic '{topic}' cannot be deleted by offset: its cleanup.policy lacks "
            "'delete'.",
        )
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise MqError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is outside 0 to {partition.high_watermark}, the high watermark.",
        )
    if offset > log.log_start_offset:
        context.node.replica.delete_records(partition, offset)
    return partition, offset
