"""The faults of the nodes, drawn from a seed: an endless, reproducible list. Pure: the fault
injector finds the victims.

A step names its victim by role (the current leader of a partition), because roles move: the same
seed gives the same steps, not the same interleaving with a cluster that runs on real clocks.
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
    """SIGSTOP, and SIGCONT after a while: silent, with every connection open."""
    RESTART = "restart"
    """SIGTERM, and a start."""
    CUT = "cut"
    """No byte between it and the other nodes, while its clients still reach it."""


class Target(StrEnum):
    """The victim, or the victims."""

    ANY = "any"
    LEADER = "leader"
    """Of one partition."""
    CONTROLLER = "controller"
    LEADER_AND_CONTROLLER = "leader-and-controller"
    """At the same moment; often one node, else two."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. It begins `before_s` after the step before has ended."""

    fault: Fault
    target: Target
    choice: float
    """In [0, 1): picks the node or the partition."""
    before_s: float
    down_s: float
    """How long the victims are away: session lengths around the broker session timeout,
    shorter and longer.
    """
    again_s: float
    """For KILL_IN_RECOVERY: between the start and the second kill."""
    hurry: bool
    """The next step does not wait until every partition takes records again."""

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
    """The faults of this seed, for ever.

    `session_s` is the broker session timeout, which the lengths of absence relate to.
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
