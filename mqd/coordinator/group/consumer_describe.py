"""The row of a group in ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.errors import ErrorCode


def described(
    group: ConsumerGroup, default_assignor: str, topic_name: Callable[[UUID], str | None]
) -> dict[str, Any]:
    def rows(*owned: Mapping[UUID, Iterable[int]]) -> dict[str, Any]:
        found: dict[UUID, set[int]] = {}
        for one in owned:
            for topic_id, partitions in one.items():
                found.setdefault(topic_id, set()).update(partitions)
        return {
            "topic_partitions": [
                {
                    "topic_id": topic_id,
                    "topic_name": name,
                    "partitions": sorted(found[topic_id]),
                }
                for topic_id in sorted(found)
                if (name := topic_name(topic_id)) is not None
            ]
        }

    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state_name(),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor() or default_assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": list(member.topic_names),
                "subscribed_topic_regex": member.topic_regex,
                "assignment": rows(member.assigned, member.revoking),
                "target_assignment": rows(group.targets.get(member.member_id, {})),
                "member_type": 0 if member.uses_classic else 1,
            }
            for member in group.members.values()
        ],
    }
