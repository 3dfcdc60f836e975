"""The row of a group in ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.errors import ErrorCode
from mqd.protocol.slices import Rows


def described(
    group: ConsumerGroup, default_assignor: str, topic_name: Callable[[UUID], str | None]
) -> dict[str, Any]:
    def rows(*owned: Mapping[UUID, Iterable[int]]) -> dict[str, Any]:
        def topic_row(place: tuple[UUID, str]) -> dict[str, Any]:
            topic_id, name = place
            partitions = {partition for one in owned for partition in one.get(topic_id, ())}
            return {"topic_id": topic_id, "topic_name": name, "partitions": sorted(partitions)}

        known = [
            (topic_id, name)
            for topic_id in sorted({*chain(*owned)}, key=attrgetter("int"))
            if (name := topic_name(topic_id)) is not None
        ]
        return {"topic_partitions": Rows(known, topic_row)}

    def member_row(found: tuple[ConsumerGroupMember, Assignment]) -> dict[str, Any]:
        member, target = found
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topic_names,
            "subscribed_topic_regex": member.topic_regex,
            "assignment": rows(member.assigned, member.revoking),
            "target_assignment": rows(target),
            "member_type": 0 if member.uses_classic else 1,
        }

    members = [(one, group.targets.get(one.member_id, {})) for one in group.members.values()]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state_name(),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor() or default_assignor,
        "members": Rows(members, member_row),
    }
