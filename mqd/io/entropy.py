"""Seam 2 of 4: chance.

Ids, jitter and placement draw from here, so that a seed can replay a run.
"""

from __future__ import annotations

import random
from typing import Protocol
from uuid import UUID


class Entropy(Protocol):
    """Where every random choice comes from."""

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
    """Entropy of a `random.Random`: the system's own by default, a seeded one in a simulation."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source if source is not None else random.SystemRandom()

    def uuid(self) -> UUID:
        return UUID(int=self._source.getrandbits(128), version=4)

    def random(self) -> float:
        return self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)
