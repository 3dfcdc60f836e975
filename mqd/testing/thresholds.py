"""Sizes and intervals of a run, drawn from its seed: small enough that in eight seconds happens
what takes a node days.

With its defaults a node writes its first snapshot of the metadata after 10,000 commands and looks
at retention every five minutes. Half of the seeds have small values of each kind, so that both a
rare and a frequent event meet the faults.
"""

from __future__ import annotations

import random

from mqd.limits import KIB, MIB

_SNAPSHOTS = (("15", "5"), ("8", "1"), ("4", "1"))
"""Entries of the metadata log between two snapshots, and those that are kept before one: a
node that was away needs the snapshot.
"""
_DELETE_RETENTION_MS = 20_000
"""Longer than a replica is away: one that misses a tombstone keeps the record that it
deletes, as with Apache Kafka.
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
"""Drawn where a hostile client uses them up.

What is refused must never be lost, and everybody is served when it has gone.
"""
_FLOODED = {
    "group.coordinator.memory.bytes": str(MIB),
    "transaction.coordinator.memory.bytes": str(MIB),
    "max.connections": "25",
}
"""Where the hostile client is almost alone: what it fills, others could not use."""
_PRICES = (0.0, 0.0, 0.0, 0.0003, 0.001, 0.004)
_COORDINATED_PRICE_MAX = 0.001
_FLOODED_PRICES = (0.0, 0.001, 0.004)


def draw_thresholds(
    chance: random.Random, *, tiny: bool = False, floods: bool = False
) -> dict[str, str]:
    """Options of all nodes of a run.

    `tiny`: budgets, too; `floods`: those of coordinators and connections besides.
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
    """Seconds that may pass between two readings of a node's clock, mostly far less
    (`Cluster.price_work`): none in half of the seeds.

    `coordinated`: groups or transactions are at work, which cost a node three times as much. It
    must not be busy all the time, or nothing is ever whole again. `floods`: a hostile client sends
    more than a node can serve, which it must not notice only in a few seeds.
    """
    return min(
        chance.choice(_FLOODED_PRICES if floods else _PRICES),
        _COORDINATED_PRICE_MAX if coordinated else 1.0,
    )
