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

from mqd.coordinator.group.share import PartitionsInitialized
from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import refusal, require, split
from mqd.server.context import Context, Node
from mqd.server.coordinators import call_of
from mqd.server.slices import finished_in_slices
from mqd.share.ports import ShareKey

logger = logging.getLogger(__name__)

_INITIALIZED_AT_ONCE: Final = 1_000
"""Partitions whose state one heartbeat creates. The next one creates more."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    if request.subscribed_topic_names:
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
    initialized = await _initialize(context.node, request.group_id, missing)
    if not initialized:
        return response
    await groups.call(
        request.group_id,
        call._replace(
            api="PartitionsInitialized",
            request=PartitionsInitialized(request.group_id, initialized),
        ),
    )
    again = SimpleNamespace(
        group_id=request.group_id,
        member_id=response["member_id"],
        member_epoch=response["member_epoch"],
        rack_id=None,
        subscribed_topic_names=None,
    )
    second = await groups.call(request.group_id, call._replace(request=again))
    return {**response, **second}


async def _initialize(
    node: Node, group_id: str, missing: Mapping[UUID, tuple[int, ...]]
) -> dict[UUID, list[int]]:
    """Create these states. Returns the partitions for which that succeeded."""
    done: dict[UUID, list[int]] = {}
    places = [(topic_id, one) for topic_id, found in missing.items() for one in found]
    for topic_id, partition in places[:_INITIALIZED_AT_ONCE]:
        try:
            await node.share_state.initialize(
                ShareKey(group_id, topic_id, partition), state_epoch=0
            )
        except MqError as error:
            logger.warning(
                "cannot create the state of a share partition group=%s topic_id=%s partition=%d "
                "reason=%s effect='the next heartbeat of a member tries again'",
                group_id,
                topic_id,
                partition,
                error,
            )
            break
        done.setdefault(topic_id, []).append(partition)
    return done


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
