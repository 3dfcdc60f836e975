"""Finding batches by offset (Fetch) and records by time (ListOffsets). A core; `opened` has a segment's file and indexes at hand.

A fetch that goes on where another ended, or where a write ended, finds its place in `PartitionLog.positions` and reads
nothing; any other reads one window of headers. Only a lookup by time looks into a batch, and only into the one that
holds the answer, as far as looking.py goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqd.log.looking import first_record_since
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import scan_batches
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import FileRange


class Read(NamedTuple):
    """Whole batches as ranges of files; to be sent while the ranges are held."""

    ranges: list[FileRange]
    first_offset: Offset
    """The offset asked for; the first batch may begin before it."""
    next_offset: Offset
    """Where to go on: the end of the last batch, or `first_offset` when there is none."""
    size: int


Opened = Callable[[PartitionLog, Segment], None]


def find_range(
    log: PartitionLog, offset: Offset, max_bytes: int, limit_offset: Offset, min_one: bool, opened: Opened
) -> tuple[Segment, int, int, Offset] | None:
    """(segment, start, end, next offset): whole batches from the one that holds `offset` on, or None when none may be given.

    They lie in one segment, below `limit_offset` and the written end, and within `max_bytes` but for the first (`min_one`).
    BadBatch when the file is not what it was.
    """
    limit = limit_offset if limit_offset < log.written_end_offset else log.written_end_offset
    if offset >= limit:
        return None
    positions = log.positions
    place = positions.get(offset)
    if place is None:
        place = _seek(log, offset, opened)
        if place is None:
            return None
    segment, start = place
    if segment.file is None:
        opened(log, segment)
    if limit >= segment.next_offset:
        end, next_offset = segment.size, segment.next_offset
    elif (border := positions.get(limit)) is not None and border[0] is segment:
        end, next_offset = border[1], limit
    else:
        end, next_offset = -1, limit
    if end < 0 or end - start > max_bytes:
        if segment.index is None:
            opened(log, segment)
        end, next_offset = segment.cut(start, max_bytes, limit, min_one)
        if end > start and next_offset < segment.next_offset:
            log.remember(next_offset, segment, end)
    if end <= start:
        return None
    if next_offset == segment.next_offset and segment is not log.active:
        log.remember(next_offset, log.segments[log.segment_index(next_offset)], 0)
    return segment, start, end, next_offset


def _seek(log: PartitionLog, offset: Offset, opened: Opened) -> tuple[Segment, int] | None:
    for segment in log.segments_from(offset):
        opened(log, segment)
        position = segment.seek(offset)
        if position is not None:
            return segment, position
    return None


class FoundRecord(NamedTuple):
    """A record that ListOffsets names. `timestamp` in ms."""

    offset: Offset
    timestamp: int
    leader_epoch: int


def offset_for_timestamp(log: PartitionLog, timestamp: int, limit_offset: Offset, opened: Opened) -> FoundRecord | None:
    """The first record whose timestamp is `timestamp` or later, between the log start and `limit_offset` (exclusive)."""
    for segment in log.segments_from(log.log_start_offset):
        if segment.base_offset >= limit_offset:
            return None
        if segment.size and segment.max_timestamp >= timestamp:
            opened(log, segment)
            assert segment.time_index is not None
            found = _search(log, segment, segment.time_index.offset_before(timestamp), timestamp, limit_offset)
            if found is not None:
                return found
    return None


def record_with_max_timestamp(log: PartitionLog, limit_offset: Offset, opened: Opened) -> FoundRecord | None:
    """The first record with the largest timestamp of all below `limit_offset`."""
    best: Segment | None = None
    for segment in log.segments_from(log.log_start_offset):
        if segment.size and segment.base_offset < limit_offset and (best is None or segment.max_timestamp > best.max_timestamp):
            best = segment
    if best is None:
        return None
    opened(log, best)
    found = _search(log, best, best.max_timestamp_offset, best.max_timestamp, limit_offset)
    if found is None:  # the youngest batch is at or beyond the limit, or before the log start: look at what is between
        segments = log.segments_from(log.log_start_offset)
        timestamps = (header.max_timestamp for segment in segments for header in _headers(log, segment, limit_offset, opened))
        youngest = max(timestamps, default=-1)
        return offset_for_timestamp(log, youngest, limit_offset, opened) if youngest >= 0 else None
    return found


def _headers(log: PartitionLog, segment: Segment, limit_offset: Offset, opened: Opened) -> Iterator[BatchHeader]:
    opened(log, segment)
    assert segment.file is not None
    start = segment.seek(log.log_start_offset)
    if start is not None:
        for _position, header, _view in scan_batches(segment.file.read_at, start, segment.size):
            if header.last_offset >= limit_offset:
                return
            yield header


def _search(log: PartitionLog, segment: Segment, offset: Offset, timestamp: int, limit_offset: Offset) -> FoundRecord | None:
    """The first record from the batch of `offset` on that is not older than `timestamp`."""
    assert segment.file is not None
    start = segment.seek(max(offset, log.log_start_offset))
    if start is None:
        return None
    for _position, header, view in scan_batches(segment.file.read_at, start, segment.size):
        if header.base_offset >= limit_offset:
            return None
        if header.max_timestamp >= timestamp:
            found = first_record_since(view, header, timestamp, log.log_start_offset, limit_offset, log.config.max_message_bytes)
            if found is not None:
                return FoundRecord(*found, header.partition_leader_epoch)
    return None
