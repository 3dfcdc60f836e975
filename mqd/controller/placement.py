"""Places the replicas of new partitions on brokers.

Leaders and followers are placed round robin. The distance between them grows from round to round,
so that many brokers take over the partitions of a failed one. With racks, the circle of brokers
alternates between racks, so that a partition's replicas are in as many racks as possible. The idea
is Kafka's (KIP-36); brokers without a rack form one rack. The circle begins at the broker with the
fewest leaders and replicas, so that small topics fill empty brokers.

Invariants: each replica list has `factor` different brokers. If every rack has the same number of
brokers, the brokers' numbers of leaders differ by at most one. The same is true for their numbers
of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId


def check_replication_factor(factor: int, brokers: int) -> None:
    """Raise INVALID_REPLICATION_FACTOR unless `factor` replicas can be placed on `brokers`
    registered brokers.
    """
    if factor <= 0:
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 for the default.",
        )
    if factor > brokers:
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): only {brokers} broker(s) are "
            "registered.",
        )


def default_replication_factor(configured: int, nodes: int) -> int:
    """The meaning of -1: `default.replication.factor`, or the number of nodes in the peers file if
    that is less.
    """
    return max(1, min(configured, nodes))


class Load(NamedTuple):
    """The number of leaders and replicas on a broker."""

    leaders: int = 0
    replicas: int = 0


def place(
    racks: Mapping[NodeId, str | None],
    partitions: int,
    factor: int,
    start: int = 0,
    *,
    load: Mapping[NodeId, Load] | None = None,
    fenced: Collection[NodeId] = (),
) -> list[tuple[NodeId, ...]]:
    """Replica lists, the preferred leader first, for `partitions` partitions on the brokers of
    `racks`.

    `load`: the circle begins at the broker with the least. `start` (any non-negative int) turns the
    circle: a topic that grows passes its partition count, and continues where it stopped. `fenced`
    brokers are used only if the others are too few.
    """
    alive = {node_id: rack for node_id, rack in racks.items() if node_id not in fenced}
    circle = _interleave(alive, load or {})
    assert circle and 0 < factor <= len(racks), (factor, len(circle), len(racks))
    missing = factor - len(circle)
    lists = _repeated(
        partial(_replicas, circle, racks, factor=min(factor, len(circle))),
        start,
        partitions,
        len(circle) * max(1, len(circle) - 1),
    )
    if missing <= 0:
        return lists
    waiting = sorted(node_id for node_id in racks if node_id in fenced)
    added = _repeated(
        lambda turn: tuple(waiting[(turn + step) % len(waiting)] for step in range(missing)),
        start,
        partitions,
        len(waiting),
    )
    return [alive + fenced for alive, fenced in zip(lists, added, strict=True)]


def _repeated(
    replicas_of: Callable[[int], tuple[NodeId, ...]], start: int, count: int, period: int
) -> list[tuple[NodeId, ...]]:
    """The replicas of `count` turns from `start` on, calculated once for each turn of the period:
    10,000 partitions on three brokers are six different lists.
    """
    lists = [replicas_of(start + turn) for turn in range(min(count, period))]
    return (lists * (count // period + 1))[:count]


def _interleave(racks: Mapping[NodeId, str | None], load: Mapping[NodeId, Load]) -> list[NodeId]:
    """One broker of each rack, then the next of each; the least loaded of a rack, and of all racks,
    first.
    """
    none = Load()
    by_rack: dict[str, list[NodeId]] = {}
    for node_id in sorted(racks, key=lambda node_id: (load.get(node_id, none), node_id)):
        by_rack.setdefault(racks[node_id] or "", []).append(node_id)
    columns = sorted(
        by_rack.values(), key=lambda column: (load.get(column[0], none), racks[column[0]] or "")
    )
    depth = max(map(len, columns), default=0)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def _replicas(
    circle: Sequence[NodeId], racks: Mapping[NodeId, str | None], turn: int, factor: int
) -> tuple[NodeId, ...]:
    """The leader by turn; followers by a shifted walk around the circle, racks without a replica
    first.
    """
    size = len(circle)
    leader = turn % size
    chosen = [circle[leader]]
    shift = turn // size % max(1, size - 1)
    walk = (
        [circle[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
        if size > 1
        else []
    )
    while len(chosen) < factor:
        used = {racks[node_id] for node_id in chosen}
        fresh = next((node_id for node_id in walk if racks[node_id] not in used), walk[0])
        walk.remove(fresh)
        chosen.append(fresh)
    return tuple(chosen)
