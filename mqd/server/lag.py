"""Consumer lag of groups: the coordinator returns it beside the committed offsets (OffsetFetch,
`lag_wanted`).

With Apache Kafka, the client queries every leader for the log end offsets. Here the coordinator
does it, for all groups of a request together. It reads memory for partitions that it leads, and
sends each other leader one pair of ListOffsets requests. The lag is -1 if the partition has no
leader, or if its leader does not respond or does not know its high watermark yet. Such a partition
does not delay the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import trio

from mqd.errors import MqError
from mqd.server.context import Node
from mqd.server.slices import listed_in_slices
from mqd.types import NO_EPOCH, NO_NODE, NO_OFFSET, NodeId, TopicPartition

TIMEOUT_SECONDS = 3.0
"""The timeout of the requests to another leader."""
_LIST_OFFSETS_VERSION = 10
_PARTITIONS_PER_REQUEST = 5_000
"""Partitions in one request to another leader."""
_LATEST, _EARLIEST = -1, -2

Bounds = dict[TopicPartition, list[int]]
"""Start and end of a log; NO_OFFSET if unknown."""


async def add_lag(node: Node, groups: Sequence[Mapping[str, Any]], *, read_committed: bool) -> None:
    """Add the lag to each row of the OffsetFetch responses of these groups."""
    rows = await listed_in_slices(_rows(node, groups))
    bounds = await log_bounds(
        node, dict.fromkeys(place for place, _ in rows), read_committed=read_committed
    )

    def fill() -> Iterator[None]:
        for place, row in rows:
            start, end = bounds.get(place, (NO_OFFSET, NO_OFFSET))
            row["log_start_offset"], row["log_end_offset"] = start, end
            if end != NO_OFFSET and row["committed_offset"] != NO_OFFSET:
                row["lag"] = max(0, end - row["committed_offset"])
            yield None

    await listed_in_slices(fill())


def _rows(
    node: Node, groups: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[TopicPartition, dict[str, Any]]]:
    for group in groups:
        for topic in group["topics"]:
            name = topic.get("name")
            if not name:
                found = node.image.topics_by_id.get(topic.get("topic_id", UUID(int=0)))
                name = found.name if found is not None else ""
            for row in topic["partitions"]:
                if not row["error_code"]:
                    yield TopicPartition(name, row["partition_index"]), row


async def log_bounds(
    node: Node, partitions: Iterable[TopicPartition], *, read_committed: bool
) -> Bounds:
    """Start and end of the logs, by their leaders. With `read_committed` the end is the last stable
    offset. Partitions without a known one are left out.
    """
    bounds: Bounds = {}
    elsewhere: dict[NodeId, list[TopicPartition]] = {}

    def look_up() -> Iterator[None]:
        for place in partitions:
            assigned = node.image.partition(*place)
            if assigned is not None and assigned.leader == node.node_id:
                partition = node.replica.get(place)
                if (
                    partition is not None
                    and partition.serves
                    and partition.high_watermark >= partition.epoch_start_offset
                ):
                    end = (
                        partition.last_stable_offset if read_committed else partition.high_watermark
                    )
                    bounds[place] = [partition.log.log_start_offset, end]
            elif assigned is not None and assigned.leader != NO_NODE:
                elsewhere.setdefault(assigned.leader, []).append(place)
            yield None

    await listed_in_slices(look_up())
    async with trio.open_nursery() as nursery:
        for leader, places in elsewhere.items():
            nursery.start_soon(_query, node, leader, places, read_committed, bounds)
    return {place: pair for place, pair in bounds.items() if NO_OFFSET not in pair}


async def _query(
    node: Node,
    leader: NodeId,
    places: Sequence[TopicPartition],
    read_committed: bool,
    bounds: Bounds,
) -> None:
    """Raises nothing: offsets that the leader does not return stay unknown."""
    with trio.move_on_after(TIMEOUT_SECONDS):
        for first in range(0, len(places), _PARTITIONS_PER_REQUEST):
            some = places[first : first + _PARTITIONS_PER_REQUEST]
            for position, timestamp in enumerate((_EARLIEST, _LATEST)):
                try:
                    response = await node.forward(
                        leader,
                        "ListOffsets",
                        _LIST_OFFSETS_VERSION,
                        _request(some, timestamp, read_committed),
                    )
                except (OSError, MqError):
                    return
                for place, offset in _offsets(response):
                    bounds.setdefault(place, [NO_OFFSET, NO_OFFSET])[position] = offset


def _request(
    places: Sequence[TopicPartition], timestamp: int, read_committed: bool
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for name, index in places:
        row = {"partition_index": index, "current_leader_epoch": NO_EPOCH, "timestamp": timestamp}
        topics.setdefault(name, []).append(row)
    return {
        "replica_id": -1,
        "isolation_level": int(read_committed),
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        "timeout_ms": int(TIMEOUT_SECONDS * 1000),
    }


def _offsets(response: Mapping[str, Any]) -> Iterator[tuple[TopicPartition, int]]:
    for topic in response["topics"]:
        for row in topic["partitions"]:
            if not row["error_code"]:
                yield TopicPartition(topic["name"], row["partition_index"]), row["offset"]
