"""Classic groups: the leader of the group assigns partitions, the coordinator runs the rebalances.

JoinGroup is in classic_join.py, rebalances are in classic_rebalance.py.
Here are SyncGroup, Heartbeat, LeaveGroup, and the end of sessions.

One GroupMetadata record of the whole group is written, and replayed, for:

    an empty group       a JoinGroup for a group that does not exist
    assignments          the leader sent them: the group is Stable
    no members           the last member left: the group is Empty
    a member's new id    a static member of a Stable group returned and needs no rebalance
                         (KIP-345, KIP-814)

All other state is soft (members that join or wait, sessions), and lost in a failover. Members of
the last written generation continue with heartbeats, and the others join again.

Differences from Apache Kafka:
- A refused request creates no group.
- A group that replaces an empty group of the consumer protocol continues its generations. Kafka
  starts again at 0.
- When a member repeats a JoinGroup or SyncGroup, its first one ends with REBALANCE_IN_PROGRESS.
  Kafka never responds to the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.group.classic_group import (
    COMPLETING_REBALANCE,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    check_record,
)
from mqd.coordinator.group.classic_join import Joins
from mqd.coordinator.group.classic_rebalance import JOIN, MEMBER, SLOW, SYNC, Rebalance
from mqd.coordinator.group.classic_responses import leave_response, leaving_members, sync_response
from mqd.coordinator.group.log_names import named
from mqd.coordinator.group.part import Draft, Expire, Part, Replay
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.state import Group, State
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import NOTHING, Call, CoordinatorResult, Moment, Producer, Ticket
from mqd.errors import ErrorCode, MqError


class Classic(Part):
    """The classic groups of a shard. classic_calls.py passes calls to it."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.rebalance = Rebalance(state)
        self.handle_join_group = Joins(state, self.rebalance).handle

    def replays(self) -> Mapping[type, Replay]:
        return {GroupMetadataKey: self._replay}

    def timers(self) -> Mapping[str, Expire]:
        return {
            MEMBER: self._member_expired,
            JOIN: self.rebalance.join_expired,
            SYNC: self._sync_expired,
            SLOW: self.rebalance.log_awaited_members,
        }

    # -- records

    def _replay(
        self, key: GroupMetadataKey, value: GroupMetadata | None, producer: Producer
    ) -> None:
        if value is not None:
            check_record(key.group, value)
            self.rebalance.replay(key.group, value)
            return
        group = self.state.get(key.group)
        if isinstance(group, ClassicGroup):
            self.rebalance.cancel_timers(group)
            del self.state.by_id[key.group]

    def replay_first_offset(self, group_id: str) -> None:
        """Create an empty group, in the replay of the first offset under its id."""
        assert group_id not in self.state.by_id
        self.state.by_id[group_id] = ClassicGroup(group_id, None)

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        """Start all sessions. A group that exceeds `group.max.size` rebalances, and the
        last members to join are refused."""
        draft = Draft()
        for group in self.state.by_id.values():
            if not isinstance(group, ClassicGroup):
                continue
            for member in group.members.values():
                self.rebalance.expect_heartbeat(group, member, now)
            if len(group.members) > self.state.options.node("group.max.size"):
                self.rebalance.prepare_rebalance(
                    group, draft, now, "it was loaded with more members than group.max.size"
                )
        return draft.result()

    # -- SyncGroup

    def handle_sync_group(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        group = self.state.get(request.group_id)
        draft = Draft()
        if not isinstance(group, ClassicGroup) or group.is_empty:
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.members.check(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise MqError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(request.protocol_type, group.protocol_type) or _differ(
            request.protocol_name, group.protocol
        ):
            raise MqError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is PREPARING_REBALANCE:
            raise MqError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.members.not_synced.pop(member.member_id, None)
        if not group.members.not_synced:
            self.state.timers.cancel((SYNC, group.group_id))
        if group.state is STABLE:
            draft.respond(ticket, sync_response(group, member.assignment))
            return draft.result()
        self.rebalance.end_wait(group, member, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_ticket = ticket
        if group.members.leader == member.member_id:
            self._write_assignments(group, request.assignments, draft, now)
        return draft.result()

    def _write_assignments(self, group: ClassicGroup, rows: Any, draft: Draft, now: Moment) -> None:
        """Write the leader's assignments. Members without a row get an empty assignment."""
        assignments = dict.fromkeys(group.members, b"")
        for row in rows:
            if row.member_id in assignments:
                assignments[row.member_id] = bytes(row.assignment)

        more = sum(map(len, assignments.values())) - group.assigned_memory
        if more > 0 and more > self.state.account.available(more, now.seconds):
            self.rebalance.respond_to_syncs(
                group, draft, now, lambda _: {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
            )
            self.rebalance.prepare_rebalance(
                group, draft, now, "there is no room for its assignments"
            )
            return
        self.state.account.reserve(max(0, more))
        value = group.record(
            group.generation,
            [(member, assignments[member.member_id]) for member in group.members.values()],
            group.since_ms,
        )
        if self.rebalance.write(draft, group, value):
            self.rebalance.respond_to_syncs(
                group,
                draft,
                now,
                lambda member: sync_response(group, assignments[member.member_id]),
            )
        else:
            self.rebalance.respond_to_syncs(
                group, draft, now, lambda _: {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR}
            )
            self.rebalance.prepare_rebalance(
                group, draft, now, "its assignments are too large to be written"
            )

    def _sync_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """Remove the members that sent no SyncGroup in time."""
        group = self.state.get(key[1])
        draft = Draft()
        if (
            isinstance(group, ClassicGroup)
            and group.state in (COMPLETING_REBALANCE, STABLE)
            and group.members.not_synced
        ):
            late = [group.members[member_id] for member_id in group.members.not_synced]
            for member in late:
                self.rebalance.remove(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
            self.rebalance.prepare_rebalance(
                group,
                draft,
                now,
                f"members sent no SyncGroup in time, {named(late)}",
            )
        return draft.result()

    # -- Heartbeat and LeaveGroup

    def handle_heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        group = self.state.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            raise MqError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.members.check(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise MqError(ErrorCode.ILLEGAL_GENERATION)
        self.rebalance.expect_heartbeat(group, member, now)
        error = (
            ErrorCode.REBALANCE_IN_PROGRESS
            if group.state is PREPARING_REBALANCE
            else ErrorCode.NONE
        )
        return CoordinatorResult(responses=((ticket, {"error_code": error}),))

    def extend_session(self, group: Group, member_id: str, now: Moment) -> None:
        """A commit extends the session of its member, as a heartbeat does."""
        if (
            isinstance(group, ClassicGroup)
            and group.state in (STABLE, PREPARING_REBALANCE)
            and member_id in group.members
        ):
            self.rebalance.expect_heartbeat(group, group.members[member_id], now)

    def _member_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        _, group_id, member_id = key
        group = self.state.get(group_id)
        if not isinstance(group, ClassicGroup):
            return NOTHING
        draft = Draft()
        member = group.members.get(member_id)
        if member is not None and not member.waits:
            self.rebalance.remove(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self.rebalance.prepare_rebalance(
                    group, draft, now, f"member {member_id} sent no heartbeat in time"
                )
                return draft.result()
        elif member_id in group.members.pending:
            group.members.remove(member_id)
        else:
            return NOTHING
        if group.state is PREPARING_REBALANCE and group.members.all_joined:
            self.rebalance.complete_join(group, draft, now)
        return draft.result()

    def handle_leave_group(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        found = self.state.get(request.group_id)
        group = found if isinstance(found, ClassicGroup) else None
        leaving = leaving_members(call)
        draft = Draft()
        rows = [
            {
                "member_id": member_id,
                "group_instance_id": instance_id,
                "error_code": ErrorCode.UNKNOWN_MEMBER_ID
                if group is None
                else self._leave(group, member_id, instance_id, draft),
            }
            for member_id, instance_id in leaving
        ]
        gone = [
            str(row["member_id"] or row["group_instance_id"])
            for row in rows
            if row["error_code"] is ErrorCode.NONE
        ]
        if group is not None and gone:
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self.rebalance.prepare_rebalance(
                    group, draft, now, f"members leave, {', '.join(gone)}"
                )
            else:
                self.rebalance.complete_if_all_joined(group, draft, now)
        draft.respond(ticket, leave_response(call, rows))
        return draft.result()

    def _leave(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, draft: Draft
    ) -> ErrorCode:
        if not member_id and instance_id is not None:  # an administrator removes a static member
            member_id = group.members.static.get(instance_id, "")
        if member_id in group.members.pending:
            group.members.remove(member_id)
            self.state.timers.cancel((MEMBER, group.group_id, member_id))
            return ErrorCode.NONE
        try:
            member = group.members.check(member_id, instance_id)
        except MqError as error:
            return error.code
        self.rebalance.remove(group, member, draft, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE


def _differ(requested: str | None, known: str | None) -> bool:
    """Only versions that have the field can be wrong (KIP-559)."""
    return requested is not None and known is not None and requested != known
