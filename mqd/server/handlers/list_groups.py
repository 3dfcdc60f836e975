"""ListGroups (key 16), versions 0 to 5: the groups whose coordinator this node is. A client queries
every node.

v4 states (KIP-518). v5 types (KIP-848). While any partition is loading here, the request fails as a
whole, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mqd.errors import MqError
from mqd.protocol.slices import Slices
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, is_authorized_for_cluster
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.slices import finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    responses = await context.node.groups.call_everywhere(call_of(context, request))
    groups = (row for response in responses for row in response["groups"])
    if is_authorized_for_cluster(context, Operation.DESCRIBE, is_logged=False):
        return {"groups": list(groups)}
    return {
        "groups": await finished_in_slices(_describable(context, groups)),
    }


def _describable(
    context: Context, groups: Iterable[Mapping[str, Any]]
) -> Slices[list[Mapping[str, Any]]]:
    found = []
    for row in groups:
        if is_authorized(
            context, Operation.DESCRIBE, ResourceType.GROUP, row["group_id"], is_logged=False
        ):
            found.append(row)
        yield 1
    return found


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
