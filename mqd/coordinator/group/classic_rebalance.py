"""Generations of classic groups: who must join, who is awaited, when a generation is complete.

What a decision changes of a written group becomes so when its record is replayed: `stage` keeps the
record and the change, `replay_staged` applies the change. A decision that the log refuses changes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqd.coordinator.group.classic_answers import join_refusal, joined
from mqd.coordinator.group.classic_group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    InitialDelay,
    Member,
    named,
)
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey, encode
from mqd.coordinator.group.state import Draft, State, TimerKey
from mqd.coordinator.shard import NOTHING, CoordinatorRecord, Decision, Moment
from mqd.errors import ErrorCode

logger = logging.getLogger(__name__)


MEMBER: Final = "classic-member"
"""Timer of (group, member): the end of the session."""
JOIN: Final = "classic-join"
"""Timer of (group): no longer waits for members to join."""
SYNC: Final = "classic-sync"
"""Timer of (group): no longer waits for members to ask for their assignments."""
SLOW: Final = "classic-slow"
"""Timer of (group): a rebalance takes long."""

_WAIT_ON_SECONDS_MIN: Final = 1.0
"""The minimum wait for a rebalance that no member has joined, whatever the members' timeouts."""
_SLOW_SECONDS: Final = 5.0
"""When a rebalance has waited for so long, the log says for whom."""
_WRITE_AGAIN_SECONDS: Final = 5.0
"""When it could not be written that a group is empty."""


class _Staged(NamedTuple):
    """A record of a decision, and the change of the group when the record is in the log."""

    group: ClassicGroup
    record: CoordinatorRecord
    change: Callable[[], None]


