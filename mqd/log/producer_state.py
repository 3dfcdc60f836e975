"""The state of one producer in a log, and snapshots of it. A core.

A snapshot file has a row for each of the last five batches of a recently used producer, the newest
last. Apache Kafka writes only the newest batch. So there, an idempotent producer with several
requests in flight may fail for good after a clean restart. A retry of a batch that is in the log
gets OUT_OF_ORDER_SEQUENCE_NUMBER. When Kafka reads several rows of one id, it uses the last.

As in Kafka, a snapshot has no transactions that have ended. If a marker is not below the high
watermark, `note_unreplicated` (disk/producer_snapshots.py) finds its transaction in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqd.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_REPEATING_MAX
from mqd.protocol.files import ProducerSnapshotEntry, encode_producer_snapshot
from mqd.types import NO_OFFSET, NO_TIMESTAMP, Offset

SEQUENCE_MAX: Final = 2**31 - 1
NEVER_A_DUPLICATE: Final = -1
"""Replaces the first sequence of a batch: no batch of a client has this sequence."""

CachedBatch = tuple[int, int, Offset, Offset, int]
"""(first sequence, last sequence, first offset, last offset, timestamp) of a batch. Not a
NamedTuple, which takes ten times as long to create: each append of an idempotent producer creates
one.
"""


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of the last record of a batch. 0 follows 2^31-1."""
    return (
        (base_sequence + last_offset_delta) & SEQUENCE_MAX if base_sequence >= 0 else base_sequence
    )


class ProducerState:
    """See the head of this file."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "idle_last_offset",
        "idle_since_ms",
        "last_timestamp",
        "snapshots_before",
    )

    def __init__(self, epoch: int, snapshots_before: int) -> None:
        self.epoch = epoch
        self.snapshots_before = snapshots_before
        """The number of snapshots that its log had taken when this object was created. A later
        snapshot refers to this object: copy it before a change."""
        self.batches: list[CachedBatch] = []
        """The last batches, at most five, the oldest first. After the end of a transaction only its
        last batch, with `NEVER_A_DUPLICATE`."""
        self.coordinator_epoch = -1
        self.current_txn_first_offset = NO_OFFSET
        self.last_timestamp = NO_TIMESTAMP
        """The timestamp of its last batch or marker, from the client, in ms."""
        self.idle_last_offset: Offset | None = None
        """The last offset of its last batch when `expire` checked it. None: not checked yet."""
        self.idle_since_ms = 0
        """When `expire` first saw that batch."""

    @property
    def last_offset(self) -> Offset:
        """The last offset of its last batch; NO_OFFSET without one."""
        if not self.batches:
            return NO_OFFSET
        _first, _last, _first_offset, last_offset, _timestamp = self.batches[-1]
        return last_offset

    def copy(self, snapshots_before: int) -> ProducerState:
        """A copy that may change, of a state that a snapshot refers to."""
        copy = ProducerState(self.epoch, snapshots_before)
        copy.batches = self.batches.copy()
        copy.coordinator_epoch = self.coordinator_epoch
        copy.current_txn_first_offset = self.current_txn_first_offset
        copy.last_timestamp = self.last_timestamp
        copy.idle_last_offset, copy.idle_since_ms = self.idle_last_offset, self.idle_since_ms
        return copy


class ProducerSnapshot:
    """The producers of a log at one offset. It never changes, so a worker thread may encode it."""

    __slots__ = ("_producers",)

    def __init__(self, producers: dict[int, ProducerState]) -> None:
        self._producers = producers

    def rows(self) -> list[ProducerSnapshotEntry]:
        return snapshot_rows(self._producers)

    def last_batches(self) -> dict[int, tuple[Offset, int]]:
        """Producer id -> (last offset, epoch). The last offset is NO_OFFSET without batches."""
        return {
            producer_id: (producer.last_offset, producer.epoch)
            for producer_id, producer in self._producers.items()
        }

    def encoded(self) -> bytes:
        """The bytes of the snapshot file. Slow with many producers: for a worker thread."""
        return encode_producer_snapshot(self.rows())


def snapshot_rows(producers: dict[int, ProducerState]) -> list[ProducerSnapshotEntry]:
    """The rows of a snapshot file. Only the producers that were used last have rows for more than
    their newest batch.
    """
    rows = []
    first_with_all = len(producers) - PRODUCERS_REPEATING_MAX
    for place, (producer_id, producer) in enumerate(producers.items()):
        for first, last, first_offset, last_offset, timestamp in producer.batches[:-1]:
            if first != NEVER_A_DUPLICATE and place >= first_with_all:
                rows.append(
                    ProducerSnapshotEntry(
                        producer_id,
                        producer.epoch,
                        last,
                        last_offset,
                        last_offset - first_offset,
                        timestamp,
                        producer.coordinator_epoch,
                        producer.current_txn_first_offset,
                    )
                )
        rows.append(last_entry(producer_id, producer))
    return rows


def last_entry(producer_id: int, producer: ProducerState) -> ProducerSnapshotEntry:
    """The row of the newest batch."""
    _first, last, first_offset, last_offset, _ = (
        producer.batches[-1] if producer.batches else (-1, -1, -1, -1, -1)
    )
    return ProducerSnapshotEntry(
        producer_id,
        producer.epoch,
        last,
        last_offset,
        last_offset - first_offset,
        producer.last_timestamp,
        producer.coordinator_epoch,
        producer.current_txn_first_offset,
    )


def states_of(rows: Iterable[ProducerSnapshotEntry]) -> dict[int, ProducerState]:
    """The producers of a snapshot file, the least recently used first."""
    producers: dict[int, ProducerState] = {}
    for row in rows:
        producer = producers.get(row.producer_id)
        if producer is None or producer.epoch != row.producer_epoch:
            producer = producers[row.producer_id] = ProducerState(row.producer_epoch, 0)
        producer.coordinator_epoch = row.coordinator_epoch
        producer.current_txn_first_offset = row.current_txn_first_offset
        producer.last_timestamp = row.timestamp
        if row.last_offset >= 0:
            last = row.last_sequence
            has_ended = row.coordinator_epoch >= 0 and row.current_txn_first_offset == NO_OFFSET
            first = (
                NEVER_A_DUPLICATE
                if has_ended or last < 0
                else (last - row.offset_delta) & SEQUENCE_MAX
            )
            first_offset = row.last_offset - row.offset_delta
            if has_ended:
                producer.batches.clear()
            producer.batches.append((first, last, first_offset, row.last_offset, row.timestamp))
            del producer.batches[:-PRODUCER_BATCHES_CACHED]
    return producers
