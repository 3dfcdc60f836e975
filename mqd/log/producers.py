"""Producers of one partition: which batches were seen, so that a repeat is known and a gap refused;
which transactions are open. A core.

`check` and its kind look, `replay` and `end` change; live appends, recovery and followers go
through the same `replay` and `end`, so a restarted node and a follower come to the same state.
Kafka's rules, KIP-98, KIP-360 and KIP-890, as observed on 4.3.1:

- A producer id that is not known may begin at any sequence, and at any epoch but one below -1
  (INVALID_PRODUCER_EPOCH).
- One of the last five batches of an id again: a duplicate, answered with its first offset.
- Otherwise the sequence follows the last one (0 follows 2^31-1), or OUT_OF_ORDER_SEQUENCE_NUMBER.
- A new epoch begins at sequence 0; an epoch below the known one is INVALID_PRODUCER_EPOCH.
- A transaction begins with the first transactional batch, which needs a `Guard` that the
  transaction coordinator has confirmed (INVALID_TXN_STATE), and ends with a marker. A marker may
  carry a higher epoch: then that is the producer's from there on.
- A marker of an older coordinator is TRANSACTION_COORDINATOR_FENCED.
- Not Apache Kafka's: a seal raises a producer's epoch and leaves its transaction open (KIP-939), so
  that only the marker can follow.
- Unlike Apache Kafka's: no batch of a transaction that has ended is taken for a duplicate.
  librdkafka forgets a batch whose fate it does not know when its application aborts, and begins the
  next transaction with the same sequence number: Kafka takes that for a repetition, and a record of
  a committed transaction is gone. Here it is OUT_OF_ORDER_SEQUENCE_NUMBER, upon which the client
  begins a new epoch.

A transaction is unstable from its first batch on until the high watermark has passed its marker:
what is unstable, and all behind it, is not for those who read committed records only.

Snapshots, too, hold those five batches of an id that was seen lately: a row for each, the newest
last. Apache Kafka writes that one only, so that there an idempotent producer with several requests
in flight dies of an orderly restart: it repeats a batch that is in the log, and is told that its
sequence is out of order, for good. Where it reads several rows of an id, it takes the last.
Snapshots do not tell of transactions that have ended and whose markers were not committed: those
are forgotten, as Apache Kafka does. Their outcome is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    PRODUCER_BATCHES_CACHED,
    PRODUCERS_PER_PARTITION_MAX,
    PRODUCERS_PER_SLICE,
    PRODUCERS_REPEATING_MAX,
)
from mqd.protocol.batch import TRANSACTIONAL_MASK, Buffer, parse_header
from mqd.protocol.files import AbortedTransaction, ProducerSnapshotEntry, encode_producer_snapshot
from mqd.protocol.markers import is_transaction_seal, parse_end_marker
from mqd.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Offset

SEQUENCE_MAX = 2**31 - 1
_NOT_AGAIN = -1
"""No batch of a client begins with it."""
BUMPS_EPOCHS_FROM = 2
"""The `transaction.version` from which on a marker's epoch is above that of the
transaction's batches (KIP-890).
"""


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence of the last record of a batch; 0 follows 2^31-1."""
    return (
        (base_sequence + last_offset_delta) & SEQUENCE_MAX if base_sequence >= 0 else base_sequence
    )


