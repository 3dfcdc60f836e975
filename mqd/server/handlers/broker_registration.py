"""BrokerRegistration (key 62), versions 0 to 4: a node of this cluster starts. Peer listener only.

v2 log directories. v3 the previous broker epoch. Before metadata version 3, only the first listener
counts.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.brokers import Register
from mqd.controller.endpoints import BrokerEndpoint, stored_endpoints
from mqd.controller.records import SetScramCredential
from mqd.errors import ErrorCode, MqError
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.server.context import Context
from mqd.server.handlers.admin import require_peer
from mqd.types import NO_EPOCH, NodeId


async def handle(context: Context, request: Any) -> dict[str, Any]:
    require_peer(context, request.broker_id)
    if not request.listeners:
        raise MqError(ErrorCode.INVALID_REGISTRATION, "A broker has at least one listener.")
    node = context.node
    peer = node.peers.nodes.get(request.broker_id)
    if peer is None:
        raise MqError(
            ErrorCode.INVALID_REGISTRATION,
            f"Node {request.broker_id} is not in the peers file of node {node.node_id}.",
        )
    listener = request.listeners[0]
    expected = (peer.advertised_host, peer.advertised_port)
    if not request.are_listeners_configured and (listener.host, listener.port) != expected:
        raise MqError(
            ErrorCode.INVALID_REGISTRATION,
            f"Node {peer.id} registers {listener.host}:{listener.port} as its address for clients; "
            f"the peers file of node {node.node_id} has "
            f"{peer.advertised_host}:{peer.advertised_port}. Make the peers files the same.",
        )
    op = Register(
        NodeId(request.broker_id),
        request.cluster_id,
        request.incarnation_id,
        listener.host,
        listener.port,
        request.rack,
        request.previous_broker_epoch if context.header.api_version >= 3 else NO_EPOCH,
        request.disk_serial,
        stored_endpoints(
            tuple(
                BrokerEndpoint(one.name, one.security_protocol, one.host, one.port)
                for one in request.listeners
            )
        ),
        tuple(
            SetScramCredential(
                user.name,
                ScramMechanism(user.mechanism),
                ScramCredential(
                    user.iterations,
                    bytes(user.salt),
                    bytes(user.stored_key),
                    bytes(user.server_key),
                ),
            )
            for user in request.first_users
        ),
        request.metadata_version_max,
    )
    return {
        "error_code": ErrorCode.NONE,
        "broker_epoch": await context.node.controller.register(op),
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "broker_epoch": -1}
