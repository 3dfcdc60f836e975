"""Authorization of client requests: checks for handlers, and their errors (Kafka's AuthHelper).

Only client requests are checked. Requests on the peer listener come from nodes of this cluster. The
node that got the client's request has checked it before it forwarded it to the controller or to
another node (I53). `authorizer.py` decides, `audit.py` logs.

Clients can read the groups and transactional ids of nodes (mqd/relay/names.py), but not use them,
whatever ACLs say and also without an authorizer (I54).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from mqd.config import STANDARD_AUTHORIZER, NodeConfig
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.protocol.apis import by_key
from mqd.protocol.schema import AUTHORIZED_OPERATIONS_UNKNOWN
from mqd.protocol.slices import Slices
from mqd.relay.names import is_reserved
from mqd.security.acls import CLUSTER_NAME, Operation, ResourceType
from mqd.security.authorizer import (
    Authorizer,
    Permissions,
    all_operations,
    parse_super_users,
)
from mqd.server.connection import Connection
from mqd.server.context import PEER, Context, Node

REFUSALS = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
    ResourceType.DELEGATION_TOKEN: (
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        "Delegation Token authorization failed.",
    ),
    ResourceType.USER: (
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        "Delegation Token authorization failed.",
    ),
}
"""The error of each resource type, with Kafka's message."""

_RESERVED_TYPES = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_DESCRIBING = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)

logger = logging.getLogger(__name__)

RowT = TypeVar("RowT")


def authorizer_of(config: NodeConfig) -> Authorizer:
    """The authorizer of a configuration. Logs an error if only a part of its keys is set."""
    if config["super.users"] and not config["authorizer.class.name"]:
        logger.error(
            "super.users has no effect without authorizer.class.name: every client may do "
            "everything remedy='set authorizer.class.name=%s, or remove super.users'",
            STANDARD_AUTHORIZER,
            extra={"always": True},
        )
    return Authorizer(
        parse_super_users(str(config["super.users"])),
        allow_if_no_acl=config.boolean("allow.everyone.if.no.acl.found"),
        enforces=bool(config["authorizer.class.name"]),
    )


def acls_changed(authorizer: Authorizer, delta: Delta, image: MetadataImage) -> None:
    """Apply a change of the metadata."""
    for acl_id in delta.acls_deleted:
        authorizer.remove(acl_id)
    for acl_id, acl in delta.acls_created.items():
        authorizer.add(acl_id, acl)
    assert len(authorizer) == len(image.acls), (len(authorizer), len(image.acls))


def acls_restored(
    authorizer: Authorizer, _: Delta, image: MetadataImage
) -> Generator[None, None, Callable[[], None]]:
    """`acls_changed` for a snapshot, which may have 100,000 ACLs: a second."""
    return authorizer.loading(image.acls)


def permissions_of(context: Context) -> Permissions | None:
    """What the client may do. None: everything."""
    authorizer = context.node.authorizer
    if not authorizer.enforces or context.listener == PEER:
        return None
    return authorizer.permissions(context.principal, context.peer.rpartition(":")[0])


def hot_permissions(node: Node, connection: Connection) -> Permissions | None:
    """`permissions_of` for Produce and consumer fetches, which have no Context."""
    authorizer = node.authorizer
    if not authorizer.enforces:
        return None
    return authorizer.permissions(connection.principal, connection.peer.rpartition(":")[0])


def may_use_topic(
    node: Node,
    permissions: Permissions,
    operation: Operation,
    name: bytes | None,
    topic_id: bytes | None,
    now: float,
    *,
    is_logged: bool = True,
) -> bool:
    """Whether a client may READ or WRITE a topic. Returns True for an unknown id: the caller
    reports UNKNOWN_TOPIC_ID. A denied topic is in the audit log each time. ◆ hot path: called if
    the cache has no True.
    """
    decisions = permissions.reads if operation is Operation.READ else permissions.writes
    if name is None:
        key, known = topic_id or b"", decisions.by_id
        topic = node.image.topics_by_id.get(UUID(bytes=key))
        if topic is None:
            return True
        text = topic.name
    else:
        key, known = name, decisions.by_name
        text = name.decode(errors="replace")
    rule = permissions.rule(operation, ResourceType.TOPIC, text)
    if key not in known:
        permissions.keep(known, key, rule.allowed)
    api = "Fetch" if operation is Operation.READ else "Produce"
    if is_logged:
        node.audit.note(permissions, operation, ResourceType.TOPIC, text, rule, api, now)
    return rule.allowed


