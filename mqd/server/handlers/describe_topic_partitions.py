"""DescribeTopicPartitions (key 75), version 0: topics in order of name, page by page (KIP-966).

A page holds at most `response_partition_limit` partitions; `next_cursor` is where the next one
begins.
"""

from __future__ import annotations

from typing import Any

from mqd.controller.image import MetadataImage, TopicImage
from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, topic_operations
from mqd.server.context import Context
from mqd.server.slices import SLICE_ROWS, listed_in_slices, others_first
from mqd.topic_names import validate_topic_name
from mqd.types import INTERNAL_TOPICS, NO_NODE


async def handle(context: Context, request: Any) -> dict[str, Any]:
    image = context.node.image
    names = sorted(
        set(await listed_in_slices(topic.name for topic in request.topics)) or image.topics
    )
    first = 0
    cursor = request.cursor
    if cursor is not None:
        _check_cursor(request)
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    most = context.node.config.integer("max.request.partition.size.limit")
    room = max(1, min(request.response_partition_limit, most))
    rows: list[dict[str, Any]] = []
    denied: list[dict[str, Any]] = []
    names_all = not request.topics
    weight = 0
    for name in names:
        weight += 1
        if weight >= SLICE_ROWS:
            weight = 0
            await others_first()
        if not is_authorized(
            context, Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=not names_all
        ):
            if not names_all:
                denied.append(_denied(name))
            continue
        if room == 0:
            return {
                "topics": rows + denied,
                "next_cursor": {"topic_name": name, "partition_index": 0},
            }
        row = _topic(
            context, image, name, first, first + room, isolated=not context.node.replica.in_contact
        )
        rows.append(row)
        weight += len(row["partitions"])
        end = first + len(row["partitions"])
        room -= len(row["partitions"])
        first = 0
        if name in image.topics and end < len(image.topics[name].partitions):
            return {
                "topics": rows + denied,
                "next_cursor": {"topic_name": name, "partition_index": end},
            }
    return {"topics": rows + denied, "next_cursor": None}


def _denied(name: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "name": name,
        "is_internal": False,
        "partitions": [],
    }


def _check_cursor(request: Any) -> None:
    cursor = request.cursor
    if cursor.partition_index < 0:
        raise MqError(ErrorCode.INVALID_REQUEST, "The cursor's partition index is negative.")
    if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The cursor's topic '{cursor.topic_name}' is not a requested topic.",
        )


def _topic(
    context: Context, image: MetadataImage, name: str, start: int, stop: int, *, isolated: bool
) -> dict[str, Any]:
    """`isolated`: this node has no contact with the controller, and cannot know the leaders."""
    topic = image.topics.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            validate_topic_name(name)
        except MqError as error:
            code = error.code
        return {
            "error_code": code,
            "name": name,
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": [],
            "topic_authorized_operations": topic_operations(context, name),
        }
    return {
        "error_code": ErrorCode.NONE,
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            _partition(image, topic, index, isolated)
            for index in range(start, min(stop, len(topic.partitions)))
        ],
        "topic_authorized_operations": topic_operations(context, name),
    }


def _partition(
    image: MetadataImage, topic: TopicImage, index: int, isolated: bool
) -> dict[str, Any]:
    partition = topic.partitions[index]
    leader = NO_NODE if isolated else partition.leader
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_NODE else ErrorCode.NONE,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": partition.last_known_elr,
        "offline_replicas": [
            replica for replica in partition.replicas if image.is_offline(topic, index, replica)
        ],
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "topics": [
            {"error_code": error.code, "name": topic.name, "partitions": []}
            for topic in request.topics
        ]
    }
