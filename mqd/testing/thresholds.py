"""Sizes and intervals of a run, drawn from its seed: small enough that in eight seconds happens what takes a node days.

With its defaults a node writes its first snapshot of the metadata after 10,000 commands and looks at retention every five
minutes. Half of the seeds have small values of each kind, so that both a rare and a frequent event meet the faults.
"""

from __future__ import annotations

import random

_SMALL: tuple[dict[str, str], ...] = (
    {"metadata.log.max.records.between.snapshots": "15", "metadata.log.records.kept": "5"},
    {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "200",
        "log.roll.ms": "300",
    },
    {"log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "100"},
)

_PRICES = (0.0, 0.0, 0.0, 0.0003, 0.001, 0.004)


def draw_thresholds(chance: random.Random) -> dict[str, str]:
    """Options of all nodes of a run."""
    options: dict[str, str] = {}
    for small in _SMALL:
        if chance.random() < 0.5:
            options |= small
    return options


def draw_price(chance: random.Random) -> float:
    """Seconds that may pass between two readings of a node's clock, mostly far less (`Cluster.price_work`): none in half of the seeds."""
    return chance.choice(_PRICES)
