"""The faults of the run of one seed, and their rate.

Without `flush.before.ack`, acknowledged records may be only in the memory of the in-sync replicas:
they are lost if all these replicas lose power (docs/INVARIANTS.md, I1). So there are three modes,
and no mode may lose an acknowledged record:

- KILL: any number of processes is killed, but machines keep running.
- POWER_ONE: one node loses power, and no other one until every replica is in sync again. Processes
  are killed, too.
- POWER_ALL: any number of nodes loses power at once, and every topic has `flush.before.ack`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """The power failures that are permitted."""

    KILL = "kill"
    POWER_ONE = "power-one"
    POWER_ALL = "power-all"


FAMILIES = (
    "kill",
    "power",
    "stop",
    "pause",
    "partition",
    "stall",
    "slow",
    "break",
    "skew",
    "sync",
    "full",
    "corrupt",
)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one seed."""

    mode: Mode
    families: tuple[str, ...]
    fault_every: float
    """The mean seconds between faults."""
    admin_every: float

    @classmethod
    def draw(cls, chance: random.Random) -> FaultPlan:
        mode = chance.choice([Mode.KILL, Mode.KILL, Mode.POWER_ONE, Mode.POWER_ALL])
        families = [family for family in FAMILIES if chance.random() < 0.6]
        if mode is Mode.KILL:
            families = [family for family in families if family not in ("power", "sync")]
        else:
            families = [family for family in families if family != "corrupt"]
            if "power" not in families:
                families.append("power")
        return cls(
            mode,
            tuple(families or ["kill"]),
            chance.choice([0.3, 0.7, 1.5]),
            chance.choice([0.3, 1.0, 4.0]),
        )
