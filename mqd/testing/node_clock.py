"""A node's Clock (mqd/io/clock.py): the virtual time, a skewed wall clock, and the cost of code."""

from __future__ import annotations

import random

from mqd.testing.scheduler import STARTS_AT, VirtualClock

_WALL_MS_AT_START = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""


class NodeClock:
    """A node's Clock (io/clock.py): the virtual time, and a wall clock that may be wrong.

    With a price, time passes while the node's code runs: between two readings of the clock. Turns
    and slices read it after each piece of work. Virtual time does not pass meanwhile, so the node
    is `ahead` of it, and must wait before it runs again.
    """

    def __init__(self, clock: VirtualClock, chance: random.Random | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self.skew_seconds = 0.0
        self.skew_seconds_max = 0.0
        """How much the wall clock was ahead at most."""
        self.price_seconds = 0.0
        """The maximum time between two readings; usually it is far shorter."""
        self._ahead_at = 0.0
        """The time that the last reading gave."""
        self._readings = 0
        """The number of readings since the last `charge`."""

    def monotonic(self) -> float:
        if not self.price_seconds:
            return self._clock.now
        assert self._chance is not None
        self._readings += 1
        self._ahead_at = (
            max(self._ahead_at, self._clock.now) + self.price_seconds * self._chance.random() ** 3
        )
        return self._ahead_at

    def charge(self, requests: int) -> None:
        """The node has served this many requests since the last call. Each one takes time, also if
        the node has not read the clock after it.
        """
        for _ in range(requests - self._readings):
            self.monotonic()
        self._readings = 0

    @property
    def ahead(self) -> float:
        """The seconds of work that are not yet part of the virtual time."""
        return max(self._ahead_at - self._clock.now, 0.0)

    def wall_ms(self) -> int:
        return _WALL_MS_AT_START + int((self._clock.now - STARTS_AT + self.skew_seconds) * 1000)
