"""Second step of a heartbeat: a group whose epoch is ahead of its target assignment gets a new
target, not more often than its interval allows (KIP-1263)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Assignment, Subscriber, Topic
from mqd.coordinator.group.assignors import ASSIGNORS
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.consumer_timers import ConsumerTimers
from mqd.coordinator.group.consumer_updates import GroupUpdate, MemberChange
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import subscribed_topics
from mqd.coordinator.shard import Moment


class TargetAssignments:
    """The second step, for the consumer groups of a shard."""

    def __init__(self, state: State, timers: ConsumerTimers) -> None:
        self.state = state
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
        """The assignment epoch, and the member's part of the target; a new target if one is due."""
        member_id = change.updated.member_id
        if update.epoch > group.assignment_epoch and self._may_have_target(group, now):
            return update.epoch, self._assign(group, update, change, draft, now)[member_id]
        return group.assignment_epoch, group.targets.get(change.replaces or member_id, {})

    def _may_have_target(self, group: ConsumerGroup, now: Moment) -> bool:
        """Whether the interval has passed since the last target. A wall clock that was set back
        does not prolong it."""
        interval_ms = self.state.options.group(group.group_id, "consumer.assignment.interval.ms")
        return not (group.assignment_ms and 0 <= now.wall_ms - group.assignment_ms < interval_ms)

    def _assign(
        self,
        group: ConsumerGroup,
        update: GroupUpdate,
        change: MemberChange,
        draft: Draft,
        now: Moment,
    ) -> dict[str, Assignment]:
        """A new target for every member. Parts that have changed are written."""
        members, targets = dict(group.members), dict(group.targets)
        present, joining = change.replaces or change.updated.member_id, change.updated
        if present != joining.member_id:
            members.pop(present, None)
            targets[joining.member_id] = targets.pop(present, {})
        members[joining.member_id] = joining
        topic_ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        for member in members.values():
            wanted = member.topic_names, member.topic_regex
            if wanted not in topic_ids:
                topic_ids[wanted] = self.topic_ids(member, update.resolved)
        subscribers = {
            member_id: Subscriber(
                topic_ids[member.topic_names, member.topic_regex],
                targets.get(member_id, {}),
                member.rack_id,
                member.instance_id,
            )
            for member_id, member in members.items()
        }
        topics = self._topics(
            frozenset().union(*topic_ids.values()),
            racks=any(member.rack_id for member in members.values()),
        )
        name = group.assignor(present, joining)
        assigned = ASSIGNORS[
            name if name in ASSIGNORS and name is not None else self.assignors()[0]
        ](subscribers, topics)
        for member_id, target in assigned.items():
            if member_id not in targets or targets[member_id] != target:
                draft.write(
                    records.TargetAssignmentMemberKey(group.group_id, member_id),
                    target_record(target),
                )
        draft.write(
            records.TargetAssignmentMetadataKey(group.group_id),
            records.TargetAssignmentMetadata(update.epoch, now.wall_ms),
        )
        self._timers.expect_target(group, now)
        return assigned

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

    def _topics(self, topic_ids: Iterable[UUID], *, racks: bool) -> dict[UUID, Topic]:
        view = self.state.topics
        found = {}
        for topic_id in topic_ids:
            name = view.topic_name(topic_id)
            assert name is not None
            where = {"racks": view.racks(name).__getitem__} if racks else {}
            found[topic_id] = Topic(view.partitions(name), **where)
        return found


def target_record(target: Assignment) -> records.TargetAssignmentMember:
    return records.TargetAssignmentMember(
        tuple(
            records.TopicPartitions(topic_id, tuple(target[topic_id]))
            for topic_id in sorted(target)
        )
    )
