"""Finds the records with a key in one log, from an offset on, or from an offset down (FindRecords).

Segments are taken in order. A segment with a key filter gives the sections that may have the key;
any other segment is read whole. A worker thread reads a chunk of about 4 MiB (disk/key_chunk.py);
the event loop compares the keys in the few batches that have the bytes of the key.

The search runs in slices, as lookup.py, and is bounded by its budget: bytes, records and time. It
returns where to go on. Results are exact: each record is compared in full; none at or beyond the
limit, below the log start, or of an aborted transaction is returned. A batch that cannot be read is
an error, never an absence.

The log may change in each pause. A file that is kept over a pause may have been removed or cleaned
since: its records were in the log when the search came to it. After a truncation, which changes
nothing below the limit, the segment is looked up again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import HEADERS_READ_MAX, KIB
from mqd.log.disk.key_chunk import CHUNK_BYTES, HEADERS_AT_ONCE, Hit, KeyChunk, Unreadable, Wanted
from mqd.log.disk.segment_reading import walk
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import BadBatch, FileFormatError
from mqd.protocol.key_filter import KeyFilter, hash_of
from mqd.protocol.key_scan import Bounds, Place, places_with_key, record_at
from mqd.protocol.record_reader import Record
from mqd.protocol.slices import WHOLE_SLICE
from mqd.types import NO_OFFSET, Offset

if TYPE_CHECKING:
    from mqd.io.disk import File

_WEIGHT_OF_A_SEGMENT = WHOLE_SLICE // 2
"""It opens a file or two, and reads a few blocks."""
_RECORD_BYTES = _HEADER_BYTES = 100
"""The bytes of a record of the result, and of each header, besides their content."""
_FIRST_PART_BYTES = 64 * KIB
_DECODED_AT_ONCE = WHOLE_SLICE // 4
"""Records in one slice: 2 us each, without headers."""


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """What to find, and the bounds of one search."""

    key: bytes
    offset: Offset
    """Where to begin: the first offset of the search; with `newest_first` the offset after the last
    one."""
    limit_offset: Offset
    """Exclusive."""
    since: int
    """The smallest timestamp, in ms."""
    until: int
    """The timestamp to stop before, in ms."""
    newest_first: bool
    records_max: int
    bytes_max: int
    """The bytes of all records of the result. One record may be larger."""
    scanned_bytes_max: int


class FoundRecord(NamedTuple):
    record: Record
    leader_epoch: int

    @property
    def size(self) -> int:
        record = self.record
        return (
            _RECORD_BYTES
            + len(record.value or b"")
            + sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in record.headers)
        )


@dataclass(slots=True)
class KeySearchResult:
    """Records in the order of the search, and how much was read for them."""

    records: list[FoundRecord]
    next_offset: Offset
    """The `offset` of the search that goes on."""
    is_complete: bool = False
    """Whether nothing is left to search."""
    scanned_bytes: int = 0
    segments_read: int = 0
    segments_filtered: int = 0
    """Segments with a key filter, read or not."""
    segments_unindexed: int = 0
    """Full segments that were read without a key filter."""


class KeySearchSources(NamedTuple):
    """What the search needs of the log's manager."""

    open_segment: Callable[[PartitionLog, Segment], None]
    filter_of: Callable[[PartitionLog, Segment], KeyFilter | None]
    """The valid filter of an open segment. Raises OSError."""
    filter_is_damaged: Callable[[PartitionLog, Segment, object], None]
    is_hidden: Callable[[PartitionLog, BatchHeader], Generator[int, None, bool]]
    """Whether the batch belongs to an aborted transaction that the client must not see."""


KeySearchSlices = Generator[int | KeyChunk, None, None]


class Range(NamedTuple):
    """Whole batches of a segment."""

    start: int
    end: int
    first_offset: Offset
    """The base offset of the first batch, by the key filter; NO_OFFSET without one."""


class _Unreadable(Exception):
    """A batch cannot be read."""

    def __init__(self, found: Unreadable, *, newest_first: bool) -> None:
        header, error = found
        self.error = MqError(
            error.code,
            f"the batch at offset {header.base_offset} cannot be searched: {error.message}",
        )
        offsets = header.base_offset, header.next_offset
        self.near_offset, self.far_offset = reversed(offsets) if newest_first else offsets


