"""One file of a timer index (timer_format.py): reads its entries in order, and looks up its keys.

The file is opened for each read, so that an index needs no descriptors. What is read at once is
48 KiB of entries, or 4 KiB of keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from mqd.errors import StorageError
from mqd.limits import SCAN_BYTES, TIMERS_BUFFERED
from mqd.protocol.files import FileFormatError
from mqd.relay.timer_format import (
    COUNT_BYTES,
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    KEY,
    KEY_BYTES,
    Buckets,
    DoneEntries,
    RunHeader,
    decode_header,
    numbers_of,
    search,
    split,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

KEYS_PER_FENCE: Final = 256
"""The hash of every so many keys is in memory: 300 KB for ten million keys."""
_READS_PER_STEP: Final = 8
"""Reads of one step of a load, in a worker thread: at most 5 ms."""


class TimerRun:
    """`left`: how many entries are pending, by `buckets`. `fences`: see KEYS_PER_FENCE."""

    __slots__ = (
        *("_at", "_buffer", "_disk", "_position", "buckets", "fences", "head", "header", "left"),
        "path",
    )

    def __init__(
        self, disk: Disk, path: Path, header: RunHeader, fences: array[int], buckets: Buckets
    ) -> None:
        self._disk = disk
        self.path = path
        self.header = header
        self.fences = fences
        self.buckets = buckets
        self.left = header.entries
        self.head = b""
        """The next entry. Empty after the last one, and before `seek`."""
        self._position = 0
        """The number of the first entry after the buffer."""
        self._buffer = b""
        self._at = 0

    # -- entries

    def read_entries(self, position: int, count: int) -> bytes:
        """Up to `count` entries from the one with number `position`. Raises StorageError."""
        count = min(count, self.header.entries - position)
        return self._read(HEADER_BYTES + position * ENTRY_BYTES, count * ENTRY_BYTES)

    def start_after(self, done: DoneEntries) -> int:
        """The number of an entry before which all are done."""
        bound = done.start_in(self.header.end)
        if not bound:
            return 0
        return search(self.header.entries, lambda number: self.read_entries(number, 1), bound)

    def seek(self, position: int) -> None:
        """`head` becomes the entry with this number. Raises StorageError."""
        self._position, self._buffer, self._at, self.head = position, b"", 0, b""
        self.next()

    def next(self) -> None:
        """Step to the next entry. Raises StorageError."""
        self._at += ENTRY_BYTES
        if self._at >= len(self._buffer):
            self._buffer = self.read_entries(self._position, TIMERS_BUFFERED)
            self._position += len(self._buffer) // ENTRY_BYTES
            self._at = 0
        before, self.head = self.head, self._buffer[self._at : self._at + ENTRY_BYTES]
        if self._at == 0 and self.head and self.head <= before:
            raise StorageError(f"{self.path} is damaged: its entries are not in order")

    def buffered(self, bound: bytes, count: int) -> Iterator[bytes]:
        """Up to `count` entries from `head` on that are below `bound`, of those in memory."""
        end = min(len(self._buffer), self._at + count * ENTRY_BYTES)
        for start in range(self._at, end, ENTRY_BYTES):
            entry = self._buffer[start : start + ENTRY_BYTES]
            if entry >= bound:
                return
            yield entry

    def take(self) -> None:
        """The entry in `head` is not pending any more. `next` follows."""
        self.left -= 1
        self.buckets.remove(ENTRY.unpack(self.head)[1])

    def forget_taken(self, entries: Sequence[bytes], heap: Sequence[bytes]) -> None:
        """`entries`: those of the new file, in order. Only those of `heap` are still pending; their
        smallest one is the next.
        """
        if len(heap) < len(entries):
            taken = set(entries).difference(heap)
            assert len(taken) == len(entries) - len(heap), self.path
            for entry in taken:
                self.buckets.remove(ENTRY.unpack(entry)[1])
        self.left = len(heap)
        self.seek(bisect_left(entries, heap[0]) if heap else len(entries))

    def forget_done(self, done: DoneEntries) -> Generator[None]:
        """Take what is done, in steps: 0.2 us for each such entry. Raises StorageError."""
        position, header = 0, self.header
        certain = self.start_after(done)
        while position < header.entries:
            data = self.read_entries(position, TIMERS_BUFFERED)
            first, position = position, position + len(data) // ENTRY_BYTES
            if data[:ENTRY_BYTES] >= done.top:
                break
            if position > certain:
                entries = split(data, ENTRY_BYTES)
                data = b"".join(
                    entry
                    for number, entry in enumerate(entries, start=first)
                    if number < certain or done.covers(entry)
                )
            self.left -= len(data) // ENTRY_BYTES
            self.buckets.add(numbers_of(data, 1, 3), -1)
            if position % (_READS_PER_STEP * TIMERS_BUFFERED) == 0:
                yield

    # -- keys

    def read_keys(self, position: int, count: int) -> bytes:
        """Up to `count` keys from the one with number `position`. Raises StorageError."""
        count = min(count, self.header.keys - position)
        return self._read(self.header.keys_position + position * KEY_BYTES, count * KEY_BYTES)

    def newest_key(self, key_hash: int, below: Offset, tombstones_only: bool) -> Offset | None:
        """The newest record below an offset that has this key hash. Raises StorageError."""
        target = KEY.pack(key_hash, min(below, self.header.end) * 2)
        block = bisect_right(self.fences, key_hash) - 1
        last = max(bisect_left(self.fences, key_hash) - 1, 0)
        while block >= last:
            data = self.read_keys(block * KEYS_PER_FENCE, KEYS_PER_FENCE)
            number = _keys_below(data, target)
            while number:
                number -= 1
                found_hash, code = KEY.unpack_from(data, number * KEY_BYTES)
                if found_hash != key_hash:
                    return None
                if code & 1 or not tombstones_only:
                    return int(code >> 1)
            block -= 1
        return None

    def _read(self, position: int, size: int) -> bytes:
        if size <= 0:
            return b""
        try:
            file = self._disk.open(self.path)
            try:
                data = file.read_at(position, size)
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"cannot read {self.path}: {error}") from error
        if len(data) < size:
            raise StorageError(f"{self.path} is damaged: it ends at byte {position + len(data)}")
        return data


def _keys_below(data: bytes, target: bytes) -> int:
    count = len(data) // KEY_BYTES
    return search(count, lambda number: data[number * KEY_BYTES : (number + 1) * KEY_BYTES], target)


def open_run(disk: Disk, path: Path) -> Generator[None, None, TimerRun]:
    """The run in a file, after its checksum was compared, in steps. Raises FileFormatError,
    OSError.
    """
    file = disk.open(path)
    try:
        header = decode_header(file.read_at(0, HEADER_BYTES))
        if header.size != file.size():
            raise FileFormatError(f"it has {file.size()} bytes instead of {header.size}")
        crc = 0
        for position in range(HEADER_BYTES, header.size, SCAN_BYTES):
            crc = crc32c(file.read_at(position, min(SCAN_BYTES, header.size - position)), crc)
            if position % (_READS_PER_STEP * SCAN_BYTES) == HEADER_BYTES:
                yield
        if crc != header.body_crc:
            raise FileFormatError("its checksum is wrong")
        buckets = Buckets(header.start, header.end)
        buckets.decode(file.read_at(header.counts_position, COUNT_BYTES * buckets.size))
        fences = array("Q")
        chunk = SCAN_BYTES // KEY_BYTES
        for number in range(0, header.keys, chunk):
            count = min(chunk, header.keys - number)
            data = file.read_at(header.keys_position + number * KEY_BYTES, count * KEY_BYTES)
            fences += numbers_of(data, 0, 2)[::KEYS_PER_FENCE]
            if number % (_READS_PER_STEP * chunk) == 0:
                yield
    finally:
        file.close()
    return TimerRun(disk, path, header, fences, buckets)


assert SCAN_BYTES % (KEY_BYTES * KEYS_PER_FENCE) == 0
