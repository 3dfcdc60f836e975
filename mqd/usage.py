"""How much of a bound is used, and when an operator must know: at a half, at three quarters and at
nine tenths.
"""

from __future__ import annotations

from typing import Final, NamedTuple

THRESHOLDS: Final = (0.5, 0.75, 0.9)
"""Shares of a bound that are reported, each once while it is passed."""
_HYSTERESIS: Final = 0.05
"""A threshold counts as left when usage is this share below it: usage that swings around it is
reported once.
"""


class Usage(NamedTuple):
    """Bytes in use, and the bound on them."""

    used: int
    most: int

    @property
    def share(self) -> float:
        """0.0 is empty, 1.0 is full; more than 1.0 where the bound was lowered."""
        return self.used / self.most if self.most else 1.0


class UsageWatch:
    """Remembers which thresholds were reported."""

    def __init__(self) -> None:
        self._passed = 0.0

    def passed(self, usage: Usage) -> float | None:
        """The highest threshold that usage has passed since the last call; None where there is
        nothing new to report.
        """
        share = usage.share
        reached = max((threshold for threshold in THRESHOLDS if share >= threshold), default=0.0)
        if reached > self._passed:
            self._passed = reached
            return reached
        if share < self._passed - _HYSTERESIS:
            self._passed = reached
        return None
