"""The usage of a memory bound, and when to report it: at 50, 75 and 90 percent."""

from __future__ import annotations

from typing import Final, NamedTuple

THRESHOLDS: Final = (0.5, 0.75, 0.9)
"""Shares of a bound. Usage is reported once when it reaches one of them."""
_HYSTERESIS: Final = 0.05
"""A threshold is reported again only after usage was this share below it: usage that oscillates
around a threshold is reported once.
"""


class Usage(NamedTuple):
    """Bytes in use, and the bound on them."""

    used: int
    most: int

    @property
    def share(self) -> float:
        """0.0 is empty, 1.0 is full; above 1.0 if the bound was lowered."""
        return self.used / self.most if self.most else 1.0


class UsageWatch:
    """Determines the thresholds to report."""

    def __init__(self) -> None:
        self._passed = 0.0

    def passed(self, usage: Usage) -> float | None:
        """The highest threshold that usage has reached since the last call; None if there is
        nothing to report.
        """
        share = usage.share
        reached = max((threshold for threshold in THRESHOLDS if share >= threshold), default=0.0)
        if reached > self._passed:
            self._passed = reached
            return reached
        if share < self._passed - _HYSTERESIS:
            self._passed = reached
        return None
