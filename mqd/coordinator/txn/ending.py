"""The end of a transaction: by EndTxn, by its timeout, or because its producer is fenced."""

from __future__ import annotations

from dataclasses import replace

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_BUMP_VERSION,
    EPOCH_MAX,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TWO_PHASE_TIMEOUT_MS,
    Transaction,
    TransactionState,
    changed_to,
    check_producer,
    concurrent_transactions,
    following_producer,
    following_producer_id,
    invalid_producer_id_mapping,
    producer_fenced,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID


def end(
    current: Transaction | None,
    producer: Producer,
    *,
    committed: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: int,
) -> Transaction | None:
    """EndTxn: the decided transaction, or None if the same was decided before.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
    ProducerIdWanted.
    """
    if current is None:
        raise invalid_producer_id_mapping(producer)
    if current.is_prepared:
        check_producer(current, producer)
        next_producer = (
            following_producer(current, spare_producer_id)
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
    check_producer(current, producer)
    if current.state.decided:
        raise concurrent_transactions()
    if current.state is ONGOING:
        return changed_to(
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
    """The second protocol: the epoch ends with the transaction. A request with the previous epoch
    is a retry."""
    if current.state.decided:
        raise concurrent_transactions()
    complete = current.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    had_last_epoch = (
        complete
        and producer == (current.previous_producer_id, EPOCH_MAX - 1)
        and current.producer_epoch == 0
        and current.producer_id != producer.producer_id
    )
    if producer.producer_id != current.producer_id and not had_last_epoch:
        raise invalid_producer_id_mapping(producer)
    # otherwise the former epoch is that of a replaced producer
    raised = complete and current.client_version >= EPOCH_BUMP_VERSION
    repeated = had_last_epoch or (
        raised and producer.producer_epoch + 1 == current.producer_epoch < EPOCH_MAX
    )
    if not repeated and producer.producer_epoch != current.producer_epoch:
        raise producer_fenced(current, producer)
    if current.state is ONGOING:
        outcome, started_ms = (PREPARE_COMMIT if committed else PREPARE_ABORT), current.started_ms
    elif repeated and current.state is (COMPLETE_COMMIT if committed else COMPLETE_ABORT):
        return None
    elif committed or repeated:
        raise _wrong_state(current, committed)
    else:
        # no partition was added: the epoch is raised nevertheless, against late requests
        outcome, started_ms = PREPARE_ABORT, now_ms
    assert current.producer_epoch < EPOCH_MAX, current
    return changed_to(
        current,
        outcome,
        now_ms,
        producer_epoch=current.producer_epoch + 1,
        last_producer_epoch=current.producer_epoch,
        started_ms=started_ms,
        client_version=client_version,
        next_producer_id=following_producer_id(current, spare_producer_id),
    )


def _decided_by_owner(
    current: Transaction,
    outcome: TransactionState,
    next_producer: Producer,
    version: int,
    now_ms: int,
) -> Transaction:
    """A prepared transaction with its outcome. The markers have the epoch of the seal. The record
    also has the owner and the next producer."""
    owner = current.owner
    decided = changed_to(
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


def fence(
    current: Transaction, *, server_version: int, spare_producer_id: int, now_ms: int
) -> Transaction:
    """Abort an open transaction without its producer, and fence that producer. Raises
    ProducerIdWanted.

    `server_version`: the level of `transaction.version` in this cluster.
    """
    assert current.state is ONGOING, current
    if current.is_prepared:
        return _decided_by_owner(
            current,
            PREPARE_ABORT,
            following_producer(current, spare_producer_id),
            server_version,
            now_ms,
        )
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    if server_version < EPOCH_BUMP_VERSION:
        return changed_to(
            current,
            PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=NO_EPOCH,
            client_version=0,
        )
    return changed_to(
        current,
        PREPARE_ABORT,
        now_ms,
        producer_epoch=epoch,
        last_producer_epoch=current.producer_epoch,
        client_version=server_version,
        next_producer_id=following_producer_id(current, spare_producer_id),
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    assert current.state.decided, current
    producer = current.producer_when_complete
    completed = changed_to(
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
    """Whether an open transaction took longer than its timeout.

    `open_for_ms`: for how long this coordinator has seen it open. That counts if the wall clock of
    the former coordinator was ahead.
    """
    if current.state is not ONGOING or current.timeout_ms == TWO_PHASE_TIMEOUT_MS:
        return False
    return current.started_ms + current.timeout_ms < now_ms or current.timeout_ms < open_for_ms


def last_epoch_after(
    before: Transaction | None, record: Transaction, initialized_epoch: int
) -> int:
    """The `last_producer_epoch` after `record`: records do not store it.

    `initialized_epoch`: of the InitProducerId that wrote the record, if this node handled it.
    """
    if record.state is EMPTY:
        return initialized_epoch
    if record.state.decided and record.client_version >= EPOCH_BUMP_VERSION:
        return (record.next_producer_epoch if record.was_prepared else record.producer_epoch) - 1
    if before is None or (
        record.state is PREPARE_ABORT and record.producer_epoch != before.producer_epoch
    ):
        return NO_EPOCH
    return before.last_producer_epoch


def _wrong_state(current: Transaction, committed: bool) -> MqError:
    verb = "committed" if committed else "aborted"
    return MqError(
        ErrorCode.INVALID_TXN_STATE,
        f"A transaction that is {current.state.label} cannot be {verb}.",
    )
