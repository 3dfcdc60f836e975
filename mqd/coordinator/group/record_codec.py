"""Encodes and decodes the records of `__consumer_offsets`, byte for byte as Apache Kafka does.

The kinds of records, with the fields of their keys:

    0, 1  OffsetCommit              group, topic, partition    (0 is what Kafka before 0.9 wrote)
    2     GroupMetadata             group                      a classic group and its members
    3     ConsumerGroupMetadata     group                      3 to 16: KIP-848 groups
    4     PartitionMetadata         group                      deleted, not written (KIP-1101)
    5     MemberMetadata            group, member
    6     TargetAssignmentMetadata  group
    7     TargetAssignmentMember    group, member
    8     CurrentMemberAssignment   group, member
    10    ShareMemberMetadata            group, member           10 to 15: share groups (KIP-932)
    11    ShareGroupMetadata             group
    12    ShareTargetAssignmentMetadata  group
    13    ShareTargetAssignmentMember    group, member
    14    ShareCurrentAssignment         group, member
    15    SharePartitions                group
    16    RegularExpression         group, expression

Keys and values are in records.py, their fields by version in record_schemas.py. Committed offsets
have a faster codec, offset_codec.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mqd.coordinator.group import offset_codec
from mqd.coordinator.group.record_schemas import BY_KEY_CLASS, BY_KIND, EXPIRING_VERSION, PARTS
from mqd.coordinator.group.records import Key, OffsetCommit, OffsetCommitKey, Value
from mqd.coordinator.group.share_records import ShareKey, ShareValue
from mqd.coordinator.record_format import decode_record
from mqd.coordinator.shard import CoordinatorRecord
from mqd.types import NO_TIMESTAMP


class DecodedRecord(NamedTuple):
    """A tombstone has no value."""

    key: Key | ShareKey
    value: Value | ShareValue | None


def encode(key: Key | ShareKey, value: Value | ShareValue) -> CoordinatorRecord:
    """The record, in the version that Kafka 4.3 writes."""
    if (
        isinstance(key, OffsetCommitKey)
        and isinstance(value, OffsetCommit)
        and value.expire_timestamp == NO_TIMESTAMP
    ):
        encoded = offset_codec.encode_value(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.topic_id
        )
        if encoded is not None:
            return CoordinatorRecord(
                offset_codec.encode_key(key.group, key.topic, key.partition), encoded
            )
    return encode_as_declared(key, value)


def encode_as_declared(key: Key | ShareKey, value: Value | ShareValue) -> CoordinatorRecord:
    """As `encode`, by the schemas only."""
    found = BY_KEY_CLASS[type(key)]
    assert type(value) is found.value_class, (key, value)
    version = found.version
    if isinstance(value, OffsetCommit) and value.expire_timestamp != NO_TIMESTAMP:
        version = EXPIRING_VERSION
    return found.encode(key, value, version)


def tombstone(key: Key | ShareKey) -> CoordinatorRecord:
    """The record that deletes the key."""
    if isinstance(key, OffsetCommitKey):
        return CoordinatorRecord(offset_codec.encode_key(key.group, key.topic, key.partition), None)
    return CoordinatorRecord(BY_KEY_CLASS[type(key)].encode_key(key), None)


def decode(record: CoordinatorRecord) -> DecodedRecord:
    """The key and value of a record. RecordFormatError for an unknown kind (streams groups)
    or version, and for other bytes that cannot be decoded."""
    key = offset_codec.decode_key(record.key)
    if key is not None:
        if record.value is None:
            return DecodedRecord(OffsetCommitKey(*key), None)
        value = offset_codec.decode_value(record.value)
        if value is not None:
            offset, leader_epoch, metadata, commit_timestamp, topic_id = value
            return DecodedRecord(
                OffsetCommitKey(*key),
                OffsetCommit(
                    offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id
                ),
            )
    return decode_as_declared(record)


def decode_as_declared(record: CoordinatorRecord) -> DecodedRecord:
    """As `decode`, by the schemas only."""
    found, key, value = decode_record(BY_KIND, record)
    return DecodedRecord(
        _dataclass_of(found.key_class, key),
        None if value is None else _dataclass_of(found.value_class, value),
    )


def _dataclass_of(wanted: type[Any], fields: dict[str, Any]) -> Any:
    """The dataclass of the fields and its parts. It has no reference to the record's bytes."""
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
