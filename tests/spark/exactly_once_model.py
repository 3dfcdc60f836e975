"""The model of mode exactly-once: each task commits its rows with a marker.

Tasks have the steps of pyspark_mqd/exactly_once.py. Each task has a transactional id and a marker
of its own; the markers of all tasks may expire while the query is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.spark.protocol_search import Report, explore, replaced


@dataclass(frozen=True)
class TaskCommits:
    """One variant of the protocol; the defaults are B1. `tasks`: task count of each batch."""

    tasks: tuple[int, ...] = (1,)
    attempts: int = 4
    crashes: int = 2
    marker: bool = True
    marker_first: bool = False
    """Read the marker before InitProducerId."""
    expiry: bool = False
    """A crash may last longer than the retention of markers."""
    before: str = "required"
    """The marker of the batch before: "required", or "ignored"."""


class TaskAttempt(NamedTuple):
    task: int
    batch: int
    run: int
    step: str
    """read0, init, read, produce, end, done, dead."""
    epoch: int


class B(NamedTuple):
    """The whole world of exactly-once. By task: epoch, open transaction's epoch, marker."""

    phase: str
    batch: int
    run: int
    crashes: int
    attempts: tuple[TaskAttempt, ...]
    epochs: tuple[int, ...]
    opened: tuple[int, ...]
    markers: tuple[int, ...]
    visible: tuple[int, ...]


def task_commits(v: TaskCommits) -> Report:
    """Search the variant."""
    most = max(v.tasks)
    first = B(
        "TASKS", 0, 0, 0, (), (0,) * most, (-1,) * most, (-1,) * most, (0,) * (most * len(v.tasks))
    )
    return explore(
        first,
        lambda state: _task_steps(state, v),
        lambda state: _task_findings(state, v),
        is_end=lambda state: state.phase in ("END", "STOPPED"),
    )


def _task_findings(state: B, v: TaskCommits) -> Iterator[str]:
    most = max(v.tasks)
    if max(state.visible) > 1:
        yield "DUPLICATE"
    logged = len(v.tasks) if state.phase == "END" else state.batch
    if any(
        state.visible[batch * most + task] < 1
        for batch in range(logged)
        for task in range(v.tasks[batch])
    ):
        yield "LOSS"
    if state.phase == "STOPPED":
        yield "STUCK"


def _task_steps(state: B, v: TaskCommits) -> Iterator[tuple[str, B]]:
    dead = sum(each.step == "dead" for each in state.attempts)
    for index, each in enumerate(state.attempts):
        if each.step in ("done", "dead"):
            continue
        yield from _one_task_step(state, index, each, v)
        if dead < 2:
            yield f"kill {index}", _moved(state, index, "dead")
    for task, epoch in enumerate(state.opened):
        if epoch >= 0:
            later = replaced(state.epochs, task, state.epochs[task] + 1)
            yield (
                f"time-out {task}",
                state._replace(epochs=later, opened=replaced(state.opened, task, -1)),
            )
    yield from _spark_steps(state, v)


def _spark_steps(state: B, v: TaskCommits) -> Iterator[tuple[str, B]]:
    finished = 0
    for task in range(v.tasks[state.batch]):
        mine = [each for each in state.attempts if each[:3] == (task, state.batch, state.run)]
        done = any(each.step == "done" for each in mine)
        finished += done
        alive = sum(each.step != "dead" for each in mine)
        if not done and alive < 2 and len(mine) < 3 and len(state.attempts) < v.attempts:
            attempt = TaskAttempt(
                task, state.batch, state.run, "read0" if v.marker_first else "init", -1
            )
            yield f"launch task {task}", state._replace(attempts=(*state.attempts, attempt))
    if finished == v.tasks[state.batch]:
        last = state.batch + 1 == len(v.tasks)
        yield "log", state._replace(phase="END") if last else state._replace(batch=state.batch + 1)
    if state.crashes < v.crashes:
        again = state._replace(run=state.run + 1, crashes=state.crashes + 1)
        yield "driver crash", again
        if v.expiry and state.batch > 0:
            attempts = tuple(
                each._replace(step=each.step if each.step == "done" else "dead")
                for each in state.attempts
            )
            none = (-1,) * len(state.markers)
            yield (
                "driver crash, and a week",
                again._replace(attempts=attempts, markers=none, opened=none),
            )


def _one_task_step(
    state: B, index: int, each: TaskAttempt, v: TaskCommits
) -> Iterator[tuple[str, B]]:
    task = each.task
    if each.step == "init":  # InitProducerId aborts what is open, and fences
        epoch = state.epochs[task] + 1
        world = state._replace(
            epochs=replaced(state.epochs, task, epoch), opened=replaced(state.opened, task, -1)
        )
        yield f"init {index}", _moved(world, index, "produce" if v.marker_first else "read", epoch)
    elif each.step in ("read0", "read"):
        after = "init" if each.step == "read0" else "produce"
        if v.marker and state.markers[task] >= each.batch:
            yield f"already committed {index}", _moved(state, index, "done")
        elif v.before == "required" and not _may_write(state, each):
            yield f"no marker {index}", state._replace(phase="STOPPED")
        else:
            yield f"read {index}", _moved(state, index, after)
    elif each.epoch != state.epochs[task]:
        yield f"fenced {index}", _moved(state, index, "dead")
    elif each.step == "produce":
        yield (
            f"produce {index}",
            _moved(state._replace(opened=replaced(state.opened, task, each.epoch)), index, "end"),
        )
    else:
        place = each.batch * max(v.tasks) + task
        visible = replaced(state.visible, place, state.visible[place] + 1)
        markers = replaced(state.markers, task, each.batch) if v.marker else state.markers
        world = state._replace(
            opened=replaced(state.opened, task, -1), visible=visible, markers=markers
        )
        yield f"EndTxn {index}", _moved(world, index, "done")


def _may_write(state: B, each: TaskAttempt) -> bool:
    """The rule of `pyspark_mqd.markers`: task 0 runs in every batch, so its marker shows whether
    markers have expired."""
    return (
        each.batch == 0
        or state.markers[each.task] == each.batch - 1
        or (each.task > 0 and state.markers[0] >= each.batch - 1)
    )


def _moved(state: B, index: int, step: str, epoch: int | None = None) -> B:
    each = state.attempts[index]
    moved = each._replace(step=step, epoch=each.epoch if epoch is None else epoch)
    return state._replace(attempts=replaced(state.attempts, index, moved))