class Rebalance:
    """Moves classic groups from one generation to the next, and writes them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._staged: _Staged | None = None

    # -- records

    def stage(
        self,
        draft: Draft,
        group: ClassicGroup,
        value: GroupMetadata,
        change: Callable[[], None],
        *,
        bounded: bool = True,
    ) -> bool:
        """Write the record; `change` is called when it is in the log. False if it is too large."""
        record = encode(GroupMetadataKey(group.group_id), value)
        assert record.value is not None
        if bounded and len(record.value) > self.state.options.node("message.max.bytes"):
            logger.warning(
                "group metadata is too large to write group=%s bytes=%d",
                group.group_id,
                len(record.value),
            )
            return False
        self._staged = _Staged(group, record, change)
        draft.records.append(record)
        return True

    def replay_staged(self, record: CoordinatorRecord) -> bool:
        """Whether this is the staged record: then its change is applied, without decoding it."""
        staged = self._staged
        if staged is None or staged.record != record:
            return False
        self._staged = None
        self.state.by_id[staged.group.group_id] = staged.group
        staged.change()
        return True

    @property
    def has_staged(self) -> bool:
        return self._staged is not None

    def discard_staged(self) -> None:
        """The decision before this one was refused by the log."""
        self._staged = None

    # -- generations

    def rebalance_or_complete(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str
    ) -> None:
        if group.may_rebalance:
            self.prepare_rebalance(group, draft, now, reason)
        else:
            self.complete_if_everybody_joined(group, draft, now)

    def prepare_rebalance(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str
    ) -> None:
        """Make all members join again. Waiting SyncGroups end with REBALANCE_IN_PROGRESS."""
        timers = self.state.timers
        if group.state is COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self.answer_syncs(
                group, draft, now, lambda _: {"error_code": ErrorCode.REBALANCE_IN_PROGRESS}
            )
        group.not_synced.clear()
        timers.cancel((SYNC, group.group_id))
        is_initial = group.state is EMPTY
        group.enter(PREPARING_REBALANCE, now.wall_ms)
        logger.info(
            "rebalance begins group=%s generation=%d reason=%s",
            group.group_id,
            group.generation,
            reason,
        )
        if is_initial:
            delay_ms = self.state.options.node("group.initial.rebalance.delay.ms")
            group.somebody_came = False
            group.initial_delay = InitialDelay(
                delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0)
            )
            timers.set((JOIN, group.group_id), now.seconds + delay_ms / 1000)
        elif group.everybody_joined:
            self.complete_join(group, draft, now)
        else:
            self._wait_for_joins(group, now)

    def _wait_for_joins(self, group: ClassicGroup, now: Moment, seconds_min: float = 0.0) -> None:
        self.state.timers.set(
            (JOIN, group.group_id),
            now.seconds + max(group.rebalance_timeout_ms / 1000, seconds_min),
        )
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def say_who_is_awaited(self, key: TimerKey, now: Moment) -> Decision:
        group = self.state.get(key[1])
        if isinstance(group, ClassicGroup) and group.state in (
            PREPARING_REBALANCE,
            COMPLETING_REBALANCE,
        ):
            logger.info(
                "rebalance waits for members group=%s generation=%d state=%s awaited=%s"
                " not_yet_joined=%d",
                group.group_id,
                group.generation,
                group.state_name(),
                named(one for one in group.members.values() if group.is_awaited(one)),
                len(group.pending),
            )
        return NOTHING

    def complete_if_everybody_joined(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """But for the first rebalance of an empty group, which takes the time that it is given."""
        if (
            group.state is PREPARING_REBALANCE
            and group.previous_state is not EMPTY
            and group.everybody_joined
        ):
            self.complete_join(group, draft, now)

    def complete_join(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """Start the next generation: with the members that joined, and with all static members."""
        self.state.timers.cancel((JOIN, group.group_id))
        group.initial_delay = None
        absent = [
            one
            for one in group.members.values()
            if one.join_ticket is None and one.instance_id is None
        ]
        if absent:
            told = group.group_id, group.generation, named(absent)
            logger.warning(
                "members did not rejoin in time group=%s generation=%d members=%s", *told
            )
        for member in absent:
            self.dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        if not group.members:
            self._write_emptiness(group, draft, now)
            return
        if (
            not group.elect_leader_who_joined()
        ):  # until sessions of those who do not come have ended
            logger.warning(
                "rebalance still waits, no member has joined group=%s members=%d",
                group.group_id,
                len(group.members),
            )
            self._wait_for_joins(group, now, _WAIT_ON_SECONDS_MIN)
            return
        group.next_generation(now.wall_ms)
        logger.info(
            "generation complete group=%s generation=%d members=%d protocol=%s new=%s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
            named(one for one in group.members.values() if one.is_new),
        )
        for member in group.members.values():
            ticket = group.take_join_ticket(member)
            if ticket is not None:
                draft.answer(ticket, joined(group, member))
            self.expect_heartbeat(group, member, now)
            member.is_new = False
            group.not_synced[member.member_id] = None
        self.state.timers.set(
            (SYNC, group.group_id), now.seconds + max(group.rebalance_timeout_ms, 0) / 1000
        )
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def _write_emptiness(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        generation = group.generation + 1

        def change() -> None:
            self.state.timers.cancel((JOIN, group.group_id))
            group.become_empty(generation, now.wall_ms)

        self.state.timers.set((JOIN, group.group_id), now.seconds + _WRITE_AGAIN_SECONDS)
        self.stage(draft, group, group.record(generation, {}, now.wall_ms), change)
        logger.info("group is empty group=%s generation=%d", group.group_id, generation)

    def join_expired(self, key: TimerKey, now: Moment) -> Decision:
        self.discard_staged()
        group = self.state.get(key[1])
        draft = Draft()
        if isinstance(group, ClassicGroup) and group.state is PREPARING_REBALANCE:
            delay = group.initial_delay
            if delay is not None and group.somebody_came and delay.remaining_ms:
                group.somebody_came = False
                delay_ms = min(
                    self.state.options.node("group.initial.rebalance.delay.ms"), delay.remaining_ms
                )
                group.initial_delay = InitialDelay(
                    delay_ms, max(delay.remaining_ms - delay.delay_ms, 0)
                )
                self.state.timers.set(key, now.seconds + delay_ms / 1000)
            else:
                self.complete_join(group, draft, now)
        return draft.decision()

    def take_over(
        self, group: ClassicGroup, draft: Draft, now: Moment, reason: str, *, rebalance: bool = True
    ) -> None:
        """Write a Stable group that was a consumer group before (KIP-848). With `rebalance`, all of
        its members join again."""
        assert group.state is STABLE

        def begin() -> None:
            for member in group.members.values():
                self.expect_heartbeat(group, member, now)
            if not rebalance:
                return
            group.enter(PREPARING_REBALANCE, now.wall_ms)
            logger.info(
                "rebalance begins group=%s generation=%d reason=%s",
                group.group_id,
                group.generation,
                reason,
            )
            if group.everybody_joined:
                self.state.timers.set((JOIN, group.group_id), now.seconds)
            else:
                self._wait_for_joins(group, now)

        self.stage(
            draft,
            group,
            group.record(group.generation, assignments_of(group), group.since_ms),
            begin,
            bounded=False,
        )

    # -- members

    def expect_heartbeat(self, group: ClassicGroup, member: Member, now: Moment) -> None:
        self.state.timers.set(
            (MEMBER, group.group_id, member.member_id),
            now.seconds + member.session_timeout_ms / 1000,
        )

    def answer_syncs(
        self,
        group: ClassicGroup,
        draft: Draft,
        now: Moment,
        answer: Callable[[Member], Mapping[str, Any]],
    ) -> None:
        for member in group.members.values():
            if member.sync_ticket is not None:
                draft.answer(member.sync_ticket, answer(member))
                member.sync_ticket = None
                self.expect_heartbeat(group, member, now)

    def dismiss(self, group: ClassicGroup, member: Member, draft: Draft, error: ErrorCode) -> None:
        """Remove the member, and answer its waiting request with `error`."""
        self.end_wait(group, member, draft, error)
        group.remove(member.member_id)
        self.state.timers.cancel((MEMBER, group.group_id, member.member_id))

    def dismiss_all(self, group: ClassicGroup, draft: Draft, error: ErrorCode) -> None:
        """The group changes its type (KIP-848): waiting requests end with `error`, for a retry."""
        for member in group.members.values():
            self.end_wait(group, member, draft, error)

    def end_wait(self, group: ClassicGroup, member: Member, draft: Draft, error: ErrorCode) -> None:
        """Whatever the member waits for ends with this error."""
        ticket = group.take_join_ticket(member)
        if ticket is not None:
            member_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            draft.answer(ticket, join_refusal(error, member_id))
        if member.sync_ticket is not None:
            draft.answer(member.sync_ticket, {"error_code": error})
            member.sync_ticket = None

    def forget(self, group: ClassicGroup) -> None:
        timers = self.state.timers
        for member_id in (*group.members, *group.pending):
            timers.cancel((MEMBER, group.group_id, member_id))
        for kind in (JOIN, SYNC, SLOW):
            timers.cancel((kind, group.group_id))


def assignments_of(group: ClassicGroup) -> dict[str, bytes]:
    """By member id."""
    return {member_id: member.assignment for member_id, member in group.members.items()}
