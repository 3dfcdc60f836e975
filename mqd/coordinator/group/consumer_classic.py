"""Members of a consumer group that use the classic protocol (KIP-848, online migration).

To such a member the group looks like a classic group in which it alone rebalances. Its heartbeats
get REBALANCE_IN_PROGRESS when it must take a step. JoinGroup takes the step, and SyncGroup returns
its partitions. Its subscription and its partitions are in the embedded protocol. The generation is
its member epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_responses import join_error
from mqd.coordinator.group.consumer_group import ConsumerGroup, check_static
from mqd.coordinator.group.consumer_member import ConsumerGroupMember, MemberState
from mqd.coordinator.group.consumer_removals import Removals
from mqd.coordinator.group.consumer_steps import Steps
from mqd.coordinator.group.consumer_timers import JOIN, SYNC
from mqd.coordinator.group.consumer_updates import MemberChange
from mqd.coordinator.group.migration import DISABLED, embedded_assignment, may_downgrade, policy
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import GROUP_MIGRATION_ELEMENTS_MAX, SUBSCRIBED_NAMES_MAX
from mqd.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Elements,
    Subscription,
    decode_subscription,
    topics_count,
)

_MEMBER_ID_REQUIRED_VERSION: Final = 4
"""From this version of JoinGroup on, a dynamic member joins again with the id that it gets
(KIP-394)."""


class ClassicMembers:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup in consumer groups. All raise MqError."""

    def __init__(self, state: State, steps: Steps, removals: Removals) -> None:
        self._state = state
        self._steps = steps
        self._removals = removals

    # -- JoinGroup

    def join(
        self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup
    ) -> CoordinatorResult:
        """Raises MqError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID.
        """
        request = call.request
        if policy(self._state) == DISABLED:
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol "
                "because the group migration is disabled.",
            )
        unknown = request.member_id == ""
        member_id = self._state.new_id() if unknown else request.member_id
        protocols = tuple(
            records.ClassicProtocol(row.name, bytes(row.metadata)) for row in request.protocols
        )
        self._steps.check_room(group, member_id)
        if not _accepts(group, request.protocol_type, [one.name for one in protocols]):
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {member_id}'s protocols are not supported.",
            )
        if (
            unknown
            and request.group_instance_id is None
            and call.version >= _MEMBER_ID_REQUIRED_VERSION
        ):
            return CoordinatorResult(
                responses=[(ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
            )
        if len(protocols[0].metadata) > self._state.record_bytes_max():
            raise MqError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "The metadata of the member takes more than "
                f"{self._state.record_bytes_max()} bytes (message.max.bytes).",
            )
        subscription = _decoded(protocols[0].metadata)
        draft = Draft()
        change = self._change(group, member_id, request, subscription, unknown, draft)
        change = replace(change, updated=_updated(change.member, call, subscription, protocols))
        member = self._step(group, change, draft, now)
        first = protocols[0].name
        draft.respond(
            ticket,
            {
                "error_code": ErrorCode.NONE,
                "member_id": member.member_id,
                "generation_id": member.epoch,
                "protocol_type": PROTOCOL_TYPE,
                "protocol_name": first,
                "leader": "",
                "members": [],
            },
        )
        return draft.result()

    def _change(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        subscription: Subscription,
        unknown: bool,
        draft: Draft,
    ) -> MemberChange:
        reported: dict[UUID, set[int]] = {}
        for topic, partition in subscription.owned:
            topic_id = self._state.topics.topic_id(topic)
            if topic_id is not None:
                reported.setdefault(topic_id, set()).add(partition)
        instance_id = request.group_instance_id
        present = None if instance_id is None else group.static_member(instance_id)
        if instance_id is None or (present is None and unknown):
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
            return MemberChange(member, member, reported)
        if not unknown:
            member = check_static(present, member_id, instance_id)
            return MemberChange(member, member, reported)
        assert present is not None
        return self._steps.replace_static(group, present, member_id, reported, draft)

    def _step(
        self, group: ConsumerGroup, change: MemberChange, draft: Draft, now: Moment
    ) -> ConsumerGroupMember:
        """Take the steps of the member. If a static member was the last one of the consumer
        protocol, the group becomes a classic group."""
        replaced = group.static_member(change.updated.instance_id or "")
        becomes_classic = (
            replaced is not None
            and not replaced.uses_classic
            and may_downgrade(self._state, group, (), besides=replaced.member_id)
        )
        if not becomes_classic:
            member = self._steps.advance(group, change, draft, now)
            self._steps.timers.expect_heartbeat(group, member, now)
            self._state.timers.cancel((JOIN, group.group_id, member.member_id))
            self._state.timers.set(
                (SYNC, group.group_id, member.member_id),
                now.seconds + member.rebalance_timeout_ms / 1000,
            )
            return member
        update = self._steps.updates.update(group, change, draft, now)
        member = change.updated
        if not update.subscription_changed:
            assert replaced is not None
            target = group.targets.get(replaced.member_id, {})
            member = self._steps.reconcile_member(
                group, change, update, group.assignment_epoch, target, draft, now
            )
        self._removals.become_classic(
            group, (), draft, now, member, rebalance=update.subscription_changed
        )
        return member

    # -- SyncGroup, Heartbeat

    def sync(
        self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup
    ) -> CoordinatorResult:
        """Raises MqError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
        """
        request = call.request
        member, metadata = self._member(group, request)
        protocol = metadata.supported_protocols[0]
        if request.protocol_type is not None and request.protocol_type != PROTOCOL_TYPE:
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The group's protocol type is {PROTOCOL_TYPE}.",
            )
        if request.protocol_name is not None and request.protocol_name != protocol.name:
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The protocol of the member is {protocol.name}.",
            )
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member, now)
            raise MqError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"A new rebalance is triggered in group {group.group_id} and member "
                f"{member.member_id} should rejoin to catch up.",
            )
        self._state.timers.cancel((SYNC, group.group_id, member.member_id))
        self._steps.timers.expect_heartbeat(group, member, now)
        response = {
            "error_code": ErrorCode.NONE,
            "protocol_type": request.protocol_type,
            "protocol_name": request.protocol_name,
            "assignment": embedded_assignment(
                member.assigned, self._state.topics, protocol.metadata
            ),
        }
        return CoordinatorResult(responses=[(ticket, response)])

    def heartbeat(
        self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup
    ) -> CoordinatorResult:
        """Raises MqError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. The response
        may have REBALANCE_IN_PROGRESS."""
        member, _ = self._member(group, call.request)
        self._steps.timers.expect_heartbeat(group, member, now)
        error = ErrorCode.NONE
        released = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(
            member
        )
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or released
        ):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            self._expect_join(group, member, now)
        return CoordinatorResult(responses=[(ticket, {"error_code": error})])

    def _member(
        self, group: ConsumerGroup, request: Any
    ) -> tuple[ConsumerGroupMember, records.ClassicMemberMetadata]:
        instance_id = request.group_instance_id
        if instance_id is None:
            member = group.member(request.member_id)
        else:
            member = check_static(group.static_member(instance_id), request.member_id, instance_id)
        if member.classic is None:
            raise MqError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member.member_id} does not use the classic protocol.",
            )
        if member.epoch != request.generation_id:
            raise MqError(
                ErrorCode.ILLEGAL_GENERATION,
                f"The request generation id {request.generation_id} is not equal to the "
                f"member epoch {member.epoch} of member "
                f"{member.member_id}.",
            )
        return member, member.classic

    def _expect_join(self, group: ConsumerGroup, member: ConsumerGroupMember, now: Moment) -> None:
        """The member must join again within its rebalance timeout, from the first response with
        REBALANCE_IN_PROGRESS."""
        key = JOIN, group.group_id, member.member_id
        if key not in self._state.timers:
            self._state.timers.set(key, now.seconds + member.rebalance_timeout_ms / 1000)

    # -- LeaveGroup

    def leave(
        self, group: ConsumerGroup, leaving: list[tuple[str, str | None]], draft: Draft, now: Moment
    ) -> list[ErrorCode]:
        """Remove members by (member id, instance id); without a member id, the member with the
        instance id. Returns one code each."""
        removed: dict[str, ConsumerGroupMember] = {}
        codes = []
        for member_id, instance_id in leaving:
            try:
                if instance_id is None:
                    member = group.member(member_id)
                else:
                    present = group.static_member(instance_id)
                    member = check_static(
                        present, member_id or (present.member_id if present else ""), instance_id
                    )
            except MqError as error:
                codes.append(error.code)
            else:
                removed[member.member_id] = member
                codes.append(ErrorCode.NONE)
        self._removals.remove(group, list(removed.values()), draft, now, "left")
        return codes


