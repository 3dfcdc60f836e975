"""Consumer groups (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe, sessions, target
assignments.

One heartbeat does three things. It may change the member, and then the group epoch grows. A group
whose epoch is ahead of its target gets a new target, for everybody, not more often than its
interval allows. And the member goes one step towards its part of the target: first it lets go of
what it is not to have, then it gets what others have let go of. Nobody waits for anybody but for
partitions.

    consumer_group.py    the state, changed by records only
    member.py            the steps of one member
    consumer_classic.py  members that still speak the classic protocol
    migration.py         a whole group from one protocol to the other

Everything that only this node knows is a deadline: the session of each member, the time it may take
to let go, the next slice of a long search. A coordinator that takes over begins them anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from mqd.coordinator.group import records
from mqd.coordinator.group.assignors import Partitions
from mqd.coordinator.group.classic_answers import leave_answer, leaving_members
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.classic_rebalance import Rebalance
from mqd.coordinator.group.consumer_classic import ClassicMembers
from mqd.coordinator.group.consumer_group import ConsumerGroup, check_static
from mqd.coordinator.group.consumer_steps import (
    JOIN,
    REBALANCE,
    RESOLVE,
    SESSION,
    SLICE_SECONDS,
    SLOW,
    SYNC,
    Steps,
    Wish,
    topics_of,
)
from mqd.coordinator.group.log_names import named
from mqd.coordinator.group.member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    Member,
    MemberState,
    check_epoch,
    partitions_of,
)
from mqd.coordinator.group.migration import upgrade
from mqd.coordinator.group.state import Draft, Expire, Handler, Part, Replay, State, TimerKey
from mqd.coordinator.group.subscriptions import topics_hash
from mqd.coordinator.shard import NOTHING, Call, Decision, Moment, Producer, Ticket
from mqd.errors import ErrorCode, MqError

logger = logging.getLogger(__name__)

WRITE_AGAIN_SECONDS = 1.0
"""Until a member whose removal could not be written is to be removed again."""
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
        self._rebalance = rebalance
        self._steps = Steps(state, rebalance)
        self._classic_members = ClassicMembers(state, self._steps)
        self._names: frozenset[str] = frozenset()
        """Topics as they were when it was last looked whether any is new."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "ConsumerGroupHeartbeat": self.handle_consumer_group_heartbeat,
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
            RESOLVE: self._resolve_on,
            SLOW: self._say_who_is_awaited,
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
            group.apply(key, value)

    def on_loaded(self, now: Moment) -> Decision:
        self._names = frozenset(self.state.topics.names())
        self._steps.names_version = self.state.topics.version
        for group in self._groups():
            contested = group.count_owners()
            for member in group.members.values():
                self._steps.expect(group, member, now)
                if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic:
                    self._steps.limit_revocation(group, member, now)
            for member in contested:  # they begin anew
                logger.warning(
                    "a member reports partitions that another member owns group=%s member=%s",
                    group.group_id,
                    member.member_id,
                )
                self.state.timers.set((SESSION, group.group_id, member.member_id), now.seconds)
            if group.awaited():
                self._steps.watch(group, now)
        return NOTHING

    def on_metadata(self, now: Moment) -> Decision:
        """Groups look at the topics anew with their next heartbeat; here it is only seen
        whether there are new names.
        """
        if any(group.regexes for group in self._groups()):
            names = frozenset(self.state.topics.names())
            if not names <= self._names:
                self._steps.names_version = self.state.topics.version
            self._names = names
        else:
            self._steps.names_version = self.state.topics.version
        return NOTHING

    def _groups(self) -> list[ConsumerGroup]:
        return [group for group in self.state.by_id.values() if isinstance(group, ConsumerGroup)]

    # -- ConsumerGroupHeartbeat --------------------------------------------------------------------

    def handle_consumer_group_heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        """MqError: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND,
        GROUP_MAX_SIZE_REACHED, UNSUPPORTED_ASSIGNOR, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID,
        INVALID_REGULAR_EXPRESSION, INVALID_REQUEST.
        """
        request = call.request
        draft = Draft()
        if request.member_epoch in (LEAVING, LEAVING_FOR_NOW):
            draft.answer(ticket, self._leave(request, draft, now))
            return draft.decision()
        joining = request.member_epoch == JOINING
        group = self._group_for(request.group_id, joining, draft, now)
        self._steps.check_room(group, request.member_id)
        member_id = request.member_id or self.state.new_id()
        reported = (
            None if request.topic_partitions is None else partitions_of(request.topic_partitions)
        )
        if request.instance_id is None:
            wish = self._dynamic(group, member_id, request, joining, reported)
        else:
            wish = self._static(group, member_id, request, joining, reported, draft)
        wish = replace(wish, updated=_updated(wish.member, request, call))
        member = self._steps.bring_forward(group, wish, draft, now)
        former = self.state.get(request.group_id)
        # which this was a moment ago; only here, where nothing can be refused any more
        if isinstance(former, ClassicGroup):
            self._rebalance.end_all_waits(former, draft, ErrorCode.REBALANCE_IN_PROGRESS)
        self._steps.expect(group, member, now)
        told = {
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self._heartbeat_ms(group),
        }
        if (
            joining
            or _is_full(request)
            or _partitions(member.assigned) != _partitions(wish.member.assigned)
        ):
            rows = [
                {"topic_id": topic_id, "partitions": sorted(member.assigned[topic_id])}
                for topic_id in sorted(member.assigned)
            ]
            told["assignment"] = {"topic_partitions": rows}
        draft.answer(ticket, told)
        return draft.decision()

    def _group_for(self, group_id: str, joining: bool, draft: Draft, now: Moment) -> ConsumerGroup:
        """The group to heartbeat in.

        Who joins may find none, or one of the classic protocol that can be turned into one of this.
        """
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
            # numbers go on, as in the other direction; Apache Kafka begins anew
            if group.generation > found.epoch:
                key, value = (
                    records.ConsumerGroupMetadataKey(group_id),
                    records.ConsumerGroupMetadata(group.generation),
                )
                draft.write(key, value)
                found.apply(key, value)
            return found
        found = upgrade(self.state, group, draft)
        for member in found.members.values():
            self._steps.expect(found, member, now)
        return found

    def _dynamic(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        joining: bool,
        reported: Partitions | None,
    ) -> Wish:
        member = group.members.get(member_id) or (
            Member(member_id) if joining else group.member(member_id)
        )
        check_epoch(member, request.member_epoch, reported)
        return Wish(member, member, reported)

    def _static(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: Any,
        joining: bool,
        reported: Partitions | None,
        draft: Draft,
    ) -> Wish:
        instance_id = request.instance_id
        present = group.static_member(instance_id)
        if not joining:
            member = check_static(present, member_id, instance_id)
            check_epoch(member, request.member_epoch, reported)
            return Wish(member, member, reported)
        if present is None:
            member = group.members.get(member_id) or Member(member_id)
            return Wish(member, member, reported)
        if not present.uses_classic and present.epoch != LEAVING_FOR_NOW:
            # the answer to its first heartbeat was lost; Apache Kafka refuses here, too
            if present.member_id == member_id:
                return Wish(present, present, reported)
            raise MqError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the "
                "group because the instance id is owned by "
                f"{present.member_id} member.",
            )
        return self._steps.take_place(group, present, member_id, reported, draft)

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self, request: Any, draft: Draft, now: Moment) -> dict[str, Any]:
        group = self._existing(request.group_id)
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
            self.state.timers.cancel((REBALANCE, group.group_id, member.member_id))
        else:
            self._steps.fence(group, [member], draft, now, "left")
        return {"member_id": member.member_id, "member_epoch": request.member_epoch}

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self.state.group(group_id)
        if not isinstance(group, ConsumerGroup):
            raise MqError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return group

    # -- deadlines ---------------------------------------------------------------------------------

    def _member_of(self, key: TimerKey) -> tuple[ConsumerGroup, Member] | None:
        group = self.state.get(key[1])
        if not isinstance(group, ConsumerGroup) or key[2] not in group.members:
            return None
        return group, group.members[key[2]]

    def _member_expired(self, key: TimerKey, now: Moment) -> Decision:
        found = self._member_of(key)
        if found is None:
            return NOTHING
        draft = Draft()
        group, member = found
        # for too few replicas this may not be written
        self.state.timers.set((SESSION, *key[1:]), now.seconds + WRITE_AGAIN_SECONDS)
        self._steps.fence(group, [member], draft, now, f"{key[0]} expired")
        return draft.decision()

    def _rebalance_expired(self, key: TimerKey, now: Moment) -> Decision:
        """It did not let go of partitions in time."""
        found = self._member_of(key)
        if found is None or found[1].state is not MemberState.UNREVOKED_PARTITIONS:
            return NOTHING
        return self._member_expired(key, now)

    def _classic_expired(self, key: TimerKey, now: Moment) -> Decision:
        """It did not join again, or did not ask for its assignment, in time."""
        found = self._member_of(key)
        if found is None or not found[1].uses_classic:
            return NOTHING
        return self._member_expired(key, now)

    def _say_who_is_awaited(self, key: TimerKey, now: Moment) -> Decision:
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

    def _resolve_on(self, key: TimerKey, now: Moment) -> Decision:
        """One more slice of a long search."""
        group = self.state.get(key[1])
        if not isinstance(group, ConsumerGroup) or group.resolution is None:
            return NOTHING
        draft = Draft()
        if not group.resolution.advance():
            self.state.timers.set(key, now.seconds + SLICE_SECONDS)
            return NOTHING
        resolved = group.resolved()
        if self._steps.note_resolution(
            group, group.resolution, group.regexes, resolved, draft, now
        ):
            metadata_hash = topics_hash(
                self.state.topics,
                {
                    *group.subscribed_names(self.state.topics.names()),
                    *topics_of(resolved, group.regexes),
                },
            )
            draft.write(
                records.ConsumerGroupMetadataKey(group.group_id),
                records.ConsumerGroupMetadata(group.epoch + 1, metadata_hash),
            )
        return draft.decision()

    # -- ConsumerGroupDescribe ---------------------------------------------------------------------

    def handle_consumer_group_describe(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        """A row for each group id; GROUP_ID_NOT_FOUND in the row of one that is none of
        this type.
        """
        rows = []
        for group_id in call.request.group_ids:
            group = self.state.get(group_id)
            if isinstance(group, ConsumerGroup):
                rows.append(
                    group.described(self._steps.assignors()[0], self.state.topics.topic_name)
                )
            else:
                what = (
                    f"Group {group_id} not found."
                    if group is None
                    else f"Group {group_id} is not a consumer group."
                )
                rows.append(
                    {
                        "group_id": group_id,
                        "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
                        "error_message": what,
                    }
                )
        return Decision(replies=[(ticket, {"groups": rows})])

    # -- options -----------------------------------------------------------------------------------

    def _heartbeat_ms(self, group: ConsumerGroup) -> int:
        interval_ms: int = self.state.options.group(
            group.group_id, "consumer.heartbeat.interval.ms"
        )
        return interval_ms

    # -- members of the classic protocol -----------------------------------------------------------

    def handle_join_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        return self._classic_members.join(ticket, call, now, self._existing(call.request.group_id))

    def handle_sync_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        return self._classic_members.sync(ticket, call, now, self._existing(call.request.group_id))

    def handle_heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        return self._classic_members.heartbeat(
            ticket, call, now, self._existing(call.request.group_id)
        )

    def handle_leave_group(self, ticket: Ticket, call: Call, now: Moment) -> Decision:
        group = self._existing(call.request.group_id)
        draft = Draft()
        leaving = leaving_members(call)
        codes = self._classic_members.leave(group, leaving, draft, now)
        rows = [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(leaving, codes)
        ]
        draft.answer(ticket, leave_answer(call, rows))
        return draft.decision()


def _updated(member: Member, request: Any, call: Call) -> Member:
    """The member with all that the request says of it; what it leaves out stays."""
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
    """Members send a full request when they join, and when they do not know whether the
    last one arrived.
    """
    subscribes = (
        request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    )
    return (
        request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None
    )


def _partitions(owned: Mapping[UUID, Mapping[int, int]]) -> dict[UUID, set[int]]:
    return {topic_id: set(partitions) for topic_id, partitions in owned.items()}
