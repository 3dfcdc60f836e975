"""The bytes of a timer index, in memory and in its files. Pure.

An entry has 24 bytes: due time in milliseconds, offset, hash of the key. A key has 16 bytes: hash,
and twice the offset, plus one for a tombstone. Numbers are big-endian and not negative, so that
the order of the bytes is the order of the numbers: `bytes` objects are sorted and merged without
being decoded.

A file (a run) has what is known about a range of offsets:

    header    magic, version, flags, partition, topic id, first offset, end offset, leader epoch of
              the last record, number of entries, number of keys, CRC-32C of what follows, CRC-32C
              of the header before it
    entries   ascending
    counts    uint32: entries by ranges of offsets (`Buckets`)
    keys      ascending; with the flag `keeps_keys` those of all records, else of tombstones only
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from mqd.limits import TIMER_BUCKETS, TIMER_RUNS_MAX, TIMER_RUNS_MERGED
from mqd.protocol.files import FileFormatError
from mqd.relay.delay_progress import TimerProgress
from mqd.types import Offset

NO_KEY: Final = 0
"""The key hash of a record without a key. Nothing cancels or replaces it."""
ENTRY: Final = Struct(">qqQ")
ENTRY_BYTES: Final = ENTRY.size
KEY: Final = Struct(">QQ")
KEY_BYTES: Final = KEY.size
COUNT_BYTES: Final = 4
_MAGIC: Final = b"mqdtimer"
_VERSION: Final = 0
_KEEPS_KEYS: Final = 1
_HEADER: Final = Struct(">8sHHi16sqqiQQI")
_CRC: Final = Struct(">I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_AFTER_ANY_HASH: Final = b"\xff" * 9


class Entry(NamedTuple):
    """A pending record."""

    due_ms: int
    offset: Offset
    key_hash: int


def key_code(offset: Offset, is_tombstone: bool) -> int:
    """The second number of a key."""
    return offset * 2 + is_tombstone


def split(data: bytes, size: int) -> list[bytes]:
    """The entries or keys in `data`, of `size` bytes each."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def numbers_of(data: bytes, column: int, columns: int) -> array[int]:
    """One number of each entry or key: the column `column` of `columns`."""
    numbers = array("Q")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers[column::columns]


class RunHeader(NamedTuple):
    topic_id: UUID
    partition: int
    start: Offset
    end: Offset
    """The records of the run are below this offset."""
    leader_epoch: int
    """The epoch of the record before `end`. Logs that share this record agree on all before it."""
    keeps_keys: bool
    entries: int
    keys: int
    body_crc: int

    @property
    def counts_position(self) -> int:
        return HEADER_BYTES + self.entries * ENTRY_BYTES

    @property
    def keys_position(self) -> int:
        return self.counts_position + COUNT_BYTES * Buckets(self.start, self.end).size

    @property
    def size(self) -> int:
        return self.keys_position + self.keys * KEY_BYTES

    def encode(self) -> bytes:
        head = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _KEEPS_KEYS if self.keeps_keys else 0,
            self.partition,
            self.topic_id.bytes,
            *self[2:5],
            *self[6:],
        )
        return head + _CRC.pack(crc32c(head))


def decode_header(data: bytes) -> RunHeader:
    """The inverse of `RunHeader.encode`. Raises FileFormatError."""
    if len(data) != HEADER_BYTES:
        raise FileFormatError(f"its {len(data)} bytes are less than a header")
    head, (crc,) = data[: _HEADER.size], _CRC.unpack_from(data, _HEADER.size)
    magic, version, flags, partition, topic_id, start, end, *rest = _HEADER.unpack(head)
    if magic != _MAGIC or crc != crc32c(head):
        raise FileFormatError("its header is damaged")
    if version != _VERSION or not 0 <= start < end:
        raise FileFormatError(f"it has version {version}, offsets {start} to {end}")
    epoch, *counts = rest
    return RunHeader(
        UUID(bytes=topic_id), partition, start, end, epoch, bool(flags & _KEEPS_KEYS), *counts
    )


