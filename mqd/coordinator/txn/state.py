"""What may become of one transactional id: pure functions from what it is and a wish to what it
will be, or a refusal.

    Empty ----> Ongoing ----> PrepareCommit ----> CompleteCommit
      ^            |                                   |
      |            +--------> PrepareAbort -----> CompleteAbort
      +------------------------------------------------+

A new InitProducerId leads from Complete* back to Empty, a new transaction to Ongoing (TRANSITIONS).

Prepare* is the decision: from its commit on the outcome is fixed, and whoever coordinates writes
markers until every partition has one. Complete* says that they are all written. Whoever asks for
something in between comes again (CONCURRENT_TRANSACTIONS).

Invariants: the pair (producer id, epoch) only grows along the life of a transactional id, where a
new id starts at epoch 0; a producer that names another pair than the present one changes nothing.
Two exceptions read only: a repeated EndTxn (KIP-890), and a repeated InitProducerId (KIP-360),
which get the present pair once more.

A transaction in Ongoing may be prepared for another coordinator's two-phase commit (KIP-939). It
then has two pairs: the one that wrote its records, and the newest one, its owner, which alone may
end it. Each InitProducerId that keeps the transaction raises the owner. Nobody adds to a prepared
transaction, and one that was prepared with `enable_2_pc` never times out.

Two protocols are spoken at once, by the version of the request (KIP-890). In the first (version 0)
an epoch lasts until the producer is initialized again or fenced; in the second (version 2) it ends
with each transaction, so that nothing of an old one can reach a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from mqd.coordinator.shard import Producer
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

EPOCH_MAX: Final = 32_767
"""Never given to a client: what fences the last one that is."""
EPOCH_BUMP_VERSION: Final = 2
"""`transaction.version` from which each end of a transaction raises the epoch."""
TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1
"""Kafka's sign of a producer whose transactions another coordinator ends (KIP-939): they
never time out.
"""


class TransactionState(IntEnum):
    """Kafka's numbers. Dead and PrepareEpochFence are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As Kafka's tools print it, such as PrepareCommit."""
        return _LABELS[self]

    @property
    def decided(self) -> bool:
        """Whether the outcome is decided and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


_LABELS: Final = {
    state: "".join(word.capitalize() for word in state.name.split("_"))
    for state in TransactionState
}
STATES_BY_LABEL: Final[Mapping[str, TransactionState]] = {
    label: state for state, label in _LABELS.items()
}

(
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_ABORT,
    COMPLETE_COMMIT,
    COMPLETE_ABORT,
    DEAD,
    PREPARE_EPOCH_FENCE,
) = TransactionState

AT_REST: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""Nothing is open: the id may be initialized, forgotten, or begin a transaction."""

TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
}
"""From what to what. A tombstone may follow every state at rest."""


class ProducerIdWanted(MqError):
    """Not a refusal: the epochs of this id are spent. Ask again with a spare producer id."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            "The epochs of the producer id are spent, and a new one is not there yet.",
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transactional id is: the fields of Kafka's TransactionLogValue, and one that
    is not written.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    """Sorted. Those of the present transaction."""
    updated_ms: int = NO_TIMESTAMP
    """Wall time of the last change of anything."""
    started_ms: int = NO_TIMESTAMP
    """Wall time at which the transaction began."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The one before the last change, mostly the same."""
    next_producer_id: int = NO_PRODUCER_ID
    """Takes the place of `producer_id` when this transaction is complete: the epochs are spent.

    Of one that is prepared, see below.
    """
    client_version: int = 0
    """`transaction.version` of the protocol in which the client, or the node that aborts in
    its stead, acted last.
    """
    last_producer_epoch: int = NO_EPOCH
    """The epoch before, if its owner may ask again and get the present one.

    Lost with the coordinator, as in Apache Kafka.
    """
    next_producer_epoch: int = NO_EPOCH
    """Of a transaction that is or was prepared: with `next_producer_id` its owner, and once
    it is decided, who continues after it.
    """

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_prepared(self) -> bool:
        """Whether the open transaction waits for its owner's decision (KIP-939)."""
        return self.state is ONGOING and self.next_producer_epoch != NO_EPOCH

    @property
    def was_prepared(self) -> bool:
        """Whether the transaction that is decided was prepared before."""
        return self.state.decided and self.next_producer_epoch != NO_EPOCH

    @property
    def owner(self) -> Producer:
        """Who may act in the name of the transactional id."""
        return (
            Producer(self.next_producer_id, self.next_producer_epoch)
            if self.is_prepared
            else self.producer
        )

    @property
    def seal(self) -> Producer:
        """Of a prepared transaction: what its partitions, and later its markers, bear.

        One above the epoch of its records.
        """
        return Producer(self.producer_id, min(self.producer_epoch + 1, EPOCH_MAX))

    @property
    def epochs_spent(self) -> bool:
        """Whether there is no further epoch that a client may have."""
        return self.owner.producer_epoch >= EPOCH_MAX - 1

    @property
    def producer_when_complete(self) -> Producer:
        """Of a transaction that is decided: who continues after it."""
        if self.was_prepared:
            return Producer(self.next_producer_id, self.next_producer_epoch)
        if self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return self.producer


