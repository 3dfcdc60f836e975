"""ReportOfflineReplicas (key 32002), version 0: replicas of a broker are lost.

Peer listener only, on the controller.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.isr import ReportOfflineReplicas
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import require_peer
from mqd.types import NodeId


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require_peer(context, request.broker_id)
    replicas = tuple(
        (topic.topic_id, partition) for topic in request.topics for partition in topic.partitions
    )
    await context.node.controller.submit(
        ReportOfflineReplicas(NodeId(request.broker_id), request.broker_epoch, replicas)
    )
    return {"error_code": ErrorCode.NONE}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code}
