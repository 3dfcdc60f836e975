"""The target assignment of a share group, in counted steps.

A small target is computed and written with the heartbeat that needs it. A larger one goes to the
queue (target_queue.py), and the group has its last target until then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from mqd.coordinator.group import share_records as records
from mqd.coordinator.group.assignment import Assignment, Work
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.share_assignor import assign
from mqd.coordinator.group.share_group import ShareGroup, ShareGroupMember, rows_of
from mqd.coordinator.group.state import State
from mqd.coordinator.group.target_queue import Computation, TargetKind, TargetQueue
from mqd.coordinator.group.target_records import record_steps
from mqd.coordinator.shard import Moment, TopicsView
from mqd.limits import ASSIGNMENT_STEPS_PER_PORTION, ASSIGNMENT_STEPS_PER_SLICE

ASSIGN: Final = "share-assign"
"""Timer without a subject: the next slice of a target assignment."""
_SLICE_SECONDS: Final = 0.02
"""Between two slices. One takes 5 to 10 ms."""
_MEMBER_BYTES: Final = 500
_SUBSCRIBED_BYTES: Final = 80
"""Memory of a topic in a subscription, and of the subscription at the topic."""
_PARTITION_BYTES: Final = 300


class ShareTargetComputation:
    """Computes the target of a group as it was at the start."""

    def __init__(
        self,
        members: Mapping[str, ShareGroupMember],
        targets: Mapping[str, Assignment],
        initialized: Mapping[UUID, Collection[int]],
        topics: TopicsView,
    ) -> None:
        """`targets`: the last target assignment. `initialized`: partitions that may be assigned."""
        self.members = members
        self.assigned: dict[str, Assignment] = {}
        """The result: a part for every member."""
        self.bytes = 0
        """About the memory of the computation."""
        self._targets = targets
        self._initialized = initialized
        self._view = topics
        self._work = self._compute()

    def advance(self, steps: int) -> bool:
        """Take about so many steps. True when `assigned` is complete."""
        while steps > 0:
            try:
                steps -= next(self._work)
            except StopIteration:
                return True
        return False

    def _compute(self) -> Work[None]:
        by_names: dict[tuple[str, ...], frozenset[UUID]] = {}
        subscribed: dict[str, frozenset[UUID]] = {}
        for member_id, member in self.members.items():
            names = member.topic_names
            if names not in by_names:
                found = map(self._view.topic_id, names)
                by_names[names] = frozenset(
                    one for one in found if one is not None and one in self._initialized
                )
                self.bytes += _SUBSCRIBED_BYTES * len(by_names[names])
                yield 5 * len(names)
            subscribed[member_id] = by_names[names]
            self.bytes += _MEMBER_BYTES
            yield 10 + len(names)
        self.bytes += _PARTITION_BYTES * sum(map(len, self._initialized.values()))
        self.assigned = yield from assign(subscribed, self._initialized, self._targets)


class ShareTargets:
    """The targets of the share groups of a shard."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.queue = TargetQueue(state, _KIND, self, self._computation_of)

    def continue_target(self, now: Moment) -> None:
        if (ASSIGN,) not in self._state.timers:
            self._state.timers.set((ASSIGN,), now.seconds + _SLICE_SECONDS)

    def expect_target(self, group: ShareGroup, now: Moment) -> None:
        """Nobody waits for another member."""

    def target_for(
        self, group: ShareGroup, member: ShareGroupMember, epoch: int, draft: Draft, now: Moment
    ) -> tuple[int, Assignment]:
        """The assignment epoch, and the member's part of the target: a new target if one is due and
        small. `member`: as the group will have it, with the group epoch `epoch`."""
        if (
            epoch > group.assignment_epoch
            and not self.queue.has(group)
            and self._may_have_target(group, now)
        ):
            members = {**group.members, member.member_id: member}
            assigned = self._assign(group, members, epoch, draft, now)
            if assigned is not None:
                return epoch, assigned[member.member_id]
            self.queue.add(group.group_id, now)
        return group.assignment_epoch, group.targets.get(member.member_id, {})

    def _may_have_target(self, group: ShareGroup, now: Moment) -> bool:
        """Whether the interval has passed since the last target. It does not count while no member
        has a partition: a new group gets its first ones at once."""
        if not any(group.targets.values()):
            return True
        interval_ms = self._state.options.group(group.group_id, "share.assignment.interval.ms")
        return not (group.assignment_ms and 0 <= now.wall_ms - group.assignment_ms < interval_ms)

    def _computation_of(self, group: ShareGroup) -> ShareTargetComputation:
        return self._computation(group, dict(group.members))

    def _computation(
        self, group: ShareGroup, members: Mapping[str, ShareGroupMember]
    ) -> ShareTargetComputation:
        return ShareTargetComputation(
            members, dict(group.targets), group.initialized, self._state.topics
        )

    def _assign(
        self,
        group: ShareGroup,
        members: Mapping[str, ShareGroupMember],
        epoch: int,
        draft: Draft,
        now: Moment,
    ) -> dict[str, Assignment] | None:
        """A new target for every member. Parts that have changed are written. None if that takes
        too long."""
        computation = self._computation(group, members)
        if not computation.advance(ASSIGNMENT_STEPS_PER_SLICE):
            return None
        changed = {
            member_id: target
            for member_id, target in computation.assigned.items()
            if group.targets.get(member_id) != target
        }
        if sum(map(record_steps, changed.values())) > ASSIGNMENT_STEPS_PER_PORTION:
            return None
        for member_id, target in changed.items():
            draft.write(_KIND.member_key(group.group_id, member_id), _KIND.member(target))
        draft.write(_KIND.epoch_key(group.group_id), _KIND.epoch(epoch, now.wall_ms))
        return computation.assigned


def _target_record(target: Assignment) -> records.ShareTargetAssignmentMember:
    return records.ShareTargetAssignmentMember(rows_of(target))


def _present_id(group: ShareGroup, computation: Computation, member_id: str) -> str | None:
    return member_id if member_id in group.members else None


_KIND: Final = TargetKind(
    ShareGroup,
    records.ShareTargetAssignmentMemberKey,
    _target_record,
    records.ShareTargetAssignmentMetadataKey,
    records.ShareTargetAssignmentMetadata,
    _present_id,
)