def initialize(
    current: Transaction | None,
    *,
    timeout_ms: int,
    expected: Producer | None,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction:
    """InitProducerId of an id that has no open transaction: what it is then, with the producer that
    the caller may be.

    `expected`: who the caller believes to be (KIP-360). Raises PRODUCER_FENCED,
    CONCURRENT_TRANSACTIONS, ProducerIdWanted.
    """
    if current is None:
        if spare_producer_id == NO_PRODUCER_ID:
            raise ProducerIdWanted
        return Transaction(
            spare_producer_id,
            0,
            timeout_ms,
            updated_ms=now_ms,
            previous_producer_id=spare_producer_id,
        )
    check_owner(current, expected)
    assert current.state in AT_REST, current
    id_, epoch, last = current.producer_id, current.producer_epoch + 1, NO_EPOCH
    if (
        expected is not None
        and expected.producer_epoch == current.last_producer_epoch != current.producer_epoch
    ):
        # asked again: the answer was lost
        epoch, last = current.producer_epoch, current.last_producer_epoch
    elif expected is not None and expected.producer_epoch != current.producer_epoch:
        raise _fenced(current, expected)
    else:
        if expected is not None:
            last = current.producer_epoch
        if current.epochs_spent:
            if spare_producer_id == NO_PRODUCER_ID:
                raise ProducerIdWanted
            id_, epoch = spare_producer_id, 0
    return _moved(
        current,
        EMPTY,
        now_ms,
        producer_id=id_,
        producer_epoch=epoch,
        last_producer_epoch=last,
        timeout_ms=timeout_ms,
        partitions=(),
        started_ms=NO_TIMESTAMP,
    )


def check_owner(current: Transaction, expected: Producer | None) -> None:
    """Raise PRODUCER_FENCED where a caller of InitProducerId believes to be somebody who has been
    replaced.

    CONCURRENT_TRANSACTIONS before that, while nobody can be initialized.
    """
    if current.state.decided:
        raise _concurrent()
    if expected is None:
        return
    if current.is_prepared:
        if expected != current.owner:
            raise _fenced(current, expected)
        return
    if expected.producer_id != current.producer_id:
        if (
            expected.producer_id == current.previous_producer_id
            and expected.producer_epoch >= EPOCH_MAX - 1
        ):
            return  # may have missed the answer that gave it a new id
        raise MqError(
            ErrorCode.PRODUCER_FENCED,
            f"Producer id {expected.producer_id} has been replaced by {current.producer_id}.",
        )
    if current.state is ONGOING and expected.producer_epoch not in (
        current.producer_epoch,
        current.last_producer_epoch,
    ):
        # Apache Kafka aborts its successor's transaction first, and tells it then
        raise _fenced(current, expected)


def prepare(
    current: Transaction,
    *,
    expected: Producer | None,
    two_phase: bool,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction:
    """InitProducerId that keeps the open transaction: prepared, with a new owner; the same where
    the caller repeats its request.

    `expected`: who the caller believes to be. The pair that wrote the records gets the first owner,
    as long as there was no later one. Raises PRODUCER_FENCED, ProducerIdWanted.
    """
    assert current.state is ONGOING, current
    timeout_ms = TWO_PHASE_TIMEOUT_MS if two_phase else current.timeout_ms
    if (
        current.is_prepared
        and expected == current.producer
        and current.owner == _first_owner(current)
    ):
        if timeout_ms == current.timeout_ms:
            return current
        owner = current.owner
    else:
        if expected is not None and expected != current.owner:
            raise _fenced(current, expected)
        owner = _raised(current, spare_producer_id)
    return _moved(
        current,
        ONGOING,
        now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=owner.producer_id,
        next_producer_epoch=owner.producer_epoch,
    )


def fence(
    current: Transaction, *, server_version: int, spare_producer_id: int, now_ms: int
) -> Transaction:
    """Abort an open transaction in its producer's stead, and leave that producer behind. Raises
    ProducerIdWanted.

    `server_version`: the level of `transaction.version` in this cluster.
    """
    assert current.state is ONGOING, current
    if current.is_prepared:
        return _decided_by_owner(
            current, PREPARE_ABORT, _raised(current, spare_producer_id), server_version, now_ms
        )
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    if server_version < EPOCH_BUMP_VERSION:
        return _moved(
            current,
            PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=NO_EPOCH,
            client_version=0,
        )
    return _moved(
        current,
        PREPARE_ABORT,
        now_ms,
        producer_epoch=epoch,
        last_producer_epoch=current.producer_epoch,
        client_version=server_version,
        next_producer_id=_successor(current, spare_producer_id),
    )


def add_partitions(
    current: Transaction | None,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with these partitions in it, begun if need be; None where they all are
    already.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is None:
        raise _no_mapping(producer)
    if current.state.decided:
        raise _concurrent()
    _check_producer(current, producer)
    _check_open(current)
    wanted = set(partitions)
    if current.state is ONGOING and wanted.issubset(current.partitions):
        return None
    return _moved(
        current,
        ONGOING,
        now_ms,
        partitions=tuple(sorted(wanted.union(current.partitions))),
        started_ms=now_ms if current.state in AT_REST else current.started_ms,
        client_version=client_version,
    )


def verify_partitions(
    current: Transaction | None, producer: Producer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether the producer's open transaction holds these partitions: NONE, or
    TRANSACTION_ABORTABLE (KIP-890).

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is None:
        raise _no_mapping(producer)
    _check_producer(current, producer)
    if current.state.decided:
        raise _concurrent()
    _check_open(current)
    held = frozenset(current.partitions)
    return {
        one: ErrorCode.NONE if one in held else ErrorCode.TRANSACTION_ABORTABLE
        for one in partitions
    }


def end(
    current: Transaction | None,
    producer: Producer,
    *,
    committed: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction | None:
    """EndTxn: the transaction as it is decided, or None where the same was decided before.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
    ProducerIdWanted.
    """
    if current is None:
        raise _no_mapping(producer)
    if current.is_prepared:
        _check_producer(current, producer)
        next_producer = (
            _raised(current, spare_producer_id)
            if client_version >= EPOCH_BUMP_VERSION
            else producer
        )
        return _decided_by_owner(
            current,
            PREPARE_COMMIT if committed else PREPARE_ABORT,
            next_producer,
            client_version,
            now_ms,
        )
    if client_version < EPOCH_BUMP_VERSION:
        return _end_within_epoch(current, producer, committed, now_ms)
    return _end_with_epoch(current, producer, committed, client_version, spare_producer_id, now_ms)


def _end_within_epoch(
    current: Transaction, producer: Producer, committed: bool, now_ms: int
) -> Transaction | None:
    """The first protocol: the producer keeps its epoch."""
    _check_producer(current, producer)
    if current.state.decided:
        raise _concurrent()
    if current.state is ONGOING:
        return _moved(
            current, PREPARE_COMMIT if committed else PREPARE_ABORT, now_ms, client_version=0
        )
    if current.state is (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
        return None
    raise _wrong_state(current, committed)


def _end_with_epoch(
    current: Transaction,
    producer: Producer,
    committed: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction | None:
    """The second protocol: the epoch ends with the transaction.

    The epoch before the present one is a repetition.
    """
    if current.state.decided:
        raise _concurrent()
    complete = current.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    had_last_epoch = (
        complete
        and producer == (current.previous_producer_id, EPOCH_MAX - 1)
        and current.producer_epoch == 0
        and current.producer_id != producer.producer_id
    )
    if producer.producer_id != current.producer_id and not had_last_epoch:
        raise _no_mapping(producer)
    # else the epoch before belongs to one who was replaced
    raised = complete and current.client_version >= EPOCH_BUMP_VERSION
    repeated = had_last_epoch or (
        raised and producer.producer_epoch + 1 == current.producer_epoch < EPOCH_MAX
    )
    if not repeated and producer.producer_epoch != current.producer_epoch:
        raise _fenced(current, producer)
    if current.state is ONGOING:
        outcome, started_ms = (PREPARE_COMMIT if committed else PREPARE_ABORT), current.started_ms
    elif repeated and current.state is (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
        return None
    elif committed or repeated:
        raise _wrong_state(current, committed)
    else:
        # nothing was written, as far as anybody knows: the epoch is raised all the same, in case
        # something comes late
        outcome, started_ms = PREPARE_ABORT, now_ms
    assert current.producer_epoch < EPOCH_MAX, current
    return _moved(
        current,
        outcome,
        now_ms,
        producer_epoch=current.producer_epoch + 1,
        last_producer_epoch=current.producer_epoch,
        started_ms=started_ms,
        client_version=client_version,
        next_producer_id=_successor(current, spare_producer_id),
    )


def _decided_by_owner(
    current: Transaction,
    outcome: TransactionState,
    next_producer: Producer,
    version: int,
    now_ms: int,
) -> Transaction:
    """A prepared transaction with its outcome.

    The markers bear the seal; the record says, too, who owned it and who continues.
    """
    owner = current.owner
    decided = _moved(
        current,
        outcome,
        now_ms,
        producer_epoch=current.seal.producer_epoch,
        last_producer_epoch=owner.producer_epoch
        if next_producer == (owner.producer_id, owner.producer_epoch + 1)
        else NO_EPOCH,
        client_version=version if version >= EPOCH_BUMP_VERSION else 0,
        next_producer_id=next_producer.producer_id,
        next_producer_epoch=next_producer.producer_epoch,
    )
    return replace(decided, previous_producer_id=owner.producer_id)


def complete(current: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    assert current.state.decided, current
    producer = current.producer_when_complete
    completed = _moved(
        current,
        COMPLETE_COMMIT if current.state is PREPARE_COMMIT else COMPLETE_ABORT,
        now_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        partitions=(),
    )
    return (
        replace(completed, previous_producer_id=current.previous_producer_id)
        if current.was_prepared
        else completed
    )


def timed_out(current: Transaction, now_ms: int, open_for_ms: int = 0) -> bool:
    """Whether an open transaction took longer than its producer allowed itself.

    `open_for_ms`: for how long this coordinator has seen it open. That decides where the wall clock
    of another one was ahead.
    """
    if current.state is not ONGOING or current.timeout_ms == TWO_PHASE_TIMEOUT_MS:
        return False
    return current.started_ms + current.timeout_ms < now_ms or current.timeout_ms < open_for_ms


def last_epoch_after(before: Transaction | None, record: Transaction, given: int) -> int:
    """The epoch whose owner may ask again, which no record tells: for one that was
    initialized it is `given`, else it follows.
    """
    if record.state is EMPTY:
        return given
    if record.state.decided and record.client_version >= EPOCH_BUMP_VERSION:
        return (record.next_producer_epoch if record.was_prepared else record.producer_epoch) - 1
    if before is None or (
        record.state is PREPARE_ABORT and record.producer_epoch != before.producer_epoch
    ):
        return NO_EPOCH
    return before.last_producer_epoch


def _moved(
    current: Transaction, state: TransactionState, now_ms: int, **changes: object
) -> Transaction:
    # From Prepare* only Complete* of the same outcome follows (I35).
    assert state in TRANSITIONS[current.state], (current, state)
    return replace(
        current,
        state=state,
        updated_ms=now_ms,
        previous_producer_id=current.producer_id,
        **changes,  # type: ignore[arg-type]
    )


def _successor(current: Transaction, spare_producer_id: int) -> int:
    if not current.epochs_spent:
        return NO_PRODUCER_ID
    if spare_producer_id == NO_PRODUCER_ID:
        raise ProducerIdWanted
    return spare_producer_id


def _raised(current: Transaction, spare_producer_id: int) -> Producer:
    """Who comes after the owner."""
    successor = _successor(current, spare_producer_id)
    if successor != NO_PRODUCER_ID:
        return Producer(successor, 0)
    return Producer(current.owner.producer_id, current.owner.producer_epoch + 1)


def _first_owner(current: Transaction) -> Producer:
    """Whom the first preparation of this transaction made its owner."""
    spent = current.producer_epoch >= EPOCH_MAX - 1
    return Producer(current.next_producer_id, 0) if spent else current.seal


def _check_producer(current: Transaction, producer: Producer) -> None:
    """Raise for anybody but the owner."""
    owner = current.owner
    if producer.producer_id not in (owner.producer_id, current.producer_id):
        raise _no_mapping(producer)
    # A prepared transaction waits for its owner (I39).
    if producer != owner:
        raise _fenced(current, producer)


def _check_open(current: Transaction) -> None:
    # Nothing is added to a prepared transaction (I40).
    if current.is_prepared:
        raise MqError(
            ErrorCode.INVALID_TXN_STATE,
            "The transaction is prepared and takes no more partitions; commit or abort it.",
        )


def _no_mapping(producer: Producer) -> MqError:
    return MqError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Producer id {producer.producer_id} does not belong to this transactional id; initialize.",
    )


def _fenced(current: Transaction, producer: Producer) -> MqError:
    return MqError(
        ErrorCode.PRODUCER_FENCED,
        f"Epoch {producer.producer_epoch} is not the present one, {current.owner.producer_epoch}.",
    )


def _concurrent() -> MqError:
    return MqError(
        ErrorCode.CONCURRENT_TRANSACTIONS, "The transaction before is being completed; try again."
    )


def _wrong_state(current: Transaction, committed: bool) -> MqError:
    wish = "committed" if committed else "aborted"
    return MqError(
        ErrorCode.INVALID_TXN_STATE,
        f"A transaction that is {current.state.label} cannot be {wish}.",
    )
