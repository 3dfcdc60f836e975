"""The faults of a seed: an endless, reproducible sequence. Pure: the fault injector finds the
victims.

A step names the role of its victim (the current leader of a partition), because roles move between
nodes. The same seed gives the same steps, but not the same interleaving: the cluster runs in real
time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What happens to a victim."""

    KILL = "kill"
    """SIGKILL, and a start after a while."""
    KILL_IN_RECOVERY = "kill-in-recovery"
    """SIGKILL, a start, and SIGKILL again before the node has recovered."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after a while. The process is silent, but its connections stay open."""
    RESTART = "restart"
    """SIGTERM, and a start."""
    CUT = "cut"
    """A partition from the other nodes. Clients still reach the node."""


class Target(StrEnum):
    """The victim, or the victims."""

    ANY = "any"
    LEADER = "leader"
    """The leader of one partition."""
    CONTROLLER = "controller"
    LEADER_AND_CONTROLLER = "leader-and-controller"
    """Both at the same time; often this is one node, otherwise two."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. It begins `before_s` after the end of the previous step."""

    fault: Fault
    target: Target
    choice: float
    """In [0, 1): selects the node or the partition."""
    before_s: float
    down_s: float
    """How long the victims are down: shorter and longer than the broker session timeout."""
    again_s: float
    """For KILL_IN_RECOVERY: the time between the start and the second kill."""
    hurry: bool
    """Whether the next step begins before every partition accepts records again."""

    @property
    def name(self) -> str:
        """For log lines."""
        return f"{self.fault} {self.target}"


WEIGHTS: dict[tuple[Fault, Target], int] = {
    (Fault.KILL, Target.ANY): 3,
    (Fault.KILL, Target.LEADER): 5,
    (Fault.KILL, Target.CONTROLLER): 4,
    (Fault.KILL, Target.LEADER_AND_CONTROLLER): 3,
    (Fault.KILL, Target.ALL): 1,
    (Fault.KILL_IN_RECOVERY, Target.ANY): 2,
    (Fault.KILL_IN_RECOVERY, Target.CONTROLLER): 1,
    (Fault.PAUSE, Target.LEADER): 2,
    (Fault.PAUSE, Target.CONTROLLER): 1,
    (Fault.RESTART, Target.ANY): 2,
    (Fault.RESTART, Target.LEADER_AND_CONTROLLER): 1,
    (Fault.RESTART, Target.ALL): 1,
}
CUTS: dict[tuple[Fault, Target], int] = {
    (Fault.CUT, Target.LEADER): 3,
    (Fault.CUT, Target.CONTROLLER): 2,
    (Fault.CUT, Target.ANY): 1,
}
HURRY_ODDS = 0.25
BEFORE_S = (0.2, 3.0)
DOWN_SESSIONS = (0.1, 2.5)
PAUSE_SESSIONS_MIN = 0.5
AGAIN_S = (0.1, 1.5)


def steps(seed: int, session_s: float, *, cuts: bool = False) -> Iterator[Step]:
    """The faults of this seed, endlessly. `session_s`: the broker session timeout, from which
    downtimes are derived.
    """
    random_source = random.Random(seed)
    weights = WEIGHTS | (CUTS if cuts else {})
    while True:
        fault, target = random_source.choices(list(weights), list(weights.values()))[0]
        shortest = PAUSE_SESSIONS_MIN if fault in (Fault.PAUSE, Fault.CUT) else DOWN_SESSIONS[0]
        yield Step(
            fault,
            target,
            random_source.random(),
            random_source.uniform(*BEFORE_S),
            random_source.uniform(shortest, DOWN_SESSIONS[1]) * session_s,
            random_source.uniform(*AGAIN_S),
            random_source.random() < HURRY_ODDS,
        )
