"""Share groups (KIP-932): members join, renew their session and leave, and get partitions.

A heartbeat may change the member, and then the group epoch grows. A group whose epoch is ahead of
its target assignment gets a new target, at most once per interval. The member then has its part.

The share coordinator has a state for each partition of the group. A heartbeat returns the
partitions that have none yet (`uninitialized`, not part of Kafka's response). Its handler creates
their state, reports them (share_partitions.py), and sends a heartbeat again. If the handler ends
before that, the next heartbeat returns them again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from mqd.coordinator.group import share_records as records
from mqd.coordinator.group.part import Draft, Expire, Handler, Part, Replay
from mqd.coordinator.group.share_group import (
    ASSIGNED_PARTITION_BYTES,
    JOINING,
    LEAVING,
    ShareGroup,
    ShareGroupMember,
    share_group,
)
from mqd.coordinator.group.share_targets import ASSIGN, ShareTargets
from mqd.coordinator.group.state import State
from mqd.coordinator.group.subscriptions import subscribed_names, topics_hash
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import NOTHING, Call, CoordinatorResult, Moment, Producer, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONSUMER_GROUP_BYTES_MAX
from mqd.protocol.slices import Rows

logger = logging.getLogger(__name__)

SESSION: Final = "share-session"
"""Timer of (group, member): the session ends."""
RETRY_SECONDS: Final = 1.0
"""Until the removal of a member, whose records could not be appended, is tried again."""
_RECORDS = (
    records.ShareMemberMetadataKey,
    records.ShareGroupMetadataKey,
    records.ShareTargetAssignmentMetadataKey,
    records.ShareTargetAssignmentMemberKey,
    records.ShareCurrentAssignmentKey,
    records.SharePartitionsKey,
)


class ShareGroups(Part):
    """The part of a group shard for share groups."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.targets = ShareTargets(state)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "ShareGroupHeartbeat": self._heartbeat,
            "ShareGroupDescribe": self._describe,
        }

    def replays(self) -> Mapping[type, Replay]:
        return dict.fromkeys(_RECORDS, self._replay)

    def timers(self) -> Mapping[str, Expire]:
        return {SESSION: self._member_expired, ASSIGN: self._continue_target}

    def _replay(self, key: Any, value: Any, producer: Producer) -> None:
        group = self.state.get(key.group_id)
        if not isinstance(group, ShareGroup):
            if value is None:
                return
            assert group is None, key
            group = self.state.by_id[key.group_id] = ShareGroup(key.group_id)
        if value is None and isinstance(key, records.ShareGroupMetadataKey):
            assert not group.members, f"group {key.group_id} is deleted while it has members"
            del self.state.by_id[key.group_id]
        else:
            group.replay(key, value)

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        for group in self.state.by_id.values():
            if isinstance(group, ShareGroup):
                for member in group.members.values():
                    self._expect_heartbeat(group.group_id, member.member_id, now)
        return NOTHING

    # -- ShareGroupHeartbeat -----------------------------------------------------------------------

    def _heartbeat(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Raises MqError: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND,
        GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        request, draft = call.request, Draft()
        if request.member_epoch == LEAVING:
            group = share_group(self.state, request.group_id)
            member = group.member(request.member_id)
            self._remove(group, member, draft, "left")
            draft.respond(ticket, {"member_id": member.member_id, "member_epoch": LEAVING})
            return draft.result()
        joining = request.member_epoch == JOINING
        group = self._group_for(request.group_id, joining=joining)
        self._check_room(group, request.member_id)
        present = group.members.get(request.member_id)
        member = present or (
            ShareGroupMember(request.member_id) if joining else group.member(request.member_id)
        )
        _check_epoch(member, request.member_epoch)
        names = request.subscribed_topic_names
        updated = replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            topic_names=member.topic_names if names is None else tuple(sorted(set(names))),
            client_id=call.client_id,
            client_host=call.client_host,
        )
        epoch = self._update(group, present, updated, draft, now)
        updated = self._reconcile(group, updated, epoch, draft, now)
        self._expect_heartbeat(group.group_id, updated.member_id, now)
        response: dict[str, Any] = {
            "member_id": updated.member_id,
            "member_epoch": updated.epoch,
            "heartbeat_interval_ms": self.state.options.group(
                group.group_id, "share.heartbeat.interval.ms"
            ),
            "uninitialized": self._uninitialized(group, updated),
            "group_epoch": epoch,
        }
        if joining or names is not None or updated.assigned != member.assigned:
            rows = [
                {"topic_id": topic_id, "partitions": list(partitions)}
                for topic_id, partitions in updated.assigned.items()
            ]
            response["assignment"] = {"topic_partitions": rows}
        draft.respond(ticket, response)
        return draft.result()

    def _group_for(self, group_id: str, *, joining: bool) -> ShareGroup:
        """A member that joins may create the group."""
        if self.state.get(group_id) is not None:
            return share_group(self.state, group_id)
        if joining:
            return ShareGroup(group_id)
        raise MqError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")

    def _check_room(self, group: ShareGroup, member_id: str) -> None:
        most = self.state.options.node("group.share.max.size")
        if len(group.members) >= most and member_id not in group.members:
            raise MqError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {most} members.",
            )

    def _update(
        self,
        group: ShareGroup,
        present: ShareGroupMember | None,
        updated: ShareGroupMember,
        draft: Draft,
        now: Moment,
    ) -> int:
        """Write what the request changes of the member, and the group epoch, which is returned."""
        if present is None or updated.metadata() != present.metadata():
            growth = updated.size - (0 if present is None else present.size)
            if growth > 0:
                if group.memory + growth > CONSUMER_GROUP_BYTES_MAX:
                    raise MqError(
                        ErrorCode.GROUP_MAX_SIZE_REACHED,
                        f"The metadata of the members of {group.group_id!r} take too much memory.",
                    )
                self.state.make_room(group.group_id, growth, now)
            draft.write(
                records.ShareMemberMetadataKey(group.group_id, updated.member_id),
                updated.metadata(),
            )
            size = len(draft.records[-1].value or b"")
            if size > self.state.record_bytes_max():
                raise MqError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"The metadata of the member takes {size} bytes, more than "
                    f"{self.state.record_bytes_max()} (message.max.bytes).",
                )
        changed = present is None or updated.topic_names != present.topic_names
        if not changed and group.checked_version == self.state.topics.version:
            return group.epoch
        names = subscribed_names(
            group.names,
            self.state.topics.names(),
            [] if present is None else [present],
            updated,
        )
        metadata_hash = topics_hash(self.state.topics, names)
        if not changed and metadata_hash == group.metadata_hash:
            group.checked_version = self.state.topics.version
            return group.epoch
        if changed:
            wanted = ASSIGNED_PARTITION_BYTES * sum(map(self.state.topics.partitions, names))
            more = wanted - group.assigned_memory
            if more > 0:
                self.state.account.make_room(
                    more, f"the assignment of group {group.group_id}", now.seconds
                )
                self.state.account.reserve(more)
        draft.write(
            records.ShareGroupMetadataKey(group.group_id),
            records.ShareGroupMetadata(group.epoch + 1, metadata_hash),
        )
        return group.epoch + 1

    def _reconcile(
        self, group: ShareGroup, member: ShareGroupMember, epoch: int, draft: Draft, now: Moment
    ) -> ShareGroupMember:
        """The member with its part of the target, which is computed if it is due."""
        target_epoch, target = self.targets.target_for(group, member, epoch, draft, now)
        if member.epoch == target_epoch and member.assigned == target:
            return member
        after = replace(member, epoch=target_epoch, previous_epoch=member.epoch, assigned=target)
        draft.write(
            records.ShareCurrentAssignmentKey(group.group_id, member.member_id), after.assignment()
        )
        return after

    def _uninitialized(
        self, group: ShareGroup, member: ShareGroupMember
    ) -> dict[UUID, tuple[int, ...]]:
        """Partitions of the member's topics that have no state yet."""
        found = {}
        for name in member.topic_names:
            topic_id = self.state.topics.topic_id(name)
            if topic_id is None:
                continue
            present = group.initialized.get(topic_id, frozenset())
            partitions = self.state.topics.partitions(name)
            if len(present) < partitions:
                found[topic_id] = tuple(one for one in range(partitions) if one not in present)
        return found

    def _continue_target(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        draft = Draft()
        self.targets.queue.advance(draft, now)
        return draft.result()

    @property
    def computation_bytes(self) -> int:
        """Memory of the computation of a target."""
        return self.targets.queue.bytes

    # -- members that leave ------------------------------------------------------------------------

    def _expect_heartbeat(self, group_id: str, member_id: str, now: Moment) -> None:
        session_ms = self.state.options.group(group_id, "share.session.timeout.ms")
        self.state.timers.set((SESSION, group_id, member_id), now.seconds + session_ms / 1000)

    def _member_expired(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        group = self.state.get(key[1])
        if not isinstance(group, ShareGroup) or key[2] not in group.members:
            return NOTHING
        draft = Draft()
        # The append may be refused, for lack of replicas.
        self.state.timers.set((SESSION, *key[1:]), now.seconds + RETRY_SECONDS)
        self._remove(group, group.members[key[2]], draft, f"{key[0]} expired")
        return draft.result()

    def _remove(
        self, group: ShareGroup, member: ShareGroupMember, draft: Draft, reason: str
    ) -> None:
        logger.info(
            "member removed group=%s member=%s reason=%s",
            group.group_id,
            member.member_id,
            reason,
        )
        group_id, member_id = group.group_id, member.member_id
        draft.delete(records.ShareCurrentAssignmentKey(group_id, member_id))
        draft.delete(records.ShareTargetAssignmentMemberKey(group_id, member_id))
        draft.delete(records.ShareMemberMetadataKey(group_id, member_id))
        names = subscribed_names(group.names, self.state.topics.names(), [member])
        draft.write(
            records.ShareGroupMetadataKey(group_id),
            records.ShareGroupMetadata(group.epoch + 1, topics_hash(self.state.topics, names)),
        )

    # -- ShareGroupDescribe ------------------------------------------------------------------------

    def _describe(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """A row for each group id, with GROUP_ID_NOT_FOUND if it is not a share group."""
        rows = []
        for group_id in call.request.group_ids:
            try:
                rows.append(self._described(share_group(self.state, group_id)))
            except MqError as error:
                rows.append(
                    {
                        "group_id": group_id,
                        "error_code": error.code,
                        "error_message": error.message,
                    }
                )
        return CoordinatorResult(responses=[(ticket, {"groups": rows})])

    def _described(self, group: ShareGroup) -> dict[str, Any]:
        topic_name = self.state.topics.topic_name

        def member_row(member: ShareGroupMember) -> dict[str, Any]:
            return {
                "member_id": member.member_id,
                "rack_id": member.rack_id,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": member.topic_names,
                "assignment": {
                    "topic_partitions": [
                        {"topic_id": topic_id, "topic_name": name, "partitions": found}
                        for topic_id, found in member.assigned.items()
                        if (name := topic_name(topic_id)) is not None
                    ]
                },
            }

        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "group_id": group.group_id,
            "group_state": group.state_name(),
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": "simple",
            "members": Rows(tuple(group.members.values()), member_row),
        }


def _check_epoch(member: ShareGroupMember, epoch: int) -> None:
    """A heartbeat must have the member's epoch, or the previous epoch if the response with the new
    one may be lost.

    Raises MqError FENCED_MEMBER_EPOCH.
    """
    if epoch in (JOINING, member.epoch, member.previous_epoch):
        return
    how, why = "greater", ""
    if epoch < member.epoch:
        how = "smaller"
        why = f", and it does not match the previous member epoch ({member.previous_epoch})"
    raise MqError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {how} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.epoch}){why}. "
        "The member must abandon all its partitions and rejoin.",
    )
