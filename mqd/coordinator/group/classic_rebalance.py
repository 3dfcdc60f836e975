"""Rebalances of classic groups: from one generation to the next.

A rebalance is soft state: it changes the group without a record, and a failover ends it. Its result
is written, and counts when the record is replayed (classic_group.py `replay`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from mqd.coordinator.group.classic_group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    InitialDelay,
)
from mqd.coordinator.group.classic_member import ClassicGroupMember
from mqd.coordinator.group.classic_responses import join_error, join_response
from mqd.coordinator.group.log_names import named
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.record_codec import encode
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.state import State
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import NOTHING, CoordinatorResult, Moment
from mqd.errors import ErrorCode

logger = logging.getLogger(__name__)


MEMBER: Final = "classic-member"
"""Timer of (group, member): the session ends."""
JOIN: Final = "classic-join"
"""Timer of (group): the wait for members to join ends."""
SYNC: Final = "classic-sync"
"""Timer of (group): the wait for SyncGroup of all members ends."""
SLOW: Final = "classic-slow"
"""Timer of (group): the log names the members for which a rebalance waits."""

_REPEATED_WAIT_SECONDS_MIN: Final = 1.0
"""The minimum wait for a rebalance that no member has joined, whatever the members' timeouts."""
_SLOW_SECONDS: Final = 5.0
"""After this wait, the awaited members are logged."""
_RETRY_SECONDS: Final = 5.0
"""The delay before the record of an empty group is appended again."""


