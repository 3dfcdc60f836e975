"""How fast this machine is. The bounds of docs/SECURITY.md are milliseconds of one machine. A
slower one takes longer for the same step.
"""

from __future__ import annotations

import time
from functools import cache

REFERENCE_SECONDS = 0.0048
"""CPU time of `_work` on the machine on which the bounds were measured."""
_SLOWNESS_MAX = 3.0
_TRIES = 20


def seconds_here(bound: float) -> float:
    """A bound in seconds of CPU time on the reference machine, as seconds on this one."""
    return bound * slowness()


@cache
def slowness() -> float:
    """CPU time here, divided by that of the reference machine: at least 1, at most 3."""
    return min(max(min(_work() for _ in range(_TRIES)) / REFERENCE_SECONDS, 1.0), _SLOWNESS_MAX)


def _work() -> float:
    """CPU seconds of what most steps do: look-ups, new objects, text."""
    started = time.process_time()
    rows: dict[str, tuple[int, bytes]] = {}
    for number in range(20_000):
        name = f"topic-{number % 1_000}"
        size, data = rows.get(name, (0, b""))
        rows[name] = (size + len(name), data or name.encode())
    assert len(rows) == 1_000
    return time.process_time() - started
