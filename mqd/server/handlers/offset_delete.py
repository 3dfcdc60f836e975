"""OffsetDelete (key 47), version 0: a group forgets how far it has read some partitions. Answered by the group's coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return await context.node.groups.call(request.group_id, call_of(context, request))


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": int(error.code), "topics": []}
