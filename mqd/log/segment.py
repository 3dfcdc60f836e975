"""One segment of a log: a file of batches from a base offset on, and what is known of it.

A core that holds its `File` opaquely: it reads through it, the service writes to it. The state says
what the file holds: `size` bytes, offsets up to `next_offset`. Anything in the file beyond `size`
is not part of the log.

Invariants: base_offset <= next_offset; index entries point at batch starts below `size`;
`(max_timestamp, max_timestamp_offset)` is the youngest batch of the segment, the first where there
are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING

from mqd.log.index import OffsetIndex, TimeIndex
from mqd.log.transaction_index import AbortedIndex
from mqd.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES
from mqd.protocol.files import RELATIVE_OFFSET_MAX, AbortedTransaction, BadBatch
from mqd.types import NO_TIMESTAMP, Offset

if TYPE_CHECKING:
    from mqd.io.disk import File

# base offset, batch length, ..., last offset delta, ..., max timestamp: what walking needs of a
# header
_WALK = Struct(">qi11xi8xq")
_WALK_BYTES = _WALK.size
WALK_WINDOW_BYTES = 8192
"""Headers are walked in windows of this size: above the usual index interval, so that one
read does.
"""


class Segment:
    """See the head of this file.

    `file` and the indexes of an older segment may be dropped and are opened again on demand.
    """

    __slots__ = (
        "_bytes_since_index",
        "aborted",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "index",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "suffix",
        "time_index",
    )

    def __init__(self, base_offset: Offset, created_ms: int, file: File | None = None) -> None:
        self.base_offset = base_offset
        self.created_ms = created_ms
        """When this process began to use the segment, ms."""
        self.file = file
        self.size = 0
        self.next_offset = base_offset
        self.index: OffsetIndex | None = OffsetIndex(base_offset)
        self.time_index: TimeIndex | None = TimeIndex(base_offset)
        self.first_timestamp = NO_TIMESTAMP
        """Largest timestamp of the first batch: rolling by time counts from there."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """Last offset of the youngest batch."""
        self.aborted: AbortedIndex | None = AbortedIndex()
        """Of an older segment, None until somebody asks."""
        self.suffix = ""
        """What the names of its files end in as long as it is being put in the place of
        others (disk/segment_swap.py).
        """
        self._bytes_since_index = 0

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset} {self.size} bytes>"

    def add(
        self, last_offset: Offset, size: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """One more batch is in the file, behind all others."""
        assert self.index is not None and self.time_index is not None
        assert self.next_offset <= last_offset <= self.base_offset + RELATIVE_OFFSET_MAX, (
            self,
            last_offset,
        )
        self.note_time(last_offset, max_timestamp)
        if not self.size:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > index_interval_bytes:
            self.index.append(last_offset, self.size)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size
        self.size += size
        self.next_offset = last_offset + 1

    def note_time(self, last_offset: Offset, max_timestamp: int) -> None:
        """A batch is there, and may be the youngest."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Markers that were just added have ended these."""
        assert self.aborted is not None
        self.aborted.extend(transactions)

    def restore(
        self,
        size: int,
        next_offset: Offset,
        index: OffsetIndex,
        time_index: TimeIndex,
        first_timestamp: int,
    ) -> None:
        """Take over what indexes and headers on disk say; batches from the last index entry
        on are `add`ed by the caller.
        """
        assert not self.size
        self.index, self.time_index = index, time_index
        self.size, self.next_offset, self.first_timestamp = size, next_offset, first_timestamp
        self.max_timestamp, self.max_timestamp_offset = time_index.last()

    def cut_to(self, size: int, next_offset: Offset) -> None:
        """The file was cut to `size` bytes, the border before offset `next_offset`.

        Where the youngest batch is gone, the largest timestamp is that up to the last index entry:
        behind it the caller looks.
        """
        assert self.index is not None and self.time_index is not None
        self.size, self.next_offset = size, next_offset
        self.index.truncate(next_offset, size)
        if self.aborted is not None:
            self.aborted.truncate(next_offset)
        self.time_index.truncate(next_offset)
        self._bytes_since_index = size - self.index.last_position()
        if not size:
            self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
            self.max_timestamp_offset = self.base_offset
        elif self.max_timestamp_offset >= next_offset:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()

    def seal(self) -> None:
        """Nothing follows in this segment: the time index gets its last entry."""
        assert self.time_index is not None
        self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    # -- looking: positions are bytes in the file, `None` means beyond this segment

    def seek(self, offset: Offset) -> int | None:
        """The start of the batch that holds `offset`, or of the first one behind it."""
        assert self.index is not None
        position = self.index.position_of(offset)
        for start, _end, _base, last_offset, _time in self.walk(position):
            if last_offset >= offset:
                return start
        return None

    def end_before(self, position: int) -> Offset:
        """Where the last batch ends that lies before `position`, a border of batches; the
        segment's base offset where there is none.
        """
        assert self.index is not None
        next_offset = self.base_offset
        if position:
            for start, _end, _base, last_offset, _time in self.walk(
                self.index.border_before(position - 1)
            ):
                if start >= position:
                    break
                next_offset = last_offset + 1
        return next_offset

    def cut(
        self, position: int, max_bytes: int, limit_offset: Offset, min_one: bool
    ) -> tuple[int, Offset]:
        """(end position, next offset) of as many whole batches from `position` on as fit;
        (position, ...) when none does.

        Batches reach neither beyond `max_bytes` (the first one may, with `min_one`) nor to
        `limit_offset`.
        """
        assert self.index is not None
        border = max(
            position,
            min(
                self.index.border_before(position + max_bytes),
                self.index.position_of(limit_offset - 1),
            ),
        )
        next_offset = self.base_offset
        for start, end, base_offset, last_offset, _time in self.walk(border):
            next_offset = base_offset
            if last_offset >= limit_offset or (
                end - position > max_bytes and not (min_one and start == position)
            ):
                return start, base_offset
            border, next_offset = end, last_offset + 1
        return border, next_offset

    def walk(self, position: int) -> Iterator[tuple[int, int, Offset, Offset, int]]:
        """(start, end, base offset, last offset, largest timestamp) of each batch from `position`
        on, which is the start of one.

        The segment is open. BadBatch where the file holds none.
        """
        file = self.file
        assert file is not None
        window, window_start, window_end = b"", 0, 0
        while position < self.size:
            if not window_start <= position <= window_end - _WALK_BYTES:
                window = file.read_at(position, min(WALK_WINDOW_BYTES, self.size - position))
                window_start, window_end = position, position + len(window)
                if len(window) < _WALK_BYTES:
                    raise BadBatch(position, "the file is shorter than it was")
            base_offset, length, last_offset_delta, max_timestamp = _WALK.unpack_from(
                window, position - window_start
            )
            end = position + LOG_OVERHEAD_BYTES + length
            if length < HEADER_BYTES - LOG_OVERHEAD_BYTES or end > self.size:
                raise BadBatch(position, f"a batch length of {length}")
            yield position, end, base_offset, base_offset + last_offset_delta, max_timestamp
            position = end
