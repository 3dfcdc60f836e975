"""UnregisterBroker (key 64), version 0: remove the registration of a broker that will not return.

Runs on the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.brokers import Unregister
from mqd.errors import MqError
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller
from mqd.types import NodeId


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)

    async def here() -> Mapping[str, Any]:
        await context.node.controller.submit(Unregister(NodeId(request.broker_id)))
        return {"error_code": 0, "error_message": None}

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
