"""Partitions of a transaction: adding them, and verifying that they were added."""

from __future__ import annotations

from collections.abc import Iterable

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.transaction import (
    AT_REST,
    ONGOING,
    Transaction,
    changed_to,
    check_producer,
    concurrent_transactions,
    invalid_producer_id_mapping,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition


def add_partitions(
    current: Transaction | None,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with these partitions, begun if none is open; None if it has them already.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is None:
        raise invalid_producer_id_mapping(producer)
    if current.state.decided:
        raise concurrent_transactions()
    check_producer(current, producer)
    _check_open(current)
    wanted = set(partitions)
    if current.state is ONGOING and wanted.issubset(current.partitions):
        return None
    return changed_to(
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
    """NONE for each partition of the producer's open transaction, else TRANSACTION_ABORTABLE
    (KIP-890).

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    if current is None:
        raise invalid_producer_id_mapping(producer)
    check_producer(current, producer)
    if current.state.decided:
        raise concurrent_transactions()
    _check_open(current)
    held = frozenset(current.partitions)
    return {
        one: ErrorCode.NONE if one in held else ErrorCode.TRANSACTION_ABORTABLE
        for one in partitions
    }


def _check_open(current: Transaction) -> None:
    # Nothing is added to a prepared transaction (I40).
    if current.is_prepared:
        raise MqError(
            ErrorCode.INVALID_TXN_STATE,
            "The transaction is prepared and takes no more partitions. Commit or abort it.",
        )
