"""Encodes and decodes the records of `__consumer_offsets`, byte for byte as Apache Kafka does.

A key has a kind and an owner; a value replaces the one before; no value (a tombstone) deletes it.
Both begin with two bytes: the kind in the key, the version of the schema in the value.

    0, 1  OffsetCommit              group, topic, partition    (0 is what Kafka before 0.9 wrote)
    2     GroupMetadata             group                      a classic group and its members
    3     ConsumerGroupMetadata     group                      3 to 16: KIP-848 groups
    4     PartitionMetadata         group                      deleted, not written (KIP-1101)
    5     MemberMetadata            group, member
    6     TargetAssignmentMetadata  group
    7     TargetAssignmentMember    group, member
    8     CurrentMemberAssignment   group, member
    16    RegularExpression         group, expression

Keys and values are in record_values.py, their fields by version in record_schemas.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mqd.coordinator.group import hot_records
from mqd.coordinator.group.record_schemas import BY_KEY_CLASS, BY_KIND, EXPIRING_VERSION, PARTS
from mqd.coordinator.group.record_values import (
    ClassicMember,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    CurrentMemberAssignment,
    CurrentMemberAssignmentKey,
    GroupMetadata,
    GroupMetadataKey,
    Key,
    MemberMetadata,
    MemberMetadataKey,
    OffsetCommit,
    OffsetCommitKey,
    OwnedPartitions,
    PartitionMetadata,
    PartitionMetadataKey,
    PartitionRacks,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadata,
    TargetAssignmentMetadataKey,
    TopicMetadata,
    TopicPartitions,
    Value,
)
from mqd.coordinator.record_format import (
    RecordFormatError,
    decode_fields,
    encode_fields,
    prefix_of,
)
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ProtocolError
from mqd.types import NO_TIMESTAMP

__all__ = [
    "ClassicMember",
    "ClassicMemberMetadata",
    "ClassicProtocol",
    "ConsumerGroupMetadata",
    "ConsumerGroupMetadataKey",
    "CurrentMemberAssignment",
    "CurrentMemberAssignmentKey",
    "Entry",
    "GroupMetadata",
    "GroupMetadataKey",
    "Key",
    "MemberMetadata",
    "MemberMetadataKey",
    "OffsetCommit",
    "OffsetCommitKey",
    "OwnedPartitions",
    "PartitionMetadata",
    "PartitionMetadataKey",
    "PartitionRacks",
    "RecordFormatError",
    "RegularExpression",
    "RegularExpressionKey",
    "TargetAssignmentMember",
    "TargetAssignmentMemberKey",
    "TargetAssignmentMetadata",
    "TargetAssignmentMetadataKey",
    "TopicMetadata",
    "TopicPartitions",
    "Value",
    "decode",
    "encode",
    "tombstone",
]


class Entry(NamedTuple):
    """A record that was decoded; without a value it is a tombstone."""

    key: Key
    value: Value | None


def encode(key: Key, value: Value) -> CoordinatorRecord:
    """The record that says it, in the version that Kafka 4.3 writes."""
    if (
        isinstance(key, OffsetCommitKey)
        and isinstance(value, OffsetCommit)
        and value.expire_timestamp == NO_TIMESTAMP
    ):
        hot = hot_records.encode_value(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.topic_id
        )
        if hot is not None:
            return CoordinatorRecord(
                hot_records.encode_key(key.group, key.topic, key.partition), hot
            )
    return encode_as_declared(key, value)


def encode_as_declared(key: Key, value: Value) -> CoordinatorRecord:
    """As `encode`, without what is done by hand."""
    schema = BY_KEY_CLASS[type(key)]
    assert type(value) is schema.value_class, (key, value)
    version = schema.version
    if isinstance(value, OffsetCommit) and value.expire_timestamp != NO_TIMESTAMP:
        version = EXPIRING_VERSION
    flexible = version >= schema.flexible_from
    return CoordinatorRecord(
        encode_fields(schema.key, key, prefix=schema.kind),
        encode_fields(schema.value, value, prefix=version, version=version, flexible=flexible),
    )


def tombstone(key: Key) -> CoordinatorRecord:
    """The record that says that there is none any more."""
    if isinstance(key, OffsetCommitKey):
        return CoordinatorRecord(hot_records.encode_key(key.group, key.topic, key.partition), None)
    schema = BY_KEY_CLASS[type(key)]
    return CoordinatorRecord(encode_fields(schema.key, key, prefix=schema.kind), None)


def decode(record: CoordinatorRecord) -> Entry | None:
    """The key and value of a record; None for an unknown kind (share and streams groups).

    RecordFormatError for bytes that no known version of its kind allows."""
    key = hot_records.decode_key(record.key)
    if key is not None:
        if record.value is None:
            return Entry(OffsetCommitKey(*key), None)
        value = hot_records.decode_value(record.value)
        if value is not None:
            offset, leader_epoch, metadata, commit_timestamp, topic_id = value
            return Entry(
                OffsetCommitKey(*key),
                OffsetCommit(
                    offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id
                ),
            )
    return decode_as_declared(record)


def decode_as_declared(record: CoordinatorRecord) -> Entry | None:
    """As `decode`, without what is done by hand."""
    key, value = record
    try:
        kind = prefix_of(key)
        schema = BY_KIND.get(kind)
        if schema is None:
            return None
        decoded_key = _dataclass_of(schema.key_class, decode_fields(schema.key, key))
        if value is None:
            return Entry(decoded_key, None)
        version = prefix_of(value)
        if not 0 <= version <= schema.version_max:
            raise ProtocolError(f"version {version} of a value of kind {kind} is not known")
        flexible = version >= schema.flexible_from
        fields = decode_fields(schema.value, value, version=version, flexible=flexible)
        return Entry(decoded_key, _dataclass_of(schema.value_class, fields))
    except ProtocolError as error:
        raise RecordFormatError(f"key {key.hex()}: {error}") from None


def _dataclass_of(wanted: type[Any], fields: dict[str, Any]) -> Any:
    """The dataclass of the fields and its parts. It holds no reference to the record's bytes."""
    parts = PARTS.get(wanted, {})
    arguments: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            part = parts.get(name)
            arguments[name] = (
                tuple(value) if part is None else tuple(_dataclass_of(part, row) for row in value)
            )
        elif isinstance(value, dict):
            arguments[name] = _dataclass_of(parts[name], value)
        elif isinstance(value, memoryview):
            arguments[name] = bytes(value)
        else:
            arguments[name] = value
    return wanted(**arguments)
