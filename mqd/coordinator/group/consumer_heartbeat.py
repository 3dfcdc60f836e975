"""ConsumerGroupHeartbeat (KIP-848): a member joins, reports its partitions, or leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignment import Partitions
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.classic_rebalance import Rebalance
from mqd.coordinator.group.consumer_group import ConsumerGroup, check_static
from mqd.coordinator.group.consumer_member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    ConsumerGroupMember,
    check_epoch,
    partitions_of,
)
from mqd.coordinator.group.consumer_removals import Removals
from mqd.coordinator.group.consumer_steps import Steps
from mqd.coordinator.group.consumer_updates import MemberChange
from mqd.coordinator.group.migration import check_upgrade, upgrade
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError


class Heartbeats:
    """ConsumerGroupHeartbeat for the groups of a shard."""

    def __init__(
        self, state: State, steps: Steps, removals: Removals, rebalance: Rebalance
    ) -> None:
        self.state = state
        self._steps = steps
        self._removals = removals
        self._rebalance = rebalance

    def handle(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Raises MqError: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND,
        GROUP_MAX_SIZE_REACHED, UNSUPPORTED_ASSIGNOR, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID,
        INVALID_REGULAR_EXPRESSION, INVALID_REQUEST.
        """
        request = call.request
        draft = Draft()
        if request.member_epoch in (LEAVING, LEAVING_FOR_NOW):
            draft.respond(ticket, self._leave(request, draft, now))
            return draft.result()
        joining = request.member_epoch == JOINING
        group = self._group_for(request, joining, draft, now)
        self._steps.check_room(group, request.member_id)
        member_id = request.member_id or self.state.new_id()
        reported = (
            None if request.topic_partitions is None else partitions_of(request.topic_partitions)
        )
        if request.instance_id is None:
            change = self._dynamic_member(group, member_id, request, joining, reported)
        else:
            change = self._static_member(group, member_id, request, joining, reported, draft)
        change = replace(change, updated=_updated(change.member, request, call))
        member = self._steps.advance(group, change, draft, now)
        # Only here, where the request can no longer be refused.
        former = self.state.get(request.group_id)
        if isinstance(former, ClassicGroup):
            self._rebalance.end_all_waits(former, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        self._steps.timers.expect_heartbeat(group, member, now)
        response: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self._heartbeat_ms(group),
        }
        if (
            joining
            or _is_full(request)
            or _partitions(member.assigned) != _partitions(change.member.assigned)
        ):
            rows = [
                {"topic_id": topic_id, "partitions": sorted(member.assigned[topic_id])}
                for topic_id in sorted(member.assigned)
            ]
            response["assignment"] = {"topic_partitions": rows}
        draft.respond(ticket, response)
        return draft.result()

    def _group_for(self, request: Any, joining: bool, draft: Draft, now: Moment) -> ConsumerGroup:
        """The group of the heartbeat. A joining member may create a group, or upgrade a classic
        group."""
        group_id = request.group_id
        group = self.state.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None:
            if not joining:
                raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return ConsumerGroup(group_id)
        if not joining or not isinstance(group, ClassicGroup):
            raise MqError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        if group.is_empty:
            draft.records.extend(group.tombstones())
            found = ConsumerGroup(group_id)
            # Epochs continue the generations (I33). Apache Kafka starts again at 1.
            if group.generation > found.epoch:
                key, value = (
                    records.ConsumerGroupMetadataKey(group_id),
                    records.ConsumerGroupMetadata(group.generation),
                )
                draft.write(key, value)
                found.replay(key, value)
            return found
        check_upgrade(self.state, group)
        self._steps.check_room(group, request.member_id)
        found = upgrade(self.state, group, draft)
        for member in found.members.values():
            self._steps.timers.expect_heartbeat(found, member, now)
        return found

    def _dynamic_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        joining: bool,
        reported: Partitions | None,
    ) -> MemberChange:
        member = group.members.get(member_id) or (
            ConsumerGroupMember(member_id) if joining else group.member(member_id)
        )
        check_epoch(member, request.member_epoch, reported)
        return MemberChange(member, member, reported)

    def _static_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        joining: bool,
        reported: Partitions | None,
        draft: Draft,
    ) -> MemberChange:
        instance_id = request.instance_id
        present = group.static_member(instance_id)
        if not joining:
            member = check_static(present, member_id, instance_id)
            check_epoch(member, request.member_epoch, reported)
            return MemberChange(member, member, reported)
        if present is None:
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
            return MemberChange(member, member, reported)
        if not present.uses_classic and present.epoch != LEAVING_FOR_NOW:
            # The response to its first heartbeat was lost. Apache Kafka refuses this, too.
            if present.member_id == member_id:
                return MemberChange(present, present, reported)
            raise MqError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the "
                "group because the instance id is owned by "
                f"{present.member_id} member.",
            )
        return self._steps.replace_static(group, present, member_id, reported, draft)

    def _leave(self, request: Any, draft: Draft, now: Moment) -> dict[str, Any]:
        group = consumer_group(self.state, request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = check_static(
                group.static_member(request.instance_id), request.member_id, request.instance_id
            )
        if request.instance_id is not None and request.member_epoch == LEAVING_FOR_NOW:
            away = replace(member, epoch=LEAVING_FOR_NOW, revoking={})
            draft.write(
                records.CurrentMemberAssignmentKey(group.group_id, member.member_id),
                away.assignment(),
            )
            self._steps.timers.end_revocation(group, member)
        else:
            self._removals.remove(group, [member], draft, now, "left")
        return {"member_id": member.member_id, "member_epoch": request.member_epoch}

    def _heartbeat_ms(self, group: ConsumerGroup) -> int:
        interval_ms: int = self.state.options.group(
            group.group_id, "consumer.heartbeat.interval.ms"
        )
        return interval_ms


def consumer_group(state: State, group_id: str) -> ConsumerGroup:
    """Raises MqError GROUP_ID_NOT_FOUND."""
    group = state.group(group_id)
    if not isinstance(group, ConsumerGroup):
        raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    return group


def _updated(member: ConsumerGroupMember, request: Any, call: Call) -> ConsumerGroupMember:
    """The member with the fields of the request. A missing field stays."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=member.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
        topic_names=member.topic_names if names is None else tuple(sorted(set(names))),
        topic_regex=member.topic_regex if regex is None else regex,
        client_id=call.client_id,
        client_host=call.client_host,
        classic=None,
    )


def _is_full(request: Any) -> bool:
    """Members send all fields when they join, and when they do not know whether the last request
    arrived."""
    subscribes = (
        request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    )
    return (
        request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None
    )


def _partitions(owned: Mapping[UUID, Mapping[int, int]]) -> dict[UUID, set[int]]:
    return {topic_id: set(partitions) for topic_id, partitions in owned.items()}
