"""Consumer groups (KIP-848): their records, timers and descriptions.

A heartbeat (consumer_heartbeat.py) does three things. It may change the member, and then the group
epoch grows. A group whose epoch is ahead of its target assignment gets a new target for all
members, at most once per interval. A large one is computed in slices, later. The member goes one
step towards its part of the target. First it revokes what the target gives to others; then it gets
what other members have released. Members wait for partitions only, never for one another.

    consumer_group.py      the state, changed by records only
    consumer_steps.py      the three steps
    target_queue.py        large target assignments
    consumer_classic.py    members that use the classic protocol
    consumer_removals.py   members that leave
    migration.py           a whole group from one protocol to the other

Timers are soft state: the session of each member, its time to revoke partitions, the next slice of
a long search or target assignment. A new coordinator starts them again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.classic_rebalance import Rebalance
from mqd.coordinator.group.classic_responses import leave_response, leaving_members
from mqd.coordinator.group.consumer_classic import ClassicMembers
from mqd.coordinator.group.consumer_describe import described
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_heartbeat import Heartbeats, consumer_group
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState
from mqd.coordinator.group.consumer_removals import Removals
from mqd.coordinator.group.consumer_steps import Steps
from mqd.coordinator.group.consumer_timers import (
    ASSIGN,
    JOIN,
    REBALANCE,
    RESOLVE,
    SESSION,
    SLOW,
    SYNC,
)
from mqd.coordinator.group.consumer_updates import topics_of
from mqd.coordinator.group.log_names import named
from mqd.coordinator.group.part import Draft, Expire, Handler, Part, Replay
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import topics_hash
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import NOTHING, Call, CoordinatorResult, Moment, Producer, Ticket
from mqd.errors import ErrorCode

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Until the removal of a member, whose records could not be appended, is tried again."""
_RECORDS_OF_GROUPS = (
    records.ConsumerGroupMetadataKey,
    records.MemberMetadataKey,
    records.CurrentMemberAssignmentKey,
    records.TargetAssignmentMemberKey,
    records.TargetAssignmentMetadataKey,
    records.RegularExpressionKey,
    records.PartitionMetadataKey,
)


