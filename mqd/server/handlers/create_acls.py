"""CreateAcls (key 30), versions 1 to 3: adds ACLs. Runs on the controller.

v1 pattern types. v2 flexible. v3 resources of type USER.

Apache Kafka closes the connection for a type, operation or permission 0, and responds with
UNKNOWN_SERVER_ERROR to ANY. Here both get INVALID_REQUEST, each ACL on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.acls import CreateAcls, NewAcl
from mqd.controller.metadata_version import check_security_allowed
from mqd.errors import ErrorCode, MqError
from mqd.limits import ACLS_CREATED_MAX
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.acls import number_of, require_authorizer
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)
    node = context.node
    require_authorizer(node)
    check_security_allowed(node.image)
    if len(request.creations) > ACLS_CREATED_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request creates at most {ACLS_CREATED_MAX} ACLs: split the request.",
        )

    async def here() -> Mapping[str, Any]:
        op = CreateAcls(
            tuple(NewAcl(node.entropy.uuid(), _acl_of(row)) for row in request.creations)
        )
        return {
            "results": [
                {"error_code": result.error_code, "error_message": result.error_message}
                for result in await node.controller.submit(op)
            ]
        }

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def _acl_of(row: Any) -> Acl:
    return Acl(
        number_of(ResourceType, row.resource_type),
        row.resource_name,
        number_of(PatternType, row.resource_pattern_type),
        row.principal,
        row.host,
        number_of(Operation, row.operation),
        number_of(Permission, row.permission_type),
    )


def failed(request: Any, error: MqError) -> dict[str, Any]:
    row = {"error_code": error.code, "error_message": error.message or None}
    return {"results": [row] * len(request.creations)}
