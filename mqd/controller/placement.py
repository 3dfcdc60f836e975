"""Where the replicas of new partitions go.

Leaders go round robin over the brokers and followers likewise, with a shift that grows from round to round, so that the
partitions of a failed broker fall to many others. With racks, brokers are dealt out rack by rack, so that neighbours in
the circle are in different racks and a partition's replicas are in as many racks as there are. The idea is Kafka's
(KIP-36); brokers without a rack form one rack of their own.

Invariants: each replica list has `factor` different brokers; over all partitions the numbers of leaders, and of replicas,
of two brokers differ by at most one when every rack has the same number of brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId

REPLICAS_MAX = 1
"""Replicas that a topic may have. Leaders do not yet feed followers: a second replica would be a promise without a copy."""


def check_replication_factor(factor: int, brokers: int) -> None:
    """Raise INVALID_REPLICATION_FACTOR unless `factor` replicas can be placed on `brokers` brokers, and kept in sync."""
    if factor <= 0:
        raise MqError(ErrorCode.INVALID_REPLICATION_FACTOR, "A partition has at least one replica; -1 asks for the default.")
    if factor > REPLICAS_MAX:
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{factor} replicas were asked for: this version of mqd keeps {REPLICAS_MAX} a partition, "
            "because it does not copy partitions between nodes yet. Use 1, or -1 for the default.",
        )
    if factor > brokers:
        raise MqError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{factor} replicas need as many brokers: {brokers} are alive.")


def default_replication_factor(configured: int, brokers: int) -> int:
    """What -1 means: `default.replication.factor`, as far as brokers and this version allow."""
    return max(1, min(configured, brokers, REPLICAS_MAX))


def place(racks: Mapping[NodeId, str | None], partitions: int, factor: int, start: int) -> list[tuple[NodeId, ...]]:
    """Replica lists, the preferred leader first, for `partitions` partitions on the brokers of `racks`.

    `start` (any non-negative int) turns the circle, so that not every topic begins at the same broker; a topic that
    grows passes its partition count in, and so goes on where it stopped.
    """
    circle = _interleave(racks)
    assert 0 < factor <= len(circle), (factor, len(circle))
    return [_replicas(circle, racks, start + partition, factor) for partition in range(partitions)]


def _interleave(racks: Mapping[NodeId, str | None]) -> list[NodeId]:
    """Brokers dealt out rack by rack: one of each rack, then the next of each."""
    by_rack: dict[str, list[NodeId]] = {}
    for node_id in sorted(racks):
        by_rack.setdefault(racks[node_id] or "", []).append(node_id)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    depth = max(map(len, columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _replicas(circle: Sequence[NodeId], racks: Mapping[NodeId, str | None], turn: int, factor: int) -> tuple[NodeId, ...]:
    """The leader by turn; followers by a shifted walk around the circle, racks that have no replica yet first."""
    size = len(circle)
    leader = turn % size
    chosen = [circle[leader]]
    shift = turn // size % max(1, size - 1)
    walk = [circle[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)] if size > 1 else []
    while len(chosen) < factor:
        used = {racks[node_id] for node_id in chosen}
        fresh = next((node_id for node_id in walk if racks[node_id] not in used), walk[0])
        walk.remove(fresh)
        chosen.append(fresh)
    return tuple(chosen)
