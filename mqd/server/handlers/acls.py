"""Shared by the handlers of ACL APIs: filters and ACLs of requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from mqd.errors import ErrorCode, MqError
from mqd.security.acl_filters import AclFilter
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.server.context import Node

EnumT = TypeVar("EnumT", bound=IntEnum)


def require_authorizer(node: Node) -> None:
    """Raise SECURITY_DISABLED if ACLs would have no effect."""
    if not node.authorizer.enforces:
        raise MqError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def number_of(kind: type[EnumT], number: int) -> EnumT:
    """The member with this number; UNKNOWN for a number of a later version."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def filter_of(row: Any) -> AclFilter:
    """The filter of a request, or of one of its rows."""
    return AclFilter(
        number_of(ResourceType, row.resource_type_filter),
        row.resource_name_filter,
        number_of(PatternType, row.pattern_type_filter),
        row.principal_filter,
        row.host_filter,
        number_of(Operation, row.operation),
        number_of(Permission, row.permission_type),
    )


def pattern_row(acl: Acl) -> Mapping[str, Any]:
    """The fields of a response that name the resources."""
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
    }


def entry_row(acl: Acl) -> Mapping[str, Any]:
    """The fields of a response that name who may, or must not, do what."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
