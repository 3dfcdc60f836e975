"""Administration of groups: list, describe and delete them, remove members.

`Admin` has these calls. Those about offsets are in group_offset_admin.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from mqd.client.arguments import check_ids, check_names, check_string
from mqd.client.calls import Outcomes, items_of_all, raised
from mqd.client.coordinator import KeyType
from mqd.client.errors import ClientError, does_not_exist, error_from_wire
from mqd.client.group_descriptions import GroupDescription, GroupMember, ListedGroup
from mqd.client.peer import PeerConnection
from mqd.client.share_group_admin import ShareGroupAdmin
from mqd.errors import ErrorCode, ProtocolError
from mqd.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from mqd.types import TopicPartition

LEAVE_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 13, 15, 16
DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE, SHARE_GROUP_DESCRIBE = 42, 69, 77
_SEVERAL_LEAVE_SINCE = 3


class GroupAdmin(ShareGroupAdmin):
    """Calls about groups and their members."""

    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """All groups by name, of every coordinator; only those with one of the states, and one of
        the types, if given."""
        return sorted(items_of_all(await self.list_groups_by_node(states, types)))

    async def list_groups_by_node(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> dict[int, list[ListedGroup] | ClientError]:
        """The same for each coordinating broker, with the errors of brokers that failed."""
        body = {
            "states_filter": list(check_names("states", states, "Stable")),
            "types_filter": list(check_names("types", types, "consumer")),
        }

        async def request(node_id: int) -> list[ListedGroup]:
            response = await self._client.request_broker(node_id, LIST_GROUPS, body)
            if response.error_code:
                raise error_from_wire(response.error_code, f"groups of broker {node_id}")
            return [
                ListedGroup(
                    row.group_id, row.protocol_type, row.group_state, row.group_type, node_id
                )
                for row in response.groups
            ]

        return await self._each_broker("listing groups", request)

    async def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | ClientError]:
        """Groups of any type with their members; GROUP_ID_NOT_FOUND if a group does not exist."""
        wanted = check_ids("group_ids", group_ids, "billing")

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            found = await self._describe_consumer_groups(connection, keys)
            left = [key for key in keys if _is_other(found.done.get(key))]
            if left:
                response = await self._client.request(
                    connection, DESCRIBE_GROUPS, {"groups": left, "awaited_wanted": True}
                )
                classic = _outcomes(response.groups, lambda row: _classic(row, connection.peer))
                for key, described in classic.done.items():
                    if isinstance(described, GroupDescription) and described.state == "Dead":
                        classic.done[key] = does_not_exist(
                            ErrorCode.GROUP_ID_NOT_FOUND, f"group {key!r}"
                        )
                found.done.update(classic.done)
                found.to_retry.update(classic.to_retry)
            left = [key for key in keys if _is_other(found.done.get(key)) and key in found.done]
            if left and SHARE_GROUP_DESCRIBE in connection.versions:
                response = await self._client.request(
                    connection, SHARE_GROUP_DESCRIBE, {"group_ids": left}
                )
                found.done.update(
                    _outcomes(response.groups, lambda row: _share(row, connection.peer)).done
                )
            return found

        return await self._each_coordinated("describing groups", wanted, KeyType.GROUP, request)

    async def _describe_consumer_groups(
        self, connection: PeerConnection, keys: list[str]
    ) -> Outcomes:
        if CONSUMER_GROUP_DESCRIBE not in connection.versions:
            return Outcomes({}, {})
        response = await self._client.request(
            connection, CONSUMER_GROUP_DESCRIBE, {"group_ids": keys}
        )
        return _outcomes(response.groups, lambda row: _modern(row, connection.peer))

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete groups with their offsets. None for each deleted one; NON_EMPTY_GROUP if it has
        members."""
        wanted = check_ids("group_ids", group_ids, "billing")

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            response = await self._client.request(connection, DELETE_GROUPS, {"groups_names": keys})
            return _outcomes(response.results, lambda row: None)

        return await self._each_coordinated("deleting groups", wanted, KeyType.GROUP, request)

    async def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Iterable[str] = (),
        instance_ids: Iterable[str] = (),
        reason: str | None = None,
    ) -> dict[str, ClientError | None]:
        """Make members leave: static ones by their instance ids (KIP-345), any by their member ids.
        UNKNOWN_MEMBER_ID for those that are not in the group. A live member joins again after its
        next heartbeat.
        """
        check_string("group_id", group_id, "billing")
        if reason is not None:
            check_string("reason", reason, "maintenance")
        members = check_ids("member_ids", member_ids, "consumer-1")
        static = check_ids("instance_ids", instance_ids, "billing-1")
        wanted: dict[str, tuple[str, str | None]] = {each: (each, None) for each in members}
        wanted |= {each: ("", each) for each in static}
        what = f"removing members of group {group_id!r}"

        async def request(connection: PeerConnection, _: list[str]) -> Outcomes:
            if connection.versions.get(LEAVE_GROUP, (0, 0))[1] < _SEVERAL_LEAVE_SINCE:
                raise ClientError(
                    ErrorCode.UNSUPPORTED_VERSION, f"{connection.peer} cannot remove members"
                )
            rows = [
                {"member_id": one, "group_instance_id": other, "reason": reason}
                for one, other in wanted.values()
            ]
            response = await self._client.request(
                connection, LEAVE_GROUP, {"group_id": group_id, "members": rows}
            )
            if response.error_code:
                raise error_from_wire(response.error_code, f"group {group_id!r}")
            return Outcomes(
                {
                    group_id: {
                        row.group_instance_id or row.member_id: row.error_code
                        for row in response.members
                    }
                },
                {},
            )

        codes = (
            raised(
                (await self._each_coordinated(what, [group_id], KeyType.GROUP, request))[group_id]
            )
            if wanted
            else {}
        )
        return {
            each: _removal(group_id, each, codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR))
            for each in wanted
        }


