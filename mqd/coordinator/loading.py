"""How a shard reads its log: batches of the partition's bytes become calls of `replay`.

Only what cannot be decoded is skipped, and counted. It is a damaged batch, or a record of a version
that the shard's codec does not know (`RecordFormatError`). Any other exception in `replay` is a bug
and rises to the caller, which does not serve the shard.
"""

from __future__ import annotations

from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.shard import NO_PRODUCER, CoordinatorRecord, Producer, Shard
from mqd.errors import MqError
from mqd.limits import INSPECTED_BYTES_LARGEST
from mqd.protocol.batch import iterate_batches
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import iterate_records
from mqd.types import Offset


class SkippedRecords:
    """Records that cannot be decoded: how many, and the offset and the error of the first."""

    def __init__(self) -> None:
        self.records = 0
        self._first = ""

    def add(self, offset: Offset, records: int, error: Exception) -> None:
        self._first = self._first or f"first_offset={offset} reason={error!r}"
        self.records += records

    def __str__(self) -> str:
        return f"records={self.records} {self._first}"


def replay_batches(
    shard: Shard, data: bytes, first_offset: Offset, skipped: SkippedRecords
) -> None:
    """Replay whole batches, from `first_offset` on. Raises what `replay` raises, with the offset as
    a note, but for RecordFormatError."""
    view = memoryview(data)
    for start, _, header in iterate_batches(view):
        producer = NO_PRODUCER
        if header.is_transactional:
            producer = Producer(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = parse_end_marker(view, start)
            if marker is not None:
                try:
                    shard.replay_end(producer, marker.committed)
                except Exception as error:
                    error.add_note(f"in the replay of the marker at offset {header.base_offset}")
                    raise
            continue
        records = iterate_records(view, start, header=header, limit=INSPECTED_BYTES_LARGEST)
        unread = header.records_count
        while True:
            try:
                record = next(records, None)
            except MqError as error:  # the batch is damaged from here on
                skipped.add(header.base_offset, unread, error)
                break
            if record is None:
                break
            unread -= 1
            if record.offset < first_offset or record.key is None:
                continue
            try:
                shard.replay(CoordinatorRecord(record.key, record.value), producer)
            except RecordFormatError as error:
                skipped.add(record.offset, 1, error)
            except Exception as error:
                error.add_note(f"in the replay of the record at offset {record.offset}")
                raise
