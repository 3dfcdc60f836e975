"""Kafka's schemas of the records of `__consumer_offsets`: which fields each version has.

The versions written here are those of Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mqd.coordinator.group.records import (
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
from mqd.coordinator.group.share_records import (
    DeletingTopic,
    ShareCurrentAssignment,
    ShareCurrentAssignmentKey,
    ShareGroupMetadata,
    ShareGroupMetadataKey,
    ShareMemberMetadata,
    ShareMemberMetadataKey,
    SharePartitions,
    SharePartitionsKey,
    SharePartitionsOfTopic,
    ShareTargetAssignmentMember,
    ShareTargetAssignmentMemberKey,
    ShareTargetAssignmentMetadata,
    ShareTargetAssignmentMetadataKey,
)
from mqd.coordinator.record_format import RecordFormat
from mqd.protocol.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
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
    ShareTargetAssignmentMember: {"topic_partitions": TopicPartitions},
    ShareCurrentAssignment: {"assigned_partitions": TopicPartitions},
    SharePartitions: {
        "initializing_topics": SharePartitionsOfTopic,
        "initialized_topics": SharePartitionsOfTopic,
        "deleting_topics": DeletingTopic,
    },
}
"""The classes of the structures in a value, by the name of the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecordFormat(RecordFormat):
    """A kind of record, with the classes of its key and value."""

    key_class: type[Any]
    value_class: type[Any]
    version: int = 0
    """The version that is written."""


_GROUP_ID = field("group_id", STRING)
_MEMBER_ID = field("member_id", STRING)
_TOPIC_PARTITIONS = (field("topic_id", UUID), field("partitions", array(INT32)))
_SHARE_PARTITIONS = array(
    field("topic_id", UUID), field("topic_name", STRING), field("partitions", array(INT32))
)
_OWNED = array(*_TOPIC_PARTITIONS, field("assignment_epochs", array(INT32), tag=0, default=None))

_OFFSET_COMMIT: Final = GroupRecordFormat(
    kind=1,
    key_class=OffsetCommitKey,
    key=message(field("group", STRING), field("topic", STRING), field("partition", INT32)),
    value_class=OffsetCommit,
    value=message(
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
"""The version of an OffsetCommit that has its own expiry."""
_OLD_OFFSET_COMMIT_KIND = 0
"""The kind of OffsetCommit that Kafka before 0.9 wrote. It has the fields of kind 1."""

_FORMATS: Final = (
    _OFFSET_COMMIT,
    GroupRecordFormat(
        kind=2,
        key_class=GroupMetadataKey,
        key=message(field("group", STRING)),
        value_class=GroupMetadata,
        value=message(
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
    GroupRecordFormat(
        kind=3,
        key_class=ConsumerGroupMetadataKey,
        key=message(_GROUP_ID),
        value_class=ConsumerGroupMetadata,
        value=message(field("epoch", INT32), field("metadata_hash", INT64, tag=0)),
    ),
    GroupRecordFormat(
        kind=4,
        key_class=PartitionMetadataKey,
        key=message(_GROUP_ID),
        value_class=PartitionMetadata,
        value=message(
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
    GroupRecordFormat(
        kind=5,
        key_class=MemberMetadataKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=MemberMetadata,
        value=message(
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
    GroupRecordFormat(
        kind=6,
        key_class=TargetAssignmentMetadataKey,
        key=message(_GROUP_ID),
        value_class=TargetAssignmentMetadata,
        value=message(
            field("assignment_epoch", INT32), field("assignment_timestamp", INT64, tag=0)
        ),
    ),
    GroupRecordFormat(
        kind=7,
        key_class=TargetAssignmentMemberKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=TargetAssignmentMember,
        value=message(field("topic_partitions", array(*_TOPIC_PARTITIONS))),
    ),
    GroupRecordFormat(
        kind=8,
        key_class=CurrentMemberAssignmentKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=CurrentMemberAssignment,
        value=message(
            field("member_epoch", INT32),
            field("previous_member_epoch", INT32),
            field("state", INT8),
            field("assigned_partitions", _OWNED),
            field("partitions_pending_revocation", _OWNED),
        ),
    ),
    GroupRecordFormat(
        kind=10,
        key_class=ShareMemberMetadataKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=ShareMemberMetadata,
        value=message(
            field("rack_id", STRING, nullable_since=0),
            field("client_id", STRING),
            field("client_host", STRING),
            field("subscribed_topic_names", array(STRING)),
        ),
    ),
    GroupRecordFormat(
        kind=11,
        key_class=ShareGroupMetadataKey,
        key=message(_GROUP_ID),
        value_class=ShareGroupMetadata,
        value=message(field("epoch", INT32), field("metadata_hash", INT64)),
    ),
    GroupRecordFormat(
        kind=12,
        key_class=ShareTargetAssignmentMetadataKey,
        key=message(_GROUP_ID),
        value_class=ShareTargetAssignmentMetadata,
        value=message(
            field("assignment_epoch", INT32), field("assignment_timestamp", INT64, tag=0)
        ),
    ),
    GroupRecordFormat(
        kind=13,
        key_class=ShareTargetAssignmentMemberKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=ShareTargetAssignmentMember,
        value=message(field("topic_partitions", array(*_TOPIC_PARTITIONS))),
    ),
    GroupRecordFormat(
        kind=14,
        key_class=ShareCurrentAssignmentKey,
        key=message(_GROUP_ID, _MEMBER_ID),
        value_class=ShareCurrentAssignment,
        value=message(
            field("member_epoch", INT32),
            field("previous_member_epoch", INT32),
            field("state", INT8),
            field("assigned_partitions", array(*_TOPIC_PARTITIONS)),
        ),
    ),
    GroupRecordFormat(
        kind=15,
        key_class=SharePartitionsKey,
        key=message(_GROUP_ID),
        value_class=SharePartitions,
        value=message(
            field("initializing_topics", _SHARE_PARTITIONS),
            field("initialized_topics", _SHARE_PARTITIONS),
            field("deleting_topics", array(field("topic_id", UUID), field("topic_name", STRING))),
        ),
    ),
    GroupRecordFormat(
        kind=16,
        key_class=RegularExpressionKey,
        key=message(_GROUP_ID, field("regular_expression", STRING)),
        value_class=RegularExpression,
        value=message(
            field("topics", array(STRING)), field("version", INT64), field("timestamp", INT64)
        ),
    ),
)
BY_KIND: Final = {one.kind: one for one in _FORMATS} | {_OLD_OFFSET_COMMIT_KIND: _OFFSET_COMMIT}
BY_KEY_CLASS: Final[dict[type, GroupRecordFormat]] = {one.key_class: one for one in _FORMATS}
