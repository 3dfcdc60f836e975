"""Committed records of a local log: without transaction markers and aborted transactions. A shell
around `LogService.reader`; `decoded` and `picked` are pure and run in a thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mqd.client.fetched_batches import AbortedTransactions, BufferedBatch
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.disk import Disk, FileRange
from mqd.limits import DECOMPRESSED_BYTES_MAX, KIB
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches, validate
from mqd.protocol.record_reader import INT64_MAX, Record, record_bytes
from mqd.protocol.record_scan import records_at
from mqd.relay.delay_records import size_of
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
    """Batches whose records cannot be read: their producer wrote damaged bytes."""


def decoded(data: bytes, aborted: Iterable[tuple[int, int]], start: Offset, end: Offset) -> Chunk:
    """The visible records in [start, end) of whole batches. `aborted`: (first offset, producer id)
    of the aborted transactions among them."""
    view = memoryview(data)
    aborts = AbortedTransactions(aborted)
    records: list[Record] = []
    next_offset, skipped = start, 0
    for position, size, header in iterate_batches(view):
        batch = BufferedBatch(view, position, size, header, aborts, end)
        try:
            records += batch.visible_records(start, end, read_committed=True)
        except (MqError, ProtocolError):
            skipped += 1
        next_offset = max(next_offset, header.last_offset + 1)
    return Chunk(records, next_offset, skipped)


async def read_chunk(
    logs: LogService,
    disk: Disk,
    partition: Partition,
    offset: Offset,
    limit: Offset,
    max_bytes: int = SCAN_BYTES,
) -> Chunk:
    """The records from `offset` on, below `limit`, at most about `max_bytes`. Raises MqError."""
    log = partition.log
    found = logs.reader.read(log, offset, max_bytes=max_bytes, limit_offset=limit, min_one=True)
    if not found.ranges:
        return Chunk([], limit, 0)
    aborted = [
        (one.first_offset, one.producer_id)
        for one in logs.reader.aborted(log, offset, found.next_offset)
    ]
    [part] = found.ranges
    data = await disk.offload(part.file.read_at, part.position, part.size)
    chunk = await disk.offload(decoded, data, aborted, offset, limit)
    if chunk.skipped:
        _log_skipped(partition, offset, chunk.next_offset, chunk.skipped)
    return chunk


class _Part(NamedTuple):
    """Whole batches of the log, and which of their records are wanted."""

    part: FileRange
    aborted: list[tuple[int, int]]
    offsets: list[Offset]
    """Ascending."""


class RecordLookup:
    """Records by their offset."""

    def __init__(self, logs: LogService, disk: Disk, partition: Partition) -> None:
        self._logs = logs
        self._disk = disk
        self._partition = partition
        self._prepared: dict[Offset, Record | None] = {}

    async def prepare(self, offsets: Sequence[Offset], bytes_max: int) -> None:
        """Read the records at these offsets, which `get` then returns, but only the first ones if
        they have more than `bytes_max`. Many cost little more than one. Raises MqError."""
        self._prepared = {}
        ordered, size = sorted(offsets), 0
        waiting = iter(offsets)
        while size < bytes_max:
            parts, read = list[_Part](), 0
            known = set(self._prepared)
            for offset in waiting:
                if offset in known:
                    continue
                first = bisect_left(ordered, offset)
                part = self._find(ordered[first : first + _PICKED_MAX])
                known.add(offset)
                if part is None:
                    self._prepared[offset] = None
                    continue
                known.update(part.offsets)
                parts.append(part)
                read += part.part.size
                if len(parts) == _PARTS_MAX or read >= SCAN_BYTES:
                    break
            if not parts:
                return
            records = await self._read(parts)
            for part in parts:
                self._prepared |= dict.fromkeys(part.offsets)
            self._prepared |= records
            size += sum(map(size_of, records.values()))

    async def get(self, offset: Offset) -> Record | None:
        """None for a record that was deleted or cannot be read. Raises MqError."""
        if offset not in self._prepared:
            part = self._find([offset])
            return None if part is None else (await self._read([part])).get(offset)
        return self._prepared[offset]

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

    async def _read(self, parts: list[_Part]) -> dict[Offset, Record]:
        """The wanted records that are visible."""
        records, skipped = await self._disk.offload(_read_parts, parts)
        if skipped:
            _log_skipped(self._partition, parts[0].offsets[0], parts[-1].offsets[-1] + 1, skipped)
        return {record.offset: record for record in records}


def _read_parts(parts: Iterable[_Part]) -> tuple[list[Record], int]:
    """The wanted records, and the number of damaged batches. Runs in a worker thread."""
    records, skipped = list[Record](), 0
    for part, aborted, offsets in parts:
        found, damaged = picked(part.file.read_at(part.position, part.size), aborted, offsets)
        records += found
        skipped += damaged
    return records, skipped


def picked(
    data: bytes, aborted: Iterable[tuple[int, int]], offsets: Sequence[Offset]
) -> tuple[list[Record], int]:
    """The visible records at these ascending offsets of whole batches, and the number of batches
    that cannot be read. `aborted`: as for `decoded`."""
    view = memoryview(data)
    aborts = AbortedTransactions(aborted)
    records, skipped = list[Record](), 0
    for position, size, header in iterate_batches(view):
        begin = bisect_left(offsets, header.base_offset)
        wanted = offsets[begin : bisect_right(offsets, header.last_offset)]
        count = header.records_count
        has_gaps = count != header.last_offset_delta + 1
        try:
            if header.is_control or has_gaps or len(wanted) * _PICKED_RATIO > count:
                batch = BufferedBatch(view, position, size, header, aborts, 0)
                found = batch.visible_records(0, INT64_MAX, read_committed=True)
                some = set(wanted)
                records += [record for record in found if record.offset in some]
                continue
            validate(view, position, end=position + size)
            if not aborts.hides(header) and wanted:
                body = record_bytes(view[position:], header, DECOMPRESSED_BYTES_MAX)
                records += records_at(body, header, wanted)
        except (MqError, ProtocolError):
            skipped += 1
    return records, skipped


def _log_skipped(partition: Partition, start: Offset, end: Offset, batches: int) -> None:
    logger.error(
        "relay skips batches with damaged records partition=%s from=%d to=%d batches=%d",
        partition.log.topic_partition,
        start,
        end,
        batches,
    )
