"""AllocateProducerIds (key 67), version 0: a block of producer ids for a node of this cluster.

Peer listener only.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.producer_ids import AllocateProducerIds
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import require_peer
from mqd.types import NodeId


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require_peer(context, request.broker_id)
    block = await context.node.controller.submit(
        AllocateProducerIds(NodeId(request.broker_id), request.broker_epoch)
    )
    return {
        "error_code": ErrorCode.NONE,
        "producer_id_start": block.first,
        "producer_id_len": block.length,
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "producer_id_start": -1, "producer_id_len": 0}
