"""Metadata (key 3), versions 0 to 13: live brokers, topics, and the leader of each partition.

v0 an empty list means all topics; v1 null does, and an empty list none; the controller's id, racks,
internal topics. v2 cluster id. v4 allow_auto_topic_creation. v5 offline replicas. v7 leader epochs.
v8 authorized operations. v9 flexible. v10 topic ids; requests by id from v12 on. v13 an error for
the whole response.

A node without contact to the controller knows only former leaders. It returns an error for each,
and clients send their request to another node.
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import Any, Final
from uuid import UUID

from mqd.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import (
    cluster_operations,
    is_authorized,
    is_authorized_for_cluster,
    topic_operations,
)
from mqd.server.context import Context
from mqd.server.slices import SLICE_ROWS, Pace, listed_in_slices
from mqd.topic_names import validate_topic_name
from mqd.types import INTERNAL_TOPICS, NO_NODE, ZERO_UUID, NodeId

_BY_ID_FROM = 12
_LISTENER_NOT_FOUND_FROM = 6
"""Earlier clients get LEADER_NOT_AVAILABLE, as in Kafka."""
_HIDDEN: Final[dict[str, Any]] = {"error_code": 0, "name": None, "partitions": ()}
"""The row of a topic that the response omits. It counts as work."""


def handle(context: Context, request: Any) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    node = context.node
    image = node.image
    version = context.header.api_version
    topics = request.topics
    if topics is not None and len(topics) > SLICE_ROWS:
        return _respond_for_many_topics(context, request)
    if version >= 10:
        _check_ids(topics or (), version)
    found: Iterable[dict[str, Any]]
    if topics is None or (version == 0 and not topics):
        found = _all(context)
    elif any(topic.topic_id != ZERO_UUID for topic in topics):
        found = _by_id(
            context,
            dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID),
        )
    else:
        create = request.allow_auto_topic_creation and node.config.boolean(
            "auto.create.topics.enable"
        )
        found = _by_name(context, dict.fromkeys(topic.name for topic in topics), create)
    if request.include_topic_authorized_operations:
        found = _with_operations(context, found)
    if _is_large(image, topics):
        return _respond_in_slices(context, request, found)
    return _respond(context, request, list(found))


def _is_large(image: MetadataImage, topics: Sequence[Any] | None) -> bool:
    """Whether the response has so many rows that other requests should not wait for it."""
    requested: Collection[Any] = topics or image.topics.values()
    if len(requested) > SLICE_ROWS:
        return True
    present = (
        image.topics.get(topic.name) or image.topics_by_id.get(topic.topic_id)
        for topic in requested
    )
    return sum(len(topic.partitions) for topic in present if topic is not None) > SLICE_ROWS


async def _respond_for_many_topics(context: Context, request: Any) -> Mapping[str, Any]:
    """As `handle`: names and ids are taken from the request in slices, too."""
    node, version, topics = context.node, context.header.api_version, request.topics
    names: dict[str, None] = {}
    ids: dict[UUID, None] = {}
    pace = Pace()
    for start in range(0, len(topics), SLICE_ROWS):
        some = topics[start : start + SLICE_ROWS]
        if version >= 10:
            _check_ids(some, version)
        for topic in some:
            if topic.topic_id != ZERO_UUID:
                ids[topic.topic_id] = None
            else:
                names[topic.name] = None
        await pace.row(SLICE_ROWS)
    if ids:
        found = _by_id(context, ids)
    else:
        found = _by_name(
            context,
            names,
            request.allow_auto_topic_creation and node.config.boolean("auto.create.topics.enable"),
        )
    if request.include_topic_authorized_operations:
        found = _with_operations(context, found)
    return await _respond_in_slices(context, request, found)


def _with_operations(context: Context, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        name = row["name"]
        if name is not None and row["error_code"] != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            row["topic_authorized_operations"] = topic_operations(context, name)
        yield row


async def _respond_in_slices(
    context: Context, request: Any, found: Iterable[dict[str, Any]]
) -> Mapping[str, Any]:
    return _respond(
        context, request, await listed_in_slices(found, lambda row: 1 + len(row["partitions"]))
    )


def _respond(context: Context, request: Any, found: list[dict[str, Any]]) -> dict[str, Any]:
    image = context.node.image
    return {
        "brokers": [
            {
                "node_id": broker.node_id,
                "host": address[0],
                "port": address[1],
                "rack": broker.rack,
            }
            for broker in _brokers(image)
            if (address := image.address_on(context.listener_name, broker)) is not None
        ],
        "cluster_id": image.cluster_id,
        "controller_id": controller_id(context),
        "topics": [row for row in found if row is not _HIDDEN],
        "cluster_authorized_operations": cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
    }


def controller_id(context: Context) -> int:
    """The broker for changes: the controller. While there is none, any broker: it waits for one."""
    image = context.node.image
    leader = context.node.controller.controller_id
    if leader is not None and image.is_alive(leader):
        return leader
    alive = image.alive_brokers()
    return alive[0].node_id if alive else NO_NODE


def _brokers(image: MetadataImage) -> list[BrokerImage]:
    """The live brokers, or all brokers if none is alive, such as the only node while it stops.

    librdkafka forgets brokers that a response does not name, and never recovers from a response
    without brokers.
    """
    return image.alive_brokers() or [image.brokers[node_id] for node_id in sorted(image.brokers)]


def _check_ids(topics: Iterable[Any], version: int) -> None:
    for topic in topics:
        if topic.name is None and (version < _BY_ID_FROM or topic.topic_id == ZERO_UUID):
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                "A topic of the request has neither a name nor an id.",
            )
        if topic.topic_id != ZERO_UUID and version < _BY_ID_FROM:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"Version {version} does not support topic ids. Use version {_BY_ID_FROM}.",
            )


def _all(context: Context) -> Iterator[dict[str, Any]]:
    """The topics that the client may DESCRIBE: others are not even named."""
    for topic in list(context.node.image.topics.values()):
        if is_authorized(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False
        ):
            yield _topic(context, topic)
        else:
            yield _HIDDEN


def _by_id(context: Context, ids: Iterable[UUID]) -> Iterator[dict[str, Any]]:
    for topic_id in ids:
        topic = context.node.image.topics_by_id.get(topic_id)
        if topic is None:
            yield {
                "error_code": ErrorCode.UNKNOWN_TOPIC_ID,
                "name": None,
                "topic_id": topic_id,
                "partitions": [],
            }
        elif is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            yield _topic(context, topic)
        else:
            yield {**_denied(None), "topic_id": topic_id}


def _denied(name: str | None) -> dict[str, Any]:
    """The row of a topic that the client may not DESCRIBE or CREATE. It does not say whether the
    topic exists.
    """
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return {"error_code": code, "name": name, "is_internal": False, "partitions": []}


def _by_name(context: Context, names: Iterable[str], create: bool) -> Iterator[dict[str, Any]]:
    image = context.node.image
    for name in names:
        if not is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            yield _denied(name)
            continue
        topic = image.topics.get(name)
        if topic is not None:
            yield _topic(context, topic)
            continue
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            validate_topic_name(name)
        except MqError as error:
            code = error.code
        else:
            if create and not _may_create(context, name):
                yield {**_denied(name), "is_internal": name in INTERNAL_TOPICS}
                continue
            if create and _is_within_quota(context, name):
                context.node.controller.create_topic_soon(name)
        yield {
            "error_code": code,
            "name": name,
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": [],
        }


def _may_create(context: Context, name: str) -> bool:
    return is_authorized_for_cluster(context, Operation.CREATE, is_logged=False) or is_authorized(
        context, Operation.CREATE, ResourceType.TOPIC, name
    )


def _is_within_quota(context: Context, name: str) -> bool:
    """Whether the client's quota of metadata changes allows another topic. Counts it, once. This
    node counts: the controller does not know for which client a node creates a topic.
    """
    if name in INTERNAL_TOPICS or context.node.controller.creates_topic_soon(name):
        return True
    partitions = context.node.config.integer("num.partitions")
    return context.mutate(partitions, strict=True)


def _topic(context: Context, topic: TopicImage) -> dict[str, Any]:
    node, version = context.node, context.header.api_version
    image = node.image
    alive = {broker.node_id for broker in image.alive_brokers()}
    elsewhere = {
        node_id
        for node_id, broker in image.brokers.items()
        if image.address_on(context.listener_name, broker) is None
    }
    isolated = not node.replica.in_contact
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            _partition(
                index,
                partition,
                alive - _lost(node.image, topic, index, partition),
                version,
                isolated,
                elsewhere,
            )
            for index, partition in enumerate(topic.partitions)
        ],
    }


def _lost(
    image: MetadataImage, topic: TopicImage, index: int, partition: PartitionImage
) -> set[Any]:
    """Offline replicas on nodes that may be alive."""
    return (
        {
            replica
            for replica in partition.replicas
            if (topic.topic_id, index, replica) in image.lost_replicas
        }
        if image.lost_replicas
        else set()
    )


def _partition(
    index: int,
    partition: PartitionImage,
    alive: set[Any],
    version: int,
    isolated: bool,
    elsewhere: Set[NodeId],
) -> dict[str, Any]:
    """Version 0 has no field for offline replicas: it omits them and sets an error code.

    `elsewhere`: nodes without the listener of the client, which cannot use them.
    """
    replicas = [replica for replica in partition.replicas if version > 0 or replica in alive]
    code = ErrorCode.NONE
    leader = NO_NODE if isolated else partition.leader
    if leader == NO_NODE:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    elif leader in elsewhere:
        leader = NO_NODE
        code = (
            ErrorCode.LISTENER_NOT_FOUND
            if version >= _LISTENER_NOT_FOUND_FROM
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
    elif len(replicas) < len(partition.replicas):
        code = ErrorCode.REPLICA_NOT_AVAILABLE
    return {
        "error_code": code,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": [replica for replica in partition.isr if version > 0 or replica in alive],
        "offline_replicas": [replica for replica in partition.replicas if replica not in alive],
    }


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    topics = []
    for topic in request.topics or ():
        topics.append(
            {
                "error_code": error.code,
                "name": topic.name or "",
                "topic_id": topic.topic_id,
                "partitions": [],
            }
        )
        yield 1
    return {"brokers": [], "topics": topics, "error_code": error.code}
