"""DescribeAcls (key 29), versions 1 to 3: the ACLs that match a filter, by resource pattern.

v1 pattern types. v2 flexible. v3 resources of type USER. This node responds from its own metadata,
as Apache Kafka does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.controller.image import MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.security.acl_filters import AclFilter
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.acls import entry_row, filter_of, pattern_row, require_authorizer
from mqd.server.slices import finished_soon


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE)
    require_authorizer(context.node)
    resources = await finished_soon(_resources(context.node.image, filter_of(request)))
    return {"error_code": ErrorCode.NONE, "error_message": "", "resources": resources}


def _resources(
    image: MetadataImage, wanted: AclFilter
) -> Generator[int, None, list[Mapping[str, Any]]]:
    """A portion for each slice: the ACLs may change between two slices."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for acl in list(image.acls.values()):
        if wanted.matches(acl):
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            row = found.get(pattern)
            if row is None:
                row = found[pattern] = {**pattern_row(acl), "acls": []}
            row["acls"].append(entry_row(acl))
        yield 1
    return list(found.values())


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "resources": []}
