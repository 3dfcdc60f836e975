"""Tables of times between attempts, as text: `1s,10s,1m`. Pure."""

from __future__ import annotations

import re

STEPS_MAX = 20
MILLISECONDS_MAX = 2**31 - 1
"""About 24 days."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEP = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def parse_back_off(text: str) -> tuple[int, ...]:
    """The milliseconds before each attempt after the first; the last one counts for all later
    attempts. Empty text: none. Raises ValueError.
    """
    steps = [step.strip() for step in text.split(",")] if text.strip() else []
    if len(steps) > STEPS_MAX:
        raise ValueError(f"{len(steps)} times, and {STEPS_MAX} are allowed")
    found = []
    for step in steps:
        match = _STEP.fullmatch(step)
        if match is None:
            raise ValueError(f"{step!r} is not a time: write 500ms, 10s, 1m, 2h or 1d")
        milliseconds = int(match[1]) * _UNITS_MS[match[2]]
        if milliseconds > MILLISECONDS_MAX:
            raise ValueError(f"{step!r} is a longer time than 24 days")
        found.append(milliseconds)
    return tuple(found)


def step_after(back_off: tuple[int, ...], attempts: int) -> int:
    """The milliseconds to wait after so many attempts; 0 without a table."""
    assert attempts >= 0, attempts
    return back_off[min(max(0, attempts - 1), len(back_off) - 1)] if back_off else 0
