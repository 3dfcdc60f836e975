"""ListGroups, DescribeGroups and DeleteGroups, for groups of every type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.group.classic_group import DEAD, ClassicGroup
from mqd.coordinator.group.offset_deletion import OffsetDeletion, Portion
from mqd.coordinator.group.part import Handler, Part
from mqd.coordinator.group.share_group import ShareGroup
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Call, CoordinatorResult, Moment, Ticket
from mqd.errors import ErrorCode, MqError

_NOT_FOUND_FROM = 6
"""DescribeGroups versions with an error for a group that does not exist (KIP-1043). Earlier ones
return the state Dead."""


class Listing(Part):
    """For the groups of one shard. Handlers split requests for groups of several shards."""

    def __init__(self, state: State, offsets: OffsetDeletion) -> None:
        super().__init__(state)
        self._offsets = offsets

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "ListGroups": self.handle_list_groups,
            "DescribeGroups": self.handle_describe_groups,
            "DeleteGroups": self.handle_delete_groups,
        }

    def handle_list_groups(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """Filters ignore case. An empty filter matches all groups, an unknown name none."""
        states = {state.strip().lower() for state in call.request.states_filter}
        types = {name.lower() for name in call.request.types_filter}
        rows = [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name(),
                "group_type": group.type_name,
            }
            for group in self.state.by_id.values()
            if (not states or group.state_name().lower() in states)
            and (not types or group.type_name in types)
        ]
        return CoordinatorResult(responses=((ticket, {"groups": rows}),))

    def handle_describe_groups(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        rows = [self._described(group_id, call.version) for group_id in call.request.groups]
        return CoordinatorResult(responses=((ticket, {"groups": rows}),))

    def _described(self, group_id: str, version: int) -> dict[str, Any]:
        group = self.state.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.described()
        row: dict[str, Any] = {
            "group_id": group_id,
            "group_state": DEAD,
            "error_code": ErrorCode.NONE,
        }
        if version >= _NOT_FOUND_FROM:
            row["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
            row["error_message"] = (
                f"Group {group_id} not found."
                if group is None
                else f"Group {group_id} is not a classic group."
            )
        return row

    def handle_delete_groups(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """The offsets of a group are deleted first, a portion at a time. The row of a group with
        more offsets is `unfinished`: its handler calls again. A share group that `has_states` stays
        until the handler has deleted them at the share coordinators."""
        portion = Portion()
        rows: list[dict[str, Any]] = []
        for group_id in dict.fromkeys(call.request.groups_names):
            row = {"group_id": group_id, "error_code": ErrorCode.NONE}
            rows.append(row)
            try:
                group = self.state.group(group_id)
                group.check_delete()
            except MqError as refusal:
                row["error_code"] = refusal.code
                continue
            if isinstance(group, ShareGroup) and group.has_states:
                row["has_states"] = True
            elif self._offsets.delete_all(group_id, portion):
                portion.extend(group.tombstones())
            else:
                row["unfinished"] = True
        return CoordinatorResult(portion.records, ((ticket, {"results": rows}),))
