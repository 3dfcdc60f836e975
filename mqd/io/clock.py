"""Seam 1 of 4: time.

The daemon reads the clock through this Protocol, so that a simulation can own it.
"""

from __future__ import annotations

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """Two readings: one that never jumps, for deadlines; one that people and record
    timestamps use.
    """

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back. The same scale as Trio's deadlines."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...


class SystemClock:
    """The real clock. `monotonic` is Trio's, so a virtual Trio clock moves it too."""

    monotonic = staticmethod(trio.current_time)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
