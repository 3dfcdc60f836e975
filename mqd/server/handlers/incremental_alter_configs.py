"""IncrementalAlterConfigs (key 44), versions 0 to 1: sets, deletes, appends to and subtracts from
single keys (KIP-339).

v1 flexible. Topics and nodes are changed by the controller; loggers are this process's own and are
changed right here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.configs import (
    AlterConfigs,
    Change,
    Operation,
    ResourceAltered,
    ResourceChanges,
    ResourceType,
    node_id_of,
)
from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller
from mqd.server.handlers.alter_configs import check_number, failed, rows, without_denied
from mqd.server.loggers import LEVELS, ROOT, SETTABLE, logger_levels, set_logger_level
from mqd.server.slices import finished_in_slices
from mqd.types import NodeId

__all__ = ["failed", "handle"]


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    check_number(request)
    request, denied = await finished_in_slices(without_denied(context, request))
    resources = [
        ResourceChanges(
            resource.resource_type,
            resource.resource_name,
            tuple(Change(row.name, row.config_operation, row.value) for row in resource.configs),
        )
        for resource in request.resources
    ]
    loggers = [
        resource for resource in resources if resource.resource_type == ResourceType.BROKER_LOGGER
    ]
    others = [
        resource for resource in resources if resource.resource_type != ResourceType.BROKER_LOGGER
    ]
    responses = rows(
        _alter_loggers(resource, node.node_id, len(loggers), request.validate_only)
        for resource in loggers
    )
    if others or not (loggers or denied):
        op = AlterConfigs(
            tuple(others), node.config, incremental=True, validate_only=request.validate_only
        )

        async def here() -> Mapping[str, Any]:
            return {"responses": rows(await node.controller.submit(op))}

        forwarded = {
            "resources": [
                row for row in request.resources if row.resource_type != ResourceType.BROKER_LOGGER
            ],
            "validate_only": request.validate_only,
        }
        response = await at_controller(context, forwarded, here, DEFAULT_TIMEOUT_MS)
        responses += response["responses"]
    return {"responses": [*denied, *responses]}


def _alter_loggers(
    resource: ResourceChanges, node_id: NodeId, times: int, validate_only: bool
) -> ResourceAltered:
    try:
        if times > 1:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                "A node's loggers are one resource: name it once in a request.",
            )
        if node_id_of(resource.resource_name) != node_id:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"This is node {node_id}. Send the request for the loggers of node "
                f"'{resource.resource_name}' to that node.",
            )
        known = logger_levels()
        for change in resource.changes:
            _check_logger(change, known)
    except MqError as error:
        return ResourceAltered(
            resource.resource_type, resource.resource_name, error.code, error.message
        )
    if not validate_only:
        for change in resource.changes:
            set_logger_level(
                change.name, None if change.operation == Operation.DELETE else change.value
            )
    return ResourceAltered(resource.resource_type, resource.resource_name)


def _check_logger(change: Change, known: Mapping[str, str]) -> None:
    name, operation, value = change
    if operation not in (Operation.SET, Operation.DELETE):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "A logger has one level: it can be set or deleted, not changed by operation "
            f"{operation}.",
        )
    if operation == Operation.SET and value is None:
        raise MqError(ErrorCode.INVALID_REQUEST, f"Logger '{name}' needs a level.")
    if name not in known:
        raise MqError(ErrorCode.INVALID_CONFIG, f"Logger '{name}' does not exist.")
    if operation == Operation.SET and value not in LEVELS:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"'{value}' is not a log level: use one of {', '.join(LEVELS)}.",
        )
    if operation == Operation.SET and value not in SETTABLE:
        text = (
            f"Logger '{name}' cannot be set to {value} by a client, because the node would "
            "no longer log warnings."
        )
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"{text} Set a level up to WARN, or restart the node with -o logging.level={value}.",
        )
    if operation == Operation.DELETE and name == ROOT:
        raise MqError(ErrorCode.INVALID_REQUEST, "The root logger must keep a level.")
