"""The state of a cluster's replicas as several commands need it, asked in a few requests; and what is wrong with a partition."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import ClusterDescription, LogDirectory, PartitionState, Reassignment
    from mqd.client.errors import ClientError

LEADERLESS, OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED = "leaderless", "offline", "under-min-isr", "under-replicated"
MIN_ISR = "min.insync.replicas"
MOVES_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`min_isr` by topic, where it is known."""

    cluster: ClusterDescription
    partitions: Mapping[TopicPartition, PartitionState]
    moves: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    min_isr: Mapping[str, int] = field(default_factory=dict)
    moves_unknown: ClientError | None = None
    """Why it is not known what moves."""

    @property
    def alive(self) -> dict[int, str | None]:
        """The racks of the nodes that are not fenced."""
        return {broker.node_id: broker.rack for broker in self.cluster.brokers if broker.node_id not in self.cluster.fenced}

    @property
    def assignments(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of each partition; of one that moves, those that it will have."""
        return {tp: self.moves[tp].target if tp in self.moves else state.replicas for tp, state in self.partitions.items()}

    def wrong(self, tp: TopicPartition) -> list[str]:
        """What is wrong with a partition, the worst first."""
        return problems(self.partitions[tp], self.min_isr.get(tp.topic, 1), self.moves.get(tp))


def problems(state: PartitionState, min_isr: int, move: Reassignment | None) -> list[str]:
    """What is wrong with a partition, the worst first. Replicas that a move adds are not missed yet. Pure.

    `min_isr` above the number of replicas counts as that number, as brokers count it."""
    expected = [node for node in state.replicas if move is None or node not in move.adding]
    found = []
    if state.leader < 0:
        found.append(LEADERLESS)
    if state.offline:
        found.append(OFFLINE)
    if len(state.isr) < min(min_isr, len(expected)):
        found.append(UNDER_MIN_ISR)
    if any(node not in state.isr for node in expected):
        found.append(UNDER_REPLICATED)
    return found


async def take(
    admin: Admin, topics: Collection[str] | None = None, *, min_isr: bool = True, moves: Literal["needed", "wanted", "no"] = "needed"
) -> Snapshot:
    """A snapshot of all topics or of those named. Raises ClientError.

    What moves only the controller tells: it is asked last, for while there is none an answer does not come, and nothing behind it. Where
    moves are merely `wanted` the rest is there all the same.
    """
    import trio

    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError, DeadlineExceeded

    cluster = await admin.describe_cluster()
    partitions = await admin.describe_partitions(topics)
    least: dict[str, int] = {}
    names = sorted({tp.topic for tp in partitions}) if min_isr else []
    for resource, entries in (await admin.describe_configs([Resource(ResourceType.TOPIC, name) for name in names], [MIN_ISR])).items():
        for entry in entries if not isinstance(entries, ClientError) else ():
            if entry.value is not None and entry.value.isdecimal():
                least[resource.name] = int(entry.value)
    under_way: Mapping[TopicPartition, Reassignment] = {}
    unknown: ClientError | None = None
    if moves != "no":
        with trio.move_on_after(math.inf if moves == "needed" else MOVES_SECONDS) as scope:
            try:
                under_way = await moves_under_way(admin)
            except ClientError as error:
                if moves == "needed":
                    raise
                unknown = error
        if scope.cancelled_caught:
            unknown = DeadlineExceeded(f"the controller does not say within {MOVES_SECONDS:g} s what moves, or there is none")
    return Snapshot(cluster, partitions, under_way, least, unknown)


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


async def sizes(admin: Admin, nodes: Collection[int]) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of each replica on those of the nodes that answer."""
    from mqd.client.errors import ClientError

    found: dict[int, dict[TopicPartition, int]] = {}
    for node, directories in (await admin.describe_log_dirs(sorted(nodes))).items():
        if not isinstance(directories, ClientError):
            found[node] = {replica.tp: replica.size_bytes for each in directories for replica in each.replicas if not replica.is_future}
    return found


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