def _removal(group_id: str, name: str, code: int) -> ClientError | None:
    if not code:
        return None
    missing = "it is not in the group" if code == ErrorCode.UNKNOWN_MEMBER_ID else None
    error = error_from_wire(code, f"member {name!r} of group {group_id!r}", missing)
    return ClientError(
        error.code,
        error.message,
        remedy=f"list the members with `mqctl group describe {shlex.quote(group_id)}`",
    )


def _is_other(outcome: object) -> bool:
    """Whether the group is no KIP-848 group, or unknown."""
    return outcome is None or (
        isinstance(outcome, ClientError) and outcome.code is ErrorCode.GROUP_ID_NOT_FOUND
    )


def _outcomes(rows: Iterable[Any], result: Any) -> Outcomes:
    """Sort rows about groups into results and groups to retry."""
    outcomes = Outcomes({}, {})
    for row in rows:
        if not row.error_code:
            outcomes.done[row.group_id] = result(row)
            continue
        subject, message = f"group {row.group_id!r}", getattr(row, "error_message", None)
        error = (
            does_not_exist(ErrorCode.GROUP_ID_NOT_FOUND, subject)
            if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            else error_from_wire(row.error_code, subject, message)
        )
        (outcomes.to_retry if error.retriable else outcomes.done)[row.group_id] = error
    return outcomes


def _classic(row: Any, coordinator: str) -> GroupDescription:
    members = tuple(_classic_member(each, row.protocol_type) for each in row.members)
    return GroupDescription(
        row.group_id,
        "classic",
        row.group_state,
        row.protocol_type,
        row.protocol_data,
        coordinator,
        -1,
        members,
        row.state_since_ms,
    )


def _classic_member(row: Any, protocol_type: str) -> GroupMember:
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            topics = decode_subscription(row.member_metadata).topics if row.member_metadata else ()
            assignment = decode_assignment(row.member_assignment)
        except ProtocolError:
            pass  # A client with another format: shown without its partitions.
    return GroupMember(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        topics,
        tuple(sorted(assignment)),
        awaited=row.awaited,
    )


def _modern(row: Any, coordinator: str) -> GroupDescription:
    members = tuple(
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            tuple(each.subscribed_topic_names),
            _assigned(each.assignment),
            each.rack_id,
            each.member_epoch,
            _assigned(each.target_assignment),
            each.subscribed_topic_regex or None,
        )
        for each in row.members
    )
    return GroupDescription(
        row.group_id,
        "consumer",
        row.group_state,
        PROTOCOL_TYPE,
        row.assignor_name,
        coordinator,
        row.group_epoch,
        members,
    )


def _share(row: Any, coordinator: str) -> GroupDescription:
    members = tuple(
        GroupMember(
            each.member_id,
            None,
            each.client_id,
            each.client_host,
            tuple(each.subscribed_topic_names),
            _assigned(each.assignment),
            each.rack_id,
            each.member_epoch,
        )
        for each in row.members
    )
    return GroupDescription(
        row.group_id,
        "share",
        row.group_state,
        "share",
        row.assignor_name,
        coordinator,
        row.group_epoch,
        members,
    )


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(row.topic_name, index)
            for row in assignment.topic_partitions
            for index in row.partitions
        )
    )
