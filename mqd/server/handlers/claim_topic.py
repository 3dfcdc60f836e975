"""ClaimTopic (key 32020), version 0: the owner of a topic among the transactional ids.

Peer listener only, on the controller.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.topic_claims import ClaimTopic
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context


async def handle(context: Context, request: Any) -> dict[str, Any]:
    node = context.node
    await node.controller.submit(
        ClaimTopic(
            request.topic, request.transactional_id, request.expected_owner, tuple(request.fenced)
        )
    )
    return {"error_code": ErrorCode.NONE, "metadata_index": node.image.index}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "metadata_index": -1}
