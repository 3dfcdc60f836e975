"""Seam 1 of 4: time.

The daemon reads the clock through this Protocol, so that a simulation can control time.
"""

from __future__ import annotations

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """Monotonic time for deadlines, and wall-clock time for people and record timestamps."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases. The same scale as Trio's deadlines."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...


class SystemClock:
    """The real clock. `monotonic` is Trio's, so a virtual Trio clock applies here, too."""

    monotonic = staticmethod(trio.current_time)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