def is_authorized(
    context: Context,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    is_logged: bool = True,
) -> bool:
    """`is_logged`: False for a check that only filters a list."""
    if not may_be_used_by_clients(resource_type, name, operation) and context.listener != PEER:
        return False
    permissions = permissions_of(context)
    if permissions is None:
        return True
    rule = permissions.rule(operation, resource_type, name)
    if is_logged:
        api = by_key(context.header.api_key)
        context.node.audit.note(
            permissions,
            operation,
            resource_type,
            name,
            rule,
            str(context.header.api_key) if api is None else api.name,
            context.now,
        )
    return rule.allowed


def may_be_used_by_clients(resource_type: ResourceType, name: str, operation: Operation) -> bool:
    """Whether this is no use of a group or transactional id of nodes."""
    return resource_type not in _RESERVED_TYPES or operation in _DESCRIBING or not is_reserved(name)


def refusal(resource_type: ResourceType) -> MqError:
    """The error for a resource that the client may not use."""
    return MqError(*REFUSALS[resource_type])


def require(context: Context, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Raise the error of the resource type if the client may not do this."""
    if not is_authorized(context, operation, resource_type, name):
        raise refusal(resource_type)


def require_cluster(context: Context, operation: Operation) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED if the client may not do this to the cluster."""
    require(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def is_authorized_for_cluster(
    context: Context, operation: Operation, *, is_logged: bool = True
) -> bool:
    return is_authorized(
        context, operation, ResourceType.CLUSTER, CLUSTER_NAME, is_logged=is_logged
    )


def is_authorized_for_any(
    context: Context, operation: Operation, resource_type: ResourceType
) -> Slices[bool]:
    """Whether the client may do this to at least one resource of a type (KIP-679)."""
    permissions = permissions_of(context)
    if permissions is None:
        return True
    return (yield from permissions.any_of_type(operation, resource_type))


def topic_operations(context: Context, name: str) -> int:
    """The bits of `topic_authorized_operations` (KIP-430)."""
    return _operations(context, ResourceType.TOPIC, name)


def group_operations(context: Context, group_id: str) -> int:
    """The bits of a group's `authorized_operations`."""
    return _operations(context, ResourceType.GROUP, group_id)


def cluster_operations(context: Context, requested: bool) -> int:
    """The bits of `cluster_authorized_operations`: none for a client that may not DESCRIBE it."""
    if not requested:
        return AUTHORIZED_OPERATIONS_UNKNOWN
    if not is_authorized_for_cluster(context, Operation.DESCRIBE):
        return 0
    return _operations(context, ResourceType.CLUSTER, CLUSTER_NAME)


def _operations(context: Context, resource_type: ResourceType, name: str) -> int:
    permissions = permissions_of(context)
    if permissions is None:
        return all_operations(resource_type)
    return permissions.operations(resource_type, name)


def split(
    context: Context,
    operation: Operation,
    resource_type: ResourceType,
    rows: Iterable[RowT],
    name_of: Callable[[Any], str | None] = itemgetter("name"),
) -> Slices[tuple[list[RowT], list[RowT]]]:
    """The rows of a request that the client may use, and those that it may not. In slices: each
    may have another name. A row without a name (None) is allowed: it gets another error.
    """
    if permissions_of(context) is None and (
        resource_type not in _RESERVED_TYPES or operation in _DESCRIBING
    ):
        return list(rows), []
    allowed: list[RowT] = []
    denied: list[RowT] = []
    decisions: dict[str, bool] = {}
    for row in rows:
        name = name_of(row)
        decision = True if name is None else decisions.get(name)
        if name is not None and decision is None:
            decision = decisions[name] = is_authorized(context, operation, resource_type, name)
            yield 1
        (allowed if decision else denied).append(row)
    return allowed, denied


def topic_name_of(context: Context, by_id: bool) -> Callable[[Any], str | None]:
    """The name of a topic that a request names, or names by id. None for an unknown id: as in
    Apache Kafka, its error is UNKNOWN_TOPIC_ID, which clients retry.
    """

    def of_id(topic: Any) -> str | None:
        found = context.node.image.topics_by_id.get(topic["topic_id"])
        return None if found is None else found.name

    return of_id if by_id else itemgetter("name")
