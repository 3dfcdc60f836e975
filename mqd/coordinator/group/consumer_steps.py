"""The three steps of a heartbeat in a consumer group (KIP-848), and what goes with them; for
members of either protocol.

    1. `update_member`     what a request says of its member is written; the group epoch grows where
                           that, or a topic, asks for it
    2. `target_for`        a group whose epoch is ahead of its target gets a new target, not more
                           often than its interval allows
    3. `reconcile_member`  the member goes one step towards its part of the target

They read the group and write into a draft; deadlines they set at once. A deadline that nobody needs
any more is left to pass: whoever hears of it looks whether it still means anything.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignors import ASSIGNORS, Assignment, Partitions, Subscriber, Topic
from mqd.coordinator.group.classic_rebalance import Rebalance
from mqd.coordinator.group.consumer_group import (
    ASSIGNED_PARTITION_BYTES,
    MATCHED_TOPIC_BYTES,
    ConsumerGroup,
    remove_member,
    renamed_copy,
)
from mqd.coordinator.group.member import Member, MemberState, reconcile
from mqd.coordinator.group.migration import downgrade, may_downgrade
from mqd.coordinator.group.state import Draft, State
from mqd.coordinator.group.subscriptions import (
    Resolution,
    compile_expression,
    subscribed_topics,
    topics_hash,
)
from mqd.coordinator.shard import Moment
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONSUMER_GROUP_BYTES_MAX, SUBSCRIBED_NAMES_MAX

logger = logging.getLogger(__name__)

SESSION = "consumer-session"
REBALANCE = "consumer-rebalance"
JOIN = "consumer-join"
SYNC = "consumer-sync"
RESOLVE = "consumer-resolve"
SLOW = "consumer-slow"
"""Kinds of deadlines. The first four are of members, the others are of a group."""

SLICE_SECONDS = 0.05
"""Between two slices of a long search the node does other things: for at least as long as
the slowest slice takes.
"""
_SLOW_HEARTBEATS = 3
"""For so long everybody has to follow a new target; then the log says for whom it waits.

