"""A group of the consumer protocol (KIP-848), as its records have it.

Three epochs, none ahead of the one before. The group epoch grows when a member or a topic changes.
The assignment epoch is the group epoch for which the target assignment was computed. A member epoch
is the assignment epoch that the member has reached.

`replay` is the only mutation of what records hold. Soft state is in `GroupSubscriptions` only.

Invariant: a partition has at most one owner (`owners`): the member that got it, until that member
has released it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import UUID

from mqd.coordinator.group import consumer_commits, records
from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.assignors import most_voted
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState
from mqd.coordinator.group.consumer_subscriptions import GroupSubscriptions
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.record_codec import tombstone
from mqd.coordinator.group.state import CheckPartition, Subscribed
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE

ASSIGNED_PARTITION_BYTES: Final = 400
"""Memory of an assigned partition: in the target, in its member, and in `owners`."""


class ConsumerGroup:
    """Implements state.Group."""

    type_name: Final[Literal["consumer"]] = "consumer"
    protocol_type: Final = PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        self.assignment_ms = 0
        """Wall time in milliseconds at which the target was computed; 0 without one."""
        self.members: dict[str, ConsumerGroupMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.subscriptions = GroupSubscriptions()
        self.has_partition_metadata = False
        """Kafka 4.0 wrote such a record. The next group epoch deletes it."""
        self.static: dict[str, str] = {}
        """Member ids by instance id."""
        self.owners: dict[tuple[UUID, int], str] = {}
        self._size = 0
        """The size of all members, in bytes."""

    # -- records -----------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any) -> None:
        """Become what a record of this group says."""
        # The state is the replay of the log, and nothing else (I32).
        match key:
            case records.MemberMetadataKey():
                self._replay_member(key.member_id, value)
            case records.CurrentMemberAssignmentKey():
                self._replay_assignment(key.member_id, value)
            case records.TargetAssignmentMemberKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = {
                        row.topic_id: row.partitions for row in value.topic_partitions
                    }
            case records.TargetAssignmentMetadataKey():
                self.assignment_epoch = 1 if value is None else value.assignment_epoch
                self.assignment_ms = 0 if value is None else value.assignment_timestamp
            case records.ConsumerGroupMetadataKey():
                assert value is not None, "the group is deleted as a whole"
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case records.RegularExpressionKey():
                self.subscriptions.replay_expression(key.regular_expression, value)
            case records.PartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case _:
                raise AssertionError(key)

    def _replay_member(self, member_id: str, value: records.MemberMetadata | None) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._put(old, (old or ConsumerGroupMember(member_id)).with_metadata(value))
        elif old is not None:
            self._put(old, None)

    def _replay_assignment(
        self, member_id: str, value: records.CurrentMemberAssignment | None
    ) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._put(old, (old or ConsumerGroupMember(member_id)).with_assignment(value))
        elif old is not None:
            self._put(old, old.without_assignment())

    def _put(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        if old is None or new is None or not old.has_same_size(new):
            self._size += (0 if new is None else new.size) - (0 if old is None else old.size)
        self.subscriptions.replay_member(old, new)
        if old is not None:
            for place in old.owned_partitions():
                if self.owners.get(place) == old.member_id:
                    del self.owners[place]
            if old.instance_id is not None and self.static.get(old.instance_id) == old.member_id:
                del self.static[old.instance_id]
        if new is None:
            assert old is not None
            del self.members[old.member_id]
            return
        self.members[new.member_id] = new
        for place in new.owned_partitions():
            self.owners[place] = new.member_id
        if new.instance_id is not None:
            self.static[new.instance_id] = new.member_id

    def count_owners(self) -> list[ConsumerGroupMember]:
        """Find the owners of all partitions when the log is loaded: a partly compacted log may have
        its records in another order.

        Returns members that own a partition of another member: records are missing, or another
        program wrote some.
        """
        self.owners = {
            place: member.member_id
            for member in self.members.values()
            for place in member.owned_partitions()
        }
        # A partition has at most one owner (I33).
        times = Counter(
            place for member in self.members.values() for place in member.owned_partitions()
        )
        if len(times) == times.total():
            return []
        return [
            member
            for member in self.members.values()
            if any(times[place] > 1 for place in member.owned_partitions())
        ]

    # -- members -----------------------------------------------------------------------------------

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member(self, member_id: str) -> ConsumerGroupMember:
        """Raises MqError UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise MqError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return found

    def assignor(self) -> str | None:
        """The assignor with most votes; None without votes."""
        return most_voted(Counter(member.server_assignor for member in self.members.values()))

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        return (topic_id, partition) in self.owners

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Whether another member still owns a partition of its target."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def awaited(self) -> list[ConsumerGroupMember]:
        """Members that must make a step towards the target, or report it; not those that wait for
        them."""
        epoch = self.assignment_epoch
        return [
            member
            for member in self.members.values()
            if not member.is_reconciled_to(epoch)
            and not (member.epoch == epoch and self.waits_for_others(member))
        ]

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
        later = self.subscriptions.assigned_later if self.members else 0
        assigned = ASSIGNED_PARTITION_BYTES * max(targets, len(self.owners), later)
        return assigned + self.subscriptions.matched_bytes

    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool,
        version: int,
    ) -> CheckPartition | None:
        if generation < 0 and not self.members:
            return None  # an administrator, or a consumer that assigns partitions to itself
        if transactional and generation == -1 and member_id == "" and instance_id is None:
            return None
        # A commit with an old member epoch is refused (I33).
        return consumer_commits.check_commit(
            self.member(member_id), generation, transactional=transactional, version=version
        )

    def check_fetch(self, member_id: str | None, generation: int) -> None:
        if member_id is not None or generation >= 0:
            consumer_commits.check_fetch(self.member(member_id or ""), generation)

    def check_offset_delete(self) -> None:
        """Offsets of topics without subscribers may always be deleted."""

    def check_delete(self) -> None:
        if self.members:
            raise MqError(ErrorCode.NON_EMPTY_GROUP)

    def subscribed(self, topics: Collection[str]) -> Subscribed:
        return Subscribed([one for one in topics if self.subscriptions.includes(one)], 0)

    def offsets_expire_from(self, commit_wall_ms: int) -> int | None:
        return commit_wall_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        return self.tombstones_with({})

    def tombstones_with(self, renamed: Mapping[str, str]) -> list[CoordinatorRecord]:
        """The records that delete the group, in an order in which each can be replayed.

        `renamed`: the new ids of members that got another one in the same decision.
        """
        group_id = self.group_id
        ids = [renamed.get(member_id, member_id) for member_id in self.members]
        return [
            *(
                tombstone(records.CurrentMemberAssignmentKey(group_id, member_id))
                for member_id in ids
            ),
            *(
                tombstone(records.TargetAssignmentMemberKey(group_id, member_id))
                for member_id in ids
            ),
            tombstone(records.TargetAssignmentMetadataKey(group_id)),
            *(tombstone(records.MemberMetadataKey(group_id, member_id)) for member_id in ids),
            *(
                tombstone(records.RegularExpressionKey(group_id, text))
                for text in sorted(self.subscriptions.expressions)
            ),
            *(
                [tombstone(records.PartitionMetadataKey(group_id))]
                if self.has_partition_metadata
                else []
            ),
            tombstone(records.ConsumerGroupMetadataKey(group_id)),
        ]


def renamed_copy(member: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
    """A static member that joins again with another id: in no epoch, with its partitions."""
    return replace(member, member_id=member_id, epoch=0, previous_epoch=0)


def remove_member(group: ConsumerGroup, member_id: str, draft: Draft) -> None:
    """Write the records that remove a member."""
    draft.delete(records.CurrentMemberAssignmentKey(group.group_id, member_id))
    draft.delete(records.TargetAssignmentMemberKey(group.group_id, member_id))
    draft.delete(records.MemberMetadataKey(group.group_id, member_id))


def check_static(
    present: ConsumerGroupMember | None, member_id: str, instance_id: str
) -> ConsumerGroupMember:
    """The static member `present`. Raises MqError UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if its
    instance id belongs to another member id."""
    if present is None:
        raise MqError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if present.member_id != member_id:
        raise MqError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{present.member_id}.",
        )
    return present
