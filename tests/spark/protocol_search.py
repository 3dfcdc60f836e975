"""The search through explicit-state models of the sink's two exactly-once protocols.

A model is a start state and a function that lists every step from a state. States are plain
tuples: atomic_batch_model.py, exactly_once_model.py. `explore` visits each reachable state once,
breadth first, and reports what readers with `read_committed` may see: rows twice (DUPLICATE), rows
of a completed batch never (LOSS), a query that stops although nothing is lost (STUCK), and
transactions that stay open (OPEN).

The world: tasks die, are retried, run twice (speculation), or continue after their driver died
(zombies). The driver crashes between any two steps, and Spark runs the same batch again. `commit()`
may raise, and Spark then calls `abort()`. A driver's Python worker may finish its `commit()` after
the JVM was killed. Transactions time out where the protocol permits it. Markers expire in a week.

`sample` takes walks by chance instead, from the start to an end: a slice of a space that is too
large to visit.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

State = Any
FAULTS = ("kill", "timeout", "driver crash")
"""A walk takes them more rarely than other steps: a query that only fails gets nowhere."""
Steps = Callable[[State], Iterator[tuple[str, State]]]


@dataclass
class Report:
    """What a search found. `traces` has the shortest way to the first finding of each kind."""

    states: int = 0
    ends: int = 0
    found: Counter[str] = field(default_factory=Counter)
    traces: dict[str, list[str]] = field(default_factory=dict)


def explore(
    start: State,
    steps: Steps,
    findings: Callable[[State], Iterator[str]],
    *,
    is_end: Callable[[State], bool],
    until: str = "",
) -> Report:
    """Visit every reachable state, or those up to the first finding of the kind `until`.

    A state with a DUPLICATE or a LOSS is not followed further.
    """
    report = Report()
    came_from: dict[Hashable, tuple[str, State] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        wrong = False
        for kind in findings(state):
            wrong |= kind in ("DUPLICATE", "LOSS")
            report.found[kind] += 1
            if kind not in report.traces:
                report.traces[kind] = _trace(came_from, state)
        if until in report.traces:
            break
        if is_end(state):
            report.ends += 1
            continue
        if wrong:
            continue
        for name, following in steps(state):
            if following not in came_from:
                came_from[following] = (name, state)
                waiting.append(following)
    report.states = len(came_from)
    return report


def sample(
    start: State,
    steps: Steps,
    findings: Callable[[State], Iterator[str]],
    *,
    is_end: Callable[[State], bool],
    walks: int,
    seed: int = 1,
) -> Report:
    """Take that many walks. `states` counts the steps of all; a trace is that of its walk."""
    report, chance = Report(), random.Random(seed)
    known: dict[State, list[tuple[str, State]]] = {}
    """The steps from each state: walks begin alike."""
    for _ in range(walks):
        state = start
        names: list[str] = []
        while True:
            kinds = list(findings(state))
            for kind in kinds:
                report.found[kind] += 1
                report.traces.setdefault(kind, names.copy())
            following = known.get(state)
            if following is None:
                following = [] if kinds or is_end(state) else list(steps(state))
                known[state] = following
            if not following:
                report.ends += 1
                break
            weights = [1 if name.startswith(FAULTS) else 8 for name, _ in following]
            name, state = chance.choices(following, weights)[0]
            names.append(name)
            report.states += 1
    return report


def _trace(came_from: dict[Hashable, tuple[str, State] | None], state: State) -> list[str]:
    names = []
    while (before := came_from[state]) is not None:
        name, state = before
        names.append(name)
    return names[::-1]


def replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """The same tuple with one element changed."""
    return (*values[:index], value, *values[index + 1 :])
