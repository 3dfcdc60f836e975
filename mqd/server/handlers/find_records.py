"""FindRecords, v0: the records with a key in one partition. An API of mqd.

The leader searches its log up to the high watermark, or with `read_committed` up to the last stable
offset (log/disk/key_search.py). One request is bounded by bytes read, records, and time; its
response says where to go on. As lookups by time, lookups by key have places of their own, give way
to each other, and end with their connection. The client needs READ on the topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    FIND_KEY_BYTES_MAX,
    FIND_SCANNED_BYTES_MAX,
    FIND_SECONDS_MAX,
    FOUND_BYTES_MAX,
    FOUND_RECORDS_MAX,
)
from mqd.log.disk.key_search import (
    FoundRecord,
    KeyQuery,
    KeySearchResult,
    KeySearchSlices,
)
from mqd.replica.partition import Partition
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.partitions import leading
from mqd.server.slices import DecompressingSlices, finished_with_decompression

_READ_COMMITTED = 1
_LOG_END = -1


def handle(context: Context, request: Any) -> Awaitable[Mapping[str, Any]]:
    require(context, Operation.READ, ResourceType.TOPIC, request.topic)
    _check(request)
    return finished_with_decompression(
        _responding(context, request), context.node.batch_work, context.peer, context.is_wanted
    )


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": int(error.code), "error_message": error.message}


def _check(request: Any) -> None:
    problem = None
    if len(request.key) > FIND_KEY_BYTES_MAX:
        problem = f"a key of {len(request.key)} bytes; the maximum is {FIND_KEY_BYTES_MAX}"
    elif request.offset < _LOG_END:
        problem = f"offset {request.offset}"
    elif request.max_records < 1 or request.max_bytes < 1:
        problem = f"{request.max_records} records of {request.max_bytes} bytes at most"
    elif request.isolation_level not in (0, _READ_COMMITTED):
        problem = f"isolation level {request.isolation_level}"
    if problem is not None:
        raise MqError(ErrorCode.INVALID_REQUEST, f"cannot look up {problem}")


def _responding(context: Context, request: Any) -> DecompressingSlices[Mapping[str, Any]]:
    partition = leading(
        context.node, request.topic, request.partition_index, request.current_leader_epoch
    )
    query = _query(partition, request)
    ends_at = context.node.clock.monotonic() + FIND_SECONDS_MAX
    result, search = context.node.logs.key_lookups.find(
        partition.log,
        query,
        read_committed=request.isolation_level == _READ_COMMITTED,
        is_over=lambda: context.node.clock.monotonic() >= ends_at,
    )
    error: MqError | None = None
    try:
        yield from _while_leading(context, request, partition, search)
    except MqError as found:
        if found.code not in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE):
            raise
        error = found
    context.consumed(sum(found.size for found in result.records))
    return _response(partition, result, error)


def _query(partition: Partition, request: Any) -> KeyQuery:
    log = partition.log
    limit = (
        partition.last_stable_offset
        if request.isolation_level == _READ_COMMITTED
        else partition.high_watermark
    )
    offset = request.offset
    if offset == _LOG_END:
        offset = limit
    return KeyQuery(
        key=bytes(request.key),
        offset=max(offset, log.log_start_offset),
        limit_offset=limit,
        since=request.since,
        until=request.until,
        newest_first=request.newest_first,
        records_max=min(request.max_records, FOUND_RECORDS_MAX),
        bytes_max=min(request.max_bytes, FOUND_BYTES_MAX),
        scanned_bytes_max=FIND_SCANNED_BYTES_MAX,
    )


def _while_leading(
    context: Context, request: Any, partition: Partition, search: KeySearchSlices
) -> KeySearchSlices:
    """`search`, as long as this node leads the partition in the same epoch: otherwise the log may
    be removed or cut. MqError.
    """
    log, leader_epoch = partition.log, partition.leader_epoch
    for step in search:
        yield step
        now = leading(
            context.node, request.topic, request.partition_index, request.current_leader_epoch
        )
        if now.log is not log or now.leader_epoch != leader_epoch:
            raise MqError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the leader has changed during the lookup: refresh the metadata",
            )


def _response(
    partition: Partition, result: KeySearchResult, error: MqError | None
) -> Mapping[str, Any]:
    return {
        "error_code": 0 if error is None else int(error.code),
        "error_message": None if error is None else error.message,
        "leader_epoch": partition.leader_epoch,
        "high_watermark": partition.high_watermark,
        "next_offset": result.next_offset,
        "is_complete": result.is_complete,
        "scanned_bytes": result.scanned_bytes,
        "segments_read": result.segments_read,
        "segments_filtered": result.segments_filtered,
        "segments_unindexed": result.segments_unindexed,
        "records": [_row(found) for found in result.records],
    }


def _row(found: FoundRecord) -> Mapping[str, Any]:
    record = found.record
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "leader_epoch": found.leader_epoch,
        "value": record.value,
        "headers": [{"name": name.encode(), "value": value} for name, value in record.headers],
    }
