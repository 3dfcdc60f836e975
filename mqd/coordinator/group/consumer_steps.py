"""The three steps of a heartbeat in a consumer group (KIP-848), for members of either protocol.

    consumer_updates.py   what the request changes of its member, and the group epoch
    target_assignment.py  a new target, if the group epoch is ahead of it; large ones later
    here                  the member goes one step towards its part of the target

They read the group and write into a draft. Timers change at once.
"""

from __future__ import annotations

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Assignment, Partitions
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.consumer_group import ConsumerGroup, remove_member, renamed_copy
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState
from mqd.coordinator.group.consumer_timers import ConsumerTimers
from mqd.coordinator.group.consumer_updates import GroupUpdate, MemberChange, MemberUpdates
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.reconciliation import reconcile
from mqd.coordinator.group.state import State
from mqd.coordinator.group.target_assignment import TargetAssignments
from mqd.coordinator.group.target_records import target_record
from mqd.coordinator.shard import Moment
from mqd.errors import ErrorCode, MqError


class Steps:
    """Shared by the parts of a shard that handle consumer groups."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.timers = ConsumerTimers(state)
        self.updates = MemberUpdates(state, self.timers)
        self.targets = TargetAssignments(state, self.timers)

    def check_room(self, group: ConsumerGroup | ClassicGroup, member_id: str) -> None:
        most = self.state.options.node("group.consumer.max.size")
        if len(group.members) >= most and member_id not in group.members:
            raise MqError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def advance(
        self, group: ConsumerGroup, change: MemberChange, draft: Draft, now: Moment
    ) -> ConsumerGroupMember:
        """Take all three steps. Returns the member after them."""
        update = self.updates.update(group, change, draft, now)
        target_epoch, target = self.targets.target_for(group, update, change, draft, now)
        return self.reconcile_member(group, change, update, target_epoch, target, draft, now)

    def reconcile_member(
        self,
        group: ConsumerGroup,
        change: MemberChange,
        update: GroupUpdate,
        target_epoch: int,
        target: Assignment,
        draft: Draft,
        now: Moment,
    ) -> ConsumerGroupMember:
        """The member after its next step, which is written."""
        before = change.updated
        if not update.subscription_changed and before.is_reconciled_to(target_epoch):
            return before
        after = reconcile(
            before,
            target_epoch=target_epoch,
            target=target,
            is_owned=lambda topic_id, partition: (
                group.owners.get((topic_id, partition)) not in (None, change.replaces)
            ),
            subscribed=self.targets.topic_ids(before, update.resolved),
            reported=change.reported,
            subscription_changed=update.subscription_changed,
        )
        if after != before:
            draft.write(
                records.CurrentMemberAssignmentKey(group.group_id, after.member_id),
                after.assignment(),
            )
            if not after.uses_classic:
                if after.state is MemberState.UNREVOKED_PARTITIONS:
                    self.timers.limit_revocation(group, after, now)
                else:
                    self.timers.end_revocation(group, after)
        return after

    def replace_static(
        self,
        group: ConsumerGroup,
        old: ConsumerGroupMember,
        member_id: str,
        reported: Partitions | None,
        draft: Draft,
    ) -> MemberChange:
        """A static member returns, mostly with another id, and has its former partitions."""
        new = renamed_copy(old, member_id)
        remove_member(group, old.member_id, draft)
        draft.write(records.MemberMetadataKey(group.group_id, member_id), new.metadata())
        target = group.targets.get(old.member_id, {})
        draft.write(
            records.TargetAssignmentMemberKey(group.group_id, member_id), target_record(target)
        )
        draft.write(records.CurrentMemberAssignmentKey(group.group_id, member_id), new.assignment())
        return MemberChange(new, new, reported, replaces=old.member_id)