def _accepts(group: ConsumerGroup, protocol_type: str, protocols: Iterable[str]) -> bool:
    """Whether all classic members, and a new one with these protocols, have one in common."""
    names = list(protocols)
    if protocol_type != PROTOCOL_TYPE:
        return False
    if not group.members:
        return bool(names)
    supported = [
        {one.name for one in member.classic.supported_protocols}
        for member in group.members.values()
        if member.classic is not None
    ]
    return any(all(name in some for some in supported) for name in names)


def _decoded(metadata: bytes) -> Subscription:
    try:
        if topics_count(metadata) > SUBSCRIBED_NAMES_MAX:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"A member subscribes to at most {SUBSCRIBED_NAMES_MAX} topics by their names.",
            )
        return decode_subscription(metadata, Elements(GROUP_MIGRATION_ELEMENTS_MAX))
    except ProtocolError:
        raise MqError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Malformed embedded consumer protocol in subscription deserialization.",
        ) from None


def _updated(
    member: ConsumerGroupMember,
    call: Call,
    subscription: Subscription,
    protocols: tuple[records.ClassicProtocol, ...],
) -> ConsumerGroupMember:
    request = call.request
    rebalance_ms = (
        request.session_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms
    )
    return replace(
        member,
        instance_id=member.instance_id
        if request.group_instance_id is None
        else request.group_instance_id,
        rack_id=subscription.rack or member.rack_id,
        rebalance_timeout_ms=rebalance_ms,
        topic_names=tuple(sorted(set(subscription.topics))),
        topic_regex="",
        client_id=call.client_id,
        client_host=call.client_host,
        classic=records.ClassicMemberMetadata(request.session_timeout_ms, protocols),
    )
