"""Shared by the handlers of administrative APIs: forwarding to the controller."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError
from mqd.protocol.apis import by_key
from mqd.server.context import PEER, Context

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of a controller request that names none (Kafka's `request.timeout.ms`).
"""


async def at_controller(
    context: Context,
    request: Mapping[str, Any],
    here: Callable[[], Awaitable[Mapping[str, Any]]],
    timeout_ms: int,
    *,
    version: int | None = None,
) -> Mapping[str, Any]:
    """Call `here` on the controller's node; any other node forwards the request to it, in
    `version`, or the client's.

    A forwarded request is not forwarded again: NOT_CONTROLLER makes the sender refresh its
    metadata. The requests of this node's clients wait for slots. Raises MqError REQUEST_TIMED_OUT.
    """
    if context.listener == PEER:
        return await here()
    api = by_key(context.header.api_key)
    assert api is not None
    deadline = trio.current_time() + max(0, timeout_ms) / 1000
    with trio.move_on_at(deadline):
        async with context.node.admin_slots.slot(context.peer):
            return await context.node.controller.at_controller(
                here,
                api.name,
                context.header.api_version if version is None else version,
                request,
                timeout=max(0.0, deadline - trio.current_time()),
            )
    raise MqError(ErrorCode.REQUEST_TIMED_OUT, "Earlier requests of clients took the whole time.")


def log_without_effect(kind: str, name: str, message: str) -> None:
    """Log configs that a client set and that have no effect. Few clients show a message without an
    error.
    """
    logger.warning(
        "configuration keys without effect %s=%s message=%s", kind, name or "all", message
    )


def require_peer(context: Context, node_id: int) -> None:
    """Refuse a request that only a node of this cluster may send, and only for itself."""
    if context.listener != PEER or context.peer_node is None:
        raise MqError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Only nodes of this cluster may send this request, to the peer listener.",
        )
    if context.peer_node != node_id:
        raise MqError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Node {context.peer_node} sent a request in the name of node {node_id}.",
        )
