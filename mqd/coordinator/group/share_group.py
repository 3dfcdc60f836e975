"""A share group (KIP-932), as its records have it. Members share partitions, so none waits for
another: a member has its part of the target assignment with its next heartbeat.

Three epochs, none ahead of the one before, as in a consumer group: of the group, of the target
assignment, of a member. `replay` is the only mutation.

Invariant: only initialized partitions are assigned: the share coordinator has their state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID

from mqd.coordinator.account import names_bytes, texts_bytes
from mqd.coordinator.group import share_records as records
from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.record_codec import tombstone
from mqd.coordinator.group.records import TopicPartitions
from mqd.coordinator.group.state import CheckPartition, State, Subscribed
from mqd.coordinator.group.subscriptions import count_names
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_MEMBER_BYTES

ASSIGNED_PARTITION_BYTES: Final = 300
"""Memory of an assigned partition: in the target and in its member."""
JOINING: Final = 0
LEAVING: Final = -1


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """One member. Steps of a heartbeat make a changed copy."""

    member_id: str
    epoch: int = JOINING
    previous_epoch: int = LEAVING
    """Accepted, too: the response with the new epoch may be lost."""
    assigned: Assignment = field(default_factory=dict)
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    """Sorted."""

    @property
    def size(self) -> int:
        """Bytes in memory, without its partitions. The key of its target assignment is another
        member id."""
        texts = self.member_id, self.member_id, self.rack_id, self.client_id, self.client_host
        return GROUP_MEMBER_BYTES + texts_bytes(texts) + names_bytes(self.topic_names)

    def metadata_is(self, other: ShareGroupMember) -> bool:
        """Whether `other` is a copy with the very same texts: a comparison could be slow."""
        return (
            self.topic_names is other.topic_names
            and self.rack_id is other.rack_id
            and self.client_id is other.client_id
            and self.client_host is other.client_host
        )

    def metadata(self) -> records.ShareMemberMetadata:
        return records.ShareMemberMetadata(
            self.rack_id, self.client_id, self.client_host, self.topic_names
        )

    def assignment(self) -> records.ShareCurrentAssignment:
        return records.ShareCurrentAssignment(
            self.epoch, self.previous_epoch, 0, rows_of(self.assigned)
        )


class ShareGroup:
    """Implements state.Group."""

    type_name: Final[Literal["share"]] = "share"
    protocol_type: Final = "share"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_ms = 0
        """Wall time in milliseconds at which the target was computed; 0 without one."""
        self.members: dict[str, ShareGroupMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.names: Counter[str] = Counter()
        """Members that subscribe to a topic."""
        self.partitions = records.SharePartitions()
        self.initialized: dict[UUID, frozenset[int]] = {}
        """Partitions whose state the share coordinator has."""
        self._size = 0
        # Soft state:
        self.checked_version: int | None = None
        """Version of the metadata at which the group's `metadata_hash` was found to be right."""

    # -- records -----------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any) -> None:
        """Become what a record of this group says."""
        match key:
            case records.ShareMemberMetadataKey():
                self._replay_member(key.member_id, value)
            case records.ShareCurrentAssignmentKey():
                self._replay_assignment(key.member_id, value)
            case records.ShareTargetAssignmentMemberKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = assignment_of(value.topic_partitions)
            case records.ShareTargetAssignmentMetadataKey():
                self.assignment_epoch = 0 if value is None else value.assignment_epoch
                self.assignment_ms = 0 if value is None else value.assignment_timestamp
            case records.ShareGroupMetadataKey():
                assert value is not None, "the group is deleted as a whole"
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case records.SharePartitionsKey():
                self.partitions = value or records.SharePartitions()
                self.initialized = {
                    row.topic_id: frozenset(row.partitions)
                    for row in self.partitions.initialized_topics
                }
            case _:
                raise AssertionError(key)

    def _replay_member(self, member_id: str, value: records.ShareMemberMetadata | None) -> None:
        old = self.members.get(member_id)
        if value is None:
            if old is not None:
                self._put(old, None)
            return
        new = replace(
            old or ShareGroupMember(member_id),
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(sorted(set(value.subscribed_topic_names))),
        )
        self._put(old, new)

    def _replay_assignment(
        self, member_id: str, value: records.ShareCurrentAssignment | None
    ) -> None:
        old = self.members.get(member_id)
        if value is None:
            if old is not None:
                self._put(old, replace(old, epoch=LEAVING, previous_epoch=LEAVING, assigned={}))
            return
        new = replace(
            old or ShareGroupMember(member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=assignment_of(value.assigned_partitions),
        )
        self._put(old, new)

    def _put(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
        if new is not None:
            self.members[new.member_id] = new
        elif old is not None:
            del self.members[old.member_id]
        if old is not None and new is not None and old.metadata_is(new):
            return
        self._size += (0 if new is None else new.size) - (0 if old is None else old.size)
        count_names(self.names, () if old is None else old.topic_names, -1)
        count_names(self.names, () if new is None else new.topic_names, 1)

    def member(self, member_id: str) -> ShareGroupMember:
        """Raises MqError UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise MqError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return found

    # -- state.Group -------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self.epoch

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def memory(self) -> int:
        return self._size

    @property
    def assigned_memory(self) -> int:
        targets = sum(
            len(partitions) for target in self.targets.values() for partitions in target.values()
        )
        return ASSIGNED_PARTITION_BYTES * (targets + sum(map(len, self.initialized.values())))

    @property
    def has_states(self) -> bool:
        """Whether share coordinators may have states for it."""
        return bool(self.initialized or self.partitions.deleting_topics)

    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> CheckPartition | None:
        raise self._no_offsets()

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        """As in Apache Kafka: it has no committed offsets."""

    def check_offset_delete(self) -> None:
        raise self._no_offsets()

    def _no_offsets(self) -> MqError:
        """The share coordinator has the offsets of share groups."""
        return MqError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group."
        )

    def check_delete(self) -> None:
        if self.members:
            raise MqError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} is not empty.")

    def subscribed(self, topics: Collection[str]) -> Subscribed:
        return Subscribed([one for one in topics if one in self.names], 0)

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        group_id = self.group_id
        return [
            *(tombstone(records.ShareCurrentAssignmentKey(group_id, one)) for one in self.members),
            *(
                tombstone(records.ShareTargetAssignmentMemberKey(group_id, one))
                for one in self.members
            ),
            tombstone(records.ShareTargetAssignmentMetadataKey(group_id)),
            *(tombstone(records.ShareMemberMetadataKey(group_id, one)) for one in self.members),
            tombstone(records.SharePartitionsKey(group_id)),
            tombstone(records.ShareGroupMetadataKey(group_id)),
        ]


def share_group(state: State, group_id: str) -> ShareGroup:
    """Raises MqError GROUP_ID_NOT_FOUND."""
    group = state.group(group_id)
    if not isinstance(group, ShareGroup):
        raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    return group


def rows_of(assigned: Assignment) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id, found) for topic_id, found in assigned.items())


def assignment_of(rows: Collection[Any]) -> Assignment:
    return {row.topic_id: tuple(row.partitions) for row in rows}
