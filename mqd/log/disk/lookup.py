"""Finds batches by offset (Fetch) and records by time (ListOffsets).

A fetch that continues where another fetch or a write ended finds its position in
`PartitionLog.positions` and reads nothing. Any other fetch reads one window of batch headers. Only
a lookup by time decodes records, and only those of the batch with the result, within the bounds of
record_inspection.py. A worker thread decompresses a large batch, once. The lookup may walk many
headers, so it runs in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from mqd.limits import INSPECTED_BYTES_MAX
from mqd.log.decompression import Decompression
from mqd.log.disk.segment_reading import end_of_range, seek, walk
from mqd.log.partition_log import PartitionLog
from mqd.log.record_inspection import first_record_since
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, BatchHeader, parse_header
from mqd.protocol.files import scan_batches
from mqd.protocol.slices import WHOLE_SLICE, Slices
from mqd.types import NO_TIMESTAMP, Offset

if TYPE_CHECKING:
    from mqd.io.disk import File, FileRange


class Read(NamedTuple):
    """Whole batches as ranges of files. Each range holds a reference to its file."""

    ranges: list[FileRange]
    first_offset: Offset
    """The requested offset. The first batch may begin before it."""
    next_offset: Offset
    """The offset after the last batch; `first_offset` if there is none."""
    size: int


OpenSegment = Callable[[PartitionLog, Segment], None]
"""Opens the file and the indexes of a segment."""


def find_range(
    log: PartitionLog,
    offset: Offset,
    max_bytes: int,
    limit_offset: Offset,
    min_one: bool,
    open_segment: OpenSegment,
) -> tuple[Segment, int, int, Offset] | None:
    """(segment, start, end, next offset) of whole batches from the one with `offset` on. None: no
    batch may be read.

    The batches are in one segment, below `limit_offset` and the written end. They have at most
    `max_bytes`; with `min_one` the first batch may be larger. BadBatch if the file is damaged.
    """
    limit = limit_offset if limit_offset < log.written_end_offset else log.written_end_offset
    if offset >= limit:
        return None
    positions = log.positions
    segment_and_start = positions.get(offset)
    if segment_and_start is None:
        segment_and_start = _seek(log, offset, open_segment)
        if segment_and_start is None:
            return None
    segment, start = segment_and_start
    if segment.file is None:
        open_segment(log, segment)
    if limit >= segment.next_offset:
        end, next_offset = segment.size, segment.next_offset
    else:
        end, next_offset = -1, limit
        limit_position = positions.get(limit)
        if limit_position is not None:
            limit_segment, position = limit_position
            if limit_segment is segment:
                end = position
    if end < 0 or end - start > max_bytes:
        if segment.index is None:
            open_segment(log, segment)
        end, next_offset = end_of_range(segment, start, max_bytes, limit, min_one)
        if end > start and next_offset < segment.next_offset:
            log.remember(next_offset, segment, end)
    if end <= start:
        return None
    if next_offset == segment.next_offset and segment is not log.active:
        log.remember(next_offset, log.segments[log.segment_index(next_offset)], 0)
    return segment, start, end, next_offset


def _seek(
    log: PartitionLog, offset: Offset, open_segment: OpenSegment
) -> tuple[Segment, int] | None:
    for segment in log.segments_from(offset):
        open_segment(log, segment)
        position = seek(segment, offset)
        if position is not None:
            return segment, position
    return None


# -- by time


class FoundRecord(NamedTuple):
    """The result of a lookup by time. `timestamp` in ms."""

    offset: Offset
    timestamp: int
    leader_epoch: int


Lookup = Generator[int | Decompression, None, FoundRecord | None]
"""In slices. A yielded decompression is for a worker thread."""
HEADERS_AT_ONCE = 500
"""Headers in one slice of a lookup by time: a few milliseconds if each needs a read."""


def offset_for_timestamp(
    log: PartitionLog, timestamp: int, limit_offset: Offset, open_segment: OpenSegment
) -> Lookup:
    """The first record with `timestamp` or later, from the log start to `limit_offset` (exclusive).
    In slices.

    The log may change in each pause: segments are removed, cleaned and closed. So only an offset
    and a copy of a batch are kept over a pause. Before it resumes, the caller checks that it may
    still read this log.
    """
    return (
        yield from _first_since(log, log.log_start_offset, timestamp, limit_offset, open_segment)
    )


def record_with_max_timestamp(
    log: PartitionLog, limit_offset: Offset, open_segment: OpenSegment
) -> Lookup:
    """The first of the records below `limit_offset` with the largest timestamp. In slices, as
    `offset_for_timestamp`.
    """
    best: Segment | None = None
    for segment in log.segments_from(log.log_start_offset):
        if (
            segment.size
            and segment.base_offset < limit_offset
            and (best is None or segment.max_timestamp > best.max_timestamp)
        ):
            best = segment
    if best is None:
        return None
    found = yield from _first_since(
        log, best.max_timestamp_offset, best.max_timestamp, limit_offset, open_segment
    )
    # The batch with the largest timestamp is outside the log start and the limit. Search between.
    while found is None:
        start_offset = log.log_start_offset
        largest = yield from _largest_timestamp(log, limit_offset, open_segment)
        if largest < 0:
            return None
        found = yield from _first_since(log, start_offset, largest, limit_offset, open_segment)
        if log.log_start_offset == start_offset:
            break
    return found


def _first_since(
    log: PartitionLog,
    offset: Offset,
    timestamp: int,
    limit_offset: Offset,
    open_segment: OpenSegment,
) -> Lookup:
    """The first record with `timestamp` or later, from the batch of `offset` on."""
    while True:
        walked = _walk_until(
            log, max(offset, log.log_start_offset), timestamp, limit_offset, open_segment
        )
        if walked is None:
            return None
        offset, batch = walked
        if batch is None:
            yield WHOLE_SLICE
            continue
        header, view = batch
        found = yield from first_record_since(
            view, header, timestamp, log.log_start_offset, limit_offset
        )
        if found is not None:
            return FoundRecord(*found, header.partition_leader_epoch)


_Batch = tuple[BatchHeader, memoryview | None]
"""A batch; only the header of a large one."""


def _walk_until(
    log: PartitionLog,
    offset: Offset,
    timestamp: int,
    limit_offset: Offset,
    open_segment: OpenSegment,
) -> tuple[Offset, _Batch | None] | None:
    """One slice from the batch of `offset` on: (the offset to continue at, the first batch with
    `timestamp` or later, if it was reached). None: there is no such batch below `limit_offset`.
    """
    for segment in log.segments_from(offset):
        if max(segment.base_offset, offset) >= limit_offset:
            return None
        if not segment.size or segment.max_timestamp < timestamp or segment.next_offset <= offset:
            continue
        open_segment(log, segment)
        assert segment.file is not None and segment.time_index is not None
        since = max(offset, segment.time_index.offset_before(timestamp))
        walked = 0
        for start, end, base_offset, last_offset, max_timestamp in walk(
            segment, _place(log, segment, offset, since)
        ):
            if base_offset >= limit_offset:
                return None
            if last_offset >= since and max_timestamp >= timestamp:
                return last_offset + 1, _read_batch(segment.file, start, end)
            walked += last_offset >= offset
            if walked >= HEADERS_AT_ONCE and end < segment.size:
                log.remember(last_offset + 1, segment, end)
                return last_offset + 1, None
        return segment.next_offset, None
    return None


def _read_batch(file: File, start: int, end: int) -> _Batch:
    if end - start > INSPECTED_BYTES_MAX:
        return parse_header(memoryview(file.read_at(start, HEADER_BYTES))), None
    _position, header, view = next(scan_batches(file.read_at, start, end))
    return header, view


def _largest_timestamp(
    log: PartitionLog, limit_offset: Offset, open_segment: OpenSegment
) -> Slices[int]:
    """The largest timestamp (ms) of the batches from the log start on that end below
    `limit_offset`; -1 if there is none.
    """
    offset = log.log_start_offset
    largest = NO_TIMESTAMP
    for segment in log.segments_from(offset):
        if segment.size and offset <= segment.base_offset and segment.next_offset <= limit_offset:
            largest = max(largest, segment.max_timestamp)
    while (
        walked := _walk_younger(
            log, max(offset, log.log_start_offset), largest, limit_offset, open_segment
        )
    ) is not None:
        offset, largest = walked
        yield WHOLE_SLICE
    return largest


def _walk_younger(
    log: PartitionLog, offset: Offset, largest: int, limit_offset: Offset, open_segment: OpenSegment
) -> tuple[Offset, int] | None:
    """One slice from the batch of `offset` on: (the offset to continue at, the largest timestamp up
    to there, at least `largest`). None at the end.
    """
    for segment in log.segments_from(offset):
        if max(segment.base_offset, offset) >= limit_offset:
            return None
        if not segment.size or segment.max_timestamp <= largest or segment.next_offset <= offset:
            continue
        open_segment(log, segment)
        assert segment.time_index is not None
        indexed, indexed_offset = segment.time_index.last_before(limit_offset)
        since = offset
        if indexed >= 0 and indexed_offset >= offset:  # no batch up to there has a larger one
            largest, since = max(largest, indexed), indexed_offset + 1
        walked = 0
        for _start, end, _base_offset, last_offset, max_timestamp in walk(
            segment, _place(log, segment, offset, since)
        ):
            if last_offset >= limit_offset:
                return limit_offset, largest
            if last_offset >= since:
                largest = max(largest, max_timestamp)
            walked += last_offset >= offset
            if walked >= HEADERS_AT_ONCE and end < segment.size:
                log.remember(last_offset + 1, segment, end)
                return last_offset + 1, largest
        return segment.next_offset, largest
    return None


def _place(log: PartitionLog, segment: Segment, offset: Offset, since: Offset) -> int:
    """The position in an open segment from which to search `since`: by the index, or where the
    slice before stopped, at `offset`.
    """
    assert segment.index is not None
    indexed = segment.index.position_of(since)
    stopped = log.positions.pop(offset, None)
    if stopped is None:
        return indexed
    stopped_segment, position = stopped
    return max(indexed, position) if stopped_segment is segment else indexed
