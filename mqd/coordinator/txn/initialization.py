"""InitProducerId: a new producer epoch for a transactional id, or a new owner for its prepared
transaction.
"""

from __future__ import annotations

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.transaction import (
    AT_REST,
    EMPTY,
    EPOCH_MAX,
    ONGOING,
    TWO_PHASE_TIMEOUT_MS,
    ProducerIdWanted,
    Transaction,
    changed_to,
    concurrent_transactions,
    following_producer,
    producer_fenced,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP


def initialize(
    current: Transaction | None,
    *,
    timeout_ms: int,
    expected: Producer | None,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction:
    """InitProducerId without an open transaction: the next state, with the caller's producer.

    `expected`: the producer that the caller names (KIP-360). Raises PRODUCER_FENCED,
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
        # a repeated request: the response was lost
        epoch, last = current.producer_epoch, current.last_producer_epoch
    elif expected is not None and expected.producer_epoch != current.producer_epoch:
        raise producer_fenced(current, expected)
    else:
        if expected is not None:
            last = current.producer_epoch
        if current.epochs_exhausted:
            if spare_producer_id == NO_PRODUCER_ID:
                raise ProducerIdWanted
            id_, epoch = spare_producer_id, 0
    return changed_to(
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
    """Raise PRODUCER_FENCED if the caller of InitProducerId names a replaced producer, and
    CONCURRENT_TRANSACTIONS while the id cannot be initialized."""
    if current.state.decided:
        raise concurrent_transactions()
    if expected is None:
        return
    if current.is_prepared:
        if expected != current.owner:
            raise producer_fenced(current, expected)
        return
    if expected.producer_id != current.producer_id:
        if (
            expected.producer_id == current.previous_producer_id
            and expected.producer_epoch >= EPOCH_MAX - 1
        ):
            return  # the response with the new id may be lost
        raise MqError(
            ErrorCode.PRODUCER_FENCED,
            f"Producer id {expected.producer_id} has been replaced by {current.producer_id}.",
        )
    if current.state is ONGOING and expected.producer_epoch not in (
        current.producer_epoch,
        current.last_producer_epoch,
    ):
        # Apache Kafka aborts the transaction of the present producer before it returns this error
        raise producer_fenced(current, expected)


def prepare(
    current: Transaction,
    *,
    expected: Producer | None,
    two_phase: bool,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction:
    """InitProducerId that keeps the open transaction: prepared, with a new owner. A repeated
    request changes nothing.

    `expected`: the producer that the caller names. The producer of the records gets the first
    owner, unless there was a later owner. Raises PRODUCER_FENCED, ProducerIdWanted.
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
            raise producer_fenced(current, expected)
        owner = following_producer(current, spare_producer_id)
    return changed_to(
        current,
        ONGOING,
        now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=owner.producer_id,
        next_producer_epoch=owner.producer_epoch,
    )


def _first_owner(current: Transaction) -> Producer:
    """The owner after the first preparation of this transaction."""
    exhausted = current.producer_epoch >= EPOCH_MAX - 1
    return Producer(current.next_producer_id, 0) if exhausted else current.seal
