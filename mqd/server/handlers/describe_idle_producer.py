"""DescribeIdleProducer (key 32021), version 0: how long a transactional id has had no transaction.

Peer listener only, on the coordinator of the transactional id.
"""

from __future__ import annotations

from typing import Any

from mqd.coordinator.txn.operations import DescribeIdleProducer
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context, Node


async def handle(context: Context, request: Any) -> dict[str, Any]:
    return await describe(context.node, request.transactional_id)


async def describe(node: Node, transactional_id: str) -> dict[str, Any]:
    """Also for the node itself. Raises MqError if this node is not the coordinator."""
    index = node.image.index  # the response is at least as new
    op = DescribeIdleProducer(transactional_id)
    try:
        found = await node.transactions.call(transactional_id, op)
    except MqError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return {"error_code": error.code, "idle_ms": -1, "metadata_index": index}
    return {"error_code": ErrorCode.NONE, **found, "metadata_index": index}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "idle_ms": -1, "metadata_index": -1}
