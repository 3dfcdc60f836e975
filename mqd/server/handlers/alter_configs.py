"""AlterConfigs (key 33), versions 0 to 2: replaces all overrides of a resource. Runs on the
controller.

v2 flexible. Old clients only; IncrementalAlterConfigs changes single keys.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from mqd.controller.configs import (
    AlterConfigs,
    Change,
    Operation,
    ResourceAltered,
    ResourceChanges,
    ResourceType,
)
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_CHANGES_MAX, CONFIG_RESOURCES_MAX
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller, log_without_effect


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    check_number(request)
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
    """The rows of the response, here and in IncrementalAlterConfigs."""
    results = list(results)
    for result in results:
        if not result.error_code and result.error_message:
            log_without_effect(
                ResourceType(result.resource_type).name.lower(),
                result.resource_name,
                result.error_message,
            )
    return [
        {
            "error_code": result.error_code,
            "error_message": result.error_message,
            "resource_type": result.resource_type,
            "resource_name": result.resource_name,
        }
        for result in results
    ]


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    responses = []
    for resource in request.resources:
        responses += rows(
            [
                ResourceAltered(
                    resource.resource_type,
                    resource.resource_name,
                    error.code,
                    error.message or None,
                )
            ]
        )
        yield 1
    return {"responses": responses}


def check_number(request: Any) -> None:
    """Raise INVALID_REQUEST for more resources or keys than one request alters, before any
    of them is read.
    """
    if len(request.resources) > CONFIG_RESOURCES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request alters at most {CONFIG_RESOURCES_MAX} resources: send several.",
        )
    if sum(len(resource.configs) for resource in request.resources) > CONFIG_CHANGES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request alters at most {CONFIG_CHANGES_MAX} values: send several.",
        )
