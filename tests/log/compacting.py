"""Shared by the tests of compaction: logs with transactions, and what a reader of committed records
gets from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from mqd.log.disk.sync_plan import plan_sync
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import iterate_batches
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.protocol.record_reader import Record, iterate_records
from mqd.testing.process_disk import ProcessDisk
from tests.log.support import Harness, Inline


class InlineDisk(Inline, ProcessDisk):
    """In memory, for a process that may crash."""


async def sync_and_commit(harness: Harness, log: PartitionLog) -> None:
    """Make all written records durable and committed."""
    plan = plan_sync(harness.disk, log, whole=True)
    plan.run(harness.disk)
    harness.service.after_sync(plan)
    log.checkpointed_high_watermark = log.written_end_offset


def roll(harness: Harness, log: PartitionLog) -> None:
    """Begin a segment, so that all earlier ones may be cleaned."""
    harness.service.housekeeping.roll(log, log.log_end_offset, log.producers.freeze())


def committed_records(harness: Harness, log: PartitionLog) -> list[Record]:
    """What a consumer with `isolation.level=read_committed` gets, by the rules of the Java client:
    records of aborted producers are skipped until their marker.
    """
    end = log.last_stable_offset(log.checkpointed_high_watermark)
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < end:
        read = harness.service.read(log, offset, max_bytes=1 << 20, limit_offset=end, min_one=True)
        if not read.size:
            break
        aborted = harness.service.reader.aborted(log, offset, read.next_offset)
        ongoing: set[int] = set()
        for one in read.ranges:
            data = one.file.read_at(one.position, one.size)
            for position, _size, header in iterate_batches(data):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    ongoing.add(aborted.pop(0).producer_id)
                if header.is_control:
                    ongoing.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ongoing):
                    found += [
                        record
                        for record in iterate_records(data, position, header=header)
                        if record.offset >= offset
                    ]
        offset = read.next_offset
    return found


def committed_table(harness: Harness, log: PartitionLog) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in committed_records(harness, log):
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


@dataclass(slots=True)
class Writer:
    """Writes records at random, inside and outside transactions, and keeps the expected result."""

    harness: Harness
    log: PartitionLog
    chance: Random
    keys: int = 5
    producers: int = 3
    dictionary: dict[bytes, bytes] = field(default_factory=dict)
    open: dict[int, list[tuple[int, bytes, bytes | None]]] = field(default_factory=dict)
    """Producer -> (offset, key, value) of its transaction."""
    seen: dict[bytes, int] = field(default_factory=dict)
    """Key -> the offset of the dictionary's value, or of its removal."""
    sequences: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def write(self) -> None:
        chance = self.chance
        producer = chance.randrange(self.producers) if chance.random() < 0.7 else -1
        if producer in self.open and chance.random() < 0.3:
            self.end(producer, chance.random() < 0.5)
            return
        rows: list[tuple[bytes, bytes | None]] = []
        for _ in range(chance.randrange(1, 4)):
            self.count += 1
            rows.append(
                (
                    b"k%d" % chance.randrange(self.keys),
                    None if chance.random() < 0.15 else b"v%d" % self.count,
                )
            )
        sequence = self.sequences.get(producer, 0)
        data = build_batch(
            [
                Record(at, self.harness.clock.now_ms + self.count, key, value)
                for at, (key, value) in enumerate(rows)
            ],
            codec=chance.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            transactional=producer >= 0,
        )
        if producer >= 0:
            guard = self.log.producers.guard(
                producer, 0, sequence, False, self.harness.clock.now_ms
            )
            if guard is not None:
                guard.confirmed = True
        appended = self.harness.append(self.log, data, client=False)
        assert self.harness.service.flush() == []
        placed = [(appended.base_offset + at, key, value) for at, (key, value) in enumerate(rows)]
        if producer >= 0:
            self.sequences[producer] = sequence + len(rows)
            self.open.setdefault(producer, []).extend(placed)
        else:
            self.commit(placed)

    def end(self, producer: int, committed: bool) -> None:
        marker = build_end_marker(
            producer, 0, EndMarker(committed, 0), self.harness.clock.now_ms + self.count
        )
        self.harness.append(self.log, marker, client=False)
        assert self.harness.service.flush() == []
        placed = self.open.pop(producer)
        if committed:
            self.commit(placed)

    def end_all(self) -> None:
        for producer in list(self.open):
            self.end(producer, self.chance.random() < 0.5)

    def commit(self, placed: list[tuple[int, bytes, bytes | None]]) -> None:
        for offset, key, value in placed:
            if offset < self.seen.get(key, -1):
                continue
            self.seen[key] = offset
            if value is None:
                self.dictionary.pop(key, None)
            else:
                self.dictionary[key] = value
