"""AlterConfigs (key 33), versions 0 to 2: replaces all overrides of a resource. Runs on the controller.

v2 flexible. Old clients only; IncrementalAlterConfigs changes single keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mqd.controller.configs import AlterConfigs, Change, Operation, ResourceAltered, ResourceChanges
from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    op = AlterConfigs(
        tuple(
            ResourceChanges(
                resource.resource_type,
                resource.resource_name,
                tuple(Change(row.name, Operation.SET, row.value) for row in resource.configs),
            )
            for resource in request.resources
        ),
        node.config,
        incremental=False,
        validate_only=request.validate_only,
    )

    async def here() -> Mapping[str, Any]:
        return {"responses": rows(await node.controller.submit(op))}

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def rows(results: Iterable[ResourceAltered]) -> list[dict[str, Any]]:
    """The rows of an answer, here and in IncrementalAlterConfigs."""
    return [
        {
            "error_code": result.error_code,
            "error_message": result.error_message,
            "resource_type": result.resource_type,
            "resource_name": result.resource_name,
        }
        for result in results
    ]


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "responses": rows(
            ResourceAltered(resource.resource_type, resource.resource_name, error.code, error.message or None)
            for resource in request.resources
        )
    }
