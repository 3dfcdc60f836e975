"""The records of `__transaction_state`, bytes <-> values: Apache Kafka's TransactionLogKey and
TransactionLogValue, to the byte.

The key is the transactional id, the value all that is known of it: each record replaces the one
before. No value (a tombstone): the id is forgotten. Version 1 of the value has tagged fields;
version 0 is written while `transaction.version` is 0, and lacks what they say.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from mqd.coordinator.record_format import (
    RecordFormatError,
    decode_fields,
    encode_fields,
    prefix_of,
)
from mqd.coordinator.shard import CoordinatorRecord
from mqd.coordinator.txn.state import Transaction, TransactionState
from mqd.errors import ProtocolError
from mqd.protocol.schema import INT8, INT16, INT32, INT64, STRING, array, field, message
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

_KEY_KIND = 0
_VALUE_VERSION_MAX = 1
_FLEXIBLE_FROM = 1

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


def value_version(transaction_version: int) -> int:
    """Which version of the value is written at a level of the feature `transaction.version`."""
    return 1 if transaction_version >= 1 else 0


def encode(transactional_id: str, transaction: Transaction, *, version: int) -> CoordinatorRecord:
    """The record that says so, with version 0 or 1 of the value.

    Version 0 is not enough for the second protocol (KIP-890).
    """
    # prepared ones have it, too
    if transaction.client_version or transaction.next_producer_id != NO_PRODUCER_ID:
        version = _VALUE_VERSION_MAX
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
    flexible = version >= _FLEXIBLE_FROM
    return CoordinatorRecord(
        _key(transactional_id),
        encode_fields(_VALUE, value, prefix=version, version=version, flexible=flexible),
    )


def tombstone(transactional_id: str) -> CoordinatorRecord:
    """The record that lets the id be forgotten."""
    return CoordinatorRecord(_key(transactional_id), None)


def decode(record: CoordinatorRecord) -> tuple[str, Transaction | None] | None:
    """The id and what is so from now on, None for a tombstone. None at all for kinds of records of
    a later Kafka, which are skipped.

    Raises RecordFormatError for bytes that are none of it.
    """
    try:
        if prefix_of(record.key) != _KEY_KIND:
            return None
        transactional_id: str = decode_fields(_KEY, record.key).transactional_id
        if record.value is None:
            return transactional_id, None
        version = prefix_of(record.value)
        if not 0 <= version <= _VALUE_VERSION_MAX:
            return None
        flexible = version >= _FLEXIBLE_FROM
        value = decode_fields(_VALUE, record.value, version=version, flexible=flexible)
        state = TransactionState(value.transaction_status)
    except (ProtocolError, ValueError) as error:
        raise RecordFormatError(
            f"a record of the transaction log cannot be read: {error}"
        ) from error
    partitions = sorted(
        TopicPartition(topic.topic, partition)
        for topic in value.transaction_partitions or ()
        for partition in topic.partition_ids
    )
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
        for topic, group in groupby(partitions, key=lambda one: one.topic)
    ]


def _key(transactional_id: str) -> bytes:
    return encode_fields(_KEY, {"transactional_id": transactional_id}, prefix=_KEY_KIND)