class Buckets:
    """How many entries have offsets in each of up to TIMER_BUCKETS ranges of equal size.

    Ranges begin at multiples of their size, so the counts of several runs can be added up.
    """

    __slots__ = ("_base", "_lowest", "_shift", "_start", "counts")

    def __init__(self, start: Offset, end: Offset) -> None:
        self._start = start
        self._shift = 0
        while ((end - 1) >> self._shift) - (start >> self._shift) >= TIMER_BUCKETS:
            self._shift += 1
        self._base = start >> self._shift
        self.counts = array("I", bytes(COUNT_BYTES * (((end - 1) >> self._shift) - self._base + 1)))
        self._lowest = 0

    @property
    def size(self) -> int:
        return len(self.counts)

    def add(self, offsets: Iterable[Offset], sign: int = 1) -> None:
        shift = self._shift
        for bucket, count in Counter([offset >> shift for offset in offsets]).items():
            self.counts[bucket - self._base] += sign * count
        self._lowest = 0

    def add_counts(self, other: Buckets) -> None:
        """Add those of a run whose offsets are within the range of this one."""
        assert other._shift <= self._shift
        by = self._shift - other._shift
        start, end = 0, len(other.counts)
        for bucket in range(other._base >> by, ((other._base + end - 1) >> by) + 1):
            following = ((bucket + 1) << by) - other._base
            self.counts[bucket - self._base] += sum(other.counts[start:following])
            start = following
        self._lowest = 0

    def remove(self, offset: Offset) -> None:
        self.counts[(offset >> self._shift) - self._base] -= 1

    def lowest(self) -> Offset:
        """No counted offset is below this one. There must be one."""
        while not self.counts[self._lowest]:
            self._lowest += 1
        return max(self._start, (self._base + self._lowest) << self._shift)

    def encode(self) -> bytes:
        counts = self.counts[:]
        if sys.byteorder == "little":
            counts.byteswap()
        return counts.tobytes()

    def decode(self, data: bytes) -> None:
        self.counts = array("I")
        self.counts.frombytes(data)
        if sys.byteorder == "little":
            self.counts.byteswap()


class DoneEntries:
    """A `TimerProgress`, for entries as bytes. The marks are in the order of time: the first one
    that is above an entry has the largest end offset of those that are.
    """

    __slots__ = ("_bounds", "_ends", "top")

    def __init__(self, progress: TimerProgress) -> None:
        marks = progress.marks[::-1]
        self._bounds = [after_mark(mark.due_ms, mark.offset) for mark in marks]
        self._ends = [mark.end_offset.to_bytes(8, "big") for mark in marks]
        self.top = self._bounds[-1] if marks else b""
        """No entry at or above this is done."""

    def covers(self, entry: bytes) -> bool:
        if entry >= self.top:
            return False
        return entry[8:16] < self._ends[bisect_right(self._bounds, entry)]

    def start_in(self, end: Offset) -> bytes:
        """All entries of a run below this are done, if its offsets are below `end`."""
        end_bytes = end.to_bytes(8, "big")
        marks = zip(reversed(self._bounds), reversed(self._ends))
        return next((bound for bound, below in marks if below >= end_bytes), b"")


def after_mark(due_ms: int, offset: Offset) -> bytes:
    """What is above the entry of this record, and below the next one."""
    return ENTRY.pack(due_ms, offset, 0)[:16] + _AFTER_ANY_HASH


def search(count: int, item: Callable[[int], bytes], target: bytes) -> int:
    """The number of the `count` ascending items that are below `target`."""
    return bisect_left(range(count), target, key=item)


def cut_sorted(buffers: Sequence[list[bytes]], complete: Sequence[bool]) -> list[bytes]:
    """Take from each buffer what is not above the last item of any incomplete buffer, and return
    all of it in order. Each incomplete buffer has an item; at least one buffer becomes empty.
    """
    taken: list[bytes] = []
    limits = [buffer[-1] for buffer, is_complete in zip(buffers, complete) if not is_complete]
    pivot = min(limits, default=None)
    for buffer in buffers:
        count = len(buffer) if pivot is None else bisect_right(buffer, pivot)
        taken += buffer[:count]
        del buffer[:count]
    taken.sort()  # Timsort merges what is sorted: 0.08 us an entry; heapq.merge takes 0.27 us
    return taken


def choose_merge(sizes: Sequence[int], left: Sequence[int]) -> slice | None:
    """Which neighbours of the runs, in order of offsets, to merge into one. None: no merge is due.

    `sizes`: their entries and keys; `left`: how many of these a merge would write. Runs of about
    the same size are merged, so each entry is written about once for each power of
    TIMER_RUNS_MERGED. A run of which little is left is written again alone.
    """
    for index, (size, rest) in enumerate(zip(sizes, left)):
        if size >= _REWRITTEN_MIN and rest < size // TIMER_RUNS_MERGED:
            return slice(index, index + 1)
    best: tuple[int, slice] | None = None
    is_full = len(left) >= TIMER_RUNS_MAX // 2
    for begin, total, largest, end in _windows(left):
        is_even = largest * TIMER_RUNS_MERGED <= 2 * total
        if (is_full or is_even) and (best is None or total < best[0]):
            best = total, slice(begin, end)
    return best[1] if best else None


_REWRITTEN_MIN: Final = 4_096


def _windows(left: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """(begin, total, largest, end) of each sequence of TIMER_RUNS_MERGED neighbours and more."""
    for begin in range(len(left) - TIMER_RUNS_MERGED + 1):
        total = largest = 0
        for end in range(begin, len(left)):
            weight = left[end] + 1
            total += weight
            largest = max(largest, weight)
            if end - begin + 1 >= TIMER_RUNS_MERGED:
                yield begin, total, largest, end + 1
