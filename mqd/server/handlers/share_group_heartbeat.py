"""ShareGroupHeartbeat (key 76), version 1: joins, stays in and leaves a share group (KIP-932).
Served by the group's coordinator.

A share partition must have a state at its share coordinator before it is assigned. This handler
creates the missing states, so that a new member has its partitions in its first response.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from mqd.coordinator.group.requests import check_names
from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.share_offsets import initialize
from mqd.server.share_requests import require_share_groups
from mqd.server.slices import finished_in_slices

logger = logging.getLogger(__name__)

_INITIALIZED_AT_ONCE: Final = 1_000
"""Partitions whose state one heartbeat creates. The next one creates more."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if request.subscribed_topic_names:
        check_names(request.subscribed_topic_names)  # here, so that long ones cost little
        _, denied = await finished_in_slices(
            split(
                context,
                Operation.DESCRIBE,
                ResourceType.TOPIC,
                request.subscribed_topic_names,
                str,
            )
        )
        if denied:
            raise refusal(ResourceType.TOPIC)
    groups, call = context.node.groups, call_of(context, request)
    response = await groups.call(request.group_id, call)
    missing = response.get("uninitialized")
    if not missing:
        return response
    epoch = response["group_epoch"]
    errors = await initialize(context, request.group_id, _some(missing), epoch)
    if errors:
        place, error = next(iter(errors.items()))
        logger.warning(
            "cannot create the states of share partitions group=%s partitions=%d topic_id=%s "
            "partition=%d reason=%s effect='the next heartbeat of a member tries again'",
            request.group_id,
            len(errors),
            place.topic_id,
            place.partition,
            error,
        )
        return response
    again = SimpleNamespace(
        group_id=request.group_id,
        member_id=response["member_id"],
        member_epoch=response["member_epoch"],
        rack_id=None,
        subscribed_topic_names=None,
    )
    second = await groups.call(request.group_id, call._replace(request=again))
    return {**response, **second}


def _some(missing: Mapping[UUID, tuple[int, ...]]) -> dict[UUID, tuple[int, ...]]:
    """As many partitions as one heartbeat initializes."""
    room, found = _INITIALIZED_AT_ONCE, {}
    for topic_id, partitions in missing.items():
        found[topic_id] = partitions[:room]
        room -= len(found[topic_id])
        if not room:
            break
    return found


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
