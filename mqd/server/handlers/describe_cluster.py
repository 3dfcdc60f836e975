"""DescribeCluster (key 60), versions 0 to 2: the cluster's id, controller and brokers (KIP-700).

v1 endpoint type: brokers (1) or controllers (2), and only brokers are served here (KIP-919). v2
fenced brokers, if requested. A tagged field of mqd requests the usage of this node's bounds on
metadata and coordinators.
"""

from __future__ import annotations

from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation
from mqd.server.authorization import cluster_operations, is_authorized_for_cluster
from mqd.server.context import Context, Node
from mqd.server.handlers.metadata import controller_id
from mqd.usage import Usage

_BROKERS = 1
_CONTROLLERS = 2


def handle(context: Context, request: Any) -> dict[str, Any]:
    if request.endpoint_type == _CONTROLLERS:
        raise MqError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request is for controllers, and this is an endpoint of brokers.",
        )
    if request.endpoint_type != _BROKERS:
        raise MqError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Endpoint type {request.endpoint_type} does not exist: use 1 (brokers).",
        )
    node, image = context.node, context.node.image
    wants_usage = request.usage_wanted and is_authorized_for_cluster(context, Operation.DESCRIBE)
    usage = _usage(node) if wants_usage else {}
    brokers = [image.brokers[node_id] for node_id in sorted(image.brokers)]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": controller_id(context),
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": address[0],
                "port": address[1],
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for broker in brokers
            if (request.include_fenced_brokers or not broker.fenced)
            and (address := image.address_on(context.listener_name, broker)) is not None
        ],
        "cluster_authorized_operations": cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
        "usage": [
            {"bound": name, "used_bytes": one.used, "bytes_max": one.most}
            for name, one in usage.items()
        ],
    }


def _usage(node: Node) -> dict[str, Usage]:
    """The usage of the metadata, and of the fullest shard of each coordinator here, by the name
    of its partition.
    """
    found = {"metadata": node.controller.usage()}
    for coordinator in (node.groups, node.transactions, node.shares):
        if accounts := [shard.account for shard in coordinator.shards()]:
            fullest = max(accounts, key=lambda account: account.usage().share)
            found[fullest.name] = fullest.usage()
    return found


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "error_message": error.message or None,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "brokers": [],
    }
