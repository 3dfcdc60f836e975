"""Committed records of a local log: without transaction markers and aborted transactions. A shell
around `LogService.reader`; `decoded` is pure and runs in a thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from mqd.client.fetched_batches import AbortedTransactions, BufferedBatch
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.disk import Disk
from mqd.limits import KIB
from mqd.log.service import LogService
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import Record
from mqd.replica.partition import Partition
from mqd.types import Offset

logger = logging.getLogger(__name__)

SCAN_BYTES: Final = 256 * KIB
_LOOKUP_BYTES: Final = 64 * KIB
_CHUNKS_MAX: Final = 16
"""Chunks of the log that `RecordLookup` keeps decoded."""


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
        logger.error(
            "relay skips batches with damaged records partition=%s from=%d to=%d batches=%d",
            log.topic_partition,
            offset,
            chunk.next_offset,
            chunk.skipped,
        )
    return chunk


class RecordLookup:
    """Records by their offset, through a few decoded chunks."""

    def __init__(self, logs: LogService, disk: Disk, partition: Partition) -> None:
        self._logs = logs
        self._disk = disk
        self._partition = partition
        self._chunks: OrderedDict[Offset, tuple[Offset, dict[Offset, Record]]] = OrderedDict()
        """By first offset: the end, and the records."""

    async def get(self, offset: Offset) -> Record | None:
        """None for a record that was deleted or cannot be read. Raises MqError."""
        for first, (end, records) in self._chunks.items():
            if first <= offset < end:
                self._chunks.move_to_end(first)
                return records.get(offset)
        if offset < self._partition.log.log_start_offset:
            return None
        try:
            chunk = await read_chunk(
                self._logs,
                self._disk,
                self._partition,
                offset,
                self._partition.last_stable_offset,
                _LOOKUP_BYTES,
            )
        except MqError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise
        found = {record.offset: record for record in chunk.records}
        self._chunks[offset] = chunk.next_offset, found
        if len(self._chunks) > _CHUNKS_MAX:
            self._chunks.popitem(last=False)
        return found.get(offset)
