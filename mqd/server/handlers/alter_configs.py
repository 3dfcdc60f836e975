"""AlterConfigs (key 33), versions 0 to 2: replaces all overrides of a resource. Runs on the
controller.

v2 flexible. Old clients only; IncrementalAlterConfigs changes single keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from mqd.controller.configs import (
    AlterConfigs,
    Change,
    Operation as ConfigOperation,
    ResourceAltered,
    ResourceChanges,
    ResourceType,
)
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_CHANGES_MAX, CONFIG_RESOURCES_MAX
from mqd.protocol.slices import Slices
from mqd.security.acls import CLUSTER_NAME, Operation, ResourceType as AclResource
from mqd.server.authorization import is_authorized, permissions_of, refusal
from mqd.server.context import Context
from mqd.server.delay_access import relay_refusal
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller, log_without_effect
from mqd.server.portions import with_fields
from mqd.server.slices import finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    node = context.node
    check_number(request)
    request, denied = await finished_in_slices(without_denied(context, request))
    if denied and not request.resources:
        return {"responses": denied}
    op = AlterConfigs(
        tuple(
            ResourceChanges(
                resource.resource_type,
                resource.resource_name,
                tuple(Change(row.name, ConfigOperation.SET, row.value) for row in resource.configs),
            )
            for resource in request.resources
        ),
        node.config,
        incremental=False,
        validate_only=request.validate_only,
    )

    async def here() -> Mapping[str, Any]:
        return {"responses": rows(await node.controller.submit(op))}

    response = await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)
    return {**response, "responses": [*denied, *response["responses"]]} if denied else response


_AUTHORIZED_AS = {
    ResourceType.TOPIC: AclResource.TOPIC,
    ResourceType.GROUP: AclResource.GROUP,
    ResourceType.BROKER: AclResource.CLUSTER,
    ResourceType.BROKER_LOGGER: AclResource.CLUSTER,
    ResourceType.CLIENT_METRICS: AclResource.CLUSTER,
}
"""Which type of ACL protects the configuration of a resource."""


def acl_resource(resource: Any) -> tuple[AclResource, str] | None:
    """The resource of ACLs for a row of a request. None for a type that does not exist."""
    of_acls = _AUTHORIZED_AS.get(resource.resource_type)
    if of_acls is None:
        return None
    return of_acls, CLUSTER_NAME if of_acls is AclResource.CLUSTER else resource.resource_name


def without_denied(context: Context, request: Any) -> Slices[tuple[Any, list[dict[str, Any]]]]:
    """The request without resources whose configuration the client may not change, and a row for
    each of these. A resource that is named twice stays: the controller refuses it.
    """
    if permissions_of(context) is None:
        return request, []
    times = Counter((row.resource_type, row.resource_name) for row in request.resources)
    allowed, denied = [], []
    for row in request.resources:
        found = acl_resource(row)
        yield 1
        error = None
        if found is not None and times[row.resource_type, row.resource_name] == 1:
            if is_authorized(context, Operation.ALTER_CONFIGS, *found):
                error = relay_refusal(context, {one.name: one.value for one in row.configs})
            else:
                error = refusal(found[0])
        if error is None:
            allowed.append(row)
            continue
        denied += rows(
            [ResourceAltered(row.resource_type, row.resource_name, error.code, error.message)]
        )
    return with_fields(request, resources=allowed), denied


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
