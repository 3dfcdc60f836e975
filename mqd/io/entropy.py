"""Seam 2 of 4: randomness.

Ids, jitter and placement use it, so that a simulation can repeat a run from its seed.
"""

from __future__ import annotations

import random
from typing import Protocol
from uuid import UUID


class Entropy(Protocol):
    """The source of all random choices."""

    def uuid(self) -> UUID:
        """A random version 4 UUID, never Kafka's reserved ones (0 and 1)."""
        ...

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def below(self, bound: int) -> int:
        """An int in [0, bound)."""
        ...


class RandomEntropy:
    """Entropy from a `random.Random`: by default the system's, in a simulation a seeded one."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source if source is not None else random.SystemRandom()

    def uuid(self) -> UUID:
        return UUID(int=self._source.getrandbits(128), version=4)

    def random(self) -> float:
        return self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)
