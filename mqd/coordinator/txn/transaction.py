"""One transactional id: its state, and which state may follow.

    Empty ----> Ongoing ----> PrepareCommit ----> CompleteCommit
      ^            |                                   |
      |            +--------> PrepareAbort -----> CompleteAbort
      +------------------------------------------------+

InitProducerId leads from Complete* to Empty; a new transaction leads to Ongoing (TRANSITIONS).

Prepare* is the decision: after its commit the outcome is final, and the coordinator writes markers
until every partition has one. Complete* means that all markers are written. Requests in between get
CONCURRENT_TRANSACTIONS and are retried.

Invariants: the pair (producer id, epoch) of a transactional id only grows; a new producer id starts
at epoch 0. A producer with another pair than the present one changes nothing. Two requests with an
older pair only read, and return the present pair: a repeated EndTxn (KIP-890), and a repeated
InitProducerId (KIP-360).

A transaction in Ongoing may be prepared for the two-phase commit of another coordinator (KIP-939).
It then has two pairs: the one that wrote its records, and the newest one, its owner, which alone
may end it. Each InitProducerId with keep_prepared_txn names a new owner. A prepared transaction
takes no more partitions. It never times out if it was prepared with `enable_2_pc`.

The version of the request selects one of two protocols (KIP-890). In the first (version 0) an epoch
lasts until the producer is initialized again or fenced. In the second (version 2) it ends with each
transaction, so that no late request of one transaction reaches the next.

The functions of initialization.py, partitions.py and ending.py return the next state or raise. They
change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from mqd.coordinator.shard import Producer
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

EPOCH_MAX: Final = 32_767
"""No client gets it: it fences the last epoch of a client."""
EPOCH_BUMP_VERSION: Final = 2
"""`transaction.version` from which each end of a transaction raises the epoch."""
TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1
"""Kafka's value for a producer whose transactions another coordinator ends (KIP-939): they never
time out."""


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
"""No transaction is open: the id may be initialized, deleted, or begin a transaction."""

TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
}
"""The states that may follow each state. A tombstone may follow every state at rest."""


class ProducerIdWanted(MqError):
    """The epochs of the producer id are exhausted. The node retries with a spare producer id."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            "The epochs of the producer id are exhausted, and there is no new id yet. Retry.",
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one transactional id: the fields of Kafka's TransactionLogValue, and
    `last_producer_epoch`, which is not written."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions of the present transaction, sorted."""
    updated_ms: int = NO_TIMESTAMP
    """Wall time of the last change."""
    started_ms: int = NO_TIMESTAMP
    """Wall time at which the transaction began."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last change; mostly the same."""
    next_producer_id: int = NO_PRODUCER_ID
    """Replaces `producer_id` when this transaction is complete, because the epochs are exhausted.
    For a prepared transaction, see `next_producer_epoch`."""
    client_version: int = 0
    """`transaction.version` of the last request of the client, or of the node that aborted the
    transaction for it."""
    last_producer_epoch: int = NO_EPOCH
    """The former epoch, if its producer may repeat the request and get the present epoch. A
    failover loses it, as in Apache Kafka."""
    next_producer_epoch: int = NO_EPOCH
    """With `next_producer_id`, the owner of a prepared transaction. After the decision, the next
    producer."""

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_prepared(self) -> bool:
        """Whether the open transaction waits for its owner's decision (KIP-939)."""
        return self.state is ONGOING and self.next_producer_epoch != NO_EPOCH

    @property
    def was_prepared(self) -> bool:
        """Whether the transaction is decided, and was prepared before."""
        return self.state.decided and self.next_producer_epoch != NO_EPOCH

    @property
    def owner(self) -> Producer:
        """The producer that may use the transactional id."""
        return (
            Producer(self.next_producer_id, self.next_producer_epoch)
            if self.is_prepared
            else self.producer
        )

    @property
    def seal(self) -> Producer:
        """The producer in the seals and markers of a prepared transaction: its epoch is one above
        that of the records."""
        return Producer(self.producer_id, min(self.producer_epoch + 1, EPOCH_MAX))

    @property
    def epochs_exhausted(self) -> bool:
        """Whether a client can get no further epoch."""
        return self.owner.producer_epoch >= EPOCH_MAX - 1

    @property
    def producer_when_complete(self) -> Producer:
        """The next producer after a decided transaction."""
        if self.was_prepared:
            return Producer(self.next_producer_id, self.next_producer_epoch)
        if self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return self.producer


def changed_to(
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


def following_producer_id(current: Transaction, spare_producer_id: int) -> int:
    """The spare id if the epochs are exhausted, else none. Raises ProducerIdWanted."""
    if not current.epochs_exhausted:
        return NO_PRODUCER_ID
    if spare_producer_id == NO_PRODUCER_ID:
        raise ProducerIdWanted
    return spare_producer_id


def following_producer(current: Transaction, spare_producer_id: int) -> Producer:
    """The producer after the owner. Raises ProducerIdWanted."""
    producer_id = following_producer_id(current, spare_producer_id)
    if producer_id != NO_PRODUCER_ID:
        return Producer(producer_id, 0)
    return Producer(current.owner.producer_id, current.owner.producer_epoch + 1)


def check_producer(current: Transaction, producer: Producer) -> None:
    """Raise INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED unless the producer is the owner."""
    owner = current.owner
    if producer.producer_id not in (owner.producer_id, current.producer_id):
        raise invalid_producer_id_mapping(producer)
    # A prepared transaction waits for its owner (I39).
    if producer != owner:
        raise producer_fenced(current, producer)


def invalid_producer_id_mapping(producer: Producer) -> MqError:
    return MqError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"Producer id {producer.producer_id} does not belong to this transactional id. Send "
        "InitProducerId.",
    )


def producer_fenced(current: Transaction, producer: Producer) -> MqError:
    return MqError(
        ErrorCode.PRODUCER_FENCED,
        f"Producer epoch {producer.producer_epoch} is fenced. The current epoch is "
        f"{current.owner.producer_epoch}.",
    )


def concurrent_transactions() -> MqError:
    return MqError(
        ErrorCode.CONCURRENT_TRANSACTIONS, "The former transaction is being completed. Retry."
    )
