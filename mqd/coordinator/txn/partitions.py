"""Partitions of a transaction: adding them, and verifying that they were added."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import Final

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
from mqd.limits import TRANSACTION_PARTITIONS_MAX
from mqd.types import GROUPS_TOPIC, TopicPartition

_TOPIC_PARTITIONS: Final = 5
"""The work for a topic in the record of a transaction, in partitions."""


def add_partitions(
    current: Transaction | None,
    producer: Producer,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with these different partitions, begun if none is open; None if it has them
    already.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, POLICY_VIOLATION.
    """
    if current is None:
        raise invalid_producer_id_mapping(producer)
    if current.state.decided:
        raise concurrent_transactions()
    check_producer(current, producer)
    _check_open(current)
    if len(partitions) > TRANSACTION_PARTITIONS_MAX:
        _check_size(current, partitions)
    added = {one for one in partitions if not _has(current, one)}
    if current.state is ONGOING and not added:
        return None
    if any(one.topic != GROUPS_TOPIC for one in added):
        _check_size(current, added)
    return changed_to(
        current,
        ONGOING,
        now_ms,
        partitions=tuple(sorted((*current.partitions, *sorted(added)))),
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
    return {
        one: ErrorCode.NONE if _has(current, one) else ErrorCode.TRANSACTION_ABORTABLE
        for one in partitions
    }


def _has(current: Transaction, partition: TopicPartition) -> bool:
    place = bisect_left(current.partitions, partition)
    return place < len(current.partitions) and current.partitions[place] == partition


def _check_size(current: Transaction, added: Collection[TopicPartition]) -> None:
    """Each change of a transaction writes a record with all of its partitions."""
    if len(current.partitions) + len(added) <= TRANSACTION_PARTITIONS_MAX // (
        1 + _TOPIC_PARTITIONS
    ):
        return
    topics = {one.topic for one in (*current.partitions, *added)}
    partitions = len(current.partitions) + len(added)
    if partitions + _TOPIC_PARTITIONS * len(topics) > TRANSACTION_PARTITIONS_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A transaction of {partitions} partitions of {len(topics)} topics is too large: at "
            f"most {TRANSACTION_PARTITIONS_MAX} partitions are allowed, and each topic counts as "
            f"{_TOPIC_PARTITIONS} more. Use several transactions.",
        )


def _check_open(current: Transaction) -> None:
    # Nothing is added to a prepared transaction (I40).
    if current.is_prepared:
        raise MqError(
            ErrorCode.INVALID_TXN_STATE,
            "The transaction is prepared and takes no more partitions. Commit or abort it.",
        )