class ConsumerGroups(Part):
    """The part of a group shard for groups of the consumer protocol."""

    def __init__(self, state: State, rebalance: Rebalance) -> None:
        super().__init__(state)
        self._steps = Steps(state)
        self._removals = Removals(state, self._steps.updates, rebalance)
        self._heartbeats = Heartbeats(state, self._steps, self._removals, rebalance)
        self._classic_members = ClassicMembers(state, self._steps, self._removals)
        self._names: frozenset[str] = frozenset()
        """The topics when they were last searched for new ones."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "ConsumerGroupHeartbeat": self._heartbeats.handle,
            "ConsumerGroupDescribe": self.handle_consumer_group_describe,
        }

    def replays(self) -> Mapping[type, Replay]:
        return dict.fromkeys(_RECORDS_OF_GROUPS, self._replay)

    def timers(self) -> Mapping[str, Expire]:
        return {
            SESSION: self._member_expired,
            REBALANCE: self._rebalance_expired,
            JOIN: self._classic_expired,
            SYNC: self._classic_expired,
            RESOLVE: self._continue_search,
            ASSIGN: self._continue_target,
            SLOW: self._log_awaited_members,
        }

    # -- records -----------------------------------------------------------------------------------

    def _replay(self, key: Any, value: Any, producer: Producer) -> None:
        group = self.state.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            assert group is None or (isinstance(group, ClassicGroup) and group.is_simple), key
            group = self.state.by_id[key.group_id] = ConsumerGroup(key.group_id)
        if value is None and isinstance(key, records.ConsumerGroupMetadataKey):
            assert not group.members, f"group {key.group_id} is deleted while it has members"
            del self.state.by_id[key.group_id]
        else:
            group.replay(key, value)

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        self._names = frozenset(self.state.topics.names())
        self._steps.updates.names_version = self.state.topics.version
        for group in self._groups():
            contested = group.count_owners()
            for member in group.members.values():
                self._steps.timers.expect_heartbeat(group, member, now)
                if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic:
                    self._steps.timers.limit_revocation(group, member, now)
            for member in contested:  # they must join again
                logger.warning(
                    "a member reports partitions that another member owns group=%s member=%s",
                    group.group_id,
                    member.member_id,
                )
                self.state.timers.set((SESSION, group.group_id, member.member_id), now.seconds)
            if group.awaited():
                self._steps.timers.expect_target(group, now)
        return NOTHING

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        """Find out whether any topic is new. Groups use the new metadata with their next
        heartbeat."""
        if any(group.subscriptions.regexes for group in self._groups()):
            names = frozenset(self.state.topics.names())
            if not names <= self._names:
                self._steps.updates.names_version = self.state.topics.version
            self._names = names
        else:
            self._steps.updates.names_version = self.state.topics.version
        return NOTHING

    def _groups(self) -> list[ConsumerGroup]:
        return [group for group in self.state.by_id.values() if isinstance(group, ConsumerGroup)]

    # -- timers ------------------------------------------------------------------------------------

    def _member_of(self, key: TimerKey) -> tuple[ConsumerGroup, ConsumerGroupMember] | None:
        group = self.state.get(key[1])
        if not isinstance(group, ConsumerGroup) or key[2] not in group.members:
            return None
        return group, group.members[key[2]]

    def _member_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        found = self._member_of(key)
        if found is None:
            return NOTHING
        draft = Draft()
        group, member = found
        # The append may be refused, for lack of replicas.
        self.state.timers.set((SESSION, *key[1:]), now.seconds + RETRY_SECONDS)
        self._removals.remove(group, [member], draft, now, f"{key[0]} expired")
        return draft.result()

    def _rebalance_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """The member did not revoke partitions in time."""
        found = self._member_of(key)
        if found is None or found[1].state is not MemberState.UNREVOKED_PARTITIONS:
            return NOTHING
        return self._member_expired(key, now)

    def _classic_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """The member sent no JoinGroup or SyncGroup in time."""
        found = self._member_of(key)
        if found is None or not found[1].uses_classic:
            return NOTHING
        return self._member_expired(key, now)

    def _log_awaited_members(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        group = self.state.get(key[1])
        awaited = group.awaited() if isinstance(group, ConsumerGroup) else []
        if isinstance(group, ConsumerGroup) and awaited:
            logger.info(
                "rebalance waits for members group=%s epoch=%d state=%s awaited=%s",
                group.group_id,
                group.assignment_epoch,
                group.state_name(),
                named(awaited),
            )
        return NOTHING

    def _continue_search(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """One more slice of a search for the topics of expressions."""
        group = self.state.get(key[1])
        if not isinstance(group, ConsumerGroup):
            return NOTHING
        subscriptions = group.subscriptions
        resolution = subscriptions.resolution
        if resolution is None:
            return NOTHING
        if not resolution.advance():
            self._steps.timers.continue_search(group, now)
            return NOTHING
        draft = Draft()
        resolved = subscriptions.resolved()
        if self._steps.updates.note_resolution(
            group, resolution, subscriptions.regexes, resolved, draft, now
        ):
            names = subscriptions.subscribed_names(self.state.topics.names())
            metadata_hash = topics_hash(
                self.state.topics, {*names, *topics_of(resolved, subscriptions.regexes)}
            )
            draft.write(
                records.ConsumerGroupMetadataKey(group.group_id),
                records.ConsumerGroupMetadata(group.epoch + 1, metadata_hash),
            )
        return draft.result()

    def _continue_target(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """One more slice of a large target assignment."""
        draft = Draft()
        self._steps.targets.queue.advance(draft, now)
        return draft.result()

    @property
    def computation_bytes(self) -> int:
        """Memory of the target assignment that is computed now."""
        return self._steps.targets.queue.bytes

    # -- ConsumerGroupDescribe ---------------------------------------------------------------------

    def handle_consumer_group_describe(
        self, ticket: Ticket, call: Call, now: Moment
    ) -> CoordinatorResult:
        """A row for each group id, with GROUP_ID_NOT_FOUND if it is not a consumer group."""
        rows = []
        for group_id in call.request.group_ids:
            group = self.state.get(group_id)
            if isinstance(group, ConsumerGroup):
                default = self._steps.targets.assignors()[0]
                rows.append(described(group, default, self.state.topics.topic_name))
            else:
                message = (
                    f"Group {group_id} not found."
                    if group is None
                    else f"Group {group_id} is not a consumer group."
                )
                rows.append(
                    {
                        "group_id": group_id,
                        "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
                        "error_message": message,
                    }
                )
        return CoordinatorResult(responses=[(ticket, {"groups": rows})])

    # -- members of the classic protocol -----------------------------------------------------------

    def handle_join_group(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        return self._classic_members.join(
            ticket, call, now, consumer_group(self.state, call.request.group_id)
        )

    def handle_sync_group(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        return self._classic_members.sync(
            ticket, call, now, consumer_group(self.state, call.request.group_id)
        )

    def handle_heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        return self._classic_members.heartbeat(
            ticket, call, now, consumer_group(self.state, call.request.group_id)
        )

    def handle_leave_group(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        group = consumer_group(self.state, call.request.group_id)
        draft = Draft()
        leaving = leaving_members(call)
        codes = self._classic_members.leave(group, leaving, draft, now)
        rows = [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(leaving, codes)
        ]
        draft.respond(ticket, leave_response(call, rows))
        return draft.result()
