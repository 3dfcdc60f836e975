"""The settings of a run, and the result of one seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

SECONDS_OF_SAFETY = 8.0
"""The virtual seconds with faults."""
LOADS = ("plain", "queues", "copy", "groups", "all", "prepare", "hostile", "share", "delay")
"""The work of clients. `plain`: produce and consume. The other loads do the same, and more. `copy`:
transactions and the copy of a topic. `groups`: groups of consumers. `all`: both. `prepare`:
two-phase commits. `hostile`: attacks (clients/hostile.py). `share`: share groups. `delay`:
delay and retry topics. `queues`: a topic in memory, and topics with one producer at a time.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The input of a run. The same settings give the same run."""

    seed: int
    nodes: int = 3
    observers: int = 0
    """The number of additional nodes, which do not vote."""
    seconds: float = SECONDS_OF_SAFETY
    bug: str | None = None
    plot: str | None = None
    """The plot (faults/plots.py), instead of the seed's."""
    load: str | None = None
    """One of LOADS, instead of the seed's."""
    security: str = "PLAINTEXT"
    """The protocol of the client listeners (security.py)."""

    @property
    def command(self) -> str:
        """The command that repeats this seed alone, with its trace in a file."""
        seconds = "" if self.seconds == SECONDS_OF_SAFETY else f" --seconds {self.seconds:g}"
        bug = f" --bug {self.bug}" if self.bug else ""
        bug += f" --plot {self.plot}" if self.plot else ""
        bug += f" --load {self.load}" if self.load else ""
        bug += f" --security {self.security.lower()}" if self.security != "PLAINTEXT" else ""
        observers = f" --observers {self.observers}" if self.observers else ""
        return (
            f"python -m mqd.testing --seeds {self.seed} --nodes "
            f"{self.nodes}{observers}{seconds}{bug} --trace trace-{self.seed}.txt"
        )


@dataclass(slots=True)
class Result:
    """The result of one seed. It has only plain values, so that processes can exchange it."""

    settings: Settings
    violations: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    """If there are violations, the last lines of the trace."""
    digest: str = ""
    events: int = 0
    simulated_seconds: float = 0.0
    real_seconds: float = 0.0
    converged_after: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
