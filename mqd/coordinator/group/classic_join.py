"""JoinGroup in classic groups: new members, members that join again, static members that return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mqd.coordinator.group.classic_group import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
)
from mqd.coordinator.group.classic_member import (
    ClassicGroupMember,
    Protocols,
    member_size,
    protocols_size,
)
from mqd.coordinator.group.classic_rebalance import MEMBER, Rebalance
from mqd.coordinator.group.classic_responses import (
    is_refusal,
    join_error,
    join_response,
    member_rows,
    refuse_join,
)
from mqd.coordinator.group.log_names import named
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.records import GroupMetadata
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_BYTES_MAX

MEMBER_ID_REQUIRED_FROM: Final = 4
"""JoinGroup versions in which a new member joins again with the id that it gets (KIP-394)."""
_REBALANCE_TIMEOUT_FROM: Final = 1
_SKIP_ASSIGNMENT_FROM: Final = 9
"""JoinGroup versions whose response may say that the leader assigns nothing (KIP-814)."""
_MEMBER_ID_PREFIX_MAX: Final = 1_000
"""The maximum length of the client id or instance id in a member id, which must fit in a string of
the protocol."""
NEW_MEMBER_JOIN_SECONDS: Final = 300.0
"""A new member waits in JoinGroup for so long: it cannot send heartbeats, and may be gone."""


class Joins:
    """JoinGroup of the classic groups of a shard."""

    def __init__(self, state: State, rebalance: Rebalance) -> None:
        self.state = state
        self._rebalance = rebalance

    def handle(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        draft = Draft()
        group = self.state.get(request.group_id)
        generation = 0
        if group is not None and not isinstance(group, ClassicGroup):
            assert group.is_empty, group.group_id
            draft.records += group.tombstones()
            # Generations continue: a partition has one owner in each (I33).
            generation, group = group.generation, None
        is_new_group = group is None
        if group is None:
            if request.member_id:
                return refuse_join(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = ClassicGroup(request.group_id, now.wall_ms)
            group.generation = generation
        join = _Join(ticket, call, _protocols(request), now)
        if not self._has_room(group, join):
            self._refuse_for_size(group, join, draft)
        elif not request.member_id:
            self._join_as_new(group, join, draft)
        else:
            self._join_again(group, join, draft)
        if is_new_group:
            if any(
                isinstance(reply, Mapping) and is_refusal(reply) for _, reply in draft.responses
            ):
                self._rebalance.cancel_timers(group)
                return CoordinatorResult(responses=draft.responses)
            empty = GroupMetadata(
                "", generation, protocol=None, leader=None, current_state_timestamp=now.wall_ms
            )
            self._rebalance.write_new(draft, group, empty)
        return draft.result()

    def _has_room(self, group: ClassicGroup, join: _Join) -> bool:
        """Whether the group has room. Raises MqError COORDINATOR_NOT_AVAILABLE if the node has
        none."""
        member = group.members.get(join.request.member_id)
        if member is not None:
            size = protocols_size(join.protocols) - protocols_size(member.protocols)
        else:
            instance_id, call = join.request.group_instance_id, join.call
            member_id = join.request.member_id or _new_member_id(call, "")
            texts = (member_id, instance_id, call.client_id, call.client_host)
            size = member_size(texts, join.protocols)
        if size > 0:
            if group.memory + size > GROUP_BYTES_MAX:
                return False
            self.state.make_room(group.group_id, size, join.now)
        members_max = self.state.options.node("group.max.size")
        if group.state is EMPTY:
            return True
        if group.state is PREPARING_REBALANCE:  # the last members to join are refused
            return (
                member is not None and member.join_ticket is not None
            ) or group.members.waiting_to_join < members_max
        return member is not None or len(group.members) < members_max

    def _refuse_for_size(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        member = group.members.get(join.request.member_id)
        if member is None:
            group.members.remove(join.request.member_id)
        elif group.state is PREPARING_REBALANCE:
            self._rebalance.remove(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        draft.respond(join.ticket, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
        self._rebalance.complete_if_all_joined(group, draft, join.now)

    def _join_as_new(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        request = join.request
        if not group.accepts(request.protocol_type, join.protocols):
            draft.respond(join.ticket, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        instance_id = request.group_instance_id
        member_id = _new_member_id(join.call, self.state.new_id())
        if instance_id is not None:
            current = group.members.static.get(instance_id)
            if current is not None:
                self._replace_static(group, group.members[current], member_id, join, draft)
            else:
                self._add_member(group, member_id, join, draft)
        elif join.call.version >= MEMBER_ID_REQUIRED_FROM:
            group.members.expect(member_id)
            self.state.timers.set(
                (MEMBER, group.group_id, member_id),
                join.now.seconds + request.session_timeout_ms / 1000,
            )
            draft.respond(join.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(group, member_id, join, draft)

    def _join_again(self, group: ClassicGroup, join: _Join, draft: Draft) -> None:
        """JoinGroup with a member id."""
        request = join.request
        member_id, instance_id = request.member_id, request.group_instance_id
        if not group.accepts(request.protocol_type, join.protocols):
            draft.respond(join.ticket, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        if member_id in group.members.pending and instance_id is None:
            self._add_member(group, member_id, join, draft)
            return
        try:
            member = group.members.check(member_id, instance_id)
        except MqError as error:
            draft.respond(join.ticket, join_error(error.code, member_id))
            return
        same = member.protocols == join.protocols
        if group.state is PREPARING_REBALANCE:
            self._update_member(group, member, join, draft, "a member joins again")
        elif group.state is COMPLETING_REBALANCE and same:  # a repeated request
            draft.respond(join.ticket, join_response(group, member))
        elif group.state is STABLE and same and group.members.leader != member_id:
            draft.respond(join.ticket, {**join_response(group, member), "members": []})
        else:
            reason = (
                "its leader joins again"
                if group.members.leader == member_id
                else "a member changes its protocols"
            )
            self._update_member(group, member, join, draft, reason)

    def _add_member(self, group: ClassicGroup, member_id: str, join: _Join, draft: Draft) -> None:
        request = join.request
        member = ClassicGroupMember(
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
        if group.initial_delay is not None:
            group.initial_delay.has_new_members = True
        group.add(member, request.protocol_type)
        self.state.timers.set(
            (MEMBER, group.group_id, member_id), join.now.seconds + NEW_MEMBER_JOIN_SECONDS
        )
        self._rebalance.rebalance_or_complete(
            group, draft, join.now, f"a new member joins, {named([member])}"
        )

    def _update_member(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        join: _Join,
        draft: Draft,
        reason: str,
    ) -> None:
        self._rebalance.end_wait(group, member, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        group.update(
            member,
            join.protocols,
            join.rebalance_timeout_ms,
            join.request.session_timeout_ms,
            join.ticket,
        )
        self._rebalance.rebalance_or_complete(
            group, draft, join.now, f"{reason}, {named([member])}"
        )

    def _replace_static(
        self,
        group: ClassicGroup,
        old: ClassicGroupMember,
        member_id: str,
        join: _Join,
        draft: Draft,
    ) -> None:
        """A static member without its member id, as after a restart, gets a new one."""
        request, now = join.request, join.now
        new = ClassicGroupMember(
            member_id=member_id,
            instance_id=old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=join.protocols,
            assignment=old.assignment,
        )
        self._rebalance.end_wait(group, old, draft, ErrorCode.FENCED_INSTANCE_ID)
        self.state.timers.set(
            (MEMBER, group.group_id, member_id), now.seconds + old.session_timeout_ms / 1000
        )
        if group.state is STABLE and group.members.selected_protocol(old, new) == group.protocol:
            self._write_replaced(group, old, new, join, draft)
            return
        new.join_ticket = join.ticket
        group.members.replace_static(old, new)
        if group.state is PREPARING_REBALANCE:
            self._rebalance.complete_if_all_joined(group, draft, now)
        else:
            self._rebalance.prepare_rebalance(
                group,
                draft,
                now,
                f"a static member returns and changes the selected protocol, {named([new])}",
            )

    def _write_replaced(
        self,
        group: ClassicGroup,
        old: ClassicGroupMember,
        new: ClassicGroupMember,
        join: _Join,
        draft: Draft,
    ) -> None:
        """Write the group with the member's new id: without a rebalance (KIP-345, KIP-814)."""
        was_leader = group.members.leader == old.member_id
        leader = new.member_id if was_leader else group.members.leader
        members = [*(one for one in group.members.values() if one is not old), new]
        value = group.record(
            group.generation,
            [(member, member.assignment) for member in members],
            group.since_ms,
            leader=leader,
        )
        if not self._rebalance.write(draft, group, value):
            draft.respond(join.ticket, join_error(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        # The record has only one of them. The replay passes them on to the new member id.
        group.members.set_protocols(old, new.protocols)
        response = {**join_response(group, new), "leader": group.members.leader, "members": []}
        if join.call.version >= _SKIP_ASSIGNMENT_FROM:
            response["leader"] = leader
            response["skip_assignment"] = was_leader
            if was_leader:
                response["members"] = member_rows(members, group.protocol)
        draft.respond(join.ticket, response)


class _Join(NamedTuple):
    """A JoinGroup request."""

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
        timeout: int = (
            request.rebalance_timeout_ms
            if self.call.version >= _REBALANCE_TIMEOUT_FROM
            else request.session_timeout_ms
        )
        return timeout


def _new_member_id(call: Call, new_id: str) -> str:
    instance_id = call.request.group_instance_id
    prefix: str = call.client_id if instance_id is None else instance_id
    return f"{prefix[:_MEMBER_ID_PREFIX_MAX]}-{new_id}"


def _protocols(request: Any) -> Protocols:
    """A copy of the request's bytes. Of two protocols with one name, the first counts."""
    found: dict[str, bytes] = {}
    for row in request.protocols:
        if row.name not in found:
            found[row.name] = bytes(row.metadata)
    return tuple(found.items())