class KeySearch:
    """See the head of this file. `is_over` returns whether the time of the search is used up."""

    def __init__(
        self,
        log: PartitionLog,
        query: KeyQuery,
        sources: KeySearchSources,
        is_over: Callable[[], bool],
    ) -> None:
        self._log = log
        self._query = query
        self._sources = sources
        self._is_over = is_over
        self._pattern = _length(len(query.key)) + query.key
        start = max(query.offset, log.log_start_offset)
        if query.newest_first:
            start = min(query.offset, query.limit_offset)
        self.result = KeySearchResult([], start)
        self._start_offset = start
        self._bytes = 0
        self._part_bytes = _FIRST_PART_BYTES
        self._damaged: set[Offset] = set()
        """Base offsets of segments whose filter is not used."""

    def run(self) -> KeySearchSlices:
        """The search. Raises BadBatch, OSError, or MqError for a batch that cannot be read: then
        `result` has no records, and its next offset is behind that batch.
        """
        query, result = self._query, self.result
        while not self._is_full():
            segment = self._next_segment()
            if segment is None:
                result.is_complete = True
                return
            truncations = self._log.truncations
            try:
                searched = yield from self._search_segment(segment)
            except _Unreadable as unreadable:
                if result.records:  # the search that goes on raises it
                    self._move_to(unreadable.near_offset)
                    return
                self._move_to(unreadable.far_offset)
                raise unreadable.error from None
            if searched and self._log.truncations == truncations:
                self._move_to(
                    segment.base_offset
                    if query.newest_first
                    else min(segment.next_offset, query.limit_offset)
                )
            yield _WEIGHT_OF_A_SEGMENT

    def _move_to(self, offset: Offset) -> None:
        """Everything up to `offset` was searched, in the direction of the search."""
        choose = min if self._query.newest_first else max
        self.result.next_offset = choose(self.result.next_offset, offset)

    def _is_full(self) -> bool:
        query, result = self._query, self.result
        if len(result.records) >= query.records_max or self._bytes >= query.bytes_max:
            return True
        # Each request makes progress: else the next one would end at the same offset.
        return result.next_offset != self._start_offset and (
            result.scanned_bytes >= query.scanned_bytes_max or self._is_over()
        )

    def _next_segment(self) -> Segment | None:
        """The segment of the next offset to search. None: the search is complete."""
        log, at = self._log, self.result.next_offset
        if self._query.newest_first:
            return log.segments[log.segment_index(at - 1)] if at > log.log_start_offset else None
        at = self.result.next_offset = max(at, log.log_start_offset)
        limit = min(self._query.limit_offset, log.written_end_offset)
        return log.segments[log.segment_index(at)] if at < limit else None

    # -- one segment -----------------------------------------------------------------------------

    def _search_segment(self, segment: Segment) -> Generator[int | KeyChunk, None, bool]:
        """Returns whether the whole segment was searched. Raises _Unreadable, BadBatch, OSError."""
        query, log, result = self._query, self._log, self.result
        if (
            not segment.size
            or segment.max_timestamp < query.since
            or segment.base_offset >= query.limit_offset
        ):
            return True
        self._sources.open_segment(log, segment)
        file = segment.file
        assert file is not None
        truncations, scanned = log.truncations, result.scanned_bytes
        found = self._filter_of(segment)
        search = self._search_down if query.newest_first else self._search_up
        try:
            if found is None:
                ranges: Iterator[Range] = (
                    (yield from self._ranges_down(segment))
                    if query.newest_first
                    else self._ranges_up(segment)
                )
                result.segments_unindexed += segment is not log.active
            else:
                ranges = self._sections(found)
                result.segments_filtered += 1
            for one in ranges:
                for part in self._parts_down(segment, one) if query.newest_first else (one,):
                    yield from search(file, part)
                    if log.truncations != truncations or self._is_full():
                        return False
        except (BadBatch, FileFormatError) as bad:
            if found is None and isinstance(bad, BadBatch):
                raise
            self._damaged.add(segment.base_offset)
            self._sources.filter_is_damaged(log, segment, bad)
            return False
        finally:
            result.segments_read += result.scanned_bytes > scanned
        return True

    def _filter_of(self, segment: Segment) -> KeyFilter | None:
        if segment is self._log.active or segment.base_offset in self._damaged:
            return None
        return self._sources.filter_of(self._log, segment)

    def _sections(self, found: KeyFilter) -> Iterator[Range]:
        """The sections that may have the key, in the order of the search. FileFormatError."""
        query = self._query
        candidates = found.candidates(hash_of(query.key))
        for number in reversed(candidates) if query.newest_first else candidates:
            section = found.sections[number]
            following = found.sections[number + 1 : number + 2]
            section_end = following[0].first_offset if following else found.state.next_offset
            if query.newest_first:
                is_left = section.first_offset < self.result.next_offset
            else:
                is_left = section_end > self.result.next_offset
            if (
                is_left
                and section.first_offset < query.limit_offset
                and section.max_timestamp >= query.since
                and section.min_timestamp < query.until
            ):
                yield Range(section.position, found.end_of(number), section.first_offset)

    def _ranges_up(self, segment: Segment) -> Iterator[Range]:
        """From the batch of the next offset on, or one before it: by the index."""
        assert segment.index is not None
        start = segment.index.position_of(self.result.next_offset)
        if start < segment.size:
            yield Range(start, segment.size, NO_OFFSET)

    def _ranges_down(self, segment: Segment) -> Generator[int, None, Iterator[Range]]:
        """Parts of about CHUNK_BYTES, the last one first: by the index, or by the headers where it
        has no entries. Raises BadBatch.
        """
        index = segment.index
        assert index is not None
        end = min(index.position_after(self.result.next_offset), segment.size)
        bounds = [end]
        while end > 0:
            start = index.batch_start_before(max(0, end - CHUNK_BYTES))
            if end - start > 2 * CHUNK_BYTES:
                walked = yield from self._bounds_between(segment, start, end)
                bounds += reversed(walked)
            bounds.append(start)
            end = start
        return (Range(low, high, NO_OFFSET) for high, low in pairwise(bounds))

    def _parts_down(self, segment: Segment, one: Range) -> Iterator[Range]:
        """The range in parts, the last one first, by the index. Each is searched from its start to
        its end, and the time of the search is checked between two. The first ones are small: a
        batch of 64 KiB may have a million records. Later ones have up to CHUNK_BYTES.
        """
        index = segment.index
        assert index is not None
        end = max(one.start, min(one.end, index.position_after(self.result.next_offset)))
        while end > one.start:
            start = max(one.start, index.batch_start_before(max(0, end - self._part_bytes)))
            self._part_bytes = min(2 * self._part_bytes, CHUNK_BYTES)
            yield Range(start, end, one.first_offset if start == one.start else NO_OFFSET)
            end = start

    @staticmethod
    def _bounds_between(segment: Segment, start: int, end: int) -> Generator[int, None, list[int]]:
        """Starts of batches between two positions, about CHUNK_BYTES apart."""
        bounds: list[int] = []
        last = start
        for number, (position, batch_end, *_) in enumerate(walk(segment, start)):
            if position >= end:
                break
            if batch_end - last > CHUNK_BYTES and position > last:
                bounds.append(position)
                last = position
            if number % HEADERS_AT_ONCE == HEADERS_AT_ONCE - 1:
                yield WHOLE_SLICE
        return bounds

    # -- one range of a segment ------------------------------------------------------------------

    def _search_up(self, file: File, one: Range) -> KeySearchSlices:
        result, query = self.result, self._query
        at = one.start
        while at < one.end:
            wanted = Wanted(self._pattern, result.next_offset, query.limit_offset, query.since)
            chunk = KeyChunk(file, at, one.end, wanted)
            yield from self._read(chunk, one, at)
            at = chunk.position
            for hit in chunk.hits:
                for found in self._matches_up(hit):
                    if isinstance(found, int):
                        yield found
                        continue
                    result.records.append(found)
                    self._bytes += found.size
                    self._move_to(found.record.offset + 1)
                    if self._is_full():
                        chunk.release()
                        return
            unreadable = chunk.unreadable
            chunk.release()
            if unreadable is not None:
                raise _Unreadable(unreadable, newest_first=False)
            self._move_to(min(chunk.next_offset, query.limit_offset))
            yield WHOLE_SLICE
            if self._is_full():
                return

    def _search_down(self, file: File, one: Range) -> KeySearchSlices:
        result, query = self.result, self._query
        newest: deque[FoundRecord] = deque()
        size = 0
        is_cut = False
        unreadable: _Unreadable | None = None
        first_offset: Offset = NO_OFFSET
        at = one.start
        while at < one.end:
            wanted = Wanted(
                self._pattern, self._log.log_start_offset, result.next_offset, query.since
            )
            chunk = KeyChunk(file, at, one.end, wanted)
            yield from self._read(chunk, one, at)
            if at == one.start:
                first_offset = chunk.first_offset
            at = chunk.position
            for hit in chunk.hits:
                try:
                    tail = yield from self._newest_of(hit)
                except _Unreadable as failure:  # the newer records come first
                    newest.clear()
                    size, is_cut, unreadable = 0, False, failure
                    continue
                for found in tail:
                    newest.append(found)
                    size += found.size
                    while len(newest) > 1 and (
                        len(result.records) + len(newest) > query.records_max
                        or self._bytes + size - newest[0].size >= query.bytes_max
                    ):
                        size -= newest.popleft().size
                        is_cut = True
            if chunk.unreadable is not None:
                newest.clear()
                size, is_cut = 0, False
                unreadable = _Unreadable(chunk.unreadable, newest_first=True)
            chunk.release()
            yield WHOLE_SLICE
        result.records += reversed(newest)
        self._bytes += size
        if is_cut:
            self._move_to(newest[0].record.offset)
        elif unreadable is not None:
            raise unreadable
        else:
            self._move_to(first_offset)

    def _read(self, chunk: KeyChunk, one: Range, at: int) -> KeySearchSlices:
        """Have the chunk read. Raises MqError, BadBatch, FileFormatError, OSError."""
        yield chunk
        self.result.scanned_bytes += chunk.bytes_read
        if chunk.is_given_up:
            raise MqError(ErrorCode.NETWORK_EXCEPTION, "the client has closed the connection")
        for _ in chunk.slices:  # nothing, after a thread
            yield WHOLE_SLICE
        if chunk.failure is not None:
            raise chunk.failure
        if at == one.start and one.first_offset not in (NO_OFFSET, chunk.first_offset):
            raise FileFormatError(
                f"a section of the key filter begins with offset {one.first_offset}, the batch "
                f"there with {chunk.first_offset}"
            )

    def _matches_up(self, hit: Hit) -> Iterator[FoundRecord | int]:
        """The records of a batch that the client may see. Numbers are for pauses."""
        places: deque[Place] = deque()
        is_visible = False
        try:
            scan = places_with_key(hit.records, hit.header, self._query.key, self._bounds(), places)
            is_left = True
            while is_left:
                is_left = next(scan, 0) is None
                if places and not is_visible:
                    if (yield from self._is_hidden(hit.header)):
                        return
                    is_visible = True
                for number, place in enumerate(places, start=1):
                    yield self._found(hit, place)
                    if number % _DECODED_AT_ONCE == 0:
                        yield WHOLE_SLICE
                places.clear()
                yield WHOLE_SLICE
        except MqError as error:
            raise _Unreadable(Unreadable(hit.header, error), newest_first=False) from None

    def _newest_of(self, hit: Hit) -> Generator[int, None, Sequence[FoundRecord]]:
        """The last records of a batch that the client may see, in their order: one more than fit
        into the result, if there are so many.
        """
        query = self._query
        places: deque[Place] = deque(maxlen=query.records_max + 1)
        newest: deque[FoundRecord] = deque()
        size = 0
        try:
            for _ in places_with_key(hit.records, hit.header, query.key, self._bounds(), places):
                yield WHOLE_SLICE
            if not places or (yield from self._is_hidden(hit.header)):
                return ()
            for number, place in enumerate(reversed(places), start=1):
                newest.appendleft(self._found(hit, place))
                size += newest[0].size
                if number % _DECODED_AT_ONCE == 0:
                    yield WHOLE_SLICE
                if len(newest) > 1 and size > query.bytes_max + newest[0].size:
                    break
        except MqError as error:
            raise _Unreadable(Unreadable(hit.header, error), newest_first=True) from None
        return newest

    def _found(self, hit: Hit, place: Place) -> FoundRecord:
        record = record_at(hit.records, place, HEADERS_READ_MAX)
        return FoundRecord(record, hit.header.partition_leader_epoch)

    def _is_hidden(self, header: BatchHeader) -> Generator[int, None, bool]:
        return self._sources.is_hidden(self._log, header)

    def _bounds(self) -> Bounds:
        query, at, log_start = self._query, self.result.next_offset, self._log.log_start_offset
        offsets = (
            (log_start, at) if query.newest_first else (max(at, log_start), query.limit_offset)
        )
        return Bounds(*offsets, query.since, query.until)


def _length(size: int) -> bytes:
    """A zigzag varint."""
    left, encoded = size << 1, bytearray()
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