class Guard:
    """The first append of a transaction waits for the coordinator's word (KIP-890).

    Whatever begins or ends a transaction of the producer meanwhile takes the guard away, so that a
    word which comes too late counts for nothing: a batch that was delayed beyond its transaction
    cannot begin one that nobody would end.
    """

    __slots__ = ("bumps_epochs", "confirmed", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, bumps_epochs: bool, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        """Of all batches that wait: none with a later one may come first."""
        self.bumps_epochs = bumps_epochs
        """Whether the producer's epoch changes with each transaction: its first sequence is
        0 then.
        """
        self.since_ms = since_ms
        self.confirmed = False
        """The coordinator said yes.

        Set by whoever asked, and taken back when the append was made or refused.
        """


class _Producer:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "generation",
        "idle_behind",
        "idle_since_ms",
        "last_timestamp",
    )

    def __init__(self, epoch: int, generation: int) -> None:
        self.epoch = epoch
        self.generation = generation
        """Of its `Producers`, when this object was made.

        One of an earlier generation belongs to a snapshot, and is copied first.
        """
        self.batches: list[tuple[int, int, Offset, Offset, int]] = []
        """(first sequence, last sequence, first offset, last offset, timestamp), oldest first, at
        most five.

        After the end of a transaction the last one, its first sequence as `_NOT_AGAIN`.
        """
        self.coordinator_epoch = -1
        self.current_txn_first_offset = NO_OFFSET
        self.last_timestamp = NO_TIMESTAMP
        """Of its last batch or marker, ms, as its client stamped it."""
        self.idle_behind: Offset | None = None
        """The last offset of its last batch, when `expire` looked last; None before."""
        self.idle_since_ms = 0
        """When `expire` saw that batch for the first time."""

    def copy(self, generation: int) -> _Producer:
        """One that may change, for a producer that a snapshot refers to."""
        copy = _Producer(self.epoch, generation)
        copy.batches = self.batches.copy()
        copy.coordinator_epoch = self.coordinator_epoch
        copy.current_txn_first_offset = self.current_txn_first_offset
        copy.last_timestamp = self.last_timestamp
        copy.idle_behind, copy.idle_since_ms = self.idle_behind, self.idle_since_ms
        return copy


class ProducerSnapshot:
    """The producers as of one offset.

    Nothing changes them, so a worker thread may read the rows and encode them.
    """

    __slots__ = ("_producers",)

    def __init__(self, producers: dict[int, _Producer]) -> None:
        self._producers = producers

    def rows(self) -> list[ProducerSnapshotEntry]:
        """The batches that may come again, those of a producer in a row, the newest last."""
        return _snapshot_rows(self._producers)

    def last_batches(self) -> dict[int, tuple[Offset, int]]:
        """(last offset, epoch) by producer id, -1 for a producer without batches."""
        return {
            producer_id: (
                producer.batches[-1][3] if producer.batches else NO_OFFSET,
                producer.epoch,
            )
            for producer_id, producer in self._producers.items()
        }

    def encoded(self) -> bytes:
        """The bytes of the snapshot file. Slow with many producers: for a worker thread."""
        return encode_producer_snapshot(self.rows())


