"""Members of a consumer group that still speak the classic protocol (KIP-848, online migration).

To such a member the group looks like a classic one in which it alone rebalances: it is told to join
again when there is a step for it to take, JoinGroup takes the step, SyncGroup tells what it has
now. Its subscription and what it owns come out of the embedded protocol; the generation is its
member epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.classic_answers import join_refusal
from mqd.coordinator.group.consumer_group import ConsumerGroup, check_static
from mqd.coordinator.group.consumer_steps import JOIN, SYNC, Steps, Wish
from mqd.coordinator.group.member import Member, MemberState
from mqd.coordinator.group.migration import NEITHER, embedded_assignment, may_downgrade, policy
from mqd.coordinator.group.state import Draft, State
from mqd.coordinator.shard import Call, Decision, Moment, Ticket
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE, Subscription, decode_subscription

_REQUIRES_KNOWN_ID_VERSION = 4
"""From this version of JoinGroup on a dynamic member joins twice, the second time with the
id that it was given (KIP-394).
"""


class ClassicMembers:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup where the group is of the consumer protocol.

    All raise MqError.
    """

    def __init__(self, state: State, steps: Steps) -> None:
        self._state = state
        self._steps = steps

    # -- JoinGroup

    def join(self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup) -> Decision:
        """MqError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID.
        """
        request = call.request
        if policy(self._state) == NEITHER:
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
        if not group.accepts(request.protocol_type, [one.name for one in protocols]):
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Member {member_id}'s protocols are not supported.",
            )
        if (
            unknown
            and request.group_instance_id is None
            and call.version >= _REQUIRES_KNOWN_ID_VERSION
        ):
            return Decision(
                replies=[(ticket, join_refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
            )
        if len(protocols[0].metadata) > self._state.options.node("message.max.bytes"):
            raise MqError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "What the member says of itself takes more than message.max.bytes.",
            )
        subscription = _decoded(protocols[0].metadata)
        draft = Draft()
        wish = self._wish(group, member_id, request, subscription, unknown, draft)
        wish = replace(wish, updated=_updated(wish.member, call, subscription, protocols))
        member = self._step(group, wish, draft, now)
        first = protocols[0].name
        draft.answer(
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
        return draft.decision()

    def _wish(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        subscription: Subscription,
        unknown: bool,
        draft: Draft,
    ) -> Wish:
        reported: dict[UUID, set[int]] = {}
        for topic, partition in subscription.owned:
            topic_id = self._state.topics.topic_id(topic)
            if topic_id is not None:
                reported.setdefault(topic_id, set()).add(partition)
        instance_id = request.group_instance_id
        present = None if instance_id is None else group.static_member(instance_id)
        if instance_id is None or (present is None and unknown):
            member = group.members.get(member_id) or Member(member_id)
            return Wish(member, member, reported)
        if not unknown:
            member = check_static(present, member_id, instance_id)
            return Wish(member, member, reported)
        assert present is not None
        return self._steps.take_place(group, present, member_id, reported, draft)

    def _step(self, group: ConsumerGroup, wish: Wish, draft: Draft, now: Moment) -> Member:
        """Bring the member forward.

        A static one that was the last to speak the consumer protocol turns the group classic.
        """
        replaced = group.static_member(wish.updated.instance_id or "")
        turns = (
            replaced is not None
            and not replaced.uses_classic
            and may_downgrade(self._state, group, (), besides=replaced.member_id)
        )
        if not turns:
            member = self._steps.bring_forward(group, wish, draft, now)
            self._steps.expect(group, member, now)
            self._state.timers.cancel((JOIN, group.group_id, member.member_id))
            self._state.timers.set(
                (SYNC, group.group_id, member.member_id),
                now.seconds + member.rebalance_timeout_ms / 1000,
            )
            return member
        done = self._steps.update_member(group, wish, draft, now)
        member = wish.updated
        if not done.subscription_changed:
            assert replaced is not None
            target = group.targets.get(replaced.member_id, {})
            member = self._steps.reconcile_member(
                group, wish, done, group.assignment_epoch, target, draft, now
            )
        self._steps.become_classic(
            group, (), draft, now, member, rebalance=done.subscription_changed
        )
        return member

    # -- SyncGroup, Heartbeat

    def sync(self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup) -> Decision:
        """MqError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
        """
        request = call.request
        member, said = self._member(group, request)
        protocol = said.supported_protocols[0]
        if request.protocol_type is not None and request.protocol_type != PROTOCOL_TYPE:
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The group's protocol type is {PROTOCOL_TYPE}.",
            )
        if request.protocol_name is not None and request.protocol_name != protocol.name:
            raise MqError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"The protocol that was told is {protocol.name}.",
            )
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._call_to_join(group, member, now)
            raise MqError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"A new rebalance is triggered in group {group.group_id} and member "
                f"{member.member_id} should rejoin to catch up.",
            )
        self._state.timers.cancel((SYNC, group.group_id, member.member_id))
        self._steps.expect(group, member, now)
        answer = {
            "error_code": ErrorCode.NONE,
            "protocol_type": request.protocol_type,
            "protocol_name": request.protocol_name,
            "assignment": embedded_assignment(
                member.assigned, self._state.topics, protocol.metadata
            ),
        }
        return Decision(replies=[(ticket, answer)])

    def heartbeat(self, ticket: Ticket, call: Call, now: Moment, group: ConsumerGroup) -> Decision:
        """MqError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.

        REBALANCE_IN_PROGRESS is an answer.
        """
        member, _ = self._member(group, call.request)
        self._steps.expect(group, member, now)
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
            self._call_to_join(group, member, now)
        return Decision(replies=[(ticket, {"error_code": error})])

    def _member(
        self, group: ConsumerGroup, request: Any
    ) -> tuple[Member, records.ClassicMemberMetadata]:
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

    def _call_to_join(self, group: ConsumerGroup, member: Member, now: Moment) -> None:
        """It has been told to join again, and has its rebalance timeout to do so, from the
        first time that it was told.
        """
        key = JOIN, group.group_id, member.member_id
        if key not in self._state.timers:
            self._state.timers.set(key, now.seconds + member.rebalance_timeout_ms / 1000)

    # -- LeaveGroup

    def leave(
        self, group: ConsumerGroup, leaving: list[tuple[str, str | None]], draft: Draft, now: Moment
    ) -> list[ErrorCode]:
        """Remove members by (member id, instance id); without a member id, whoever has the
        instance id. One code each.
        """
        gone: dict[str, Member] = {}
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
                gone[member.member_id] = member
                codes.append(ErrorCode.NONE)
        self._steps.fence(group, list(gone.values()), draft, now, "left")
        return codes


def _decoded(metadata: bytes) -> Subscription:
    try:
        return decode_subscription(metadata)
    except ProtocolError:
        raise MqError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Malformed embedded consumer protocol in subscription deserialization.",
        ) from None


def _updated(
    member: Member,
    call: Call,
    subscription: Subscription,
    protocols: tuple[records.ClassicProtocol, ...],
) -> Member:
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
