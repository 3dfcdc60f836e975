"""Finds batches in the file of one open segment. Positions are bytes from the start of the file.

BadBatch: the file has no valid header where the state of the segment says that a batch begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING

from mqd.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES
from mqd.protocol.files import BadBatch
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.log.segment import Segment

# base offset, batch length, ..., last offset delta, ..., max timestamp
_WALK = Struct(">qi11xi8xq")
_WALK_BYTES = _WALK.size
WALK_WINDOW_BYTES = 8192
"""Bytes of one read. More than the usual index interval, so that one read is enough."""


def seek(segment: Segment, offset: Offset) -> int | None:
    """The start of the batch with `offset`, or of the first batch after it. None: there is none in
    this segment.
    """
    assert segment.index is not None
    position = segment.index.position_of(offset)
    for start, _end, _base, last_offset, _time in walk(segment, position):
        if last_offset >= offset:
            return start
    return None


def next_offset_before(segment: Segment, position: int) -> Offset:
    """The offset after the last batch that lies before `position`, where a batch begins or the
    segment ends. The base offset of the segment if there is none.
    """
    assert segment.index is not None
    next_offset = segment.base_offset
    if position:
        first = segment.index.batch_start_before(position - 1)
        for start, _end, _base, last_offset, _time in walk(segment, first):
            if start >= position:
                break
            next_offset = last_offset + 1
    return next_offset


def end_of_range(
    segment: Segment, position: int, max_bytes: int, limit_offset: Offset, min_one: bool
) -> tuple[int, Offset]:
    """(end position, next offset) of as many whole batches from `position` on as fit. The end
    position is `position` if none fits.

    The batches have at most `max_bytes` together and end before `limit_offset`. With `min_one` the
    first batch may be larger than `max_bytes`.
    """
    assert segment.index is not None
    known_end = max(
        position,
        min(
            segment.index.batch_start_before(position + max_bytes),
            segment.index.position_of(limit_offset - 1),
        ),
    )
    next_offset = segment.base_offset
    for start, end, base_offset, last_offset, _time in walk(segment, known_end):
        next_offset = base_offset
        if last_offset >= limit_offset or (
            end - position > max_bytes and not (min_one and start == position)
        ):
            return start, base_offset
        known_end, next_offset = end, last_offset + 1
    return known_end, next_offset


def walk(segment: Segment, position: int) -> Iterator[tuple[int, int, Offset, Offset, int]]:
    """(start, end, base offset, last offset, largest timestamp) of each batch from `position` on,
    where a batch begins.
    """
    file = segment.file
    assert file is not None
    window, window_start, window_end = b"", 0, 0
    while position < segment.size:
        if not window_start <= position <= window_end - _WALK_BYTES:
            window = file.read_at(position, min(WALK_WINDOW_BYTES, segment.size - position))
            window_start, window_end = position, position + len(window)
            if len(window) < _WALK_BYTES:
                raise BadBatch(position, "the file is shorter than it was")
        base_offset, length, last_offset_delta, max_timestamp = _WALK.unpack_from(
            window, position - window_start
        )
        end = position + LOG_OVERHEAD_BYTES + length
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES or end > segment.size:
            raise BadBatch(position, f"a batch length of {length}")
        yield position, end, base_offset, base_offset + last_offset_delta, max_timestamp
        position = end
