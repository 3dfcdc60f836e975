"""Keys and values of `__consumer_offsets`. record_codec.py encodes and decodes them.

Fields have the names of Kafka's schemas in snake_case. A field that the version of a record does
not have gets its default.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, TypeAlias

from mqd.types import NO_EPOCH, NO_TIMESTAMP, ZERO_UUID


class Fields:
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
class OffsetCommitKey(Fields):
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetCommit(Fields):
    """Version 4, or version 1 if the offset has its own expiry (OffsetCommit v2 to v4)."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """The epoch of the last record that was consumed; -1 if the client sent none."""
    metadata: str = ""
    commit_timestamp: int = 0
    """Wall time in milliseconds."""
    expire_timestamp: int = NO_TIMESTAMP
    """Wall time in milliseconds; -1: by `offsets.retention.minutes`."""
    topic_id: uuid.UUID = ZERO_UUID
    """The topic's id, if the commit named it by id (OffsetCommit v10)."""


# -- classic groups


@dataclass(frozen=True, slots=True)
class GroupMetadataKey(Fields):
    group: str


@dataclass(frozen=True, slots=True)
class ClassicMember(Fields):
    """One member of a classic group (Kafka's MemberMetadata)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    """Milliseconds; -1 if it was not written (version 0): then it is the session timeout."""
    session_timeout: int
    """Milliseconds."""
    subscription: bytes
    """Metadata of the protocol that was chosen."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata(Fields):
    """Written as version 3."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = NO_TIMESTAMP
    """Wall time in milliseconds since when the group is in this state. The offsets of an empty
    group expire from this time on (KIP-211)."""
    members: tuple[ClassicMember, ...] = ()


# -- groups of the consumer protocol


@dataclass(frozen=True, slots=True)
class GroupKey(Fields):
    group_id: str


@dataclass(frozen=True, slots=True)
class MemberKey(Fields):
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey(GroupKey):
    pass


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata(Fields):
    epoch: int
    metadata_hash: int = 0
    """The hash of all topics that the group is subscribed to (KIP-1101): a signed 64-bit number."""


@dataclass(frozen=True, slots=True)
class PartitionMetadataKey(GroupKey):
    pass


@dataclass(frozen=True, slots=True)
class PartitionRacks(Fields):
    partition: int
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata(Fields):
    topic_id: uuid.UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionMetadata(Fields):
    """Kafka 4.0 wrote it; since then the hash in ConsumerGroupMetadata replaces it."""

    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadataKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class ClassicProtocol(Fields):
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata(Fields):
    """The JoinGroup request of a member of a consumer group that speaks the classic protocol."""

    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadata(Fields):
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
class TargetAssignmentMetadataKey(GroupKey):
    pass


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadata(Fields):
    assignment_epoch: int
    assignment_timestamp: int = 0
    """Wall time in milliseconds at which the assignment was computed (KIP-1263); 0 if unknown."""


@dataclass(frozen=True, slots=True)
class TargetAssignmentMemberKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class TopicPartitions(Fields):
    topic_id: uuid.UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetAssignmentMember(Fields):
    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class CurrentMemberAssignmentKey(MemberKey):
    pass


@dataclass(frozen=True, slots=True)
class OwnedPartitions(TopicPartitions):
    assignment_epochs: tuple[int, ...] | None = None
    """For each partition, the member epoch at which it was assigned. Commits with an earlier epoch
    are refused (KIP-1251)."""


@dataclass(frozen=True, slots=True)
class CurrentMemberAssignment(Fields):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """Kafka's MemberState: 0 stable, 1 unrevoked, 2 unreleased partitions, 127 unknown."""
    assigned_partitions: tuple[OwnedPartitions, ...]
    partitions_pending_revocation: tuple[OwnedPartitions, ...]


@dataclass(frozen=True, slots=True)
class RegularExpressionKey(Fields):
    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True)
class RegularExpression(Fields):
    """The topics that match an expression in one version of the metadata, and when it was resolved
    (wall time in milliseconds)."""

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
