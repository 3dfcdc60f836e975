"""Errors and leaders for partitions that this node does not serve: Produce, Fetch and all other
requests about partitions share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.protocol.hot_fetch_response import FetchResponseTopic
from mqd.replica.partition import Partition
from mqd.security.client_listeners import ClientListener
from mqd.server.context import Node
from mqd.types import NO_EPOCH, NO_NODE, NodeId, TopicPartition

Endpoint = tuple[int, str, int, str | None]
FetchRow = tuple[Any, ...]
"""A row of a fetch response, as `mqd.protocol.hot_fetch_response` encodes it."""

ERROR_CODE: Final = 1
OFFSETS: Final = slice(2, 5)
"""High watermark, last stable offset and log start offset."""
PREFERRED_REPLICA: Final = 6
RECORDS: Final = 7
DIVERGING_EPOCH: Final = 8
"""A row of this length or less has none."""
CURRENT_LEADER: Final = 9
"""Positions in a FetchRow."""
NO_PREFERRED_REPLICA = -1
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
UNKNOWN_ERRORS = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors of partitions that this node does not know."""
_NO_TRANSACTIONS: list[Any] = []
_WITH_EMPTY_LISTS = UNKNOWN_ERRORS | {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
"""Errors beside which a fetch has an empty list of aborted transactions, not null, as with
Apache Kafka.
"""


def leading(node: Node, topic: str, index: int, current_leader_epoch: int = NO_EPOCH) -> Partition:
    """The partition, if this node leads it in the leader epoch that the request names. Raises
    MqError otherwise.
    """
    partition = node.replica.get(TopicPartition(topic, index))
    if partition is None:
        raise unknown_partition(node, topic.encode(), None, index)
    partition.check_leader_epoch(current_leader_epoch)
    return partition


def endpoints(
    node: Node, node_ids: Iterable[int], listener: ClientListener | None
) -> list[Endpoint]:
    """(node id, host, port, rack) of those nodes that are registered with the listener, for
    responses to stale clients (KIP-951).
    """
    image = node.image
    found = [image.brokers[NodeId(one)] for one in node_ids if one in image.brokers]
    name = None if listener is None else listener.name
    return [
        (broker.node_id, *address, broker.rack)
        for broker in found
        if (address := image.address_on(name, broker)) is not None
    ]


def no_such_partition() -> MqError:
    """With Kafka's message."""
    return MqError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    )


def unknown_partition(
    node: Node, name: bytes | None, topic_id: bytes | None, index: int
) -> MqError:
    """Why this node cannot serve a partition: it does not exist, another node leads it, or
    its disk is gone.
    """
    image = node.image
    if name is None:
        topic = image.topics_by_id.get(UUID(bytes=topic_id))
        if topic is None:
            return MqError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    else:
        topic = image.topics.get(name.decode(errors="replace"))
    if topic is None or not 0 <= index < len(topic.partitions):
        return no_such_partition()
    reason = node.replica.offline.get(TopicPartition(topic.name, index))
    if reason is not None:
        return MqError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    return MqError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"Node {topic.partitions[index].leader} leads this partition.",
    )


def current_leader(
    node: Node,
    partition: Partition | None,
    name: bytes | None = None,
    topic_id: bytes | None = None,
    index: int = 0,
) -> tuple[int, int] | None:
    """(node, leader epoch) for a client that contacted the wrong node (KIP-951), from the partition
    or from the metadata.

    None if there is no leader, or if the result would be this node. It may have lost the
    leadership, and does not know the new leader.
    """
    if partition is not None:
        leader, epoch = partition.assignment.leader, partition.leader_epoch
        return (
            None
            if (partition.is_leader and not partition.serves) or leader == NO_NODE
            else (leader, epoch)
        )
    image = node.image
    topic = (
        image.topics_by_id.get(UUID(bytes=topic_id))
        if topic_id is not None
        else image.topics.get((name or b"").decode(errors="replace"))
    )
    if topic is None or not 0 <= index < len(topic.partitions):
        return None
    found = topic.partitions[index]
    return None if found.leader in (NO_NODE, node.node_id) else (found.leader, found.leader_epoch)


def fetch_topics(rows: Mapping[bytes, list[FetchRow]], *, by_id: bool) -> list[FetchResponseTopic]:
    """The topics of a fetch response, each with its rows: named by id or by name, as its
    version does.
    """
    return [
        (None, topic, found) if by_id else (topic, None, found) for topic, found in rows.items()
    ]


def empty_fetch_row(index: int, error: MqError) -> FetchRow:
    """The row of a partition without records."""
    aborted = _NO_TRANSACTIONS if error.code in _WITH_EMPTY_LISTS else None
    return (index, int(error.code), -1, -1, -1, aborted, NO_PREFERRED_REPLICA, [])


def refused_fetch_row(
    node: Node,
    index: int,
    error: MqError,
    partition: Partition | None,
    name: bytes | None = None,
    topic_id: bytes | None = None,
) -> FetchRow:
    """The row of a partition that has an error. For a stale client it names the leader."""
    row = empty_fetch_row(index, error)
    if error.code in _MOVED:
        leader = current_leader(node, partition, name, topic_id, index)
        if leader is not None:
            return (*row, None, leader)
    return row
