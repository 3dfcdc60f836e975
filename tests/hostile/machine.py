"""How fast this machine is now. The bounds of docs/SECURITY.md are milliseconds of one machine. A
slower one, or one whose cores others use, takes longer for the same step.
"""

from __future__ import annotations

import time
from statistics import median

REFERENCE_SECONDS = 0.0037
"""CPU time of `_work` on the machine on which the bounds were measured."""
_SLOWNESS_MAX = 3.0
_TRIES = 7
_NAMES = [f"topic-{number}" for number in range(15_000)]


def on_reference_machine(seconds: float) -> float:
    """CPU seconds that a step took just now on this machine, as seconds on the reference machine.

    A virtual machine may change its speed within a minute, so the speed is measured here.
    """
    return seconds / slowness()


def slowness() -> float:
    """CPU time here, divided by that of the reference machine: at least 1, at most 3."""
    return min(max(median(_work() for _ in range(_TRIES)) / REFERENCE_SECONDS, 1.0), _SLOWNESS_MAX)


def _work() -> float:
    """CPU seconds of what most steps do: look-ups, new objects, text, in some of the caches and
    beyond them.
    """
    started = time.thread_time()
    rows: dict[str, tuple[int, bytes]] = {}
    for name in _NAMES:
        size, data = rows.get(name, (0, b""))
        rows[name] = (size + len(name), data or name.encode())
    for name in reversed(_NAMES):
        size, _ = rows.pop(name)
        assert size == len(name)
    return time.thread_time() - started
