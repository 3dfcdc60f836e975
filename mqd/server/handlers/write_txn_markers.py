"""WriteTxnMarkers, v1 and v2: transactions end in the partitions that this node leads; the response
waits until the markers are committed (KIP-98).

v2 transaction_version (KIP-1228). Sent by transaction coordinators, this node's own included, and
by administrators who end a hanging transaction (KIP-664). Markers for `__consumer_offsets` go
through the group coordinator, which applies or drops the offsets.

Coordinators use the peer listener. A client may only end an open transaction with the producer id
and epoch that began it. A marker with a future producer epoch or coordinator epoch would fence the
real ones for good.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import trio

from mqd.coordinator.shard import Producer
from mqd.errors import ErrorCode, MqError
from mqd.replica.partition import Partition
from mqd.replica.waiters import Append, ProduceTicket
from mqd.security.acls import Operation
from mqd.server.authorization import is_authorized_for_cluster, require_cluster
from mqd.server.context import CLIENT, Context, Node
from mqd.server.partitions import leading
from mqd.server.slices import SLICE_ROWS, Pace
from mqd.types import GROUPS_TOPIC

COMMIT_SECONDS = 30.0
"""Kafka's `request.timeout.ms` of a broker: how long a marker waits for the replicas."""

NOT_LED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""Errors of the group coordinator, mapped to retriable errors of a partition."""

_OFFSETS_ROWS = 20
"""A marker for offsets is as much work as so many rows: it runs in a task, in the next pass of the
event loop."""

Codes = dict[int, dict[tuple[str, int], int]]
"""Producer id -> (topic, partition) -> error code."""


class CommitTicket(ProduceTicket[Partition]):
    """Control batches on their way to the replicas."""

    __slots__ = ("committed",)

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline
        self.committed = trio.Event()

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        _, _, (codes, place), _ = append
        codes[place] = int(code)

    def release(self) -> None:
        self.committed.set()


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    if not is_authorized_for_cluster(context, Operation.ALTER, is_logged=False):
        require_cluster(context, Operation.CLUSTER_ACTION)
    return await write_markers(context.node, request, by_client=context.listener == CLIENT)


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """There is no error for the whole request: each partition has it."""
    markers = []
    for marker in request.markers:
        codes: dict[tuple[str, int], int] = {}
        for topic in marker.topics:
            codes |= {(topic.name, index): int(error.code) for index in topic.partition_indexes}
            yield 1 + len(topic.partition_indexes)
        markers.append({"producer_id": marker.producer_id, "topics": by_topic(codes)})
        yield 1
    return {"markers": markers}


async def write_markers(
    node: Node, request: Mapping[str, Any], *, by_client: bool = False
) -> Mapping[str, Any]:
    """As the API declares it, also for this node's own coordinator.

    What a marker names twice gets it once; nothing is raised.
    """
    codes: Codes = {}
    taken = 0
    pace = Pace()
    deadline, now_ms = node.clock.monotonic() + COMMIT_SECONDS, node.clock.wall_ms()
    slices = [CommitTicket(deadline)]
    """All are handed in without awaits: otherwise a failed write, or a new leader, could be missed
    in between.
    """
    async with trio.open_nursery() as nursery:
        for marker in request["markers"]:
            await pace.row(1 + len(marker["topics"]))
            producer = Producer(marker["producer_id"], marker["producer_epoch"])
            of_producer = codes.setdefault(producer.producer_id, {})
            outcome, transaction_version = (
                marker["transaction_result"],
                marker.get("transaction_version", 0),
            )
            for place in dict.fromkeys(
                (topic["name"], index)
                for topic in marker["topics"]
                for index in topic["partition_indexes"]
            ):
                of_producer[place] = 0
                taken += _OFFSETS_ROWS if place[0] == GROUPS_TOPIC else 1
                if taken >= SLICE_ROWS:
                    taken = 0
                    if slices[-1].appends:
                        node.replica.wait_committed(slices[-1])
                        slices.append(CommitTicket(deadline))
                    node.replica.end_of_turn()
                    await trio.lowlevel.checkpoint()
                coordinator_epoch = marker["coordinator_epoch"]
                try:
                    if by_client:
                        coordinator_epoch = _epoch_for_client(
                            leading(node, *place), producer, coordinator_epoch, transaction_version
                        )
                    how = coordinator_epoch, outcome, transaction_version
                    if place[0] == GROUPS_TOPIC:
                        nursery.start_soon(_end_offsets, node, place[1], producer, how, of_producer)
                        continue
                    partition = leading(node, *place)
                    appended = node.replica.append_marker_nowait(
                        partition, producer, coordinator_epoch, outcome, now_ms, transaction_version
                    )
                except MqError as error:
                    of_producer[place] = int(error.code)
                else:
                    slices[-1].appends.append(
                        (partition, appended.last_offset + 1, [of_producer, place], 0)
                    )
        if slices[-1].appends:
            node.replica.wait_committed(slices[-1])
            node.replica.end_of_turn()
        for written in slices:
            if written.appends:
                await written.committed.wait()
    return {
        "markers": [
            {"producer_id": producer_id, "topics": by_topic(found)}
            for producer_id, found in codes.items()
        ]
    }


def _epoch_for_client(
    partition: Partition, producer: Producer, claimed: int, transaction_version: int
) -> int:
    """The coordinator epoch of a client's marker: no unknown, newer one. Raises MqError as
    `check_marker` does; INVALID_TXN_STATE if no such transaction is open.
    """
    producers = partition.log.producers
    producers.check_marker(*producer, claimed, transaction_version)
    if not producers.in_transaction(*producer):
        raise MqError(
            ErrorCode.INVALID_TXN_STATE, "this producer has no transaction of this epoch open here"
        )
    return min(claimed, max(0, producers.coordinator_epoch(producer.producer_id)))


async def _end_offsets(
    node: Node,
    index: int,
    producer: Producer,
    how: tuple[int, bool, int],
    codes: dict[tuple[str, int], int],
) -> None:
    try:
        await node.groups.write_marker(index, producer, *how)
    except MqError as error:
        codes[GROUPS_TOPIC, index] = int(NOT_LED.get(error.code, error.code))


def by_topic(codes: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append({"partition_index": index, "error_code": code})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
