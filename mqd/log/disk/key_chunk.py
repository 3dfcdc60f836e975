"""Searches a part of a segment file for a key, in a worker thread: reads, decompresses, and looks
for the bytes of the key.

`bytes.find` compares gigabytes in a second, so most batches are never decoded. It finds each record
with the key, and other bytes too: the event loop then compares keys (disk/key_search.py). A batch
whose bytes do not have the key, with its length before it, has no record with the key.

One slice reads at most 4 MiB, or one larger batch: `size` says so before, for the class of the work
(server/batch_work.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    INSPECTED_AT_ONCE_BYTES,
    INSPECTED_BYTES_LARGEST,
    RECOVERY_BATCH_BYTES_MAX,
    SCAN_BYTES,
)
from mqd.log.decompression import Decompression
from mqd.protocol.batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    corrupt,
    crc_of,
    parse_header,
)
from mqd.protocol.compression import Codec
from mqd.protocol.files import BadBatch
from mqd.types import NO_OFFSET, Offset

if TYPE_CHECKING:
    from mqd.io.disk import File

CHUNK_BYTES = 4 * SCAN_BYTES
"""Bytes of one chunk: 2 to 3 ms in the thread. Smaller ones would be slower on a busy machine."""
HEADERS_AT_ONCE = 500
"""Batches in one chunk. 500 take 2 ms."""
_DECOMPRESSED_AT_ONCE = CHUNK_BYTES


class Wanted(NamedTuple):
    """What a chunk is searched for."""

    pattern: bytes
    """The key with its length before it, as a record has it."""
    start_offset: Offset
    end_offset: Offset
    """Exclusive."""
    since: int
    """The smallest timestamp, in ms."""


class Hit(NamedTuple):
    """A batch whose bytes have the key, and its records, decompressed."""

    header: BatchHeader
    records: bytes | memoryview


class Unreadable(NamedTuple):
    """A batch whose records cannot be read."""

    header: BatchHeader
    error: MqError


class KeyChunk:
    """Searches whole batches in [start, end) of a file, from `start` on, as many as one chunk has.

    A `ReadWork` of server/batch_work.py. After the slices: `hits`, and `position`, where the next
    chunk begins. `failure`: the file is damaged at that position, or cannot be read.
    """

    __slots__ = (
        "_end",
        "_file",
        "_released",
        "_wanted",
        "bytes_read",
        "failure",
        "first_offset",
        "hits",
        "next_offset",
        "position",
        "size",
        "slices",
        "unreadable",
    )

    def __init__(self, file: File, start: int, end: int, wanted: Wanted) -> None:
        assert start < end
        self._file: File | None = file
        self._end = end
        self._wanted = wanted
        self._released = False
        self.position = start
        self.size = CHUNK_BYTES
        """The bytes that the next slice makes, at most."""
        self.hits: list[Hit] = []
        self.unreadable: Unreadable | None = None
        """The last batch of the chunk cannot be read."""
        self.failure: BadBatch | OSError | None = None
        self.bytes_read = 0
        """Bytes of the file, and of decompressed batches beyond that."""
        self.first_offset: Offset = NO_OFFSET
        """The base offset of the first batch."""
        self.next_offset: Offset = NO_OFFSET
        """The offset after the last batch."""
        self.slices: Iterator[None] = self._run()

    @property
    def is_released(self) -> bool:
        return self._released

    def release(self) -> None:
        """The result was read."""
        self._released = True
        self.hits = []

    def give_up(self) -> None:
        """Nobody wants the result any more."""
        self.slices = iter(())
        self._file = None
        self.release()

    @property
    def is_given_up(self) -> bool:
        return self._file is None

    def _run(self) -> Iterator[None]:
        try:
            yield from self._search()
        except (BadBatch, OSError) as failure:
            self.failure = failure.with_traceback(None)  # its frames have the records

    def _search(self) -> Iterator[None]:
        """Raises BadBatch, OSError."""
        start = self.position
        assert self._file is not None
        data = self._file.read_at(start, min(CHUNK_BYTES, self._end - start))
        view = memoryview(data)
        decompressed = 0
        for number in range(HEADERS_AT_ONCE):
            if self.position >= self._end:
                return
            at = self.position - start
            if len(view) - at < HEADER_BYTES and number:
                return
            header = self._header(view, at)
            size = header.size
            if at + size > len(view):
                if number:
                    return
                self.size = size
                yield
                data = self._file.read_at(start, size)
                view = memoryview(data)
                if len(view) < size:
                    raise BadBatch(start, "the file ends inside a batch")
            batch = view[at : at + size]
            if self._may_match(header):
                expanded = self._expanded(batch, header)
                if number and decompressed + expanded > _DECOMPRESSED_AT_ONCE:
                    return
                decompressed += expanded
                yield from self._look_into(data, at, batch, header)
            if not number:
                self.first_offset = header.base_offset
            self.position += size
            self.next_offset = header.next_offset
            self.bytes_read += size
            if self.unreadable is not None:
                return

    def _header(self, view: memoryview, at: int) -> BatchHeader:
        if len(view) - at < HEADER_BYTES:
            raise BadBatch(self.position, f"{len(view) - at} bytes are less than a header")
        header = parse_header(view, at)
        if (
            header.magic != MAGIC
            or not HEADER_BYTES <= header.size <= RECOVERY_BATCH_BYTES_MAX
            or self.position + header.size > self._end
            or header.base_offset < 0
            or header.last_offset_delta < 0
        ):
            raise BadBatch(
                self.position,
                f"no batch: magic {header.magic}, length {header.batch_length}, base offset "
                f"{header.base_offset}",
            )
        return header

    def _may_match(self, header: BatchHeader) -> bool:
        wanted = self._wanted
        return (
            not header.is_control
            and header.records_count > 0
            and header.last_offset >= wanted.start_offset
            and header.base_offset < wanted.end_offset
            and header.max_timestamp >= wanted.since
        )

    @staticmethod
    def _expanded(batch: memoryview, header: BatchHeader) -> int:
        if not header.codec or header.codec > Codec.ZSTD:
            return 0
        return Decompression(batch, header, INSPECTED_BYTES_LARGEST).size

    def _look_into(
        self, data: bytes, at: int, batch: memoryview, header: BatchHeader
    ) -> Iterator[None]:
        pattern = self._wanted.pattern
        if crc_of(batch, 0, len(batch)) != header.crc:
            self.unreadable = Unreadable(
                header, MqError(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C is wrong")
            )
            return
        if not header.codec:
            if data.find(pattern, at + HEADER_BYTES, at + header.size) >= 0:
                records: bytes | memoryview = batch[HEADER_BYTES:]
                if len(records) <= INSPECTED_AT_ONCE_BYTES:
                    records = bytes(records)  # indexing bytes takes half the time
                self.hits.append(Hit(header, records))
            return
        try:
            if header.codec > Codec.ZSTD:
                raise corrupt(f"unknown codec {header.codec}")
            work = Decompression(batch, header, INSPECTED_BYTES_LARGEST)
            if work.size > CHUNK_BYTES:
                self.size = max(self.size, work.size)
                yield
            for _ in work.slices:
                self.size = work.size
                yield
            content = bytes(work.content())
        except MqError as error:
            self.unreadable = Unreadable(header, error.with_traceback(None))
            return
        self.bytes_read += max(0, len(content) - header.size)
        if pattern in content:
            self.hits.append(Hit(header, content))
