"""How fast this machine is now. The bounds of docs/SECURITY.md are milliseconds of one machine. A
slower one, or one whose cores others use, takes longer for the same step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

REFERENCE_SECONDS = 0.0037
"""CPU time of `_work` on the machine on which the bounds were measured."""
_SLOWNESS_MAX = 3.0
_MEASURED = 7
TRIES = 3
_NAMES = [f"topic-{number}" for number in range(15_000)]


def on_reference_machine(seconds: float, seconds_max: float = 0.0) -> float:
    """CPU seconds that a step took just now on this machine, as seconds on the reference machine.

    A virtual machine may change its speed within a minute, so the speed is measured here. A step
    below `seconds_max` is returned as it is: it takes no longer on the reference machine.
    """
    return seconds if seconds < seconds_max else seconds / slowness()


def slowness() -> float:
    """CPU time here, divided by that of the reference machine: at least 1, at most 3."""
    return min(
        max(median(_work() for _ in range(_MEASURED)) / REFERENCE_SECONDS, 1.0), _SLOWNESS_MAX
    )


def longest_step(run: Callable[[], list[float]], seconds_max: float) -> float:
    """The longest step of a run, in CPU seconds on the reference machine.

    `run` returns the times of its steps, which are the same in every run. With a step of
    `seconds_max` or longer, the run is repeated, and each step counts with its shortest time.
    """
    shortest: list[float] = []
    for _ in range(TRIES):
        gc.collect()
        gc.disable()
        try:
            times = run()
        finally:
            gc.enable()
        slower = slowness()
        times = [seconds / slower for seconds in times]
        if shortest:
            times = [min(both) for both in zip(times, shortest, strict=True)]
        shortest = times
        if max(shortest) < seconds_max:
            break
    return max(shortest)


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
