"""ListOffsets, v1 to v11: offsets by timestamp, and the special ones.

v2 isolation level. v4 leader epochs. v6 flexible. v7 -3, the largest timestamp (KIP-734). v8 -4,
the earliest local offset. v9 -5, the end of tiered storage. v11 -6, the first offset not yet
tiered: mqd has no tiered storage. A special timestamp that is newer than the request's version is
refused with UNSUPPORTED_VERSION, as Apache Kafka does. Likewise a duplicate partition gets one row
with INVALID_REQUEST, before the topic's other rows. A duplicate topic is one topic of the response.

A new leader does not know at once how much its predecessor had committed. Until its high watermark
has reached the start of its epoch, it does not return the end offset. That could be below the
position of a consumer (KIP-207).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.log.disk.lookup import FoundRecord, Lookup
from mqd.protocol.slices import all_slices
from mqd.replica.partition import Partition
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import (
    SLICE_ROWS,
    DecompressingSlices,
    finished_with_decompression,
    first_slice,
)
from mqd.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

_CHEAP = (LATEST, EARLIEST, EARLIEST_LOCAL)
_WEIGHT_OF_A_LOOKUP = SLICE_ROWS // 2
"""Two of them are a slice: it opens a file, and reads one window of headers and a small batch."""

_READ_COMMITTED = 1
_NOWHERE = (NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)
_OFFSET_NOT_AVAILABLE_FROM = 5


def handle(context: Context, request: Any) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    work = _responding(context, request)
    if (
        len(request.topics) > SLICE_ROWS
        or sum(len(topic.partitions) for topic in request.topics) > SLICE_ROWS
    ):
        return finished_with_decompression(
            work, context.node.batch_work, context.peer, context.is_wanted
        )
    if all(one.timestamp in _CHEAP for topic in request.topics for one in topic.partitions):
        return all_slices(work)
    finished = first_slice(work)  # most lookups take a fraction of a millisecond
    if isinstance(finished, tuple):
        return finished[0]
    return finished_with_decompression(
        work, context.node.batch_work, context.peer, context.is_wanted, finished
    )


def _responding(context: Context, request: Any) -> DecompressingSlices[Mapping[str, Any]]:
    """In slices. A lookup by time reads the disk: one slice each, or more."""
    named: dict[str, dict[int, Any]] = {}
    repeated: dict[str, set[int]] = {}
    for topic in request.topics:
        partitions = named.setdefault(topic.name, {})
        yield 1
        for one in topic.partitions:
            if partitions.setdefault(one.partition_index, one) is not one:
                repeated.setdefault(topic.name, set()).add(one.partition_index)
            yield 1
    topics = []
    denied = []
    for name, partitions in named.items():
        rows = []
        if not is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            denied.append(name)
            yield 1
            continue
        for index in sorted(repeated.get(name, ())):
            del partitions[index]
            rows.append({"partition_index": index, "error_code": int(ErrorCode.INVALID_REQUEST)})
            yield 1
        for one in partitions.values():
            rows.append((yield from _row(context, request, name, one)))
            yield _WEIGHT_OF_A_LOOKUP if one.timestamp not in _CHEAP else 1
        topics.append({"name": name, "partitions": rows})
        yield 1
    for name in denied:
        rows = [
            {"partition_index": index, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            for index in named[name]
        ]
        topics.append({"name": name, "partitions": rows})
        yield 1 + len(rows)
    return {"topics": topics}


def _row(
    context: Context, request: Any, topic: str, one: Any
) -> DecompressingSlices[dict[str, Any]]:
    try:
        timestamp, offset, leader_epoch = yield from _look_up(context, request, topic, one)
    except MqError as error:
        return {"partition_index": one.partition_index, "error_code": int(error.code)}
    return {
        "partition_index": one.partition_index,
        "error_code": 0,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _look_up(
    context: Context, request: Any, topic: str, one: Any
) -> DecompressingSlices[tuple[int, int, int]]:
    """(timestamp, offset, leader epoch) of the requested offset."""
    timestamp = one.timestamp
    if timestamp < 0 and context.header.api_version < _SINCE.get(timestamp, 1 << 15):
        raise MqError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"special timestamp {timestamp} in version {context.header.api_version}",
        )
    partition = leading(context.node, topic, one.partition_index, one.current_leader_epoch)
    log = partition.log
    limit = (
        partition.last_stable_offset
        if request.isolation_level == _READ_COMMITTED
        else partition.high_watermark
    )
    end_is_known = partition.high_watermark >= partition.epoch_start_offset
    if timestamp == LATEST:
        if not end_is_known:
            raise _not_available(context)
        return NO_TIMESTAMP, limit, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    logs = context.node.logs
    looking = (
        logs.record_with_max_timestamp(log, limit)
        if timestamp == MAX_TIMESTAMP
        else logs.offset_for_timestamp(log, timestamp, limit)
    )
    found = yield from _while_leading(context, topic, one, partition, looking)
    if found is None:
        if not end_is_known:
            raise _not_available(context)
        return _NOWHERE
    offset, found_timestamp, leader_epoch = found
    return found_timestamp, offset, leader_epoch


def _while_leading(
    context: Context,
    topic: str,
    one: Any,
    partition: Partition,
    looking: Lookup,
) -> Lookup:
    """`looking`, as long as this node leads the partition in the same epoch: otherwise the
    log may be removed or cut. MqError.
    """
    log, leader_epoch = partition.log, partition.leader_epoch
    while True:
        try:
            step = next(looking)
        except StopIteration as end:
            found: FoundRecord | None = end.value
            return found
        yield step
        partition = leading(context.node, topic, one.partition_index, one.current_leader_epoch)
        if partition.log is not log or partition.leader_epoch != leader_epoch:
            raise MqError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader has changed during the lookup: refresh the metadata",
            )


def _not_available(context: Context) -> MqError:
    known = context.header.api_version >= _OFFSET_NOT_AVAILABLE_FROM
    code = ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE
    return MqError(
        code, "this leader is new and does not know yet how much is committed: try again"
    )
