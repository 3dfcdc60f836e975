"""Keys and values of the records of share groups in `__consumer_offsets` (KIP-932).

Fields have the names of Kafka's schemas in snake_case. record_schemas.py has their versions.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from mqd.coordinator.group.records import Fields, GroupKey, MemberKey, TopicPartitions


@dataclass(frozen=True, slots=True)
class ShareMemberMetadataKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class ShareMemberMetadata(Fields):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupMetadataKey(GroupKey):
    pass


@dataclass(frozen=True, slots=True)
class ShareGroupMetadata(Fields):
    epoch: int
    metadata_hash: int
    """The hash of all subscribed topics (KIP-1101), as a signed 64-bit number."""


@dataclass(frozen=True, slots=True)
class ShareTargetAssignmentMetadataKey(GroupKey):
    pass


@dataclass(frozen=True, slots=True)
class ShareTargetAssignmentMetadata(Fields):
    assignment_epoch: int
    assignment_timestamp: int = 0
    """Wall time in milliseconds at which the assignment was computed; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ShareTargetAssignmentMemberKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class ShareTargetAssignmentMember(Fields):
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class ShareCurrentAssignmentKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class ShareCurrentAssignment(Fields):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """Kafka's MemberState: always 0, stable."""
    assigned_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class SharePartitionsKey(GroupKey):
    """Kafka's ShareGroupStatePartitionMetadata."""


@dataclass(frozen=True, slots=True)
class SharePartitionsOfTopic(Fields):
    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeletingTopic(Fields):
    topic_id: uuid.UUID
    topic_name: str


@dataclass(frozen=True, slots=True)
class SharePartitions(Fields):
    """The partitions whose state the share coordinator has, or is about to have."""

    initializing_topics: tuple[SharePartitionsOfTopic, ...] = ()
    initialized_topics: tuple[SharePartitionsOfTopic, ...] = ()
    deleting_topics: tuple[DeletingTopic, ...] = ()


ShareKey = (
    ShareMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareTargetAssignmentMetadataKey
    | ShareTargetAssignmentMemberKey
    | ShareCurrentAssignmentKey
    | SharePartitionsKey
)
ShareValue = (
    ShareMemberMetadata
    | ShareGroupMetadata
    | ShareTargetAssignmentMetadata
    | ShareTargetAssignmentMember
    | ShareCurrentAssignment
    | SharePartitions
)
