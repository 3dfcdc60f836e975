"""A node's Clock (mqd/io/clock.py): the virtual time, a skewed wall clock, and the cost of code."""

from __future__ import annotations

import random

from mqd.testing.scheduler import STARTS_AT, VirtualClock

_WALL_MS_AT_START = 1_767_225_594_000
"""2025-12-31T23:59:54Z: a minute ends, for schedules, while the faults of a run happen."""


class NodeClock:
    """A node's Clock (io/clock.py): the virtual time, and a wall clock that may be wrong.

    With a price, time passes while the node's code runs: between two readings of the clock. Turns
    and slices read it after each piece of work. Virtual time does not pass meanwhile, so the node
    is `ahead` of it, and must wait before it runs again.
    """

    def __init__(self, clock: VirtualClock, chance: random.Random | None = None) -> None:
        self._clock = clock
        self._chance = chance
        self._skews: list[tuple[float, float]] = [(0.0, 0.0)]
        """(virtual time, error of the wall clock since then), in order."""
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

    @property
    def skew_seconds_max(self) -> float:
        """How much the wall clock was ahead at most."""
        return max(seconds for _, seconds in self._skews)

    def skew(self, seconds: float) -> None:
        """Set the error of the wall clock: ahead, or behind if negative."""
        self._skews.append((self._clock.now, seconds))

    def wall_ms(self) -> int:
        return _wall_ms(self._clock.now, self._skews[-1][1])

    def wall_between(self, since: float, until: float) -> tuple[int, int]:
        """The earliest and the latest wall time in ms between two virtual times."""
        shown: list[int] = []
        for index, (begins, seconds) in enumerate(self._skews):
            ends = self._skews[index + 1][0] if index + 1 < len(self._skews) else until
            if begins <= until and since <= ends:
                shown += _wall_ms(max(begins, since), seconds), _wall_ms(min(ends, until), seconds)
        return min(shown), max(shown)


def _wall_ms(at: float, skew_seconds: float) -> int:
    return _WALL_MS_AT_START + int((at - STARTS_AT + skew_seconds) * 1000)
