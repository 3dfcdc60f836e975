"""ACLs: created one by one, deleted by id. Validation and codes are Apache Kafka 4.3's.

The handler of DeleteAcls finds the ids that its filters match, in slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from mqd.controller.commands import check_fits
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.metadata_version import check_security_allowed
from mqd.controller.records import CreateAcl, DeleteAcl, MetadataRecord
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import ACL_BYTES_PER_REQUEST_MAX, ACL_NAME_BYTES_MAX
from mqd.security.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_DELETED_PER_PORTION: Final = 1_000


class NewAcl(NamedTuple):
    """A wanted ACL. `acl_id` is used if there is no such ACL yet."""

    acl_id: UUID
    acl: Acl


@dataclass(frozen=True, slots=True)
class CreateAcls:
    """Add ACLs. Each of them stands alone."""

    acls: tuple[NewAcl, ...]


class AclCreated(NamedTuple):
    """The result for one ACL of the request."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


def decide_create_acls(
    image: MetadataImage, op: CreateAcls, options: DecisionOptions
) -> ControllerResult:
    """Reply: one AclCreated for each ACL, in the order of the request. An ACL that exists already
    is no error.
    """
    check_security_allowed(image)
    room = Room(image, options.image_bytes_max)
    records: list[MetadataRecord] = []
    results = []
    wanted: set[Acl] = set()
    size = 0
    for acl_id, acl in op.acls:
        try:
            size += len(acl.resource_name) + len(acl.principal) + len(acl.host)
            if size > ACL_BYTES_PER_REQUEST_MAX:
                raise _invalid(
                    "The names, principals and hosts of one request have at most "
                    f"{ACL_BYTES_PER_REQUEST_MAX} characters together: split the request."
                )
            _check(acl)
            if acl not in wanted and image.acl_id(acl) is None:
                record = CreateAcl(acl_id, acl)
                check_fits(record)
                room.take(record)
                records.append(record)
                wanted.add(acl)
        except MqError as error:
            results.append(AclCreated(error.code, error.message))
            continue
        results.append(AclCreated())
    return ControllerResult(tuple(records), tuple(results))


def _check(acl: Acl) -> None:
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if len(acl.resource_name.encode()) > ACL_NAME_BYTES_MAX:
        raise _invalid(
            f"The resource name has {len(acl.resource_name.encode())} bytes. The longest name of a "
            f"resource has {ACL_NAME_BYTES_MAX}: use a shorter name or prefix."
        )
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {acl.permission.name}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )


def _invalid(message: str) -> MqError:
    return MqError(ErrorCode.INVALID_REQUEST, message)


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """Delete ACLs by id. Those that are gone already are no error."""

    acl_ids: tuple[UUID, ...]


def decide_delete_acls(
    image: MetadataImage, op: DeleteAcls, options: DecisionOptions
) -> ControllerResult:
    """Reply: none. In portions."""
    present: Iterator[UUID] = (acl_id for acl_id in op.acl_ids if acl_id in image.acls)
    portion = tuple(DeleteAcl(acl_id) for acl_id in islice(present, _DELETED_PER_PORTION))
    return ControllerResult(portion, more=next(present, None) is not None)
