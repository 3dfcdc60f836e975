"""Loads segments that need no scan, because they were synced or a clean shutdown left them: their
state comes from their index files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.segment_files import load_indexes
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.protocol.files import (
    INDEX_ENTRY,
    INDEX_SUFFIX,
    TIME_INDEX_ENTRY,
    TIME_INDEX_SUFFIX,
    BadBatch,
    FileFormatError,
    scan_batches,
    segment_file_name,
)
from mqd.types import NO_TIMESTAMP, Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk


def load_older(
    disk: Disk, path: Path, segment: Segment, size: int, following: Offset, interval: int
) -> Offset | None:
    """Load a segment before the active one, whose file has `size` bytes, and close it. Returns the
    offset after its last batch.

    None, and nothing is changed, if its indexes are missing or damaged, or the segment ends beyond
    `following`, where the next one begins. `interval`: index.interval.bytes.
    """
    if not _has_plausible_indexes(disk, path, segment, size, interval):
        return None
    end = _end_of(disk, path, segment, size)
    if end is None or end > following:
        return None
    segment.size, segment.next_offset = size, following
    segment.max_timestamp, segment.max_timestamp_offset = _last_timestamp(disk, path, segment)
    # The next read opens it again.
    segment.index = segment.time_index = segment.file = segment.transaction_index = None
    return end


def _has_plausible_indexes(
    disk: Disk, path: Path, segment: Segment, size: int, interval: int
) -> bool:
    """Whether both index files exist and have a possible size. A read checks their content."""
    try:
        index = disk.open(path / segment_file_name(segment.base_offset, INDEX_SUFFIX)).size()
        time_index = disk.open(
            path / segment_file_name(segment.base_offset, TIME_INDEX_SUFFIX)
        ).size()
    except FileNotFoundError:
        return False
    if index % INDEX_ENTRY.size or time_index % TIME_INDEX_ENTRY.size or (size and not time_index):
        return False
    return index > 0 or size <= interval


def _end_of(disk: Disk, path: Path, segment: Segment, size: int) -> Offset | None:
    """The offset after the last batch, by those after the last index entry. None: damaged."""
    assert segment.file is not None
    try:
        index, _ = load_indexes(disk, path, segment.base_offset, size)
        headers = [
            header
            for _, header, _ in scan_batches(segment.file.read_at, index.last_position(), size)
        ]
    except (FileFormatError, FileNotFoundError, BadBatch):
        return None
    return headers[-1].last_offset + 1 if headers else segment.base_offset


def _last_timestamp(disk: Disk, path: Path, segment: Segment) -> tuple[int, Offset]:
    file = disk.open(path / segment_file_name(segment.base_offset, TIME_INDEX_SUFFIX))
    if not file.size():
        return NO_TIMESTAMP, segment.base_offset
    timestamp, relative = TIME_INDEX_ENTRY.unpack(
        file.read_at(file.size() - TIME_INDEX_ENTRY.size, TIME_INDEX_ENTRY.size)
    )
    return timestamp, segment.base_offset + relative


def load_active(disk: Disk, path: Path, segment: Segment, size: int, interval: int) -> bool:
    """Load the active segment after a clean shutdown: its indexes, and the batches from the last
    index entry on. False, and the segment is of no use, if they do not agree.
    """
    file = segment.file
    assert file is not None
    try:
        index, time_index = load_indexes(disk, path, segment.base_offset, size)
        start = index.last_position()
        for position, header, view in scan_batches(file.read_at, start, size):
            if position == start:
                if len(index) and header.last_offset != index.last_offset():
                    return False
                first = parse_header(file.read_at(0, HEADER_BYTES)).max_timestamp
                segment.restore(start, header.base_offset, index, time_index, first)
            if header.base_offset < segment.next_offset:
                return False
            segment.add(header.last_offset, len(view), header.max_timestamp, interval)
    except (FileFormatError, FileNotFoundError, BadBatch):
        return False
    return True
