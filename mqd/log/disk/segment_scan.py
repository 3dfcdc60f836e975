"""Reads every batch of one segment, and checks shape, CRC and offsets."""

from __future__ import annotations

from collections.abc import Callable

from mqd.limits import SCAN_BYTES
from mqd.log.disk.log_replay import LogReplay
from mqd.log.segment import Segment
from mqd.protocol.batch import crc_of
from mqd.protocol.files import RELATIVE_OFFSET_MAX, BadBatch, scan_batches
from mqd.types import Offset

Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


def scan_segment(
    segment: Segment,
    replay: LogReplay,
    index_interval_bytes: int,
    progress: Progress,
    *,
    end_max: Offset | None,
) -> BadBatch | None:
    """Build the state and the indexes of the segment. Returns the first bad batch, or None.

    A batch that reaches beyond `end_max` is bad.
    """
    file = segment.file
    assert file is not None
    bad: BadBatch | None = None
    reported = 0
    try:
        for position, header, view in scan_batches(file.read_at, 0, file.size()):
            due = segment.next_offset
            if crc_of(view, 0, len(view)) != header.crc:
                raise BadBatch(position, "the CRC-32C is wrong")
            if header.base_offset < due:
                raise BadBatch(position, f"base offset {header.base_offset} where {due} was due")
            if end_max is not None and header.last_offset >= end_max:
                raise BadBatch(position, f"offset {header.last_offset} is in the next segment, too")
            replay.has_gaps |= header.base_offset > due
            if header.last_offset > segment.base_offset + RELATIVE_OFFSET_MAX:
                raise BadBatch(
                    position, f"offset {header.last_offset} is too far from the segment's base"
                )
            segment.add(header.last_offset, len(view), header.max_timestamp, index_interval_bytes)
            aborted = replay.replay(header, view, due)
            if aborted is not None:
                segment.add_aborted((aborted,))
            if position - reported >= SCAN_BYTES:
                progress(position - reported)
                reported = position
    except BadBatch as error:
        bad = error
    progress(segment.size - reported)
    return bad
