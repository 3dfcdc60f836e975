"""Producers of one partition: which batches were seen, so that a repeat is known and a gap refused. A core.

`check` looks, `replay` changes; live appends and recovery go through the same `replay`, so a restarted node and (with
"Cluster") a follower come to the same state. Kafka's rules, KIP-98 and KIP-360, as observed on 4.3.1:

- A producer id that is not known may begin at any sequence, and at any epoch but one below -1 (INVALID_PRODUCER_EPOCH).
- One of the last five batches of an id again: a duplicate, answered with its first offset.
- Otherwise the sequence follows the last one (0 follows 2^31-1), or OUT_OF_ORDER_SEQUENCE_NUMBER.
- A new epoch begins at sequence 0; an epoch below the known one is INVALID_PRODUCER_EPOCH.

Snapshots hold the last batch of each id only (Kafka's format): the other four come back with the replay behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_PER_PARTITION_MAX
from mqd.protocol.batch import CONTROL_MASK, TRANSACTIONAL_MASK
from mqd.protocol.files import ProducerSnapshotEntry
from mqd.types import NO_EPOCH, NO_OFFSET, Offset

SEQUENCE_MAX = 2**31 - 1


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of the last record of a batch; 0 follows 2^31-1."""
    return (base_sequence + last_offset_delta) & SEQUENCE_MAX if base_sequence >= 0 else base_sequence


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[tuple[int, int, Offset, Offset, int]] = []
        """(first sequence, last sequence, first offset, last offset, timestamp), oldest first, at most five."""
        self.coordinator_epoch = -1
        self.current_txn_first_offset = NO_OFFSET


class Producers:
    """Producer states of one log, least recently seen first."""

    __slots__ = ("_producers",)

    def __init__(self, entries: Iterable[ProducerSnapshotEntry] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        for entry in entries:
            producer = self._producers[entry.producer_id] = _Producer(entry.producer_epoch)
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.current_txn_first_offset = entry.current_txn_first_offset
            if entry.last_sequence >= 0:
                first = (entry.last_sequence - entry.offset_delta) & SEQUENCE_MAX
                first_offset = entry.last_offset - entry.offset_delta
                producer.batches.append((first, entry.last_sequence, first_offset, entry.last_offset, entry.timestamp))

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int) -> tuple[Offset, Offset, int] | None:
        """None: append it. (first offset, last offset, timestamp): a duplicate of that batch. MqError: refused."""
        producer = self._producers.get(producer_id)
        if producer is None:
            if epoch < NO_EPOCH:
                raise MqError(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} sent epoch {epoch}")
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            if not batches:
                return None
            if base_sequence == (batches[-1][1] + 1) & SEQUENCE_MAX:
                return None
            last = last_sequence(base_sequence, last_offset_delta)
            for batch in batches:
                if batch[0] == base_sequence and batch[1] == last:
                    return batch[2], batch[3], batch[4]
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {base_sequence} after {batches[-1][1]}",
            )
        if epoch < producer.epoch:
            raise MqError(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} sent epoch {epoch} after {producer.epoch}")
        if base_sequence:
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {base_sequence}, not 0",
            )
        return None

    def replay(
        self, producer_id: int, epoch: int, base_sequence: int, base_offset: Offset, last_offset_delta: int, timestamp: int, attributes: int
    ) -> None:
        """A batch of this producer is in the log."""
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = _Producer(epoch)
            if len(producers) >= PRODUCERS_PER_PARTITION_MAX:
                del producers[next(iter(producers))]
        elif epoch != producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producers[producer_id] = producer
        if attributes & CONTROL_MASK:
            producer.current_txn_first_offset = NO_OFFSET
            return
        if attributes & TRANSACTIONAL_MASK and producer.current_txn_first_offset == NO_OFFSET:
            producer.current_txn_first_offset = base_offset
        batches = producer.batches
        batches.append(
            (base_sequence, last_sequence(base_sequence, last_offset_delta), base_offset, base_offset + last_offset_delta, timestamp)
        )
        if len(batches) > PRODUCER_BATCHES_CACHED:
            del batches[0]

    def expire(self, oldest_timestamp: int) -> None:
        """Forget producers whose last batch is older than this (ms) and who have no transaction open."""
        for producer_id, producer in list(self._producers.items()):
            timestamp = producer.batches[-1][4] if producer.batches else -1
            if timestamp < oldest_timestamp and producer.current_txn_first_offset == NO_OFFSET:
                del self._producers[producer_id]

    def entries(self) -> list[ProducerSnapshotEntry]:
        """What a snapshot holds, and what DescribeProducers tells: the last batch of each producer."""
        rows = []
        for producer_id, producer in self._producers.items():
            _first, last, first_offset, last_offset, timestamp = producer.batches[-1] if producer.batches else (-1, -1, -1, -1, -1)
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
        return rows
