"""Passes JoinGroup, SyncGroup, Heartbeat and LeaveGroup to the part that has the group.

Members of the classic protocol are in groups of either type: a group may change its type while they
are in it (KIP-848). An empty consumer group is replaced by a classic group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.coordinator.group.classic import Classic
from mqd.coordinator.group.consumer import ConsumerGroups
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.part import Handler, Part
from mqd.coordinator.group.share_group import ShareGroup
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError

_REFUSALS: Final = {"JoinGroup": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
"""The error of a call for a share group, if it is not UNKNOWN_MEMBER_ID."""


class ClassicCalls(Part):
    """The calls of members of the classic protocol."""

    def __init__(self, state: State, classic: Classic, consumer: ConsumerGroups) -> None:
        super().__init__(state)
        self._classic = classic
        self._consumer = consumer

    def handlers(self) -> Mapping[str, Handler]:
        classic, consumer = self._classic, self._consumer
        return {
            "JoinGroup": self._by_type(classic.handle_join_group, consumer.handle_join_group),
            "SyncGroup": self._by_type(classic.handle_sync_group, consumer.handle_sync_group),
            "Heartbeat": self._by_type(classic.handle_heartbeat, consumer.handle_heartbeat),
            "LeaveGroup": self._by_type(classic.handle_leave_group, consumer.handle_leave_group),
        }

    def _by_type(self, classic: Handler, consumer: Handler) -> Handler:
        def handle(ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
            group = self.state.get(call.request.group_id)
            if isinstance(group, ShareGroup) and call.api != "LeaveGroup":
                code = _REFUSALS.get(call.api, ErrorCode.UNKNOWN_MEMBER_ID)
                raise MqError(code, f"Group {group.group_id} is a share group.")
            if isinstance(group, ConsumerGroup) and not group.is_empty:
                return consumer(ticket, call, now)
            return classic(ticket, call, now)

        return handle