To let go and to get takes two.
"""
_REFRESH_MS_MIN = 10_000
_REFRESH_MS_MAX = 600_000
"""Expressions are matched against new topics not more often than the one, and once in the
other in any case.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request wants of its member."""

    member: Member
    """As it is, or as it would be new."""
    updated: Member
    """With what the request says of it."""
    reported: Partitions | None
    """What the member says that it has; None where it does not say."""
    replaces: str | None = None
    """Id of the static member whose place it takes."""


@dataclass(slots=True)
class Updated:
    """What became of a wish, and the group epoch with it."""

    epoch: int
    subscription_changed: bool
    resolved: dict[str, frozenset[str]]


class Steps:
    """Shared by the parts that speak for consumer groups."""

    def __init__(self, state: State, rebalance: Rebalance) -> None:
        self.state = state
        self._rebalance = rebalance
        self.names_version = state.topics.version
        """Version of the metadata in which a topic was new."""

    def assignors(self) -> Sequence[str]:
        """Names of those that a member may ask for; the first is the default."""
        names: Sequence[str] = self.state.options.node("group.consumer.assignors")
        return names

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        most = self.state.options.node("group.consumer.max.size")
        if len(group.members) >= most and member_id not in group.members:
            raise MqError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def bring_forward(self, group: ConsumerGroup, wish: Wish, draft: Draft, now: Moment) -> Member:
        """Update the member, then the target, then reconcile; the member as it is then."""
        done = self.update_member(group, wish, draft, now)
        target_epoch, target = self.target_for(group, done, wish, draft, now)
        return self.reconcile_member(group, wish, done, target_epoch, target, draft, now)

    def update_member(self, group: ConsumerGroup, wish: Wish, draft: Draft, now: Moment) -> Updated:
        """Write what the request changes of the member, and a new group epoch where that,
        or a topic, asks for one.
        """
        member, updated = wish.member, wish.updated
        names_changed = updated.topic_names != member.topic_names
        regex_changed = updated.topic_regex != member.topic_regex
        if regex_changed and updated.topic_regex and not group.regexes[updated.topic_regex]:
            compile_expression(updated.topic_regex)
        if updated != member:
            draft.write(
                records.MemberMetadataKey(group.group_id, updated.member_id), updated.metadata()
            )
            size = len(draft.records[-1].value or b"")
            if size > self.state.options.node("message.max.bytes"):
                raise MqError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"What the member says of itself takes {size} bytes; message.max.bytes "
                    "is less.",
                )
            if names_changed and len(updated.topic_names) > SUBSCRIBED_NAMES_MAX:
                raise MqError(
                    ErrorCode.INVALID_REQUEST,
                    f"A member subscribes to at most {SUBSCRIBED_NAMES_MAX} topics by their names.",
                )
            growth = updated.size - (member.size if updated.member_id in group.members else 0)
            if growth > 0:
                if group.memory + growth > CONSUMER_GROUP_BYTES_MAX:
                    raise MqError(
                        ErrorCode.GROUP_MAX_SIZE_REACHED,
                        f"The members of {group.group_id} have too much to say.",
                    )
                self.state.make_room(group.group_id, growth, now)
        resolved, topics_changed = self._update_expressions(group, wish, draft, now)
        bump = names_changed or topics_changed
        if regex_changed and (not updated.topic_regex or updated.topic_regex in resolved):
            bump = True
        epoch = group.epoch
        if bump or group.checked_version != self.state.topics.version:
            present = group.members.get(wish.replaces or member.member_id)
            names = group.subscribed_names(
                self.state.topics.names(), [present] if present is not None else [], updated
            )
            metadata_hash = topics_hash(self.state.topics, {*names, *topics_of(resolved, resolved)})
            changed = bump or metadata_hash != group.metadata_hash
            if changed and self._has_room_to_assign(group, names, resolved, asked=bump, now=now):
                epoch += 1
                draft.write(
                    records.ConsumerGroupMetadataKey(group.group_id),
                    records.ConsumerGroupMetadata(epoch, metadata_hash),
                )
            elif not changed:
                group.checked_version = self.state.topics.version
            if group.has_partition_metadata:
                draft.delete(records.PartitionMetadataKey(group.group_id))
        return Updated(epoch, names_changed or regex_changed, resolved)

    def _has_room_to_assign(
        self,
        group: ConsumerGroup,
        names: set[str],
        resolved: Mapping[str, frozenset[str]],
        *,
        asked: bool,
        now: Moment,
    ) -> bool:
        """Whether the assignment of all that is subscribed fits. Where a member asks for it and it
        does not: COORDINATOR_NOT_AVAILABLE.

        Where topics have grown by themselves the group keeps the assignment that it has, until
        there is room.
        """
        wanted = sum(map(self.state.topics.partitions, {*names, *topics_of(resolved, resolved)}))
        more = ASSIGNED_PARTITION_BYTES * wanted - group.assigned_memory
        if more > 0:
            if asked:
                self.state.account.make_room(
                    more, f"the assignment of group {group.group_id}", now.seconds
                )
            elif more > self.state.account.left(more, now.seconds):
                return False
            self.state.account.let_in(more)
        return True

    def _update_expressions(
        self, group: ConsumerGroup, wish: Wish, draft: Draft, now: Moment
    ) -> tuple[dict[str, frozenset[str]], bool]:
        """Topics of all expressions of the group as it will be, and whether any has other
        topics than before.
        """
        resolved = group.resolved()
        regexes = group.regexes.copy()
        if (wish.replaces or wish.member.member_id) in group.members and wish.member.topic_regex:
            regexes[wish.member.topic_regex] -= 1
        if wish.updated.topic_regex:
            regexes[wish.updated.topic_regex] += 1
        self._forget_unused(group, regexes, resolved, draft)
        live = [text for text in sorted(regexes) if regexes[text]]
        if not live or group.resolution is not None:
            return resolved, False
        wanted = [text for text in live if text not in resolved]
        if not wanted and self._is_stale(group, live, now):
            wanted = live
        if not wanted:
            return resolved, False
        if wish.updated.topic_regex in wanted and wish.updated.topic_regex not in resolved:
            most = MATCHED_TOPIC_BYTES * len(self.state.topics.names())
            self.state.account.make_room(
                most, f"an expression of group {group.group_id}", now.seconds
            )
        resolution = Resolution(wanted, self.state.topics)
        if resolution.advance():
            return resolved, self.note_resolution(group, resolution, regexes, resolved, draft, now)
        group.resolution = resolution
        self.state.timers.set((RESOLVE, group.group_id), now.seconds + SLICE_SECONDS)
        return resolved, False

    def _is_stale(self, group: ConsumerGroup, live: Iterable[str], now: Moment) -> bool:
        """Whether all expressions are to be matched again: there are new topics, or it is
        long ago.
        """
        age = now.wall_ms - max(group.expressions[text].timestamp for text in live)
        if 0 <= age <= _REFRESH_MS_MIN:
            return False
        oldest = min(group.resolved_at.get(text, -1) for text in live)
        return oldest < self.names_version or age > _REFRESH_MS_MAX

    def note_resolution(
        self,
        group: ConsumerGroup,
        resolution: Resolution,
        regexes: Mapping[str, int],
        resolved: dict[str, frozenset[str]],
        draft: Draft,
        now: Moment,
    ) -> bool:
        """Write what was found for expressions that are still wanted.

        True where one has other topics now.
        """
        group.resolution = None
        changed = False
        for text, names in resolution.matched.items():
            if not regexes.get(text):
                continue
            changed = (
                changed
                or resolved.get(text, frozenset()) != frozenset(names)
                or text not in resolved
            )
            resolved[text] = frozenset(names)
            group.resolved_at[text] = resolution.version
            self.state.account.let_in(MATCHED_TOPIC_BYTES * len(names))
            value = records.RegularExpression(tuple(names), resolution.version, now.wall_ms)
            draft.write(records.RegularExpressionKey(group.group_id, text), value)
        return changed

    def target_for(
        self, group: ConsumerGroup, done: Updated, wish: Wish, draft: Draft, now: Moment
    ) -> tuple[int, Assignment]:
        """The target's epoch and the member's part of it; a new target if it is time for one."""
        member_id = wish.updated.member_id
        if done.epoch > group.assignment_epoch and self._may_have_target(group, now):
            return done.epoch, self._assign(group, done, wish, draft, now)[member_id]
        return group.assignment_epoch, group.targets.get(wish.replaces or member_id, {})

    def _may_have_target(self, group: ConsumerGroup, now: Moment) -> bool:
        """Whether the last one is old enough (KIP-1263).

        A wall clock that was set back does not make a group wait longer.
        """
        interval_ms = self.state.options.group(group.group_id, "consumer.assignment.interval.ms")
        return not (group.assignment_ms and 0 <= now.wall_ms - group.assignment_ms < interval_ms)

    def _assign(
        self, group: ConsumerGroup, done: Updated, wish: Wish, draft: Draft, now: Moment
    ) -> dict[str, Assignment]:
        """A new target for every member, written as far as it differs."""
        members, targets = dict(group.members), dict(group.targets)
        present, joining = wish.replaces or wish.updated.member_id, wish.updated
        if present != joining.member_id:
            members.pop(present, None)
            targets[joining.member_id] = targets.pop(present, {})
        members[joining.member_id] = joining
        topic_ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        for member in members.values():
            wanted = member.topic_names, member.topic_regex
            if wanted not in topic_ids:
                topic_ids[wanted] = self._topic_ids(member, done.resolved)
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
                    _target_row(target),
                )
        draft.write(
            records.TargetAssignmentMetadataKey(group.group_id),
            records.TargetAssignmentMetadata(done.epoch, now.wall_ms),
        )
        self.watch(group, now)
        return assigned

    def _topic_ids(self, member: Member, resolved: Mapping[str, frozenset[str]]) -> frozenset[UUID]:
        """What a member wants, as far as it exists."""
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

    def reconcile_member(
        self,
        group: ConsumerGroup,
        wish: Wish,
        done: Updated,
        target_epoch: int,
        target: Assignment,
        draft: Draft,
        now: Moment,
    ) -> Member:
        """The member after its next step, written where it is one."""
        before = wish.updated
        if not done.subscription_changed and before.is_reconciled_to(target_epoch):
            return before
        after = reconcile(
            before,
            target_epoch=target_epoch,
            target=target,
            is_owned=lambda topic_id, partition: (
                group.owners.get((topic_id, partition)) not in (None, wish.replaces)
            ),
            subscribed=self._topic_ids(before, done.resolved),
            reported=wish.reported,
            subscription_changed=done.subscription_changed,
        )
        if after != before:
            draft.write(
                records.CurrentMemberAssignmentKey(group.group_id, after.member_id),
                after.assignment(),
            )
            if not after.uses_classic:
                if after.state is MemberState.UNREVOKED_PARTITIONS:
                    self.limit_revocation(group, after, now)
                else:
                    self.state.timers.cancel((REBALANCE, group.group_id, after.member_id))
        return after

    # -- coming and going --------------------------------------------------------------------------

    def take_place(
        self,
        group: ConsumerGroup,
        old: Member,
        member_id: str,
        reported: Partitions | None,
        draft: Draft,
    ) -> Wish:
        """A static member that comes back, under another id most often, has what it had."""
        new = renamed_copy(old, member_id)
        remove_member(group, old.member_id, draft)
        draft.write(records.MemberMetadataKey(group.group_id, member_id), new.metadata())
        target = group.targets.get(old.member_id, {})
        draft.write(
            records.TargetAssignmentMemberKey(group.group_id, member_id), _target_row(target)
        )
        draft.write(records.CurrentMemberAssignmentKey(group.group_id, member_id), new.assignment())
        return Wish(new, new, reported, replaces=old.member_id)

    def fence(
        self,
        group: ConsumerGroup,
        members: Sequence[Member],
        draft: Draft,
        now: Moment,
        reason: str,
    ) -> None:
        """Remove members; what they had is free at once.

        Where only members of the classic protocol stay, the group becomes theirs.
        """
        if not members:
            return
        for member in members:
            logger.info(
                "member removed group=%s member=%s reason=%r",
                group.group_id,
                member.member_id,
                reason,
            )
        gone = {member.member_id for member in members}
        if may_downgrade(self.state, group, gone):
            self.become_classic(group, gone, draft, now)
            return
        for member in members:
            remove_member(group, member.member_id, draft)
        resolved = group.resolved()
        regexes = group.regexes.copy()
        for member in members:
            if member.topic_regex:
                regexes[member.topic_regex] -= 1
        self._forget_unused(group, regexes, resolved, draft)
        names = group.subscribed_names(self.state.topics.names(), members)
        metadata_hash = topics_hash(self.state.topics, {*names, *topics_of(resolved, regexes)})
        draft.write(
            records.ConsumerGroupMetadataKey(group.group_id),
            records.ConsumerGroupMetadata(group.epoch + 1, metadata_hash),
        )

    def become_classic(
        self,
        group: ConsumerGroup,
        leaving: Collection[str],
        draft: Draft,
        now: Moment,
        joining: Member | None = None,
        *,
        rebalance: bool = True,
    ) -> None:
        """Turn the group into a classic group of the members that stay: migration.py
        `downgrade`.
        """
        classic, rebalance = downgrade(
            self.state, group, leaving, draft, now, joining, rebalance=rebalance
        )
        reason = "the last member of the consumer protocol is gone"
        self._rebalance.downgrade(classic, draft, now, reason, rebalance=rebalance)

    def _forget_unused(
        self,
        group: ConsumerGroup,
        regexes: Mapping[str, int],
        resolved: dict[str, frozenset[str]],
        draft: Draft,
    ) -> None:
        for text in sorted(resolved):
            if not regexes.get(text):
                draft.delete(records.RegularExpressionKey(group.group_id, text))
                del resolved[text]

    # -- deadlines ---------------------------------------------------------------------------------

    def expect(self, group: ConsumerGroup, member: Member, now: Moment) -> None:
        """It must be heard of again before its session ends."""
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        else:
            session_ms = self.state.options.group(group.group_id, "consumer.session.timeout.ms")
        self.state.timers.set(
            (SESSION, group.group_id, member.member_id), now.seconds + session_ms / 1000
        )

    def watch(self, group: ConsumerGroup, now: Moment) -> None:
        """It has a target that is not reached yet."""
        key = SLOW, group.group_id
        if key not in self.state.timers:
            heartbeat_ms = self.state.options.group(
                group.group_id, "consumer.heartbeat.interval.ms"
            )
            self.state.timers.set(key, now.seconds + _SLOW_HEARTBEATS * heartbeat_ms / 1000)

    def limit_revocation(self, group: ConsumerGroup, member: Member, now: Moment) -> None:
        self.state.timers.set(
            (REBALANCE, group.group_id, member.member_id),
            now.seconds + member.rebalance_timeout_ms / 1000,
        )


def topics_of(resolved: Mapping[str, Iterable[str]], live: Mapping[str, Any]) -> set[str]:
    return {
        name
        for text, names in resolved.items()
        if live.get(text) is not None and live.get(text) != 0
        for name in names
    }


def _target_row(target: Assignment) -> records.TargetAssignmentMember:
    return records.TargetAssignmentMember(
        tuple(
            records.TopicPartitions(topic_id, tuple(target[topic_id]))
            for topic_id in sorted(target)
        )
    )
