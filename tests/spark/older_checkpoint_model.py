"""The model of an older checkpoint in mode exactly-once: tasks have other rows in each batch.

The source has three partitions, and a batch has a task for each partition with new records. Batch 0
has read all of them, and is complete. Batch 1 reads partition 0, and batch 2 partitions 1 and 2. So
the rows of partition 1 are those of task 1 in batch 0, and of task 0 in batch 2. At any time, once,
the driver is killed and the checkpoint after an earlier batch is restored; the batch after it is
planned again, up to the end of the source. Tasks of the killed driver that have started may
continue.

A query that stops is reported as STUCK. No row may be visible twice, also then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.spark.protocol_search import Report, explore, replaced

BATCHES = (("a0", "b0", "c0"), ("a1",), ("b2", "c2"))
"""The rows of each batch; a batch has a task for each row."""
TASKS = 3
EVEN = TASKS
"""The number of the batch marker of even batches; that of odd ones is behind it."""


@dataclass(frozen=True)
class OlderCheckpoint:
    """One variant of the protocol; the defaults are that of pyspark_mqd/exactly_once.py."""

    crashes: bool = False
    """Once, the driver crashes with all tasks, and the newest checkpoint stays."""
    grown: bool = True
    """The source has a row more when the checkpoint is restored."""
    batch_markers: bool = True
    """A task reads the batch markers, too."""
    driver_looks: bool = True
    """The first plan of a run reads the markers of all tasks,"""
    fenced: bool = True
    """and fences the tasks of earlier runs before."""
    plans_compared: bool = True
    """A marker of the batch that was planned at another time stops a task that would write."""


class Attempt(NamedTuple):
    """A task attempt. `plan`: 0, or 1 after the checkpoint was restored."""

    task: int
    batch: int
    plan: int
    rows: frozenset[str]
    step: str
    """init, read, end, done, dead."""
    epoch: int


class Marker(NamedTuple):
    batch: int
    plan: int
    rows: frozenset[str]


class W(NamedTuple):
    """The world. By task: epoch, and marker; behind them the two batch markers."""

    phase: str
    """PLAN, FENCED, TASKS, END, STOPPED."""
    batch: int
    restored: bool
    crashed: bool
    attempts: tuple[Attempt, ...]
    epochs: tuple[int, ...]
    markers: tuple[Marker, ...]
    newest: Marker
    first: bool
    """The batch is the first one of a run."""
    visible: tuple[tuple[str, int], ...]


NONE = Marker(-1, 0, frozenset())


def older_checkpoint(v: OlderCheckpoint, *, until: str = "") -> Report:
    """Search the variant, at most to a finding of the kind `until`."""
    own = tuple(Marker(0, 0, frozenset({row})) for row in BATCHES[0])
    visible = tuple((row, 1) for row in BATCHES[0])
    start = W("PLAN", 1, False, False, (), (0,) * TASKS, (*own, own[0], NONE), NONE, False, visible)
    return explore(
        start,
        lambda state: _steps(state, v),
        _findings,
        is_end=lambda state: state.phase in ("END", "STOPPED"),
        until=until,
    )


def _findings(state: W) -> Iterator[str]:
    visible = dict(state.visible)
    if max(visible.values(), default=0) > 1:
        yield "DUPLICATE"
    if state.phase == "END" and not {row for batch in BATCHES for row in batch} <= visible.keys():
        yield "LOSS"
    if state.phase == "STOPPED":
        yield "STUCK"


def _plan_of(state: W) -> int:
    """Batches that are planned after the restore are planned at another time."""
    return int(state.restored)


def _tasks_of(state: W, v: OlderCheckpoint, restored_to: int) -> tuple[frozenset[str], ...]:
    """The rows of each task: a partition with new records has a task."""
    if not state.restored:
        return tuple(frozenset({row}) for row in BATCHES[state.batch])
    assert state.batch == restored_to
    rows = {row for batch in BATCHES[restored_to:] for row in batch}
    if v.grown:
        rows.add("a9")
    parts = [frozenset(row for row in rows if row[0] == part) for part in "abc"]
    return tuple(part for part in parts if part)


def _steps(state: W, v: OlderCheckpoint) -> Iterator[tuple[str, W]]:
    for index, each in enumerate(state.attempts):
        yield from _attempt_steps(state, index, each, v)
    if state.phase == "PLAN":
        world = state
        if state.first and v.driver_looks and v.fenced:
            world = state._replace(epochs=tuple(epoch + 1 for epoch in state.epochs))
        yield "plan", world._replace(phase="FENCED")
    elif state.phase == "FENCED":
        looks = state.first and v.driver_looks
        newest = max(state.markers, key=lambda each: each.batch) if looks else NONE
        yield "look", state._replace(phase="TASKS", newest=newest)
    elif state.phase == "TASKS":
        yield from _spark_steps(state, v)
    if state.phase in ("PLAN", "TASKS"):
        yield from _crashes(state, v)


def _spark_steps(state: W, v: OlderCheckpoint) -> Iterator[tuple[str, W]]:
    plan, done = _plan_of(state), 0
    tasks = _tasks_of(state, v, state.batch)
    for task, rows in enumerate(tasks):
        mine = [
            each
            for each in state.attempts
            if (each.task, each.batch, each.plan) == (task, state.batch, plan)
        ]
        done += any(each.step == "done" for each in mine)
        if not any(each.step != "dead" for each in mine) and len(mine) < 2:
            attempt = Attempt(task, state.batch, plan, rows, "init", -1)
            yield f"launch task {task}", state._replace(attempts=(*state.attempts, attempt))
    if done == len(tasks):
        if state.restored or state.batch + 1 == len(BATCHES):
            yield "log", state._replace(phase="END")
        else:
            following = state._replace(phase="PLAN", batch=state.batch + 1, first=False)
            yield "log", following._replace(attempts=_living(state))


def _living(state: W) -> tuple[Attempt, ...]:
    """Attempts that have ended play no further part in another batch."""
    return tuple(each for each in state.attempts if each.step not in ("done", "dead"))


def _crashes(state: W, v: OlderCheckpoint) -> Iterator[tuple[str, W]]:
    """An executor starts no task of a dead driver; those that have started may continue."""
    started = tuple(each for each in _living(state) if each.step != "init")
    again = state._replace(phase="PLAN", first=True, newest=NONE)
    if v.crashes and not state.crashed and not state.restored and state.phase == "TASKS":
        dead = tuple(
            each._replace(step="dead") if each.step != "done" else each for each in state.attempts
        )
        finished = tuple(each for each in dead if each.step == "done")
        yield "driver crash", again._replace(crashed=True, attempts=finished)
    if not state.restored:
        for batch in range(1, state.batch + 1):
            world = again._replace(restored=True, batch=batch, attempts=started)
            yield f"restore the checkpoint before batch {batch}", world


def _attempt_steps(
    state: W, index: int, each: Attempt, v: OlderCheckpoint
) -> Iterator[tuple[str, W]]:
    if each.step == "init":
        epoch = state.epochs[each.task] + 1
        world = state._replace(epochs=replaced(state.epochs, each.task, epoch))
        yield f"init {index}", _moved(world, index, "read", epoch)
    elif each.step == "read":
        yield _read(state, index, each, v)
    elif each.step == "end":
        if each.epoch != state.epochs[each.task]:
            yield f"fenced {index}", _moved(state, index, "dead")
        else:
            yield f"EndTxn {index}", _moved(_committed(state, each), index, "done")


def _read(state: W, index: int, each: Attempt, v: OlderCheckpoint) -> tuple[str, W]:
    own = state.markers[each.task]
    current = (each.batch, each.plan) == (state.batch, _plan_of(state))
    seen = [own, *(state.markers[TASKS:] if v.batch_markers else ())]
    if current:
        seen.append(state.newest)
    same = own.batch == each.batch
    older = any(marker.batch > each.batch for marker in seen)
    if v.plans_compared and not same:
        older |= any(marker.batch == each.batch and marker.plan != each.plan for marker in seen)
    if older or (same and own.rows != each.rows):
        stopped = state._replace(phase="STOPPED") if current else _moved(state, index, "dead")
        return f"older checkpoint {index}", stopped
    return f"read {index}", _moved(state, index, "done" if same else "end")


def _committed(state: W, each: Attempt) -> W:
    visible = dict(state.visible)
    for row in each.rows:
        visible[row] = visible.get(row, 0) + 1
    marker = Marker(each.batch, each.plan, each.rows)
    markers = replaced(state.markers, each.task, marker)
    if each.task == 0:
        markers = replaced(markers, EVEN + each.batch % 2, marker)
    return state._replace(visible=tuple(sorted(visible.items())), markers=markers)


def _moved(state: W, index: int, step: str, epoch: int | None = None) -> W:
    each = state.attempts[index]
    moved = each._replace(step=step, epoch=each.epoch if epoch is None else epoch)
    return state._replace(attempts=replaced(state.attempts, index, moved))
