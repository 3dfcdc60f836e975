"""The producers of one partition: finds duplicate and missing batches, and knows which transactions
are open. A core.

The check methods change nothing. `replay`, `end_transaction` and `seal` change the state. Appends
of a leader, followers and recovery all call them, so each replica reaches the same state. The rules
are Kafka's (KIP-98, KIP-360, KIP-890, as observed on 4.3.1):

- An unknown producer id may begin with any sequence and any epoch from -1 on
  (INVALID_PRODUCER_EPOCH).
- A batch that equals one of the last five of its producer is a duplicate. The response has the
  offset of the first copy.
- Otherwise its sequence follows the last one (0 follows 2^31-1), or
  OUT_OF_ORDER_SEQUENCE_NUMBER.
- A new epoch begins with sequence 0. An epoch below the known one is INVALID_PRODUCER_EPOCH.
- A transaction begins with its first transactional batch, which needs a confirmed `Guard`
  (INVALID_TXN_STATE), and ends with a marker. A marker may have a higher epoch, which is then the
  producer's epoch.
- A marker of an older coordinator is TRANSACTION_COORDINATOR_FENCED.

Two rules differ from Apache Kafka:

- A seal raises the epoch of a producer and leaves its transaction open (KIP-939), so that only the
  marker can follow.
- A batch of an ended transaction is never a duplicate. When an application aborts, librdkafka drops
  batches without a response, and begins the next transaction with the same sequence. Kafka takes
  that batch for a duplicate, and a record of a committed transaction is lost. Here the response is
  OUT_OF_ORDER_SEQUENCE_NUMBER, and the client begins a new epoch.

A transaction is unstable from its first batch until the high watermark has passed its marker. A
read_committed consumer reads only records before the first unstable one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCER_BATCHES_CACHED, PRODUCERS_PER_PARTITION_MAX
from mqd.log.producer_state import (
    NEVER_A_DUPLICATE,
    SEQUENCE_MAX,
    ProducerSnapshot,
    ProducerState,
    last_entry,
    last_sequence,
    snapshot_rows,
    states_of,
)
from mqd.log.transaction_guard import Guard
from mqd.protocol.batch import TRANSACTIONAL_MASK, Buffer, parse_header
from mqd.protocol.files import AbortedTransaction, ProducerSnapshotEntry
from mqd.protocol.markers import is_transaction_seal, parse_end_marker
from mqd.types import NO_EPOCH, NO_OFFSET, Offset

BUMPS_EPOCHS_FROM = 2
"""The `transaction.version` from which on a marker's epoch is above that of its transaction's
batches (KIP-890).
"""


_EXAMINED_MAX = 200
"""Producers that one batch looks at, to forget some: 20 us."""


class Producers:
    """The producers of one log, the least recently used first.

    Invariant: `open` holds exactly the first offsets of the open transactions, ascending. Each is
    below the marker of its transaction.
    """

    __slots__ = ("_ended", "_snapshots_taken", "guards", "open", "states")

    def __init__(self, snapshot: Iterable[ProducerSnapshotEntry] = ()) -> None:
        self.states = states_of(snapshot)
        """The producers by producer id."""
        self._snapshots_taken = 0
        begun = [
            (one.current_txn_first_offset, id_)
            for id_, one in self.states.items()
            if one.current_txn_first_offset != NO_OFFSET
        ]
        self.open: dict[Offset, int] = dict(sorted(begun))
        """First offset -> producer id of each open transaction, ascending, because transactions
        begin at the log end."""
        self._ended: list[tuple[Offset, Offset]] = []
        """Heap of (first offset, marker's offset): transactions that have ended, until the high
        watermark has passed the marker."""
        self.guards: dict[int, Guard] = {}
        """The guards by producer id. Not replicated."""

    def __len__(self) -> int:
        return len(self.states)

    # -- checks ------------------------------------------------------------------------------------

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> tuple[Offset, Offset, int] | None:
        """None: the batch may be appended. (first offset, last offset, timestamp) of the first
        copy: it is a duplicate. Raises MqError: it is refused.
        """
        producer = self.states.get(producer_id)
        if producer is None:
            if epoch < NO_EPOCH:
                raise MqError(
                    ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} sent epoch {epoch}"
                )
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            if batches:
                _first, last, _first_offset, _last_offset, _timestamp = batches[-1]
                following = (last + 1) & SEQUENCE_MAX
            else:
                following = 0
            if base_sequence == following:
                return None
            # A retry of one of the last five batches gets its first offset (I7).
            found = _find_duplicate(producer, base_sequence, last_offset_delta)
            if found is not None:
                return found
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
        """As `check`, for a transactional batch, or any batch while transactions are open."""
        producer = self.states.get(producer_id)
        guard = None
        if transactional:
            if producer is not None and producer.epoch == epoch:
                duplicate = _find_duplicate(producer, base_sequence, last_offset_delta)
                if duplicate is not None:
                    return duplicate
            guard = self._confirmed_guard(producer_id, producer, epoch)
        if guard is not None and (
            base_sequence > guard.lowest_sequence
            or (base_sequence and guard.bumps_epochs and (producer is None or not producer.batches))
        ):
            raise MqError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins with sequence {base_sequence}; the lowest one "
                f"that waits is {guard.lowest_sequence}",
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
        """Check a transactional batch of the group coordinator, which has no sequence numbers.

        Raises MqError 47 INVALID_PRODUCER_EPOCH, or 48 INVALID_TXN_STATE if the coordinator has not
        confirmed that the partition is part of the transaction.
        """
        self._confirmed_guard(producer_id, self.states.get(producer_id), epoch)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Raises MqError if a marker must not be appended: 47 INVALID_PRODUCER_EPOCH, 52
        TRANSACTION_COORDINATOR_FENCED.

        From version 2 on, a marker's epoch is above that of its transaction. A marker with the same
        epoch is late, unless it is a retry of the last marker (KAFKA-19999).
        """
        producer = self.states.get(producer_id)
        known_epoch = producer.epoch if producer is not None else NO_EPOCH
        is_retry = epoch == known_epoch and (
            producer is None or producer.current_txn_first_offset == NO_OFFSET
        )
        if epoch < known_epoch or (
            epoch == known_epoch and transaction_version >= BUMPS_EPOCHS_FROM and not is_retry
        ):
            raise MqError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker for producer {producer_id} has epoch {epoch}, "
                f"the last one is {known_epoch}",
            )
        if producer is not None and producer.coordinator_epoch > coordinator_epoch:
            raise MqError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker for producer {producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, after {producer.coordinator_epoch}",
            )

    def may_seal(self, producer_id: int, epoch: int, coordinator_epoch: int) -> bool:
        """Whether to append a seal with this epoch. False: it would change nothing.

        Raises MqError 52 TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self.states.get(producer_id)
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
        """Whether this log has an open transaction of this producer and epoch."""
        producer = self.states.get(producer_id)
        return (
            producer is not None
            and producer.epoch == epoch
            and producer.current_txn_first_offset != NO_OFFSET
        )

    def coordinator_epoch(self, producer_id: int) -> int:
        """The coordinator epoch of this producer's last marker; -1 without one."""
        producer = self.states.get(producer_id)
        return producer.coordinator_epoch if producer is not None else NO_EPOCH

    def _confirmed_guard(
        self, producer_id: int, producer: ProducerState | None, epoch: int
    ) -> Guard | None:
        """The confirmed guard of a batch that begins a transaction. None: the transaction is open.

        Raises MqError if there is none, or the epoch is outdated. With too many open transactions:
        KAFKA_STORAGE_ERROR, which clients retry.
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
        if len(self.open) >= PRODUCERS_PER_PARTITION_MAX:
            raise MqError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The partition has {len(self.open)} open transactions, the most that it may have. "
                "Retry when some have ended.",
            )
        return guard

    def guard(
        self, producer_id: int, epoch: int, base_sequence: int, bumps_epochs: bool, now_ms: int
    ) -> Guard | None:
        """The guard of a batch that may begin a transaction. None: the transaction is open."""
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

    # -- changes -----------------------------------------------------------------------------------

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
        """A batch of this producer is in the log. For control batches see `replay_marker`."""
        producer = self._to_change(producer_id, epoch)
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

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        offset: Offset,
        timestamp: int,
        committed: bool,
    ) -> AbortedTransaction | None:
        """A marker at `offset` is in the log. Returns the entry of an aborted transaction for the
        transaction index.
        """
        producer = self._to_change(producer_id, epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = timestamp
        self.guards.pop(producer_id, None)
        first_offset = producer.current_txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        if producer.batches:
            producer.batches[:] = [(NEVER_A_DUPLICATE, *producer.batches[-1][1:])]
        assert first_offset < offset, (first_offset, offset)
        producer.current_txn_first_offset = NO_OFFSET
        del self.open[first_offset]
        heappush(self._ended, (first_offset, offset))
        if committed:
            return None
        return AbortedTransaction(
            producer_id, first_offset, offset, next(iter(self.open), offset + 1)
        )

    def _to_change(self, producer_id: int, epoch: int) -> ProducerState:
        """The state of the producer in `epoch`, for a change. It becomes the most recently used
        one. No snapshot refers to it."""
        producers = self.states
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = ProducerState(epoch, self._snapshots_taken)
            if len(producers) >= PRODUCERS_PER_PARTITION_MAX:
                self._forget_some()
        else:
            if producer.snapshots_before != self._snapshots_taken:
                producer = producer.copy(self._snapshots_taken)
            if epoch != producer.epoch:
                producer.epoch = epoch
                producer.batches.clear()
        producers[producer_id] = producer
        return producer

    def seal(self, producer_id: int, epoch: int, timestamp: int) -> None:
        """A seal is in the log: older epochs of this producer are fenced. Its transaction stays
        open."""
        self.guards.pop(producer_id, None)
        producer = self.states.get(producer_id)
        if producer is None or epoch <= producer.epoch:
            return
        if producer.snapshots_before != self._snapshots_taken:
            producer = self.states[producer_id] = producer.copy(self._snapshots_taken)
        producer.epoch = epoch
        producer.batches.clear()
        producer.last_timestamp = timestamp

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """The first offset of the first unstable transaction; None without one.

        Removes the ended transactions whose markers are below the high watermark. It must not be
        lower than in the calls before.
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
        """Whether any producer has ended a transaction."""
        return any(one.coordinator_epoch >= 0 for one in self.states.values())

    def take_unreplicated(self, other: Producers) -> None:
        """Add the transactions of `other` that have ended, and whose markers the high watermark has
        not passed. Neither the own ones nor a snapshot contain them."""
        for transaction in other._ended:
            heappush(self._ended, transaction)

    @property
    def unstable(self) -> bool:
        """Whether `first_unstable_offset` may be anything but None."""
        return bool(self.open or self._ended)

    def _forget_some(self) -> None:
        """Remove the least recently used producers that are in no transaction, to have room for the
        next ones.

        Producers in a transaction move behind the others: their marker would do so anyway. Few
        producers are looked at, so their number can exceed the bound by a thousandth.
        """
        states = self.states
        room = PRODUCERS_PER_PARTITION_MAX // 1_000
        for producer_id, producer in list(islice(states.items(), _EXAMINED_MAX)):
            if len(states) + room < PRODUCERS_PER_PARTITION_MAX:
                return
            del states[producer_id]
            if producer.current_txn_first_offset != NO_OFFSET:
                states[producer_id] = producer

    # -- snapshots ---------------------------------------------------------------------------------

    def entries(self) -> Iterator[ProducerSnapshotEntry]:
        """The last batch of each producer, for DescribeProducers. A producer that changes during
        the iteration may appear in its new state, or be missing.
        """
        return (
            last_entry(producer_id, producer)
            for producer_id in list(self.states)
            if (producer := self.states.get(producer_id)) is not None
        )

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """The rows of a snapshot file."""
        return snapshot_rows(self.states)

    def freeze(self) -> ProducerSnapshot:
        """The producers as of now. Runs on the event loop, so it copies only the dict: each
        producer is copied when it changes.
        """
        self._snapshots_taken += 1
        return ProducerSnapshot(self.states.copy())


def _find_duplicate(
    producer: ProducerState, base_sequence: int, last_offset_delta: int
) -> tuple[Offset, Offset, int] | None:
    """(first offset, last offset, timestamp) of the cached batch with these sequences."""
    last_wanted = last_sequence(base_sequence, last_offset_delta)
    for first, last, first_offset, last_offset, timestamp in producer.batches:
        if first == base_sequence and last == last_wanted:
            return first_offset, last_offset, timestamp
    return None


def replay_marker(producers: Producers, view: Buffer, offset: Offset) -> AbortedTransaction | None:
    """The control batch at the start of `view` is in the log, its last record at `offset`. Returns
    the transaction that it aborts, if any.

    Compaction leaves a batch without records of a marker whose whole transaction is removed. Such a
    batch changes nothing.
    """
    marker = parse_end_marker(view)
    if marker is None:
        if is_transaction_seal(view):
            header = parse_header(view)
            producers.seal(header.producer_id, header.producer_epoch, header.max_timestamp)
        return None
    header = parse_header(view)
    return producers.end_transaction(
        header.producer_id,
        header.producer_epoch,
        marker.coordinator_epoch,
        offset,
        header.max_timestamp,
        marker.committed,
    )
