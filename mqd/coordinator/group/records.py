"""The records of `__consumer_offsets`, bytes <-> values: Apache Kafka's own schemas, to the byte, so that its tools read them.

A key says what kind of record it is and whose; a value says what is so from now on; no value (a tombstone) says that it is no more.
Both begin with two bytes: the kind in the key, the version of the schema in the value.

    0, 1  OffsetCommit              group, topic, partition    (0 is what Kafka before 0.9 wrote)
    2     GroupMetadata             group                      a classic group and its members
    3     ConsumerGroupMetadata     group                      from here on: groups of the consumer protocol, KIP-848
    4     PartitionMetadata         group                      read and deleted, no longer written (KIP-1101)
    5     MemberMetadata            group, member
    6     TargetAssignmentMetadata  group
    7     TargetAssignmentMember    group, member
    8     CurrentMemberAssignment   group, member
    16    RegularExpression         group, expression

Fields have the names of Kafka's schemas in snake_case; the values given to them here are those of Kafka 4.3. What a version does not
carry has its default after decoding, as everywhere in the protocol.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from mqd.coordinator.group import hot_records
from mqd.coordinator.record_format import (
    RecordFormatError,
    decode_fields,
    encode_fields,
    prefix_of,
)
from mqd.coordinator.shard import Record
from mqd.errors import ProtocolError
from mqd.protocol.schema import BYTES, INT8, INT32, INT64, STRING, UUID, Message, array, field, message
from mqd.types import NO_EPOCH, NO_TIMESTAMP, ZERO_UUID

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

class _Fields:
    """Lets a declaration encode a dataclass as it encodes a mapping."""

    __slots__ = ()

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)


# -- committed offsets


@dataclass(frozen=True, slots=True)
class OffsetCommitKey(_Fields):
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetCommit(_Fields):
    """Written as version 4, or as version 1 when it has an expiry of its own (OffsetCommit v2 to v4)."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """Of the last record that was consumed; -1 where the client did not tell."""
    metadata: str = ""
    commit_timestamp: int = 0
    """Wall time in milliseconds."""
    expire_timestamp: int = NO_TIMESTAMP
    """Wall time in milliseconds; -1: by `offsets.retention.minutes`."""
    topic_id: uuid.UUID = ZERO_UUID
    """Where the commit named the topic by its id (OffsetCommit v10)."""


# -- classic groups


@dataclass(frozen=True, slots=True)
class GroupMetadataKey(_Fields):
    group: str


@dataclass(frozen=True, slots=True)
class ClassicMember(_Fields):
    """One member of a classic group (Kafka's MemberMetadata)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    """Milliseconds; -1 where it was not written (version 0): then it is the session timeout."""
    session_timeout: int
    """Milliseconds."""
    subscription: bytes
    """Metadata of the protocol that was chosen."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata(_Fields):
    """Written as version 3."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = NO_TIMESTAMP
    """Wall time in milliseconds since when the group is in this state; the time from which offsets of an empty group expire (KIP-211)."""
    members: tuple[ClassicMember, ...] = ()


# -- groups of the consumer protocol


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey(_Fields):
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata(_Fields):
    epoch: int
    metadata_hash: int = 0
    """Of all topics that the group is subscribed to (KIP-1101), as a signed 64-bit number."""


@dataclass(frozen=True, slots=True)
class PartitionMetadataKey(_Fields):
    group_id: str


@dataclass(frozen=True, slots=True)
class PartitionRacks(_Fields):
    partition: int
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata(_Fields):
    topic_id: uuid.UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionMetadata(_Fields):
    """Kafka 4.0 wrote it; since then the hash in ConsumerGroupMetadata stands in its place."""

    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadataKey(_Fields):
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicProtocol(_Fields):
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata(_Fields):
    """What a member of a consumer group said that still speaks the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadata(_Fields):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadataKey(_Fields):
    group_id: str


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadata(_Fields):
    assignment_epoch: int
    assignment_timestamp: int = 0
    """Wall time in milliseconds at which the assignment was computed (KIP-1263); 0 where it was not written."""


@dataclass(frozen=True, slots=True)
class TargetAssignmentMemberKey(_Fields):
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TopicPartitions(_Fields):
    topic_id: uuid.UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetAssignmentMember(_Fields):
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class CurrentMemberAssignmentKey(_Fields):
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class OwnedPartitions(_Fields):
    topic_id: uuid.UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None
    """For each partition the member epoch at which it was assigned: commits from before that are refused (KIP-1251)."""


@dataclass(frozen=True, slots=True)
class CurrentMemberAssignment(_Fields):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """Kafka's MemberState: 0 stable, 1 unrevoked partitions, 2 unreleased partitions, 127 unknown."""
    assigned_partitions: tuple[OwnedPartitions, ...]
    partitions_pending_revocation: tuple[OwnedPartitions, ...]


@dataclass(frozen=True, slots=True)
class RegularExpressionKey(_Fields):
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class RegularExpression(_Fields):
    """To which topics an expression was resolved, on which version of the metadata, and when (wall time in milliseconds)."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


Key: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | PartitionMetadataKey
    | MemberMetadataKey
    | TargetAssignmentMetadataKey
    | TargetAssignmentMemberKey
    | CurrentMemberAssignmentKey
    | RegularExpressionKey
)
Value: TypeAlias = (
    OffsetCommit
    | GroupMetadata
    | ConsumerGroupMetadata
    | PartitionMetadata
    | MemberMetadata
    | TargetAssignmentMetadata
    | TargetAssignmentMember
    | CurrentMemberAssignment
    | RegularExpression
)


# -- the schemas

_PARTS: Final[dict[type, dict[str, type]]] = {
    GroupMetadata: {"members": ClassicMember},
    TopicMetadata: {"partition_metadata": PartitionRacks},
    PartitionMetadata: {"topics": TopicMetadata},
    ClassicMemberMetadata: {"supported_protocols": ClassicProtocol},
    MemberMetadata: {"classic_member_metadata": ClassicMemberMetadata},
    TargetAssignmentMember: {"topic_partitions": TopicPartitions},
    CurrentMemberAssignment: {"assigned_partitions": OwnedPartitions, "partitions_pending_revocation": OwnedPartitions},
}
"""What arrays and structures hold, where it is not plain values."""


class _Schema(NamedTuple):
    kind: int
    """What the key begins with."""
    key_class: type[Any]
    key: Message
    value_class: type[Any]
    value: Message
    version_max: int = 0
    flexible_from: int = 0
    version: int = 0
    """The one that is written."""


_GROUP_ID = field("group_id", STRING)
_MEMBER_ID = field("member_id", STRING)
_TOPIC_PARTITIONS = (field("topic_id", UUID), field("partitions", array(INT32)))
_OWNED = array(*_TOPIC_PARTITIONS, field("assignment_epochs", array(INT32), tag=0, default=None))

_OFFSET_COMMIT: Final = _Schema(
    1,
    OffsetCommitKey,
    message(field("group", STRING), field("topic", STRING), field("partition", INT32)),
    OffsetCommit,
    message(
        field("offset", INT64),
        field("leader_epoch", INT32, since=3, default=NO_EPOCH),
        field("metadata", STRING),
        field("commit_timestamp", INT64),
        field("expire_timestamp", INT64, since=1, until=1, default=NO_TIMESTAMP),
        field("topic_id", UUID, since=4, tag=0),
    ),
    version_max=4,
    flexible_from=4,
    version=4,
)
_EXPIRING_VERSION = 1
_OFFSET_COMMIT_OF_OLD = 0
"""The kind of OffsetCommit that Kafka wrote long ago, and still reads: else the same as 1."""

_SCHEMAS: Final = (
    _OFFSET_COMMIT,
    _Schema(
        2,
        GroupMetadataKey,
        message(field("group", STRING)),
        GroupMetadata,
        message(
            field("protocol_type", STRING),
            field("generation", INT32),
            field("protocol", STRING, nullable_since=0),
            field("leader", STRING, nullable_since=0),
            field("current_state_timestamp", INT64, since=2, default=NO_TIMESTAMP),
            field(
                "members",
                array(
                    field("member_id", STRING),
                    field("group_instance_id", STRING, since=3, default=None),
                    field("client_id", STRING),
                    field("client_host", STRING),
                    field("rebalance_timeout", INT32, since=1, default=-1),
                    field("session_timeout", INT32),
                    field("subscription", BYTES),
                    field("assignment", BYTES),
                ),
            ),
        ),
        version_max=4,
        flexible_from=4,
        version=3,
    ),
    _Schema(
        3,
        ConsumerGroupMetadataKey,
        message(_GROUP_ID),
        ConsumerGroupMetadata,
        message(field("epoch", INT32), field("metadata_hash", INT64, tag=0)),
    ),
    _Schema(
        4,
        PartitionMetadataKey,
        message(_GROUP_ID),
        PartitionMetadata,
        message(
            field(
                "topics",
                array(
                    field("topic_id", UUID),
                    field("topic_name", STRING),
                    field("num_partitions", INT32),
                    field("partition_metadata", array(field("partition", INT32), field("racks", array(STRING)))),
                ),
            )
        ),
    ),
    _Schema(
        5,
        MemberMetadataKey,
        message(_GROUP_ID, _MEMBER_ID),
        MemberMetadata,
        message(
            field("instance_id", STRING, nullable_since=0),
            field("rack_id", STRING, nullable_since=0),
            field("client_id", STRING),
            field("client_host", STRING),
            field("subscribed_topic_names", array(STRING)),
            field("subscribed_topic_regex", STRING, nullable_since=0),
            field("rebalance_timeout_ms", INT32, default=-1),
            field("server_assignor", STRING, nullable_since=0),
            field(
                "classic_member_metadata",
                message(
                    field("session_timeout_ms", INT32),
                    field("supported_protocols", array(field("name", STRING), field("metadata", BYTES))),
                ),
                tag=0,
                default=None,
            ),
        ),
    ),
    _Schema(
        6,
        TargetAssignmentMetadataKey,
        message(_GROUP_ID),
        TargetAssignmentMetadata,
        message(field("assignment_epoch", INT32), field("assignment_timestamp", INT64, tag=0)),
    ),
    _Schema(
        7,
        TargetAssignmentMemberKey,
        message(_GROUP_ID, _MEMBER_ID),
        TargetAssignmentMember,
        message(field("topic_partitions", array(*_TOPIC_PARTITIONS))),
    ),
    _Schema(
        8,
        CurrentMemberAssignmentKey,
        message(_GROUP_ID, _MEMBER_ID),
        CurrentMemberAssignment,
        message(
            field("member_epoch", INT32),
            field("previous_member_epoch", INT32),
            field("state", INT8),
            field("assigned_partitions", _OWNED),
            field("partitions_pending_revocation", _OWNED),
        ),
    ),
    _Schema(
        16,
        RegularExpressionKey,
        message(_GROUP_ID, field("regular_expression", STRING)),
        RegularExpression,
        message(field("topics", array(STRING)), field("version", INT64), field("timestamp", INT64)),
    ),
)
_BY_KIND: Final = {schema.kind: schema for schema in _SCHEMAS} | {_OFFSET_COMMIT_OF_OLD: _OFFSET_COMMIT}
_BY_KEY_CLASS: Final[dict[type, _Schema]] = {schema.key_class: schema for schema in _SCHEMAS}


# -- bytes <-> values


class Entry(NamedTuple):
    """A record that was decoded; without a value it is a tombstone."""

    key: Key
    value: Value | None


def encode(key: Key, value: Value) -> Record:
    """The record that says it, in the version that Kafka 4.3 writes."""
    if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommit) and value.expire_timestamp == NO_TIMESTAMP:
        hot = hot_records.encode_value(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.topic_id)
        if hot is not None:
            return Record(hot_records.encode_key(key.group, key.topic, key.partition), hot)
    return encode_as_declared(key, value)


def encode_as_declared(key: Key, value: Value) -> Record:
    """As `encode`, without what is done by hand."""
    schema = _BY_KEY_CLASS[type(key)]
    assert type(value) is schema.value_class, (key, value)
    version = schema.version
    if isinstance(value, OffsetCommit) and value.expire_timestamp != NO_TIMESTAMP:
        version = _EXPIRING_VERSION
    flexible = version >= schema.flexible_from
    return Record(
        encode_fields(schema.key, key, prefix=schema.kind),
        encode_fields(schema.value, value, prefix=version, version=version, flexible=flexible),
    )


def tombstone(key: Key) -> Record:
    """The record that says that there is none any more."""
    if isinstance(key, OffsetCommitKey):
        return Record(hot_records.encode_key(key.group, key.topic, key.partition), None)
    schema = _BY_KEY_CLASS[type(key)]
    return Record(encode_fields(schema.key, key, prefix=schema.kind), None)


def decode(record: Record) -> Entry | None:
    """What a record says; None for a kind that is not known here (share and streams groups), which is left in the log and passed over.

    RecordFormatError for bytes that no known version of its kind allows."""
    key = hot_records.decode_key(record.key)
    if key is not None:
        if record.value is None:
            return Entry(OffsetCommitKey(*key), None)
        value = hot_records.decode_value(record.value)
        if value is not None:
            offset, leader_epoch, metadata, commit_timestamp, topic_id = value
            return Entry(OffsetCommitKey(*key), OffsetCommit(offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id))
    return decode_as_declared(record)


def decode_as_declared(record: Record) -> Entry | None:
    """As `decode`, without what is done by hand."""
    key, value = record
    try:
        kind = prefix_of(key)
        schema = _BY_KIND.get(kind)
        if schema is None:
            return None
        decoded_key = _made(schema.key_class, decode_fields(schema.key, key))
        if value is None:
            return Entry(decoded_key, None)
        version = prefix_of(value)
        if not 0 <= version <= schema.version_max:
            raise ProtocolError(f"version {version} of a value of kind {kind} is not known")
        flexible = version >= schema.flexible_from
        fields = decode_fields(schema.value, value, version=version, flexible=flexible)
        return Entry(decoded_key, _made(schema.value_class, fields))
    except ProtocolError as error:
        raise RecordFormatError(f"key {key.hex()}: {error}") from None


def _made(wanted: type[Any], fields: dict[str, Any]) -> Any:
    """The dataclass of the fields, and those of the structures within; nothing of it refers to the record's bytes."""
    parts = _PARTS.get(wanted, {})
    arguments: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            part = parts.get(name)
            arguments[name] = tuple(value) if part is None else tuple(_made(part, row) for row in value)
        elif isinstance(value, dict):
            arguments[name] = _made(parts[name], value)
        elif isinstance(value, memoryview):
            arguments[name] = bytes(value)
        else:
            arguments[name] = value
    return wanted(**arguments)
