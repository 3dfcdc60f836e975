"""BrokerHeartbeat (key 63), versions 0 to 2: a node of this cluster is alive, or stops. Peer
listener only.

v1 offline log directories. v2 cordoned ones. From v1 on the response has the index of the
controller's metadata, as a tagged field.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.brokers import Heartbeat
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import require_peer
from mqd.types import NodeId


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require_peer(context, request.broker_id)
    reply = await context.node.controller.heartbeat(
        Heartbeat(
            NodeId(request.broker_id),
            request.broker_epoch,
            request.current_metadata_offset,
            request.want_fence,
            request.want_shut_down,
            request.disk_serial,
            request.partitions_max,
            request.metadata_version_max,
            request.memory_partitions_max,
        )
    )
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": reply.caught_up,
        "is_fenced": reply.fenced,
        "should_shut_down": reply.should_shut_down,
        "metadata_index": reply.metadata_index,
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "is_caught_up": False,
        "is_fenced": True,
        "should_shut_down": False,
    }
