"""Classic groups: members divide the work among themselves, and the coordinator says when (JoinGroup, SyncGroup, Heartbeat, LeaveGroup).

What is written, as one GroupMetadata record of the whole group, and only then so in memory:

    an empty group       when somebody asks to join one that does not exist
    its assignments      when the leader has sent them: the group is Stable
    its emptiness        when the last member has gone
    a member's new id    when a static member of a Stable group comes back and needs no rebalance (KIP-345, KIP-814)

Everything else (who joins, who waits, since when nobody was heard) is forgotten in a failover: members of the last generation that was
written go on with their heartbeats, and the others join again.

Differences from Apache Kafka: a call that is refused makes no group; one that follows an empty group of the consumer protocol under its
id goes on with its numbers, where Kafka begins anew; a JoinGroup or SyncGroup that the same member repeats while
the first one waits ends the first with REBALANCE_IN_PROGRESS, where Kafka never answers it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mqd.coordinator.group.classic_answers import (
    is_refusal,
    join_refusal,
    joined,
    leave_answer,
    leaving_members,
    refuse_join,
    synced,
    told_members,
)
from mqd.coordinator.group.classic_group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    InitialDelay,
    Member,
    Protocols,
    named,
    protocols_size,
)
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey, encode
from mqd.coordinator.group.state import Draft, Expire, Group, Part, Replay, State, TimerKey
from mqd.coordinator.shard import NOTHING, Call, Decision, Moment, Producer, Record, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_BYTES_MAX, GROUP_MEMBER_BYTES

logger = logging.getLogger(__name__)

MEMBER_ID_REQUIRED_FROM: Final = 4
"""JoinGroup versions in which a new member must come back with the id that it is given (KIP-394)."""
_REBALANCE_TIMEOUT_FROM: Final = 1
_SKIP_ASSIGNMENT_FROM: Final = 9
"""SyncGroup versions that must say which protocol they mean (KIP-559)."""

_MEMBER_ID_PREFIX_MAX: Final = 1_000
"""Characters of a client's or an instance's id that a member id begins with: the whole must be a string of the protocol."""
NEW_MEMBER_JOIN_SECONDS: Final = 300.0
"""A new member waits in JoinGroup for so long: it cannot send heartbeats, and may be gone."""
_WAIT_ON_SECONDS_MIN: Final = 1.0
"""A rebalance that nobody has joined waits on for so long at least, whatever time-out its members have named."""
_SLOW_SECONDS: Final = 5.0
"""When a rebalance has waited for so long, the log says for whom."""
_WRITE_AGAIN_SECONDS: Final = 5.0
"""When it could not be written that a group is empty."""

MEMBER: Final = "classic-member"
"""Timer of (group, member): the member was not heard of."""
JOIN: Final = "classic-join"
"""Timer of (group): no longer waits for members to join."""
SYNC: Final = "classic-sync"
"""Timer of (group): no longer waits for members to ask for their assignments."""
SLOW: Final = "classic-slow"
"""Timer of (group): a rebalance takes long."""


class _Staged(NamedTuple):
    """A record that this node has decided on, and how the group goes on when it is in the log."""

    group: ClassicGroup
    record: Record
    go_on: Callable[[], None]


class Classic(Part):
    """The classic groups of a shard. Calls come by way of classic_calls.py."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._staged: _Staged | None = None

    def replays(self) -> Mapping[type, Replay]:
        return {GroupMetadataKey: self.replay_group_metadata}

    def timers(self) -> Mapping[str, Expire]:
        return {MEMBER: self._member_expired, JOIN: self._join_expired, SYNC: self._sync_expired, SLOW: self._say_who_is_awaited}

    # -- records ---------------------------------------------------------------------------------------------------

    def replay_staged(self, record: Record) -> bool:
        """Whether this is the record that was decided on here a moment ago: then the group goes on, and nothing need be read."""
        staged = self._staged
        if staged is None or staged.record != record:
            return False
        self._staged = None
        self.state.by_id[staged.group.group_id] = staged.group
        staged.go_on()
        return True

    def replay_group_metadata(self, key: GroupMetadataKey, value: GroupMetadata | None, producer: Producer) -> None:
        """What another node has decided on, or this one in an earlier life."""
        group = self.state.get(key.group)
        if isinstance(group, ClassicGroup):
            self._forget(group)
        if value is not None:
            self.state.by_id[key.group] = ClassicGroup.loaded(key.group, value)
        elif isinstance(group, ClassicGroup):
            del self.state.by_id[key.group]

    def empty_group(self, group_id: str) -> None:
        """Offsets are stored under an id that no group has (replay): from now on an empty group has it."""
        assert group_id not in self.state.by_id
        self.state.by_id[group_id] = ClassicGroup(group_id, None)

    def _stage(self, draft: Draft, group: ClassicGroup, value: GroupMetadata, go_on: Callable[[], None], *, bounded: bool = True) -> bool:
        """Write the record; what `go_on` changes is so when it is in the log, and not before. False for one that is too large."""
        record = encode(GroupMetadataKey(group.group_id), value)
        assert record.value is not None
        if bounded and len(record.value) > self.state.options.node("message.max.bytes"):
            logger.warning("group is too large to be written group=%s bytes=%d", group.group_id, len(record.value))
            return False
        self._staged = _Staged(group, record, go_on)
        draft.records.append(record)
        return True

    def _forget(self, group: ClassicGroup) -> None:
        timers = self.state.timers
        for member_id in (*group.members, *group.pending):
            timers.cancel((MEMBER, group.group_id, member_id))
        for kind in (JOIN, SYNC, SLOW):
            timers.cancel((kind, group.group_id))

    def on_loaded(self, now: Moment) -> Decision:
        """Sessions begin anew. A group that is larger than allowed by now rebalances, and the last to join is turned away."""
        draft = Draft()
        for group in self.state.by_id.values():
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self._expect_heartbeat(group, member, now)
            if len(group.members) > self.state.options.node("group.max.size"):
                self._prepare_rebalance(group, draft, now, "it was loaded with more members than group.max.size")
        return draft.decision()

    # -- JoinGroup -------------------------------------------------------------------------------------------------

    def handle_join_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        self._staged = None
        request = call.request
        draft = Draft()
        group = self.state.get(request.group_id)
        generation = 0
        if group is not None and not isinstance(group, ClassicGroup):
            assert group.is_empty, group.group_id
            draft.records += group.tombstones()
            generation, group = group.generation, None  # numbers go on: a partition has one owner in a generation, whatever the type
        is_new_group = group is None
        if group is None:
            if request.member_id:
                return refuse_join(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = ClassicGroup(request.group_id, now.wall_ms)
            group.generation = generation
        join = _Join(ticket, call, _protocols(request), now)
        if not self._has_room(group, join):
            self._turn_away(group, join, draft)
        elif not request.member_id:
            self._join_as_new(group, join, draft)
        else:
            self._join_again(group, join, draft)
        if is_new_group:
            if any(isinstance(reply, Mapping) and is_refusal(reply) for _, reply in draft.replies):
                self._forget(group)
                return Decision(replies=draft.replies)
            assert self._staged is None
            empty = GroupMetadata("", generation, protocol=None, leader=None, current_state_timestamp=now.wall_ms)
            self._stage(draft, group, empty, lambda: None)
        return draft.decision()

    def _has_room(self, group: ClassicGroup, join: _Join) -> bool:
        """MqError COORDINATOR_NOT_AVAILABLE where all groups together have none."""
        member = group.members.get(join.request.member_id)
        size = protocols_size(join.protocols) + GROUP_MEMBER_BYTES - (0 if member is None else member.size)
        if size > 0:
            if group.size + size > GROUP_BYTES_MAX:
                return False
            self.state.make_room(group.group_id, size, join.now)
        members_max = self.state.options.node("group.max.size")
        if group.state is EMPTY:
            return True
        if group.state is PREPARING_REBALANCE:  # who came last is turned away, where there are more than allowed by now
            return (member is not None and member.join_ticket is not None) or group.waiting_to_join < members_max
        return member is not None or len(group.members) < members_max

    def _turn_away(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        member = group.members.get(join.request.member_id)
        if member is None:
            group.remove(join.request.member_id)
        elif group.state is PREPARING_REBALANCE:
            self._dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        draft.answer(join.ticket, join_refusal(ErrorCode.GROUP_MAX_SIZE_REACHED))
        self._complete_if_everybody_joined(group, draft, join.now)

    def _join_as_new(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        request = join.request
        if not group.accepts(request.protocol_type, join.protocols):
            draft.answer(join.ticket, join_refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        instance_id = request.group_instance_id
        prefix = join.call.client_id if instance_id is None else instance_id
        member_id = f"{prefix[:_MEMBER_ID_PREFIX_MAX]}-{self.state.new_id()}"
        if instance_id is not None:
            current = group.static.get(instance_id)
            if current is not None:
                self._replace_static(group, group.members[current], member_id, join, draft)
            else:
                self._add_member(group, member_id, join, draft)
        elif join.call.version >= MEMBER_ID_REQUIRED_FROM:
            group.expect(member_id)
            self.state.timers.set((MEMBER, group.group_id, member_id), join.now.seconds + request.session_timeout_ms / 1000)
            draft.answer(join.ticket, join_refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(group, member_id, join, draft)

    def _join_again(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        """Somebody comes with a member id."""
        request = join.request
        member_id, instance_id = request.member_id, request.group_instance_id
        if not group.accepts(request.protocol_type, join.protocols):
            draft.answer(join.ticket, join_refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        if member_id in group.pending and instance_id is None:
            self._add_member(group, member_id, join, draft)
            return
        try:
            member = group.check_member(member_id, instance_id)
        except MqError as error:
            draft.answer(join.ticket, join_refusal(error.code, member_id))
            return
        same = member.protocols == join.protocols
        if group.state is PREPARING_REBALANCE:
            self._update_member(group, member, join, draft, "a member joins again")
        elif group.state is COMPLETING_REBALANCE and same:  # it did not get the answer to its first JoinGroup
            draft.answer(join.ticket, joined(group, member))
        elif group.state is STABLE and same and group.leader != member_id:
            draft.answer(join.ticket, {**joined(group, member), "members": []})
        else:
            reason = "its leader joins again" if group.leader == member_id else "a member changes what it can do"
            self._update_member(group, member, join, draft, reason)

    def _add_member(self, group: ClassicGroup, member_id: str, join: _Join, draft: Draft) -> None:
        request = join.request
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=join.call.client_id,
            client_host=join.call.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=join.protocols,
            join_ticket=join.ticket,
            is_new=True,
        )
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.somebody_came = True
        group.add(member, request.protocol_type)
        self.state.timers.set((MEMBER, group.group_id, member_id), join.now.seconds + NEW_MEMBER_JOIN_SECONDS)
        self._rebalance_or_complete(group, draft, join.now, f"a new member joins, {named([member])}")

    def _update_member(self, group: ClassicGroup, member: Member, join: _Join, draft: Draft, reason: str) -> None:
        self._end_wait(group, member, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.request.session_timeout_ms, join.ticket)
        self._rebalance_or_complete(group, draft, join.now, f"{reason}, {named([member])}")

    def _replace_static(self, group: ClassicGroup, old: Member, member_id: str, join: _Join, draft: Draft) -> None:
        """A static member that has lost its member id, as after a restart, comes back under the next."""
        request, now = join.request, join.now
        new = Member(
            member_id=member_id,
            instance_id=old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=join.protocols,
            assignment=old.assignment,
        )
        self._end_wait(group, old, draft, ErrorCode.FENCED_INSTANCE_ID)
        self.state.timers.set((MEMBER, group.group_id, member_id), now.seconds + old.session_timeout_ms / 1000)
        if group.state is STABLE and group.selected_protocol(old, new) == group.protocol:
            self._write_replaced(group, old, new, join, draft)
            return
        new.join_ticket = join.ticket
        group.replace_static(old, new)
        if group.state is PREPARING_REBALANCE:
            self._complete_if_everybody_joined(group, draft, now)
        else:
            self._prepare_rebalance(group, draft, now, f"a static member comes back and changes what the group agreed on, {named([new])}")

    def _write_replaced(self, group: ClassicGroup, old: Member, new: Member, join: _Join, draft: Draft) -> None:
        """Nothing changes but the member's id: no rebalance, and the others hear nothing of it."""
        leader_before = group.leader
        is_leader = leader_before == old.member_id
        sorted_out = ClassicGroup.loaded(group.group_id, group.record(group.generation, _assignments(group), group.since_ms))
        sorted_out.replace_static(sorted_out.members[old.member_id], new)
        value = sorted_out.record(group.generation, _assignments(sorted_out), group.since_ms)
        if not self._stage(draft, group, value, lambda: group.replace_static(old, new)):
            draft.answer(join.ticket, join_refusal(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        answer = {**joined(group, new), "leader": leader_before, "members": []}
        if join.call.version >= _SKIP_ASSIGNMENT_FROM:
            answer["leader"] = sorted_out.leader
            answer["skip_assignment"] = is_leader
            if is_leader:
                answer["members"] = told_members(sorted_out.members.values(), group.protocol)
        draft.answer(join.ticket, answer)

    # -- a rebalance -----------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup, draft: Draft, now: Moment, reason: str) -> None:
        if group.may_rebalance:
            self._prepare_rebalance(group, draft, now, reason)
        else:
            self._complete_if_everybody_joined(group, draft, now)

    def _prepare_rebalance(self, group: ClassicGroup, draft: Draft, now: Moment, reason: str) -> None:
        """Everybody must join again; those who wait for their assignments are sent away to do so."""
        timers = self.state.timers
        if group.state is COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._answer_syncs(group, draft, now, lambda _: {"error_code": ErrorCode.REBALANCE_IN_PROGRESS})
        group.not_synced.clear()
        timers.cancel((SYNC, group.group_id))
        is_initial = group.state is EMPTY
        group.enter(PREPARING_REBALANCE, now.wall_ms)
        logger.info("rebalance begins group=%s generation=%d reason=%s", group.group_id, group.generation, reason)
        if is_initial:
            delay_ms = self.state.options.node("group.initial.rebalance.delay.ms")
            group.somebody_came = False
            group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            timers.set((JOIN, group.group_id), now.seconds + delay_ms / 1000)
        elif group.everybody_joined:
            self._complete_join(group, draft, now)
        else:
            self._wait_for_joins(group, now)

    def _wait_for_joins(self, group: ClassicGroup, now: Moment, seconds_min: float = 0.0) -> None:
        self.state.timers.set((JOIN, group.group_id), now.seconds + max(group.rebalance_timeout_ms / 1000, seconds_min))
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def _say_who_is_awaited(self, key: TimerKey, now: Moment) -> Decision:
        group = self.state.get(key[1])
        if isinstance(group, ClassicGroup) and group.state in (PREPARING_REBALANCE, COMPLETING_REBALANCE):
            logger.info(
                "rebalance waits for members group=%s generation=%d state=%s awaited=%s not_yet_joined=%d",
                group.group_id,
                group.generation,
                group.state_name(),
                named(one for one in group.members.values() if group.is_awaited(one)),
                len(group.pending),
            )
        return NOTHING

    def _complete_if_everybody_joined(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """But for the first rebalance of an empty group, which takes the time that it is given."""
        if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.everybody_joined:
            self._complete_join(group, draft, now)

    def _complete_join(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        """The next generation has those who joined, and static members, who may be away for a while."""
        self.state.timers.cancel((JOIN, group.group_id))
        group.initial_delay = None
        absent = [one for one in group.members.values() if one.join_ticket is None and one.instance_id is None]
        if absent:
            told = group.group_id, group.generation, named(absent)
            logger.warning("members did not join again in time group=%s generation=%d members=%s", *told)
        for member in absent:
            self._dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        if not group.members:
            self._write_emptiness(group, draft, now)
            return
        if not group.elect_leader_who_joined():  # until sessions of those who do not come have ended
            logger.warning("rebalance waits on, nobody has joined group=%s members=%d", group.group_id, len(group.members))
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
            self._expect_heartbeat(group, member, now)
            member.is_new = False
            group.not_synced[member.member_id] = None
        self.state.timers.set((SYNC, group.group_id), now.seconds + max(group.rebalance_timeout_ms, 0) / 1000)
        self.state.timers.set((SLOW, group.group_id), now.seconds + _SLOW_SECONDS)

    def _write_emptiness(self, group: ClassicGroup, draft: Draft, now: Moment) -> None:
        generation = group.generation + 1

        def go_on() -> None:
            self.state.timers.cancel((JOIN, group.group_id))
            group.become_empty(generation, now.wall_ms)

        self.state.timers.set((JOIN, group.group_id), now.seconds + _WRITE_AGAIN_SECONDS)
        self._stage(draft, group, group.record(generation, {}, now.wall_ms), go_on)
        logger.info("group is empty group=%s generation=%d", group.group_id, generation)

    def _join_expired(self, key: TimerKey, now: Moment) -> Decision:
        self._staged = None
        group = self.state.get(key[1])
        draft = Draft()
        if isinstance(group, ClassicGroup) and group.state is PREPARING_REBALANCE:
            delay = group.initial_delay
            if delay is not None and group.somebody_came and delay.remaining_ms:
                group.somebody_came = False
                delay_ms = min(self.state.options.node("group.initial.rebalance.delay.ms"), delay.remaining_ms)
                group.initial_delay = InitialDelay(delay_ms, max(delay.remaining_ms - delay.delay_ms, 0))
                self.state.timers.set(key, now.seconds + delay_ms / 1000)
            else:
                self._complete_join(group, draft, now)
        return draft.decision()

    def take_over(self, group: ClassicGroup, draft: Draft, now: Moment, reason: str, *, rebalance: bool = True) -> None:
        """A Stable group that was made of one of another type (KIP-848): it is written as it is, and everybody joins again, or, without
        `rebalance`, goes on."""
        assert group.state is STABLE

        def begin() -> None:
            for member in group.members.values():
                self._expect_heartbeat(group, member, now)
            if not rebalance:
                return
            group.enter(PREPARING_REBALANCE, now.wall_ms)
            logger.info("rebalance begins group=%s generation=%d reason=%s", group.group_id, group.generation, reason)
            if group.everybody_joined:
                self.state.timers.set((JOIN, group.group_id), now.seconds)
            else:
                self._wait_for_joins(group, now)

        self._stage(draft, group, group.record(group.generation, _assignments(group), group.since_ms), begin, bounded=False)

    def dismiss_all(self, group: ClassicGroup, draft: Draft, error: ErrorCode) -> None:
        """The group is about to be of another type (KIP-848): whoever waits asks again."""
        for member in group.members.values():
            self._end_wait(group, member, draft, error)

    # -- SyncGroup -------------------------------------------------------------------------------------------------

    def handle_sync_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        self._staged = None
        request = call.request
        group = self.state.get(request.group_id)
        draft = Draft()
        if not isinstance(group, ClassicGroup) or group.is_empty:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise MqError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol):
            raise MqError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is PREPARING_REBALANCE:
            raise MqError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.not_synced.pop(member.member_id, None)
        if not group.not_synced:
            self.state.timers.cancel((SYNC, group.group_id))
        if group.state is STABLE:
            draft.answer(ticket, synced(group, member.assignment))
            return draft.decision()
        self._end_wait(group, member, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_ticket = ticket
        if group.leader == member.member_id:
            self._write_assignments(group, request.assignments, draft, now)
        return draft.decision()

    def _write_assignments(self, group: ClassicGroup, sent: Any, draft: Draft, now: Moment) -> None:
        """The leader has divided the work. Who is not in its list has nothing to do."""
        assignments = dict.fromkeys(group.members, b"")
        for row in sent:
            if row.member_id in assignments:
                assignments[row.member_id] = bytes(row.assignment)

        more = sum(map(len, assignments.values())) - group.assigned_memory
        if more > 0 and more > self.state.account.left(more, now.seconds):
            self._answer_syncs(group, draft, now, lambda _: {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE})
            self._prepare_rebalance(group, draft, now, "there is no room for its assignments")
            return
        self.state.account.let_in(max(0, more))

        def go_on() -> None:
            for member in group.members.values():
                member.assignment = assignments[member.member_id]
            group.enter(STABLE, now.wall_ms)

        if self._stage(draft, group, group.record(group.generation, assignments, group.since_ms), go_on):
            self._answer_syncs(group, draft, now, lambda member: synced(group, assignments[member.member_id]))
        else:
            self._answer_syncs(group, draft, now, lambda _: {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR})
            self._prepare_rebalance(group, draft, now, "its assignments are too large to be written")

    def _answer_syncs(self, group: ClassicGroup, draft: Draft, now: Moment, answer: Callable[[Member], Mapping[str, Any]]) -> None:
        for member in group.members.values():
            if member.sync_ticket is not None:
                draft.answer(member.sync_ticket, answer(member))
                member.sync_ticket = None
                self._expect_heartbeat(group, member, now)

    def _sync_expired(self, key: TimerKey, now: Moment) -> Decision:
        """Who has not asked for its assignment by now is out."""
        self._staged = None
        group = self.state.get(key[1])
        draft = Draft()
        if isinstance(group, ClassicGroup) and group.state in (COMPLETING_REBALANCE, STABLE) and group.not_synced:
            late = [group.members[member_id] for member_id in group.not_synced]
            for member in late:
                self._dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
            self._prepare_rebalance(group, draft, now, f"members did not ask for their assignments in time, {named(late)}")
        return draft.decision()

    # -- Heartbeat and LeaveGroup ----------------------------------------------------------------------------------

    def handle_heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        request = call.request
        group = self.state.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise MqError(ErrorCode.ILLEGAL_GENERATION)
        self._expect_heartbeat(group, member, now)
        error = ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else ErrorCode.NONE
        return Decision(replies=((ticket, {"error_code": error}),))

    def _expect_heartbeat(self, group: ClassicGroup, member: Member, now: Moment) -> None:
        self.state.timers.set((MEMBER, group.group_id, member.member_id), now.seconds + member.session_timeout_ms / 1000)

    def heard_from(self, group: Group, member_id: str, now: Moment) -> None:
        """A commit of a member says that it lives, as a heartbeat does."""
        if isinstance(group, ClassicGroup) and group.state in (STABLE, PREPARING_REBALANCE) and member_id in group.members:
            self._expect_heartbeat(group, group.members[member_id], now)

    def _member_expired(self, key: TimerKey, now: Moment) -> Decision:
        self._staged = None
        _, group_id, member_id = key
        group = self.state.get(group_id)
        if not isinstance(group, ClassicGroup):
            return NOTHING
        draft = Draft()
        member = group.members.get(member_id)
        if member is not None and not member.heart_beats:
            self._dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self._prepare_rebalance(group, draft, now, f"member {member_id} was not heard of in time")
                return draft.decision()
        elif member_id in group.pending:
            group.remove(member_id)
        else:
            return NOTHING
        if group.state is PREPARING_REBALANCE and group.everybody_joined:
            self._complete_join(group, draft, now)
        return draft.decision()

    def handle_leave_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        self._staged = None
        request = call.request
        found = self.state.get(request.group_id)
        group = found if isinstance(found, ClassicGroup) else None
        leaving = leaving_members(call)
        draft = Draft()
        rows = [
            {
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave(group, member_id, instance_id, draft),
            }
            for member_id, instance_id in leaving
        ]
        gone = [str(row["member_id"] or row["group_instance_id"]) for row in rows if row["error_code"] is ErrorCode.NONE]
        if group is not None and gone:
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self._prepare_rebalance(group, draft, now, f"members leave, {', '.join(gone)}")
            else:
                self._complete_if_everybody_joined(group, draft, now)
        draft.answer(ticket, leave_answer(call, rows))
        return draft.decision()

    def _leave(self, group: ClassicGroup, member_id: str, instance_id: str | None, draft: Draft) -> ErrorCode:
        if not member_id and instance_id is not None:  # an administrator removes a static member
            member_id = group.static.get(instance_id, "")
        if member_id in group.pending:
            group.remove(member_id)
            self.state.timers.cancel((MEMBER, group.group_id, member_id))
            return ErrorCode.NONE
        try:
            member = group.check_member(member_id, instance_id)
        except MqError as error:
            return error.code
        self._dismiss(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    # -- members who go --------------------------------------------------------------------------------------------

    def _dismiss(self, group: ClassicGroup, member: Member, draft: Draft, error: ErrorCode) -> None:
        """It is a member no longer, and told so if it waits."""
        self._end_wait(group, member, draft, error)
        group.remove(member.member_id)
        self.state.timers.cancel((MEMBER, group.group_id, member.member_id))

    def _end_wait(self, group: ClassicGroup, member: Member, draft: Draft, error: ErrorCode) -> None:
        """Whatever the member waits for ends with this error."""
        ticket = group.take_join_ticket(member)
        if ticket is not None:
            member_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            draft.answer(ticket, join_refusal(error, member_id))
        if member.sync_ticket is not None:
            draft.answer(member.sync_ticket, {"error_code": error})
            member.sync_ticket = None


class _Join(NamedTuple):
    """A JoinGroup on its way."""

    ticket: Ticket
    call: Call
    protocols: Protocols
    now: Moment

    @property
    def request(self) -> Any:
        return self.call.request

    @property
    def rebalance_timeout_ms(self) -> int:
        request = self.call.request
        timeout: int = request.rebalance_timeout_ms if self.call.version >= _REBALANCE_TIMEOUT_FROM else request.session_timeout_ms
        return timeout


def _protocols(request: Any) -> Protocols:
    """Copied out of the request's bytes; of two with one name, the first."""
    found: dict[str, bytes] = {}
    for row in request.protocols:
        if row.name not in found:
            found[row.name] = bytes(row.metadata)
    return tuple(found.items())


def _differ(said: str | None, known: str | None) -> bool:
    """Only versions that say it can be wrong (KIP-559)."""
    return said is not None and known is not None and said != known


def _assignments(group: ClassicGroup) -> dict[str, bytes]:
    return {member_id: member.assignment for member_id, member in group.members.items()}
