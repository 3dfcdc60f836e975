"""Sizes and intervals of a run, drawn from its seed. They are so small that eight seconds have the
events of days. With its defaults, a node writes its first metadata snapshot after 10,000 commands,
and checks retention every five minutes. Half of the seeds have small values of each kind, so that
events are rare in some runs with faults and frequent in others.
"""

from __future__ import annotations

import random

from mqd.limits import KIB, MIB

_SNAPSHOTS = (("15", "5"), ("8", "1"), ("4", "1"))
"""(entries of the metadata log between two snapshots, entries kept before a snapshot). So few that
a node that was down needs the snapshot.
"""
_DELETE_RETENTION_MS = 20_000
"""Longer than any downtime: a replica that misses a tombstone keeps the deleted record, as in
Apache Kafka.
"""
_SMALL: tuple[dict[str, str], ...] = (
    {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": str(_DELETE_RETENTION_MS),
        "log.roll.ms": "300",
    },
    {"log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "100"},
    {"log.flush.offset.checkpoint.interval.ms": "500"},
)
_TINY: tuple[dict[str, str], ...] = (
    {"memory.budget.bytes": str(256 * KIB)},
    {"connections.max.write.stall.ms": "1000"},
    {"metadata.image.max.bytes": str(MIB)},
)
"""Budgets that a hostile client can exhaust. Rejected requests must never lose records, and after
the attacks all clients must be served.
"""
_FLOODED = {
    "group.coordinator.memory.bytes": str(MIB),
    "share.coordinator.memory.bytes": str(MIB),
    "transaction.coordinator.memory.bytes": str(MIB),
    "max.connections": "25",
}
"""For runs in which no other client uses coordinators: the hostile client fills them."""
_PRICES = (0.0, 0.0, 0.0, 0.0003, 0.001, 0.004)
_COORDINATED_PRICE_MAX = 0.001
_FLOODED_PRICES = (0.0, 0.001, 0.004)


def draw_thresholds(
    chance: random.Random, *, tiny: bool = False, floods: bool = False
) -> dict[str, str]:
    """Options of all nodes of a run.

    `tiny`: also draw tiny budgets; `floods`: also those of coordinators and connections.
    """
    options: dict[str, str] = {}
    if chance.random() < 0.6:
        between, kept = chance.choice(_SNAPSHOTS)
        options |= {
            "metadata.log.max.records.between.snapshots": between,
            "metadata.log.records.kept": kept,
        }
    for small in (*_SMALL, *(_TINY if tiny else ())):
        if chance.random() < 0.5:
            options |= small
    return options | (_FLOODED if floods else {})


def draw_price(chance: random.Random, *, coordinated: bool = False, floods: bool = False) -> float:
    """The maximum seconds between two readings of a node's clock (`Cluster.price_work`); usually
    far fewer pass. 0 in half of the seeds.

    `coordinated`: the load has groups or transactions, which cost a node three times as much. So
    the price is lower: a node that is always busy never catches up. `floods`: a hostile client
    sends more than a node can serve, so fewer seeds have no price.
    """
    return min(
        chance.choice(_FLOODED_PRICES if floods else _PRICES),
        _COORDINATED_PRICE_MAX if coordinated else 1.0,
    )
