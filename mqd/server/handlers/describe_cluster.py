"""DescribeCluster (key 60), versions 0 to 2: the cluster's id, controller and brokers (KIP-700).

v1 endpoint type: brokers (1) or controllers (2), and only brokers answer here (KIP-919). v2 fenced brokers on demand.
"""

from __future__ import annotations

from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import cluster_operations
from mqd.server.handlers.metadata import controller_id

_BROKERS = 1
_CONTROLLERS = 2


def handle(context: Context, request: Any) -> dict[str, Any]:
    if request.endpoint_type == _CONTROLLERS:
        raise MqError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "This is an endpoint of brokers, and controllers were asked for.")
    if request.endpoint_type != _BROKERS:
        raise MqError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"There is no endpoint type {request.endpoint_type}.")
    image = context.node.image
    brokers = [image.brokers[node_id] for node_id in sorted(image.brokers)]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": controller_id(context),
        "brokers": [
            {"broker_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack, "is_fenced": broker.fenced}
            for broker in brokers
            if request.include_fenced_brokers or not broker.fenced
        ],
        "cluster_authorized_operations": cluster_operations(request.include_cluster_authorized_operations),
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "endpoint_type": _BROKERS, "cluster_id": "", "brokers": []}
