"""DeleteAcls (key 31), versions 1 to 3: deletes the ACLs that match any filter. Runs on the
controller.

v1 pattern types. v2 flexible. v3 resources of type USER. An ACL that matches two filters is in both
results, as in Apache Kafka. Kafka closes the connection for a type, operation or permission 0; here
the filter gets INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any
from uuid import UUID

from mqd.controller.acls import DeleteAcls
from mqd.controller.image import MetadataImage
from mqd.controller.metadata_version import check_security_allowed
from mqd.errors import ErrorCode, MqError
from mqd.limits import ACL_FILTERS_MAX, ACLS_DELETED_MAX
from mqd.security.acl_filters import AclFilter
from mqd.security.acls import Operation, PatternType, Permission, ResourceType
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.acls import entry_row, filter_of, pattern_row, require_authorizer
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller
from mqd.server.slices import finished_soon


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)
    node = context.node
    require_authorizer(node)
    check_security_allowed(node.image)
    if len(request.filters) > ACL_FILTERS_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A request has at most {ACL_FILTERS_MAX} filters: split the request.",
        )
    filters = [filter_of(row) for row in request.filters]

    async def here() -> Mapping[str, Any]:
        node.controller.check_is_controller()
        matching, rows = await finished_soon(_matching(node.image, filters))
        await node.controller.submit(DeleteAcls(tuple(matching)))
        return {"filter_results": rows}

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def _matching(
    image: MetadataImage, filters: list[AclFilter]
) -> Generator[int, None, tuple[dict[UUID, None], list[dict[str, Any]]]]:
    """The ids that match any filter, and a result for each filter. Raises INVALID_REQUEST for too
    many.
    """
    acls = list(image.acls.items())
    matching: dict[UUID, None] = {}
    matches = 0
    rows = []
    for wanted in filters:
        found: list[dict[str, Any]] = []
        try:
            _check(wanted)
        except MqError as error:
            rows.append(_refused(error))
            continue
        for acl_id, acl in acls:
            if wanted.matches(acl):
                matching[acl_id] = None
                matches += 1
                found.append({"error_message": None, **pattern_row(acl), **entry_row(acl)})
            yield 1
        if matches > ACLS_DELETED_MAX:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"A request deletes at most {ACLS_DELETED_MAX} ACLs: use narrower filters.",
            )
        rows.append({"matching_acls": found, "error_message": None})
        yield 1
    return matching, rows


def _check(wanted: AclFilter) -> None:
    if ResourceType.UNKNOWN is wanted.resource_type or PatternType.UNKNOWN is wanted.pattern_type:
        raise MqError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if Operation.UNKNOWN is wanted.operation or Permission.UNKNOWN is wanted.permission:
        raise MqError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")


def _refused(error: MqError) -> dict[str, Any]:
    return {
        "error_code": error.code,
        "error_message": error.message or None,
        "matching_acls": [],
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"filter_results": [_refused(error)] * len(request.filters)}
