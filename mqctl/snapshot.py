"""The state of a cluster's replicas as several commands need it, asked in a few requests;
and what is wrong with a partition.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mqctl.app import in_time
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import (
        ClusterDescription,
        LogDirectory,
        PartitionState,
        Reassignment,
    )
    from mqd.client.errors import ClientError

LEADERLESS, OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED = (
    "leaderless",
    "offline",
    "under-min-isr",
    "under-replicated",
)
MIN_ISR = "min.insync.replicas"
WANTED_SECONDS = 5.0
"""How long a snapshot waits for what it can do without."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`min_isr` by topic, where it is known."""

    cluster: ClusterDescription
    partitions: Mapping[TopicPartition, PartitionState]
    moves: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    min_isr: Mapping[str, int] = field(default_factory=dict)
    moves_unknown: ClientError | None = None
    """Why it is not known what moves."""
    min_isr_unknown: ClientError | None = None

    @property
    def alive(self) -> dict[int, str | None]:
        """The racks of the nodes that are not fenced."""
        return {
            broker.node_id: broker.rack
            for broker in self.cluster.brokers
            if broker.node_id not in self.cluster.fenced
        }

    @property
    def assignments(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of each partition; of one that moves, those that it will have."""
        return {
            tp: self.moves[tp].target if tp in self.moves else state.replicas
            for tp, state in self.partitions.items()
        }

    def wrong(self, tp: TopicPartition) -> list[str]:
        """What is wrong with a partition, the worst first."""
        return problems(self.partitions[tp], self.min_isr.get(tp.topic, 1), self.moves.get(tp))


def problems(state: PartitionState, min_isr: int, move: Reassignment | None) -> list[str]:
    """What is wrong with a partition, the worst first. Replicas that a move adds are not missed
    yet. Pure.

    `min_isr` above the number of replicas counts as that number, as brokers count it: those that a
    move adds are replicas.
    """
    expected = [node for node in state.replicas if move is None or node not in move.adding]
    found = []
    if state.leader < 0:
        found.append(LEADERLESS)
    if state.offline:
        found.append(OFFLINE)
    if len(state.isr) < min(min_isr, len(state.replicas)):
        found.append(UNDER_MIN_ISR)
    if any(node not in state.isr for node in expected):
        found.append(UNDER_REPLICATED)
    return found


async def take(
    admin: Admin,
    deadline: float,
    topics: Collection[str] | None = None,
    *,
    min_isr: bool = True,
    moves: Literal["needed", "wanted", "no"] = "needed",
) -> Snapshot:
    """A snapshot of all topics or of those named, by `deadline` (Trio's clock). Raises ClientError.

    What moves only the controller tells: it is asked last, for while there is none an answer does
    not come, and nothing behind it. Where moves are merely `wanted` the rest is there all the same,
    and so it is without min.insync.replicas, of which that node is asked, too.
    """
    import trio

    from mqd.client.errors import ClientError

    with in_time(deadline, "timed out while reading nodes and partitions"):
        cluster = await admin.describe_cluster()
        partitions = await admin.describe_partitions(topics)
    ends = deadline if moves == "needed" else min(deadline, trio.current_time() + WANTED_SECONDS)
    least: Mapping[str, int] = {}
    least_unknown: ClientError | None = None
    if min_isr:
        try:
            with in_time(ends, f"timed out while reading {MIN_ISR}"):
                least = await _least(admin, sorted({tp.topic for tp in partitions}))
        except ClientError as error:
            least_unknown = error
    under_way: Mapping[TopicPartition, Reassignment] = {}
    unknown: ClientError | None = None
    if moves != "no":
        try:
            with in_time(ends, "timed out while waiting for the controller to list reassignments"):
                under_way = await moves_under_way(admin)
        except ClientError as error:
            if moves == "needed":
                raise
            unknown = error
    return Snapshot(cluster, partitions, under_way, least, unknown, least_unknown)


async def _least(admin: Admin, topics: list[str]) -> dict[str, int]:
    """min.insync.replicas of those of the topics that tell it.

    Raises ClientError when nobody does in time.
    """
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError, DeadlineExceeded

    found = {}
    for resource, entries in (
        await admin.describe_configs(
            [Resource(ResourceType.TOPIC, name) for name in topics], [MIN_ISR]
        )
    ).items():
        if isinstance(entries, DeadlineExceeded):
            raise entries
        for entry in entries if not isinstance(entries, ClientError) else ():
            if entry.value is not None and entry.value.isdecimal():
                found[resource.name] = int(entry.value)
    return found


async def moves_under_way(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """What moves; nothing does in a cluster that cannot move partitions."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    try:
        return await admin.list_partition_reassignments()
    except ClientError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}


async def disks(
    admin: Admin, nodes: Collection[int], deadline: float = math.inf
) -> dict[int, list[LogDirectory] | ClientError]:
    """The log directories of each node, or why they are not known by `deadline`."""
    import trio

    from mqd.client.errors import ClientError

    told: dict[int, list[LogDirectory] | ClientError] = {}

    async def ask(node: int) -> None:
        try:
            with in_time(deadline, f"timed out while reading the log directories of node {node}"):
                told.update(await admin.describe_log_dirs([node]))
        except ClientError as error:
            told[node] = error

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(ask, node)
    return dict(sorted(told.items()))


async def sizes(
    admin: Admin, nodes: Collection[int], deadline: float = math.inf
) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of each replica on those of the nodes that answer."""
    told = await disks(admin, nodes, deadline)
    return {
        node: {
            replica.tp: replica.size_bytes
            for each in directories
            for replica in each.replicas
            if not replica.is_future
        }
        for node, directories in told.items()
        if isinstance(directories, list)
    }


def directory_row(each: LogDirectory) -> dict[str, Any]:
    """One log directory, for JSON."""
    return {
        "path": each.path,
        "replicas": len(each.replicas),
        "bytes": sum(replica.size_bytes for replica in each.replicas),
        "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
        "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
        "error": None if each.error is None else each.error.message,
    }
