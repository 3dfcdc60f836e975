"""AlterPartition (key 56), versions 2 and 3: a leader wants other in-sync replicas. Peer listener
only, on the controller.

v3 the ISR comes with the broker epoch of each member (KIP-903).
"""

from __future__ import annotations

from typing import Any

from mqd.controller.isr import AlterPartitions, alter_partition_response
from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import require_peer


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require_peer(context, request.broker_id)
    op = AlterPartitions.of_request(request, context.header.api_version)
    return alter_partition_response(await context.node.controller.submit(op))


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "topics": []}
