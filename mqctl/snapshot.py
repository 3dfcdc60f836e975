"""A snapshot of a cluster: its brokers, its partitions with their problems, and its moves."""

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
OPTIONAL_SECONDS = 5.0
"""How long a snapshot waits for optional information."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The brokers, partitions and moves of a cluster at one time."""

    cluster: ClusterDescription
    partitions: Mapping[TopicPartition, PartitionState]
    moves: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    min_isr: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of each topic whose configuration is known."""
    moves_error: ClientError | None = None
    """Why `moves` is unknown."""
    min_isr_error: ClientError | None = None
    """Why `min_isr` is unknown."""

    @property
    def alive(self) -> dict[int, str | None]:
        """The brokers that are not fenced, with their racks."""
        return {
            broker.node_id: broker.rack
            for broker in self.cluster.brokers
            if broker.node_id not in self.cluster.fenced
        }

    @property
    def assignments(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of each partition: after its move, if it is being moved."""
        return {
            tp: self.moves[tp].target if tp in self.moves else state.replicas
            for tp, state in self.partitions.items()
        }

    def problems_of(self, tp: TopicPartition) -> list[str]:
        """The problems of a partition, the worst first."""
        return problems(self.partitions[tp], self.min_isr.get(tp.topic, 1), self.moves.get(tp))


def problems(state: PartitionState, min_isr: int, move: Reassignment | None) -> list[str]:
    """The problems of a partition, the worst first. Pure.

    Replicas that a move adds may be out of sync. A `min_isr` above the number of replicas (with
    those that a move adds) counts as that number, as in brokers.
    """
    expected = [broker for broker in state.replicas if move is None or broker not in move.adding]
    found = []
    if state.leader < 0:
        found.append(LEADERLESS)
    if state.offline:
        found.append(OFFLINE)
    if len(state.isr) < min(min_isr, len(state.replicas)):
        found.append(UNDER_MIN_ISR)
    if any(broker not in state.isr for broker in expected):
        found.append(UNDER_REPLICATED)
    return found


async def take_snapshot(
    admin: Admin,
    deadline: float,
    topics: Collection[str] | None = None,
    *,
    min_isr: bool = True,
    moves: Literal["required", "optional", "no"] = "required",
) -> Snapshot:
    """Read a snapshot of the named topics (default: all) by `deadline` (Trio's clock). Raises
    ClientError.

    The controller lists the moves. That request is the last one: without a controller it gets no
    response, and would delay all requests behind it. If moves are `optional`, or
    min.insync.replicas cannot be read, the snapshot has the error instead.
    """
    import trio

    from mqd.client.errors import ClientError

    with in_time(deadline, "timed out while reading brokers and partitions"):
        cluster = await admin.describe_cluster()
        partitions = await admin.describe_partitions(topics)
    optional_deadline = (
        deadline if moves == "required" else min(deadline, trio.current_time() + OPTIONAL_SECONDS)
    )
    min_isr_by_topic: Mapping[str, int] = {}
    min_isr_error: ClientError | None = None
    if min_isr:
        try:
            with in_time(optional_deadline, f"timed out while reading {MIN_ISR}"):
                min_isr_by_topic = await _read_min_isr(
                    admin, sorted({tp.topic for tp in partitions})
                )
        except ClientError as error:
            min_isr_error = error
    reassignments: Mapping[TopicPartition, Reassignment] = {}
    moves_error: ClientError | None = None
    if moves != "no":
        try:
            with in_time(
                optional_deadline,
                "timed out while waiting for the controller to list reassignments",
            ):
                reassignments = await moves_in_progress(admin)
        except ClientError as error:
            if moves == "required":
                raise
            moves_error = error
    return Snapshot(
        cluster, partitions, reassignments, min_isr_by_topic, moves_error, min_isr_error
    )


async def _read_min_isr(admin: Admin, topics: list[str]) -> dict[str, int]:
    """min.insync.replicas of each topic, without topics whose configuration cannot be read. Raises
    DeadlineExceeded.
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


async def moves_in_progress(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """The moves in progress; none if the cluster does not support reassignments."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    try:
        return await admin.list_partition_reassignments()
    except ClientError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}


async def disks(
    admin: Admin, brokers: Collection[int], deadline: float = math.inf
) -> dict[int, list[LogDirectory] | ClientError]:
    """The log directories of each broker, or its error. Returns by `deadline`."""
    import trio

    from mqd.client.errors import ClientError

    log_dirs: dict[int, list[LogDirectory] | ClientError] = {}

    async def describe(broker: int) -> None:
        try:
            with in_time(
                deadline, f"timed out while reading the log directories of broker {broker}"
            ):
                log_dirs.update(await admin.describe_log_dirs([broker]))
        except ClientError as error:
            log_dirs[broker] = error

    async with trio.open_nursery() as nursery:
        for broker in brokers:
            nursery.start_soon(describe, broker)
    return dict(sorted(log_dirs.items()))


async def sizes(
    admin: Admin, brokers: Collection[int], deadline: float = math.inf
) -> dict[int, dict[TopicPartition, int]]:
    """The size in bytes of each replica, for the brokers that respond."""
    log_dirs = await disks(admin, brokers, deadline)
    return {
        broker: {
            replica.tp: replica.size_bytes
            for each in directories
            for replica in each.replicas
            if not replica.is_future
        }
        for broker, directories in log_dirs.items()
        if isinstance(directories, list)
    }


def directory_row(each: LogDirectory) -> dict[str, Any]:
    """One log directory as a row."""
    return {
        "path": each.path,
        "replicas": len(each.replicas),
        "bytes": sum(replica.size_bytes for replica in each.replicas),
        "total_bytes": each.total_bytes if each.total_bytes >= 0 else None,
        "usable_bytes": each.usable_bytes if each.usable_bytes >= 0 else None,
        "error": None if each.error is None else each.error.message,
    }