class Rebalance:
    """Moves classic groups from one generation to the next, and writes them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._unwritten: ClassicGroup | None = None
        """A new group whose first record is being appended: for its first member, or in place of a
        consumer group. `replay` adopts this object, because the record lacks soft state: the
        requests of members that wait, and all but one protocol of each member. If the append is
        refused, the group does not exist."""

    # -- records

    def write(
        self, draft: Draft, group: ClassicGroup, value: GroupMetadata, *, bounded: bool = True
    ) -> bool:
        """Write the record of the group. False if it exceeds the bound of a record."""
        record = encode(GroupMetadataKey(group.group_id), value)
        assert record.value is not None
        if bounded and len(record.value) > self.state.record_bytes_max():
            logger.warning(
                "group metadata is too large to write group=%s bytes=%d",
                group.group_id,
                len(record.value),
            )
            return False
        draft.records.append(record)
        return True

    def write_new(self, draft: Draft, group: ClassicGroup, value: GroupMetadata) -> None:
        """Write the first record of a group. The group exists once this record is replayed."""
        self._unwritten = group
        self.write(draft, group, value, bounded=False)

    def replay(self, group_id: str, value: GroupMetadata) -> None:
        group = self.state.get(group_id)
        if not isinstance(group, ClassicGroup):
            group, self._unwritten = self._unwritten, None
            if group is None or group.group_id != group_id:
                group = ClassicGroup(group_id, None)
            else:
                assert group.generation == value.generation, (group_id, group.generation)
            self.state.by_id[group_id] = group
        group.replay(value)
        if group.is_empty:
            self.state.timers.cancel((JOIN, group_id))

    # -- generations

    def rebalance_or_complete(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str
    ) -> None:
        if group.may_rebalance:
            self.prepare_rebalance(group, draft, now, reason)
        else:
            self.complete_if_all_joined(group, draft, now)

    def prepare_rebalance(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str
    ) -> None:
        """Make all members join again. Waiting SyncGroups end with REBALANCE_IN_PROGRESS."""
        timers = self.state.timers
        if group.state is COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self.respond_to_syncs(
                group, draft, now, lambda _: {"error_code": ErrorCode.REBALANCE_IN_PROGRESS}
            )
        group.members.not_synced.clear()
        timers.cancel((SYNC, group.group_id))
        is_initial = group.state is EMPTY
        self._begin(group, now, reason)
        if is_initial:
            delay_ms = self.state.options.node("group.initial.rebalance.delay.ms")
            group.initial_delay = InitialDelay(
                delay_ms, max(group.members.rebalance_timeout_ms - delay_ms, 0)
            )
            timers.set((JOIN, group.group_id), now.seconds + delay_ms / 1000)
        elif group.members.all_joined:
            self.complete_join(group, draft, now)
        else:
            self._wait_for_joins(group, now)

    def _begin(self, group: ClassicGroup, now: Moment, reason: str) -> None:
        group.enter(PREPARING_REBALANCE, now.wall_ms)
        logger.info(
            "rebalance begins group=%s generation=%d reason=%s",
            group.group_id,
            group.generation,
            reason,
        )

    def _wait_for_joins(self, group: ClassicGroup, now: Moment, seconds_min: float = 0.0) -> None:
        self.state.timers.set(
            (JOIN, group.group_id),
            now.seconds + max(group.members.rebalance_timeout_ms / 1000, seconds_min),
        )
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def log_awaited_members(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        group = self.state.get(key[1])
        if isinstance(group, ClassicGroup) and group.is_rebalancing:
            logger.info(
                "rebalance waits for members group=%s generation=%d state=%s awaited=%s"
                " not_yet_joined=%d",
                group.group_id,
                group.generation,
                group.state_name(),
                named(one for one in group.members.values() if group.is_awaited(one)),
                len(group.members.pending),
            )
        return NOTHING

    def complete_if_all_joined(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """The first rebalance of an empty group waits until its initial delay ends."""
        if (
            group.state is PREPARING_REBALANCE
            and group.previous_state is not EMPTY
            and group.members.all_joined
        ):
            self.complete_join(group, draft, now)

    def complete_join(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """Begin the next generation with the members that joined, and with all static members."""
        self.state.timers.cancel((JOIN, group.group_id))
        group.initial_delay = None
        absent = [
            one
            for one in group.members.values()
            if one.join_ticket is None and one.instance_id is None
        ]
        if absent:
            logger.warning(
                "members did not rejoin in time group=%s generation=%d members=%s",
                group.group_id,
                group.generation,
                named(absent),
            )
        for member in absent:
            self.remove(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        if not group.members:
            self._write_empty(group, draft, now)
            return
        if not group.members.elect_leader():  # wait until the sessions of absent members end
            logger.warning(
                "rebalance still waits, no member has joined group=%s members=%d",
                group.group_id,
                len(group.members),
            )
            self._wait_for_joins(group, now, _REPEATED_WAIT_SECONDS_MIN)
            return
        group.begin_generation(now.wall_ms)
        logger.info(
            "generation complete group=%s generation=%d members=%d protocol=%s new=%s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
            named(one for one in group.members.values() if one.is_new),
        )
        for member in group.members.values():
            ticket = group.members.take_join_ticket(member)
            if ticket is not None:
                draft.respond(ticket, join_response(group, member))
            self.expect_heartbeat(group, member, now)
            member.is_new = False
            group.members.not_synced[member.member_id] = None
        self.state.timers.set(
            (SYNC, group.group_id), now.seconds + max(group.members.rebalance_timeout_ms, 0) / 1000
        )
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def _write_empty(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        generation = group.generation + 1
        self.state.timers.set((JOIN, group.group_id), now.seconds + _RETRY_SECONDS)
        self.write(draft, group, group.record(generation, (), now.wall_ms))
        logger.info("group is empty group=%s generation=%d", group.group_id, generation)

    def join_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        group = self.state.get(key[1])
        draft = Draft()
        if isinstance(group, ClassicGroup) and group.state is PREPARING_REBALANCE:
            delay = group.initial_delay
            if delay is not None and delay.has_new_members and delay.remaining_ms:
                delay_ms = min(
                    self.state.options.node("group.initial.rebalance.delay.ms"), delay.remaining_ms
                )
                group.initial_delay = InitialDelay(
                    delay_ms, max(delay.remaining_ms - delay.delay_ms, 0)
                )
                self.state.timers.set(key, now.seconds + delay_ms / 1000)
            else:
                self.complete_join(group, draft, now)
        return draft.result()

    def downgrade(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str, *, rebalance: bool
    ) -> None:
        """Write a Stable group that was a consumer group (KIP-848). With `rebalance`, all members
        join again."""
        assert group.state is STABLE
        assignments = [(member, member.assignment) for member in group.members.values()]
        self.write_new(draft, group, group.record(group.generation, assignments, group.since_ms))
        for member in group.members.values():
            self.expect_heartbeat(group, member, now)
        if rebalance:
            self._begin(group, now, reason)
            self._wait_for_joins(group, now)

    # -- members

    def expect_heartbeat(
        self, group: ClassicGroup, member: ClassicGroupMember, now: Moment
    ) -> None:
        self.state.timers.set(
            (MEMBER, group.group_id, member.member_id),
            now.seconds + member.session_timeout_ms / 1000,
        )

    def respond_to_syncs(
        self,
        group: ClassicGroup,
        draft: Draft,
        now: Moment,
        response_to: Callable[[ClassicGroupMember], Mapping[str, Any]],
    ) -> None:
        for member in group.members.values():
            if member.sync_ticket is not None:
                draft.respond(member.sync_ticket, response_to(member))
                member.sync_ticket = None
                self.expect_heartbeat(group, member, now)

    def remove(
        self, group: ClassicGroup, member: ClassicGroupMember, draft: Draft, error: ErrorCode
    ) -> None:
        """Remove the member. Its waiting request gets `error`."""
        self.end_wait(group, member, draft, error)
        group.members.remove(member.member_id)
        self.state.timers.cancel((MEMBER, group.group_id, member.member_id))

    def end_all_waits(self, group: ClassicGroup, draft: Draft, error: ErrorCode) -> None:
        for member in group.members.values():
            self.end_wait(group, member, draft, error)

    def end_wait(
        self, group: ClassicGroup, member: ClassicGroupMember, draft: Draft, error: ErrorCode
    ) -> None:
        """The member's waiting request gets `error`."""
        ticket = group.members.take_join_ticket(member)
        if ticket is not None:
            member_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            draft.respond(ticket, join_error(error, member_id))
        if member.sync_ticket is not None:
            draft.respond(member.sync_ticket, {"error_code": error})
            member.sync_ticket = None

    def cancel_timers(self, group: ClassicGroup) -> None:
        timers = self.state.timers
        for member_id in (*group.members, *group.members.pending):
            timers.cancel((MEMBER, group.group_id, member_id))
        for kind in (JOIN, SYNC, SLOW):
            timers.cancel((kind, group.group_id))
