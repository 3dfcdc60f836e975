"""Kafka's schemas of the records of `__consumer_offsets`: which fields each version has.

The versions written here are those of Kafka 4.3.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

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
)
from mqd.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    Message,
    array,
    field,
    message,
)
from mqd.types import NO_EPOCH, NO_TIMESTAMP

PARTS: Final[dict[type, dict[str, type]]] = {
    GroupMetadata: {"members": ClassicMember},
    TopicMetadata: {"partition_metadata": PartitionRacks},
    PartitionMetadata: {"topics": TopicMetadata},
    ClassicMemberMetadata: {"supported_protocols": ClassicProtocol},
    MemberMetadata: {"classic_member_metadata": ClassicMemberMetadata},
    TargetAssignmentMember: {"topic_partitions": TopicPartitions},
    CurrentMemberAssignment: {
        "assigned_partitions": OwnedPartitions,
        "partitions_pending_revocation": OwnedPartitions,
    },
}
"""The classes of the structures in a value, by the name of the field."""


class Schema(NamedTuple):
    """One kind of record."""

    kind: int
    """The prefix of the key."""
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

_OFFSET_COMMIT: Final = Schema(
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
EXPIRING_VERSION: Final = 1
"""Of an OffsetCommit with an expiry of its own."""
_OFFSET_COMMIT_OF_OLD = 0
"""The kind of OffsetCommit that Kafka wrote long ago, and still reads: else the same as 1."""

_SCHEMAS: Final = (
    _OFFSET_COMMIT,
    Schema(
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
    Schema(
        3,
        ConsumerGroupMetadataKey,
        message(_GROUP_ID),
        ConsumerGroupMetadata,
        message(field("epoch", INT32), field("metadata_hash", INT64, tag=0)),
    ),
    Schema(
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
                    field(
                        "partition_metadata",
                        array(field("partition", INT32), field("racks", array(STRING))),
                    ),
                ),
            )
        ),
    ),
    Schema(
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
                    field(
                        "supported_protocols",
                        array(field("name", STRING), field("metadata", BYTES)),
                    ),
                ),
                tag=0,
                default=None,
            ),
        ),
    ),
    Schema(
        6,
        TargetAssignmentMetadataKey,
        message(_GROUP_ID),
        TargetAssignmentMetadata,
        message(field("assignment_epoch", INT32), field("assignment_timestamp", INT64, tag=0)),
    ),
    Schema(
        7,
        TargetAssignmentMemberKey,
        message(_GROUP_ID, _MEMBER_ID),
        TargetAssignmentMember,
        message(field("topic_partitions", array(*_TOPIC_PARTITIONS))),
    ),
    Schema(
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
    Schema(
        16,
        RegularExpressionKey,
        message(_GROUP_ID, field("regular_expression", STRING)),
        RegularExpression,
        message(field("topics", array(STRING)), field("version", INT64), field("timestamp", INT64)),
    ),
)
BY_KIND: Final = {schema.kind: schema for schema in _SCHEMAS} | {
    _OFFSET_COMMIT_OF_OLD: _OFFSET_COMMIT
}
BY_KEY_CLASS: Final[dict[type, Schema]] = {schema.key_class: schema for schema in _SCHEMAS}
