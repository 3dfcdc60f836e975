"""Second step of a heartbeat: a group whose epoch is ahead of its target assignment gets a new
target, at most once per interval (KIP-1263).

A small target is computed and written at once. A larger one goes to the queue (target_queue.py),
and the group has its last target until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.consumer_timers import ConsumerTimers
from mqd.coordinator.group.consumer_updates import GroupUpdate, MemberChange
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import subscribed_topics
from mqd.coordinator.group.target_computation import TargetComputation
from mqd.coordinator.group.target_queue import TargetKind, TargetQueue
from mqd.coordinator.group.target_records import record_steps, target_record
from mqd.coordinator.shard import Moment
from mqd.limits import ASSIGNMENT_STEPS_PER_PORTION, ASSIGNMENT_STEPS_PER_SLICE


class TargetAssignments:
    """The second step, for the consumer groups of a shard."""

    def __init__(self, state: State, timers: ConsumerTimers) -> None:
        self.state = state
        self.queue = TargetQueue(state, _KIND, timers, self._computation_of)
        self._timers = timers

    def assignors(self) -> Sequence[str]:
        """The names that members may choose; the first is the default."""
        names: Sequence[str] = self.state.options.node("group.consumer.assignors")
        return names

    def target_for(
        self,
        group: ConsumerGroup,
        update: GroupUpdate,
        change: MemberChange,
        draft: Draft,
        now: Moment,
    ) -> tuple[int, Assignment]:
        """The assignment epoch, and the member's part of the target: a new target if one is due and
        small."""
        member_id = change.updated.member_id
        if (
            update.epoch > group.assignment_epoch
            and not self.queue.has(group)
            and self._may_have_target(group, now)
        ):
            assigned = self._assign(group, update, change, draft, now)
            if assigned is not None:
                return update.epoch, assigned[member_id]
            self.queue.add(group.group_id, now)
        return group.assignment_epoch, group.targets.get(change.replaces or member_id, {})

    def _may_have_target(self, group: ConsumerGroup, now: Moment) -> bool:
        """Whether the interval has passed since the last target. A wall clock that was set back
        does not prolong it."""
        interval_ms = self.state.options.group(group.group_id, "consumer.assignment.interval.ms")
        return not (group.assignment_ms and 0 <= now.wall_ms - group.assignment_ms < interval_ms)

    def _computation_of(self, group: ConsumerGroup) -> TargetComputation:
        return self._computation(
            dict(group.members), dict(group.targets), group.subscriptions.resolved()
        )

    def _computation(
        self,
        members: Mapping[str, ConsumerGroupMember],
        targets: Mapping[str, Assignment],
        resolved: Mapping[str, frozenset[str]],
    ) -> TargetComputation:
        return TargetComputation(members, targets, resolved, self.assignors()[0], self.state.topics)

    def _assign(
        self,
        group: ConsumerGroup,
        update: GroupUpdate,
        change: MemberChange,
        draft: Draft,
        now: Moment,
    ) -> dict[str, Assignment] | None:
        """A new target for every member. Parts that have changed are written.

        None if that takes too long. Another computation starts later then: this draft may never be
        replayed.
        """
        members, targets = dict(group.members), dict(group.targets)
        present, joining = change.replaces or change.updated.member_id, change.updated
        if present != joining.member_id:
            members.pop(present, None)
            targets[joining.member_id] = targets.pop(present, {})
        members[joining.member_id] = joining
        computation = self._computation(members, targets, update.resolved)
        if not computation.advance(ASSIGNMENT_STEPS_PER_SLICE):
            return None
        changed = {
            member_id: target
            for member_id, target in computation.assigned.items()
            if member_id not in targets or targets[member_id] != target
        }
        if sum(map(record_steps, changed.values())) > ASSIGNMENT_STEPS_PER_PORTION:
            return None
        for member_id, target in changed.items():
            draft.write(
                records.TargetAssignmentMemberKey(group.group_id, member_id), target_record(target)
            )
        draft.write(
            records.TargetAssignmentMetadataKey(group.group_id),
            records.TargetAssignmentMetadata(update.epoch, now.wall_ms),
        )
        self._timers.expect_target(group, now)
        return computation.assigned

    def topic_ids(
        self, member: ConsumerGroupMember, resolved: Mapping[str, frozenset[str]]
    ) -> frozenset[UUID]:
        """The existing topics of a member's subscription."""
        names, known = (
            subscribed_topics(member.topic_names, member.topic_regex, resolved),
            self.state.topics.names(),
        )
        return frozenset(
            topic_id
            for name in names
            if name in known and (topic_id := self.state.topics.topic_id(name)) is not None
        )


def _present_id(group: ConsumerGroup, computation: TargetComputation, member_id: str) -> str | None:
    """The id of a member now: a static member may have another one. None if it has left."""
    if member_id in group.members:
        return member_id
    instance_id = computation.members[member_id].instance_id
    renamed = None if instance_id is None else group.static.get(instance_id)
    return None if renamed in computation.members else renamed


_KIND: Final = TargetKind(
    ConsumerGroup,
    records.TargetAssignmentMemberKey,
    target_record,
    records.TargetAssignmentMetadataKey,
    records.TargetAssignmentMetadata,
    _present_id,
)
