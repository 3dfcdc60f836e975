"""FindCoordinator (key 10), versions 0 to 6: the coordinator of a group or a transactional id.

v1 key type: group (0) or transaction (1). v3 flexible. v4 several keys at once. v6 share partitions
(2). The coordinator of a key is the leader of one partition of an internal topic, by the key's
hash. While that topic is being created, and while the partition has no leader, the error is
COORDINATOR_NOT_AVAILABLE, and clients retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from mqd.controller.image import BrokerImage
from mqd.coordinator.partitioning import partition_for
from mqd.errors import ErrorCode, MqError
from mqd.limits import COORDINATOR_KEY_BYTES_MAX
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require, require_cluster
from mqd.server.context import Context
from mqd.server.share_state import parse_coordinator_key
from mqd.server.slices import KEY_CHARS_A_ROW, listed_in_slices
from mqd.types import GROUPS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

GROUP = 0
TRANSACTION = 1
SHARE = 2

_TOPICS = {GROUP: GROUPS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC, SHARE: SHARE_STATE_TOPIC}
_SHARE_FROM = 6
_SEVERAL_FROM = 4


def handle(context: Context, request: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    if context.header.api_version < _SEVERAL_FROM:
        return _row(context, request.key, request.key_type)
    rows = (_row(context, key, request.key_type) for key in request.coordinator_keys)
    if sum(map(len, request.coordinator_keys)) > COORDINATOR_KEY_BYTES_MAX:
        return _respond_in_slices(rows)
    return {"coordinators": list(rows)}


async def _respond_in_slices(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {
        "coordinators": await listed_in_slices(
            rows, lambda row: 1 + len(row["key"]) // KEY_CHARS_A_ROW
        )
    }


def _row(context: Context, key: str, key_type: int) -> dict[str, Any]:
    try:
        broker = find(context, key, key_type)
    except MqError as error:
        return _refusal(key, error)
    address = context.node.image.address_on(context.listener_name, broker)
    if address is None:
        return _refusal(
            key,
            MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The coordinator, broker {broker.node_id}, has no listener "
                f"{context.listener_name}.",
            ),
        )
    return {
        "key": key,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "node_id": broker.node_id,
        "host": address[0],
        "port": address[1],
    }


def _check_authorized(context: Context, key: str, key_type: int) -> None:
    if key_type == GROUP:
        require(context, Operation.DESCRIBE, ResourceType.GROUP, key)
    elif key_type == TRANSACTION:
        require(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
    elif key_type == SHARE:
        if context.header.api_version < _SHARE_FROM:
            raise MqError(ErrorCode.INVALID_REQUEST, "Share partitions need version 6.")
        require_cluster(context, Operation.CLUSTER_ACTION)


def find(context: Context, key: str, key_type: int) -> BrokerImage:
    """The coordinator of a key.

    Raises the error of a key that the client may not DESCRIBE, INVALID_REQUEST for a type that has
    none here, COORDINATOR_NOT_AVAILABLE for now.
    """
    _check_authorized(context, key, key_type)
    name = _TOPICS.get(key_type)
    if name is None:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"There is no coordinator for keys of type {key_type}; groups are 0, transactions 1, "
            "share partitions 2.",
        )
    if key_type == SHARE and parse_coordinator_key(key) is None:
        raise MqError(ErrorCode.INVALID_REQUEST, f"Not a share partition: {key!r}.")
    if len(key.encode()) > COORDINATOR_KEY_BYTES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The name of a group or a transaction has at most {COORDINATOR_KEY_BYTES_MAX} bytes.",
        )
    image = context.node.image
    topic = image.topics.get(name)
    if topic is None:
        context.node.controller.create_topic_soon(name)
        raise MqError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{name} is being created, when enough nodes for its replicas are registered.",
        )
    partition = partition_for(key, len(topic.partitions))
    broker = image.brokers.get(topic.partitions[partition].leader)
    if broker is None or broker.fenced:
        raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}-{partition} has no leader now.")
    return broker


def _refusal(key: str, error: MqError) -> dict[str, Any]:
    return {
        "key": key,
        "error_code": error.code,
        "error_message": error.message,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