class Producers:
    """Producer states of one log, least recently seen first.

    Invariants: `open` holds exactly the first offsets of the producers that are in a transaction,
    ascending; each is below its marker.
    """

    __slots__ = ("_ended", "_generation", "_producers", "guards", "open")

    def __init__(self, snapshot: Iterable[ProducerSnapshotEntry] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        self._generation = 0
        """The number of snapshots that were taken."""
        self.open: dict[Offset, int] = {}
        """First offset -> producer id of each transaction without a marker, ascending:
        transactions begin at the log's end.
        """
        self._ended: list[tuple[Offset, Offset]] = []
        """Heap of (first offset, marker's offset): transactions that have ended, until the
        high watermark has passed the marker.
        """
        self.guards: dict[int, Guard] = {}
        """By producer id. Not part of what is replayed."""
        for entry in snapshot:
            producer = self._producers.get(entry.producer_id)
            if producer is None or producer.epoch != entry.producer_epoch:
                producer = self._producers[entry.producer_id] = _Producer(entry.producer_epoch, 0)
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.current_txn_first_offset = entry.current_txn_first_offset
            producer.last_timestamp = entry.timestamp
            if entry.last_offset >= 0:
                last = entry.last_sequence
                has_ended = (
                    entry.coordinator_epoch >= 0 and entry.current_txn_first_offset == NO_OFFSET
                )
                first = (
                    _NOT_AGAIN
                    if has_ended or last < 0
                    else (last - entry.offset_delta) & SEQUENCE_MAX
                )
                first_offset = entry.last_offset - entry.offset_delta
                if has_ended:
                    producer.batches.clear()
                producer.batches.append(
                    (first, last, first_offset, entry.last_offset, entry.timestamp)
                )
                del producer.batches[:-PRODUCER_BATCHES_CACHED]
        begun = [
            (one.current_txn_first_offset, id_)
            for id_, one in self._producers.items()
            if one.current_txn_first_offset != NO_OFFSET
        ]
        self.open.update(sorted(begun))

    def __len__(self) -> int:
        return len(self._producers)

    # -- looking -----------------------------------------------------------------------------------

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> tuple[Offset, Offset, int] | None:
        """None: append it. (first offset, last offset, timestamp): a duplicate of that batch.

        MqError: refused.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            if epoch < NO_EPOCH:
                raise MqError(
                    ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} sent epoch {epoch}"
                )
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            following = (batches[-1][1] + 1) & SEQUENCE_MAX if batches else 0
            if base_sequence == following:
                return None
            last = last_sequence(base_sequence, last_offset_delta)
            # A retry of one of the last five batches gets its first offset (I7).
            for batch in batches:
                if batch[0] == base_sequence and batch[1] == last:
                    return batch[2], batch[3], batch[4]
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {base_sequence} where {following} was due",
            )
        if epoch < producer.epoch:
            raise MqError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} sent epoch {epoch} after {producer.epoch}",
            )
        if base_sequence and producer.epoch != NO_EPOCH:
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {base_sequence}, not 0",
            )
        return None

    def check_with_transactions(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        transactional: bool,
    ) -> tuple[Offset, Offset, int] | None:
        """As `check`, for a batch that is part of a transaction, or of a producer that may
        be in one.
        """
        producer = self._producers.get(producer_id)
        guard = None
        if transactional:
            seen = self._duplicate(producer, epoch, base_sequence, last_offset_delta)
            if seen is not None:
                return seen
            guard = self._guard_of(producer_id, producer, epoch)
        if guard is not None and (
            base_sequence > guard.lowest_sequence
            or (base_sequence and guard.bumps_epochs and (producer is None or not producer.batches))
        ):
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins with sequence {base_sequence}, the earliest "
                f"that came is {guard.lowest_sequence}",
            )
        found = self.check(producer_id, epoch, base_sequence, last_offset_delta)
        if (
            found is None
            and not transactional
            and producer is not None
            and producer.current_txn_first_offset != NO_OFFSET
        ):
            raise MqError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} is in a transaction, and the batch is in none",
            )
        return found

    def check_coordinator_batch(self, producer_id: int, epoch: int) -> None:
        """Raises for a transactional batch of the group coordinator, which has no sequence numbers:
        47 INVALID_PRODUCER_EPOCH, and 48 INVALID_TXN_STATE where the partition is not known to be
        part of the transaction.
        """
        self._guard_of(producer_id, self._producers.get(producer_id), epoch)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Raises for a marker that may not be appended: 47 INVALID_PRODUCER_EPOCH, 52
        TRANSACTION_COORDINATOR_FENCED.

        From version 2 on a marker's epoch is above that of its transaction, and one that is not
        comes late; but one that came before may come again (KAFKA-19999).
        """
        producer = self._producers.get(producer_id)
        known = producer.epoch if producer is not None else NO_EPOCH
        again = epoch == known and (
            producer is None or producer.current_txn_first_offset == NO_OFFSET
        )
        if epoch < known or (
            epoch == known and transaction_version >= BUMPS_EPOCHS_FROM and not again
        ):
            raise MqError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker for producer {producer_id} has epoch {epoch}, the last one is {known}",
            )
        if producer is not None and producer.coordinator_epoch > coordinator_epoch:
            raise MqError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker for producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, after {producer.coordinator_epoch}",
            )

    def may_seal(self, producer_id: int, epoch: int, coordinator_epoch: int) -> bool:
        """Whether a seal of this epoch is to be appended; False where it would change nothing.

        52 TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch >= epoch:
            return False
        if producer.coordinator_epoch > coordinator_epoch:
            raise MqError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a seal for producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, after {producer.coordinator_epoch}",
            )
        return producer.current_txn_first_offset != NO_OFFSET

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.epoch == epoch
            and producer.current_txn_first_offset != NO_OFFSET
        )

    def coordinator_epoch(self, producer_id: int) -> int:
        """Of the last marker of this producer; -1 before the first."""
        producer = self._producers.get(producer_id)
        return producer.coordinator_epoch if producer is not None else NO_EPOCH

    def _duplicate(
        self, producer: _Producer | None, epoch: int, base_sequence: int, delta: int
    ) -> tuple[Offset, Offset, int] | None:
        if producer is not None and producer.epoch == epoch:
            last = last_sequence(base_sequence, delta)
            for batch in producer.batches:
                if batch[0] == base_sequence and batch[1] == last:
                    return batch[2], batch[3], batch[4]
        return None

    def _guard_of(self, producer_id: int, producer: _Producer | None, epoch: int) -> Guard | None:
        """The confirmed guard of a batch that begins a transaction; None within one.

        MqError where there is none, or the epoch is past.
        """
        if producer is not None:
            if producer.epoch == epoch and producer.current_txn_first_offset != NO_OFFSET:
                return None
            if epoch < producer.epoch:
                raise MqError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {producer_id} sent epoch {epoch} after {producer.epoch}",
                )
        # The coordinator's permission for this attempt (I36).
        guard = self.guards.get(producer_id)
        if guard is None or not guard.confirmed:
            raise MqError(
                ErrorCode.INVALID_TXN_STATE,
                f"the partition is in no transaction of producer {producer_id}",
            )
        return guard

    # -- transactions that begin -------------------------------------------------------------------

    def guard(
        self, producer_id: int, epoch: int, base_sequence: int, bumps_epochs: bool, now_ms: int
    ) -> Guard | None:
        """What a batch that may begin a transaction is to wait behind; None where its
        transaction is open here already.
        """
        if self.in_transaction(producer_id, epoch):
            return None
        guard = self.guards.get(producer_id)
        if guard is None:
            guard = self.guards[producer_id] = Guard(epoch, base_sequence, bumps_epochs, now_ms)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, base_sequence
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, base_sequence)
        return guard

    # -- changing ----------------------------------------------------------------------------------

    def replay(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        base_offset: Offset,
        last_offset_delta: int,
        timestamp: int,
        attributes: int,
    ) -> None:
        """A batch of this producer is in the log. Control batches are not for here: `end`."""
        producer = self._changing(producer_id, epoch)
        if attributes & TRANSACTIONAL_MASK:
            self.guards.pop(producer_id, None)
            if producer.current_txn_first_offset == NO_OFFSET:
                producer.current_txn_first_offset = base_offset
                self.open[base_offset] = producer_id
        producer.last_timestamp = timestamp
        batches = producer.batches
        batches.append(
            (
                base_sequence,
                last_sequence(base_sequence, last_offset_delta),
                base_offset,
                base_offset + last_offset_delta,
                timestamp,
            )
        )
        if len(batches) > PRODUCER_BATCHES_CACHED:
            del batches[0]

    def end(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        offset: Offset,
        timestamp: int,
        committed: bool,
    ) -> AbortedTransaction | None:
        """A marker at `offset` is in the log.

        Of an aborted transaction: what readers must be told.
        """
        producer = self._changing(producer_id, epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = timestamp
        self.guards.pop(producer_id, None)
        first_offset = producer.current_txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        if producer.batches:
            producer.batches[:] = [(_NOT_AGAIN, *producer.batches[-1][1:])]
        assert first_offset < offset, (first_offset, offset)
        producer.current_txn_first_offset = NO_OFFSET
        del self.open[first_offset]
        heappush(self._ended, (first_offset, offset))
        if committed:
            return None
        return AbortedTransaction(
            producer_id, first_offset, offset, next(iter(self.open), offset + 1)
        )

    def _changing(self, producer_id: int, epoch: int) -> _Producer:
        """The producer as the most recently used one, in `epoch`, and part of no snapshot."""
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = _Producer(epoch, self._generation)
            if len(producers) >= PRODUCERS_PER_PARTITION_MAX:
                self._make_room()
        else:
            if producer.generation != self._generation:
                producer = producer.copy(self._generation)
            if epoch != producer.epoch:
                producer.epoch = epoch
                producer.batches.clear()
        producers[producer_id] = producer
        return producer

    def seal(self, producer_id: int, epoch: int, timestamp: int) -> None:
        """A seal is in the log: older epochs of this producer append no more; its
        transaction stays open.
        """
        self.guards.pop(producer_id, None)
        producer = self._producers.get(producer_id)
        if producer is None or epoch <= producer.epoch:
            return
        if producer.generation != self._generation:
            producer = self._producers[producer_id] = producer.copy(self._generation)
        producer.epoch = epoch
        producer.batches.clear()
        producer.last_timestamp = timestamp

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """Where the first transaction begins that is open, or whose marker is not below the high
        watermark; None without one.

        The high watermark does not go back, as long as these producers last.
        """
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first = next(iter(self.open), None)
        if ended and (first is None or ended[0][0] < first):
            return ended[0][0]
        return first

    @property
    def have_ended_transactions(self) -> bool:
        """Whether a producer of these has ended a transaction."""
        return any(one.coordinator_epoch >= 0 for one in self._producers.values())

    def take_unreplicated(self, other: Producers) -> None:
        """Add the transactions of `other` that have ended, and whose markers the high watermark has
        not passed. Neither the own ones nor a snapshot contain them."""
        for transaction in other._ended:
            heappush(self._ended, transaction)

    @property
    def unstable(self) -> bool:
        """Whether `first_unstable_offset` may be anything but None."""
        return bool(self.open or self._ended)

    def _make_room(self) -> None:
        """Forget the producer that was not seen for the longest and is in no transaction."""
        for producer_id, producer in self._producers.items():
            if producer.current_txn_first_offset == NO_OFFSET:
                del self._producers[producer_id]
                return

    def expire(self, now_ms: int, idle_ms_max: int) -> Iterator[None]:
        """Forget idle producers without an open transaction, and guards without a waiting batch.
        Yields between two slices; the producers may change meanwhile.

        Idle by this node's clock: timestamps of records may be old although their producer is
        active.
        """
        for place, producer_id in enumerate(list(self._producers), 1):
            if place % PRODUCERS_PER_SLICE == 0:
                yield
            producer = self._producers.get(producer_id)
            if producer is None:
                continue
            behind = producer.batches[-1][3] if producer.batches else NO_OFFSET
            if producer.idle_behind != behind:
                producer.idle_behind, producer.idle_since_ms = behind, now_ms
            elif (
                now_ms - producer.idle_since_ms > idle_ms_max
                and producer.current_txn_first_offset == NO_OFFSET
            ):
                del self._producers[producer_id]
        for producer_id, guard in list(self.guards.items()):
            if now_ms - guard.since_ms > idle_ms_max:
                del self.guards[producer_id]

    def forget_oldest(self, kept: int) -> Iterator[None]:
        """Forget the least recently used producers until `kept` are left; those in a transaction
        stay. Yields between two slices; the producers may change meanwhile.
        """
        most = max(0, len(self._producers) - kept)
        ids = list(islice(self._producers, most))
        states = list(islice(self._producers.values(), most))
        ids.reverse()
        states.reverse()
        for place in range(1, most + 1):
            producer_id, producer = ids.pop(), states.pop()  # freed one by one, not all at the end
            if place % PRODUCERS_PER_SLICE == 0:
                yield
            if (
                self._producers.get(producer_id) is producer
                and producer.current_txn_first_offset == NO_OFFSET
            ):
                del self._producers[producer_id]

    def entries(self) -> Iterator[ProducerSnapshotEntry]:
        """The last batch of each producer, for DescribeProducers. A producer that changes during
        the iteration may appear in its new state, or no more."""
        return (
            _last_entry(producer_id, producer)
            for producer_id in list(self._producers)
            if (producer := self._producers.get(producer_id)) is not None
        )

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """What a snapshot holds: the batches that may come again, those of a producer in a
        row, the newest last.
        """
        return _snapshot_rows(self._producers)

    def freeze(self) -> ProducerSnapshot:
        """The producers as of now.

        Copies the dict alone, for this runs on the event loop; producers are copied when they
        change.
        """
        self._generation += 1
        return ProducerSnapshot(self._producers.copy())


def _snapshot_rows(producers: dict[int, _Producer]) -> list[ProducerSnapshotEntry]:
    rows = []
    resting = len(producers) - PRODUCERS_REPEATING_MAX
    for place, (producer_id, producer) in enumerate(producers.items()):
        for first, last, first_offset, last_offset, timestamp in producer.batches[:-1]:
            if first != _NOT_AGAIN and place >= resting:
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
        rows.append(_last_entry(producer_id, producer))
    return rows


def _last_entry(producer_id: int, producer: _Producer) -> ProducerSnapshotEntry:
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


def replay_marker(producers: Producers, view: Buffer, offset: Offset) -> AbortedTransaction | None:
    """The control batch that `view` begins with is in the log, its marker at `offset`. None for any
    other kind of control batch, too.

    A batch without records is what a cleaner leaves of a marker: the whole transaction is gone, and
    it changes nothing.
    """
    marker = parse_end_marker(view)
    if marker is None:
        if is_transaction_seal(view):
            header = parse_header(view)
            producers.seal(header.producer_id, header.producer_epoch, header.max_timestamp)
        return None
    header = parse_header(view)
    return producers.end(
        header.producer_id,
        header.producer_epoch,
        marker.coordinator_epoch,
        offset,
        header.max_timestamp,
        marker.committed,
    )
