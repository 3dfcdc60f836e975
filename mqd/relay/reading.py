"""Committed records of a local log: without transaction markers and aborted transactions. A shell
around `LogService.reader`; `decoded`, `slice_of_large` and `picked` are pure and run in a thread.

A batch with many records, or of many bytes after decompression, is large. A node reads one of these
at a time, and gives some of its records at once (sharing.py).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mqd.client.fetched_batches import AbortedTransactions, BufferedBatch
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.disk import Disk, FileRange
from mqd.limits import (
    KIB,
    RELAY_BATCH_BYTES_MAX,
    RELAY_HEADERS_MAX,
    RELAY_READ_BYTES,
    RELAY_READ_RECORDS,
)
from mqd.log.service import LogService
from mqd.protocol.batch import BatchHeader, iterate_batches, validate
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import INT64_MAX, Record, record_bytes
from mqd.protocol.record_scan import records_at, selected_records
from mqd.relay.delay_records import size_of
from mqd.relay.sharing import Shared
from mqd.replica.partition import Partition
from mqd.types import Offset

logger = logging.getLogger(__name__)

SCAN_BYTES: Final = 256 * KIB
_LOOKUP_BYTES: Final = 64 * KIB
_DENSE: Final = 100
"""Records at a smaller distance are read with one read of _LOOKUP_BYTES, others batch by batch."""
_PICKED_MAX: Final = 1_000
"""Records that one part of the log gives."""
_PARTS_MAX: Final = 16
"""Parts of the log that are read with one call in a worker thread."""
_PICKED_RATIO: Final = 8
"""If fewer than one record in so many is wanted, the others are skipped, not decoded."""


class Chunk(NamedTuple):
    """Records in order, and where the next chunk begins."""

    records: list[Record]
    next_offset: Offset
    skipped: int
    """Batches whose records cannot be read: their producer wrote damaged bytes, or too many."""
    is_large: bool = False
    """Whether the batch at `next_offset` is large, so it needs `slice_of_large`."""


def decoded(data: bytes, aborted: Iterable[tuple[int, int]], start: Offset, end: Offset) -> Chunk:
    """The visible records in [start, end) of whole batches, up to a large batch. `aborted`: (first
    offset, producer id) of the aborted transactions among them."""
    view = memoryview(data)
    aborts = AbortedTransactions(aborted)
    records: list[Record] = []
    next_offset, skipped, size = start, 0, 0
    for position, batch_size, header in iterate_batches(view):
        if len(records) >= RELAY_READ_RECORDS or size >= RELAY_READ_BYTES:
            break
        try:
            found = list(_visible(view, position, batch_size, header, aborts, start, end))
        except _Large:
            return Chunk(records, next_offset, skipped, is_large=True)
        except (MqError, ProtocolError):
            found, skipped = [], skipped + 1
        records += found
        size += sum(map(size_of, found))
        next_offset = max(next_offset, header.last_offset + 1)
    return Chunk(records, next_offset, skipped)


class _Large(Exception):
    """A batch is large."""


def _visible(
    view: memoryview,
    position: int,
    size: int,
    header: BatchHeader,
    aborts: AbortedTransactions,
    start: Offset = 0,
    end: Offset = INT64_MAX,
) -> Sequence[Record]:
    """The visible records in [start, end) of a batch. Raises _Large; MqError and ProtocolError for
    damage."""
    is_large = header.records_count > RELAY_READ_RECORDS or size > RELAY_READ_BYTES
    if is_large and not header.is_control:
        raise _Large
    batch = BufferedBatch(view, position, size, header, aborts, 0)
    try:
        return batch.visible_records(
            start,
            end,
            read_committed=True,
            limit=RELAY_READ_BYTES,
            headers_max=RELAY_HEADERS_MAX,
        )
    except MqError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise _Large from None
        raise


def slice_of_large(data: bytes, aborted: Iterable[tuple[int, int]], start: Offset) -> Chunk:
    """Some visible records from `start` on of one batch, and without their values."""
    view = memoryview(data)
    position, size, header = next(iterate_batches(view))
    end = header.last_offset + 1
    records: list[Record] = []
    weight = 0
    try:
        validate(view, position, end=position + size)
        if header.is_control or AbortedTransactions(aborted).hides(header):
            return Chunk([], end, 0)
        for record in _some_of_large(view, header, range(max(start, header.base_offset), end)):
            records.append(record._replace(value=record.value and b""))
            weight += size_of(records[-1])
            if len(records) >= RELAY_READ_RECORDS or weight >= RELAY_READ_BYTES:
                return Chunk(records, record.offset + 1, 0)
    except (MqError, ProtocolError):
        return Chunk(records, end, 1)
    return Chunk(records, end, 0)


def _some_of_large(
    view: memoryview, header: BatchHeader, offsets: Sequence[Offset]
) -> Iterator[Record]:
    """The records at these ascending offsets of the batch at the start of `view`. Raises
    MqError."""
    return selected_records(
        view, header, offsets, limit=RELAY_BATCH_BYTES_MAX, headers_max=RELAY_HEADERS_MAX
    )


async def read_chunk(
    logs: LogService,
    disk: Disk,
    shared: Shared,
    partition: Partition,
    offset: Offset,
    limit: Offset,
) -> Chunk:
    """Records from `offset` on, below `limit`. Those of a large batch have no values. Raises
    MqError."""
    log = partition.log
    found = logs.reader.read(log, offset, max_bytes=SCAN_BYTES, limit_offset=limit, min_one=True)
    if not found.ranges:
        return Chunk([], limit, 0)
    aborted = [
        (one.first_offset, one.producer_id)
        for one in logs.reader.aborted(log, offset, found.next_offset)
    ]
    [part] = found.ranges
    chunk = Chunk([], offset, 0, is_large=True)
    if part.size <= RELAY_READ_BYTES:
        data = await disk.offload(part.file.read_at, part.position, part.size)
        chunk = await disk.offload(decoded, data, aborted, offset, limit)
    if chunk.is_large and chunk.next_offset == offset:
        async with shared.large_reads:
            chunk = await disk.offload(_read_large, part, aborted, offset)
    if chunk.skipped:
        _log_skipped(partition, offset, chunk.next_offset, chunk.skipped)
    return chunk


def _read_large(part: FileRange, aborted: list[tuple[int, int]], offset: Offset) -> Chunk:
    return slice_of_large(part.file.read_at(part.position, part.size), aborted, offset)


class _Part(NamedTuple):
    """Whole batches of the log, and which of their records are wanted."""

    part: FileRange
    aborted: list[tuple[int, int]]
    offsets: list[Offset]
    """Ascending."""


class _Picked(NamedTuple):
    """What is known of wanted records."""

    records: dict[Offset, Record | None]
    """None for one that is not visible, or cannot be read."""
    size: int
    skipped: int
    """Batches that cannot be read."""
    large: frozenset[Offset]
    """Records that are large: `records` has them without what is long."""
    is_large: bool
    """Whether the next batch is large."""


class WholeRecord(NamedTuple):
    record: Record
    codec: Codec
    """The compression of its batch."""


class RecordLookup:
    """Records by their offset."""

    def __init__(self, logs: LogService, disk: Disk, shared: Shared, partition: Partition) -> None:
        self._logs = logs
        self._disk = disk
        self._shared = shared
        self._partition = partition
        self._known: dict[Offset, Record | None] = {}
        self._large: frozenset[Offset] = frozenset()

    def forget(self) -> None:
        """Release the memory of what was read."""
        self._known, self._large = {}, frozenset()

    async def prepare(self, offsets: Sequence[Offset], bytes_max: int) -> None:
        """Read the records at these offsets, which `get` then returns, but only the first ones if
        they have more than `bytes_max`. Many cost little more than one. Raises MqError."""
        self.forget()
        ordered, size = sorted(offsets), 0
        waiting = iter(offsets)
        while size < bytes_max:
            parts, read = list[_Part](), 0
            known = set(self._known)
            for offset in waiting:
                if offset in known:
                    continue
                first = bisect_left(ordered, offset)
                part = self._find(ordered[first : first + _PICKED_MAX])
                known.add(offset)
                if part is None:
                    self._known[offset] = None
                    continue
                known.update(part.offsets)
                parts.append(part)
                read += part.part.size
                if len(parts) == _PARTS_MAX or read >= SCAN_BYTES:
                    break
            if not parts:
                return
            size += await self._read(parts, bytes_max - size)

    def is_prepared(self, offset: Offset) -> bool:
        """Whether `get` returns at once."""
        return offset in self._known

    async def get(self, offset: Offset) -> Record | None:
        """None for a record that was deleted or cannot be read. A record that `is_large` lacks what
        is long: its key has more than RELAY_READ_BYTES, or is complete. Raises MqError."""
        if offset in self._known:
            return self._known[offset]
        part = self._find([offset])
        if part is None:
            return None
        await self._read([part], 1)
        return self._known.pop(offset)

    def is_large(self, offset: Offset) -> bool:
        """Whether the record of `get` is large: `whole` has all of it."""
        return offset in self._large

    async def whole(self, offset: Offset) -> WholeRecord | None:
        """A large record; None if it was deleted. Raises MqError."""
        part = self._find([offset])
        if part is None:
            return None
        async with self._shared.large_reads:
            return await self._disk.offload(_read_whole, part)

    def _find(self, offsets: list[Offset]) -> _Part | None:
        """Where the record at the first of these offsets is, and others beside it. None: it was
        deleted."""
        first, log = offsets[0], self._partition.log
        if first < log.log_start_offset:
            return None
        is_dense = len(offsets) > 1 and offsets[1] - first < _DENSE
        reader = self._logs.reader
        try:
            found = reader.read(
                log,
                first,
                max_bytes=_LOOKUP_BYTES if is_dense else 1,
                limit_offset=self._partition.last_stable_offset,
                min_one=True,
            )
            if not found.ranges:
                return None
            aborted = reader.aborted(log, first, found.next_offset)
        except MqError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise
        return _Part(
            found.ranges[0],
            [(one.first_offset, one.producer_id) for one in aborted],
            offsets[: bisect_left(offsets, found.next_offset)],
        )

    async def _read(self, parts: list[_Part], bytes_max: int) -> int:
        """Read the wanted records, until they have `bytes_max`. Returns their size."""
        size, is_large = 0, parts[0].part.size > RELAY_READ_BYTES
        while parts and size < bytes_max:
            if is_large:
                async with self._shared.large_reads:
                    found = await self._disk.offload(_read_parts, parts[:1], bytes_max - size, True)
            else:
                found = await self._disk.offload(_read_parts, parts, bytes_max - size, False)
            if found.skipped:
                _log_skipped(
                    self._partition, parts[0].offsets[0], parts[-1].offsets[-1] + 1, found.skipped
                )
            self._known |= found.records
            self._large |= found.large
            size += found.size
            is_large = found.is_large
            left = (
                part._replace(offsets=[one for one in part.offsets if one not in found.records])
                for part in parts
            )
            parts = [part for part in left if part.offsets]
        return size


def _read_parts(parts: Sequence[_Part], bytes_max: int, is_large: bool) -> _Picked:
    """The wanted records of these parts: all, the first ones, or those before a large batch. Runs
    in a worker thread. `is_large`: whether to read the first batch with a wanted record also if it
    is large."""
    records = dict[Offset, Record | None]()
    large = frozenset[Offset]()
    size = skipped = 0
    for part, aborted, offsets in parts:
        if part.size > RELAY_READ_BYTES and not is_large:
            return _Picked(records, size, skipped, large, is_large=True)
        data = part.file.read_at(part.position, part.size)
        found = picked(data, aborted, offsets, bytes_max - size, is_large=is_large)
        records |= found.records
        large |= found.large
        size += found.size
        skipped += found.skipped
        if found.is_large or size >= bytes_max:
            return found._replace(records=records, size=size, skipped=skipped, large=large)
    return _Picked(records, size, skipped, large, is_large=False)


def picked(
    data: bytes,
    aborted: Iterable[tuple[int, int]],
    offsets: Sequence[Offset],
    bytes_max: int = INT64_MAX,
    *,
    is_large: bool = False,
) -> _Picked:
    """The visible records at these ascending offsets of whole batches, until they have
    `bytes_max`. `aborted`: as for `decoded`. `is_large`: as for `_read_parts`."""
    view = memoryview(data)
    aborts = AbortedTransactions(aborted)
    records = dict[Offset, Record | None]()
    large = frozenset[Offset]()
    size = skipped = 0
    for position, batch_size, header in iterate_batches(view):
        begin = bisect_left(offsets, header.base_offset)
        wanted = offsets[begin : bisect_right(offsets, header.last_offset)]
        if wanted and size >= bytes_max:
            return _Picked(records, size, skipped, large, is_large=False)
        found: Iterable[Record] = ()
        try:
            if not wanted and not header.is_control:
                aborts.hides(header)
                continue
            try:
                found = _wanted_of(view, position, batch_size, header, aborts, wanted)
            except _Large:
                if not is_large:
                    return _Picked(records, size, skipped, large, is_large=True)
                is_large = False
                validate(view, position, end=position + batch_size)
                if not aborts.hides(header):
                    found = _some_of_large(view[position:], header, wanted)
            for record in found:
                if size_of(record) > RELAY_READ_BYTES:
                    large |= {record.offset}
                    record = _shortened(record)
                records[record.offset] = record
                size += size_of(record)
                if size >= bytes_max:
                    break
            else:
                records |= dict.fromkeys(one for one in wanted if one not in records)
        except (MqError, ProtocolError):
            skipped += 1
            records |= dict.fromkeys(one for one in wanted if one not in records)
        if size >= bytes_max:
            return _Picked(records, size, skipped, large, is_large=False)
    records |= dict.fromkeys(one for one in offsets if one not in records)
    return _Picked(records, size, skipped, large, is_large=False)


def _wanted_of(
    view: memoryview,
    position: int,
    size: int,
    header: BatchHeader,
    aborts: AbortedTransactions,
    wanted: Sequence[Offset],
) -> Iterable[Record]:
    """The visible records at these offsets of a batch. Raises as `_visible`."""
    count = header.records_count
    has_gaps = count != header.last_offset_delta + 1
    if header.is_control or has_gaps or len(wanted) * _PICKED_RATIO > count:
        some = set(wanted)
        found = _visible(view, position, size, header, aborts)
        return [record for record in found if record.offset in some]
    if count > RELAY_READ_RECORDS or size > RELAY_READ_BYTES:
        raise _Large
    validate(view, position, end=position + size)
    if aborts.hides(header):
        return ()
    try:
        body = record_bytes(view[position:], header, RELAY_READ_BYTES)
    except MqError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise _Large from None
        raise
    return list(records_at(body, header, wanted, RELAY_HEADERS_MAX))


def _read_whole(part: _Part) -> WholeRecord | None:
    """The one record. Runs in a worker thread."""
    view = memoryview(part.part.file.read_at(part.part.position, part.part.size))
    [offset] = part.offsets
    for position, size, header in iterate_batches(view):
        if header.last_offset < offset:
            continue
        try:
            for record in _some_of_large(view[position : position + size], header, [offset]):
                return WholeRecord(record, Codec(header.codec))
        except (MqError, ProtocolError):
            pass  # damaged since it was looked up
        break
    return None


def _shortened(record: Record) -> Record:
    """A large record, as far as look-ups of other records need it."""
    return record._replace(
        key=record.key and record.key[: RELAY_READ_BYTES + 1],
        value=record.value and b"",
        headers=[one for one in record.headers if len(one[0]) + len(one[1] or b"") <= KIB],
    )


def _log_skipped(partition: Partition, start: Offset, end: Offset, batches: int) -> None:
    logger.error(
        "relay skips batches that it cannot read partition=%s from=%d to=%d batches=%d",
        partition.log.topic_partition,
        start,
        end,
        batches,
    )
