"""ListGroups (key 16), versions 0 to 5: the groups whose coordinator this node is. A client queries
every node.

v4 states (KIP-518). v5 types (KIP-848). While any partition is loading here, the request fails as a
whole, as in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.coordinators import call_of


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    responses = await context.node.groups.call_everywhere(call_of(context, request))
    return {"groups": [row for response in responses for row in response["groups"]]}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
