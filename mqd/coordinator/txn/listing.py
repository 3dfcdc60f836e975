"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from mqd.coordinator.shard import NO_PRODUCER
from mqd.coordinator.txn.operations import ListTransactions
from mqd.coordinator.txn.store import TransactionStore
from mqd.coordinator.txn.transaction import AT_REST, STATES_BY_LABEL
from mqd.errors import ErrorCode, MqError


def described(store: TransactionStore, transactional_id: str) -> dict[str, Any]:
    """The row of DescribeTransactions. Raises MqError TRANSACTIONAL_ID_NOT_FOUND."""
    transaction = store.get(transactional_id)
    if transaction is None:
        raise MqError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"There is no transactional id {transactional_id!r}.",
        )
    owner = transaction.owner if transaction.is_prepared else NO_PRODUCER
    partitions = (
        sorted(store.unmarked[transactional_id])
        if transaction.state.decided
        else transaction.partitions
    )
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.label,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_start_time_ms": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "owner_producer_id": owner.producer_id,
        "owner_producer_epoch": owner.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": [one.partition for one in group]}
            for topic, group in groupby(partitions, key=lambda one: one.topic)
        ],
    }


def idle_ms(store: TransactionStore, transactional_id: str, wall_ms: int) -> int:
    """The time since the last change of a transactional id without a transaction, at least 0; -1 if
    one is open. Raises MqError TRANSACTIONAL_ID_NOT_FOUND."""
    described(store, transactional_id)
    transaction = store.transactions[transactional_id]
    if transaction.state not in AT_REST:
        return -1
    return max(0, wall_ms - transaction.updated_ms)


def listed(store: TransactionStore, op: ListTransactions, wall_ms: int) -> list[dict[str, Any]]:
    """The rows of ListTransactions."""
    states = {STATES_BY_LABEL[name] for name in op.states if name in STATES_BY_LABEL}
    return [
        {
            "transactional_id": name,
            "producer_id": transaction.producer_id,
            "transaction_state": transaction.state.label,
            "prepared": transaction.is_prepared,
        }
        for name, transaction in store.transactions.items()
        if (not op.producer_ids or transaction.producer_id in op.producer_ids)
        and (not op.states or transaction.state in states)
        and (op.duration_ms < 0 or wall_ms - transaction.started_ms > op.duration_ms)
    ]
