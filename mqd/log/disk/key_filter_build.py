"""Builds the key filter of one full segment, in slices for a worker thread, and reads it.

`FilterBuild.slices` is a generator: one `next` is a slice and returns the bytes that it read. It
uses neither the `PartitionLog` nor the `Segment`, which may change between two slices. The result
is a temporary file. The caller checks that the segment is unchanged, and renames it.

A batch whose records cannot be read, or that expands too much, does not prevent a filter: its
section may have any key.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import MqError
from mqd.limits import INSPECTED_BYTES_LARGEST, KEY_FILTER_SECTIONS_MAX
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, BatchHeader, corrupt, crc_of, parse_header
from mqd.protocol.files import (
    KEY_FILTER_SUFFIX,
    LOG_SUFFIX,
    FileFormatError,
    scan_batches,
    segment_file_name,
)
from mqd.protocol.key_filter import (
    SECTION_RECORDS,
    TIME_MAX,
    TIME_MIN,
    KeyFilter,
    KeyFilterBuilder,
    Section,
    SegmentState,
    hash_of,
    section_bytes,
)
from mqd.protocol.key_scan import add_hashes
from mqd.protocol.record_reader import record_bytes
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File

TEMPORARY_SUFFIX = ".tmp"
_HEADERS_PER_SLICE = 2000
_RECORDS_PER_SLICE = 4000
_BYTES_PER_SLICE = 4 << 20


def filter_path(path: Path, base_offset: Offset) -> Path:
    """The key filter of a segment in the partition's directory `path`."""
    return path / segment_file_name(base_offset, KEY_FILTER_SUFFIX)


def remove_filter(disk: Disk, path: Path, segment: Segment) -> None:
    """The segment is not what it was. Raises OSError."""
    segment.has_key_filter = False
    disk.remove(filter_path(path, segment.base_offset))


def read_filter(disk: Disk, path: Path, segment: Segment, log_file: File) -> KeyFilter:
    """The filter of a segment. FileNotFoundError, FileFormatError if it is damaged or belongs to an
    earlier state of the segment, OSError.
    """
    # (I55) A filter of an earlier state may lack keys of this one.
    found = KeyFilter(disk.open(filter_path(path, segment.base_offset)).read_at)
    state = found.state
    head = log_file.read_at(state.last_position, HEADER_BYTES)
    if (
        (state.base_offset, state.next_offset, state.size)
        != (segment.base_offset, segment.next_offset, segment.size)
        or len(head) < HEADER_BYTES
        or parse_header(head).crc != state.last_crc
    ):
        raise FileFormatError("the key filter is of an earlier state of the segment")
    return found


class FilterBuild:
    """See the head of this file. The segment must not be empty."""

    def __init__(self, disk: Disk, path: Path, segment: Segment) -> None:
        assert segment.size, segment
        self._disk = disk
        self._log_path = path / segment_file_name(segment.base_offset, LOG_SUFFIX)
        target = filter_path(path, segment.base_offset)
        self.temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        self._base_offset, self._next_offset = segment.base_offset, segment.next_offset
        self._size = segment.size
        self._starts: list[tuple[int, Offset]] = []
        """(position, first offset) of each section."""
        self._keys_max = 0
        self._last = (0, 0)
        """Position and CRC of the last batch."""
        self.bytes = 0
        """The size of the filter."""

    def slices(self) -> Iterator[int]:
        """Build and write the filter. BadBatch if the segment is damaged, OSError."""
        file = self._disk.open(self._log_path)
        yield from self._plan(file)
        builder = KeyFilterBuilder(len(self._starts), self._keys_max)
        sections = []
        for number, (position, first_offset) in enumerate(self._starts):
            following = self._starts[number + 1 : number + 2]
            end = following[0][0] if following else self._size
            smallest, largest = yield from self._section(file, builder, number, position, end)
            sections.append(Section(position, first_offset, smallest, largest))
        state = SegmentState(self._base_offset, self._next_offset, self._size, *self._last)
        parts = builder.encode(state, sections)
        yield 0
        target = self._disk.open(self.temporary, create=True)
        target.truncate(0)
        self.bytes = target.append(parts)
        yield self.bytes

    def _plan(self, file: File) -> Iterator[int]:
        """Divide the segment into sections."""
        wanted = section_bytes(self._size)
        section_records = headers = read = start = 0
        for position, header, view in scan_batches(file.read_at, 0, self._size):
            is_full = position - start >= wanted or section_records >= SECTION_RECORDS
            if not self._starts or (is_full and len(self._starts) < KEY_FILTER_SECTIONS_MAX):
                self._starts.append((position, header.base_offset))
                start, section_records = position, 0
            records = 0 if header.is_control else header.records_count
            section_records += records
            self._keys_max = max(self._keys_max, section_records)
            self._last = position, header.crc
            headers += 1
            read += len(view)
            if headers >= _HEADERS_PER_SLICE or read >= _BYTES_PER_SLICE:
                yield read
                headers = read = 0
        yield read

    def _section(
        self, file: File, builder: KeyFilterBuilder, number: int, position: int, end: int
    ) -> Generator[int, None, tuple[int, int]]:
        """Add the keys of one section. Returns the smallest and largest timestamp."""
        hashes: set[int] = set()
        times: list[int] = []
        records = read = 0
        is_readable = True
        for _position, header, view in scan_batches(file.read_at, position, end):
            read += len(view)
            if header.is_control or not header.records_count:
                continue
            records += header.records_count
            try:
                times += self._add(header, view, hashes)
            except MqError:
                is_readable = False
            if records >= _RECORDS_PER_SLICE or read >= _BYTES_PER_SLICE:
                yield read
                records = read = 0
        if not is_readable:
            builder.add_all(number)
            yield read
            return TIME_MIN, TIME_MAX
        builder.add(number, hashes)
        yield read
        return (min(times), max(times)) if times else (TIME_MAX, TIME_MIN)

    @staticmethod
    def _add(header: BatchHeader, view: memoryview, hashes: set[int]) -> tuple[int, int]:
        if crc_of(view, 0, len(view)) != header.crc:
            raise corrupt("the CRC-32C is wrong")
        content = record_bytes(view, header, INSPECTED_BYTES_LARGEST)
        return add_hashes(content, header, hash_of, hashes)
