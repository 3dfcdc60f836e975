"""Encodes and decodes the records of `__transaction_state`, byte for byte as Apache Kafka's
TransactionLogKey and TransactionLogValue.

The key is the transactional id, the value its whole state. Version 1 of the value has tagged
fields. Version 0, which is written while `transaction.version` is 0, lacks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, Final

from mqd.coordinator.record_format import RecordFormat, RecordFormatError, decode_record
from mqd.coordinator.shard import CoordinatorRecord
from mqd.coordinator.txn.transaction import Transaction, TransactionState
from mqd.protocol.schema import INT8, INT16, INT32, INT64, STRING, array, field, message
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

_VERSION_MAX: Final = 1

_KEY: Final = message(field("transactional_id", STRING))
_VALUE: Final = message(
    field("producer_id", INT64),
    field("previous_producer_id", INT64, since=1, tag=0, default=NO_PRODUCER_ID),
    field("next_producer_id", INT64, since=1, tag=1, default=NO_PRODUCER_ID),
    field("producer_epoch", INT16),
    field("next_producer_epoch", INT16, since=1, tag=3, default=NO_EPOCH),  # KIP-939: prepared
    field("transaction_timeout_ms", INT32),
    field("transaction_status", INT8),
    field(
        "transaction_partitions",
        array(field("topic", STRING), field("partition_ids", array(INT32))),
        nullable_since=0,
    ),
    field("transaction_last_update_timestamp_ms", INT64),
    field("transaction_start_timestamp_ms", INT64),
    field("client_transaction_version", INT16, since=1, tag=2, default=0),
)
_FORMAT: Final = RecordFormat(
    kind=0, key=_KEY, value=_VALUE, version_max=_VERSION_MAX, flexible_from=1
)
_FORMATS: Final = {_FORMAT.kind: _FORMAT}


def value_version(transaction_version: int) -> int:
    """The version of the value at a level of the feature `transaction.version`."""
    return 1 if transaction_version >= 1 else 0


def encode(transactional_id: str, transaction: Transaction, *, version: int) -> CoordinatorRecord:
    """The record, with version 0 or 1 of the value.

    A transaction of the second protocol (KIP-890), or a prepared one, always gets version 1.
    """
    if transaction.client_version or transaction.next_producer_id != NO_PRODUCER_ID:
        version = _VERSION_MAX
    partitions = (
        None if transaction.state is TransactionState.EMPTY else _by_topic(transaction.partitions)
    )
    value = {
        "producer_id": transaction.producer_id,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "next_producer_epoch": transaction.next_producer_epoch,
        "producer_epoch": transaction.producer_epoch,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_status": transaction.state,
        "transaction_partitions": partitions,
        "transaction_last_update_timestamp_ms": transaction.updated_ms,
        "transaction_start_timestamp_ms": transaction.started_ms,
        "client_transaction_version": transaction.client_version,
    }
    return _FORMAT.encode({"transactional_id": transactional_id}, value, version)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    """The record that deletes the transactional id."""
    return CoordinatorRecord(_FORMAT.encode_key({"transactional_id": transactional_id}), None)


def decode(record: CoordinatorRecord) -> tuple[str, Transaction | None]:
    """The transactional id and its transaction, None for a tombstone. RecordFormatError for an
    unknown kind, version or state, and for other bytes that cannot be decoded."""
    _, key, value = decode_record(_FORMATS, record)
    transactional_id: str = key.transactional_id
    if value is None:
        return transactional_id, None
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise RecordFormatError(f"transactional id {transactional_id!r}: {error}") from None
    partitions: list[TopicPartition] = []
    for topic in value.transaction_partitions or ():
        partitions.extend(map(TopicPartition, repeat(topic.topic), topic.partition_ids))
    partitions.sort()
    return transactional_id, Transaction(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=() if state is TransactionState.EMPTY else tuple(partitions),
        updated_ms=value.transaction_last_update_timestamp_ms,
        started_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_version=value.client_transaction_version,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition_ids": [one.partition for one in group]}
        for topic, group in groupby(partitions, key=attrgetter("topic"))
    ]
