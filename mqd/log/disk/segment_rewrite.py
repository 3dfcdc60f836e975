"""The slices of a compaction pass, for worker threads: reads the dirty part, and rewrites segments.

`fill_offset_map` and `SegmentRewrite.slices` are generators. One `next` is a slice and returns the
bytes that it read and wrote. A slice ends after a number of records or bytes, and includes whole
batches. Memory: one chunk or one decompressed batch, its output, and the indexes of one segment.

The slices do not use the `PartitionLog`, which may change between them. They read files by name,
which may be deleted meanwhile. After each slice the caller checks whether the log has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mqd.errors import PASSING_ERRNOS, MqError
from mqd.limits import CLEANED_RECORDS_PER_SLICE
from mqd.log.compaction import BatchRewriter, OffsetMapBuilder
from mqd.log.disk.segment_swap import CLEANED_SUFFIX, remove_unfinished_files
from mqd.log.log_config import LogConfig
from mqd.log.segment import Segment
from mqd.log.transaction_index import TransactionIndex
from mqd.protocol.batch import BatchHeader, crc_of, parse_header
from mqd.protocol.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    BadBatch,
    encode_txn_index,
    scan_batches,
    segment_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

_SEGMENT_BYTES_MAX = 2**31 - 1
"""Positions in an index have four bytes."""


class Uncleanable(Exception):
    """A log has data that cannot be cleaned, now or later."""


class Source(NamedTuple):
    """A segment at the time when the caller planned the work."""

    base_offset: Offset
    size: int
    position: int = 0
    """The position of the first batch to read."""


def sources_of(segments: Sequence[Segment]) -> list[Source]:
    return [Source(segment.base_offset, segment.size) for segment in segments]


def fill_offset_map(
    disk: Disk, path: Path, sources: Sequence[Source], builder: OffsetMapBuilder, chunk_bytes: int
) -> Iterator[int]:
    """Put the keys of these segments into the map, until it is full. Uncleanable, OSError."""
    records = size = 0
    for header, view, _is_last in _batches(disk, path, sources, chunk_bytes):
        try:
            if not builder.add(header, view):
                break
        except MqError as error:
            raise Uncleanable(
                f"{path}: the batch at offset {header.base_offset} cannot be read: {error.message}"
            ) from error
        records += header.records_count
        size += len(view)
        if records >= CLEANED_RECORDS_PER_SLICE or size >= chunk_bytes:
            yield size
            records = size = 0
    yield size


class SegmentRewrite:
    """Rewrites adjacent segments as one, in .cleaned files (segment_swap.py). See the head of this
    file.

    `with_transactions`: whether the first segment has a transaction index file, which the new one
    must replace.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        sources: Sequence[Source],
        next_offset: Offset,
        rewriter: BatchRewriter,
        config: LogConfig,
        *,
        now_ms: int,
        chunk_bytes: int,
        with_transactions: bool,
    ) -> None:
        self.segment = Segment(sources[0].base_offset, now_ms)
        self.changed = len(sources) > 1
        """Whether the result differs from the segments on disk."""
        self._disk = disk
        self._path = path
        self._sources = sources
        self._next_offset = next_offset
        self._rewriter = rewriter
        self._interval = config.index_interval_bytes
        self._chunk_bytes = chunk_bytes
        self._with_transactions = with_transactions

    def slices(self) -> Iterator[int]:
        """Rewrite the segments, until all files are written and durable. Raises Uncleanable or
        OSError; then the caller removes the files.
        """
        segment, disk = self.segment, self._disk
        segment.file = file = disk.open(self._name(LOG_SUFFIX), create=True)
        file.truncate(0)
        records = read = 0
        kept: list[memoryview | bytearray] = []
        kept_bytes = 0
        for header, view, is_last in _batches(disk, self._path, self._sources, self._chunk_bytes):
            try:
                rewritten = self._rewriter.rewrite(header, view, keep=is_last)
            except MqError as error:
                raise Uncleanable(
                    f"{self._path}: the batch at offset {header.base_offset} cannot be read: "
                    f"{error.message}"
                ) from error
            records += header.records_count
            read += len(view)
            if rewritten is not view:
                self.changed = True
            if rewritten is not None:
                self._add(header, rewritten)
                kept.append(rewritten)
                kept_bytes += len(rewritten)
            if records >= CLEANED_RECORDS_PER_SLICE or read >= self._chunk_bytes:
                written, kept = file.append(kept) if kept else 0, []
                yield read + written
                records = read = kept_bytes = 0
        if kept:
            file.append(kept)
            yield read + kept_bytes
        if not self.changed:
            remove_unfinished_files(disk, self._path, segment.base_offset)
            self._rewriter.transactions.aborted_with_batches.clear()
            return
        file.sync()
        yield 0
        self._write_indexes()
        yield 0

    def _add(self, header: BatchHeader, rewritten: memoryview | bytearray) -> None:
        segment = self.segment
        if segment.size + len(rewritten) > _SEGMENT_BYTES_MAX:
            raise Uncleanable(
                f"{self._path}: segment {segment.base_offset} would grow beyond "
                f"{_SEGMENT_BYTES_MAX} bytes"
            )
        segment.add(
            header.last_offset,
            len(rewritten),
            parse_header(rewritten).max_timestamp,
            self._interval,
        )

    def _write_indexes(self) -> None:
        segment, disk = self.segment, self._disk
        segment.on_inactive()
        segment.next_offset = self._next_offset
        assert segment.index is not None and segment.time_index is not None
        files = [
            (INDEX_SUFFIX, segment.index.encode()),
            (TIME_INDEX_SUFFIX, segment.time_index.encode()),
        ]
        aborted = self._rewriter.transactions.aborted_with_batches
        segment.transaction_index = TransactionIndex(aborted)
        if aborted or self._with_transactions:
            files.append((TXN_INDEX_SUFFIX, encode_txn_index(aborted)))
        self._rewriter.transactions.aborted_with_batches = []
        for suffix, data in files:
            file = disk.open(self._name(suffix), create=True)
            file.truncate(0)
            file.append([data])
            file.sync()
        disk.sync_directory(self._path)

    def _name(self, suffix: str) -> Path:
        return self._path / segment_file_name(self.segment.base_offset, suffix + CLEANED_SUFFIX)


def _batches(
    disk: Disk, path: Path, sources: Sequence[Source], chunk_bytes: int
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """(header, bytes, whether it is the last of all) of each batch. Its CRC is checked, because a
    rewritten batch gets a new CRC, which would hide damage. Raises Uncleanable, or OSError for a
    temporary error.
    """
    last = max((number for number, source in enumerate(sources) if source.size), default=0)
    for number, source in enumerate(sources):
        name = path / segment_file_name(source.base_offset, LOG_SUFFIX)
        try:
            file = disk.open(name)
            for position, header, view in scan_batches(
                file.read_at, source.position, source.size, chunk_bytes
            ):
                if crc_of(view, 0, len(view)) != header.crc:
                    raise BadBatch(position, "the CRC-32C is wrong")
                yield header, view, number == last and position + len(view) == source.size
        except BadBatch as bad:
            raise Uncleanable(f"{name} {bad}") from bad
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                raise
            raise Uncleanable(f"{name}: {error.strerror or error}") from error
