"""The model of mode exactly-once: each task commits its rows with a marker.

Tasks have the steps of pyspark_mqd/exactly_once.py. Each task has a transactional id and a marker
of its own; task 0 commits the batch marker, too. While the query is stopped, markers grow old in
the order in which they were committed. Each coordinator then deletes old markers when it likes.

A batch has the same rows in each run. If the number of tasks changes between two runs, they are in
other tasks. A query that then stops is reported as STUCK, although rows may be doubled: what must
not happen is that the batch completes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.spark.protocol_search import Report, explore, replaced, sample


@dataclass(frozen=True)
class TaskCommits:
    """One variant of the protocol; the defaults are B1. `tasks`: task count of each batch."""

    tasks: tuple[int, ...] = (1,)
    later: tuple[int, ...] = ()
    """Task counts of all runs but the first, if they differ."""
    attempts: int = 4
    crashes: int = 2
    deaths: int = 2
    """Tasks that die by themselves."""
    copies: int = 2
    """Attempts of a task that run at the same time."""
    marker: bool = True
    marker_first: bool = False
    """Read the marker before InitProducerId."""
    expiry: bool = False
    """A crash may last longer than the retention of markers."""
    before: str = "required"
    """What a task needs whose own marker is not of the batch before: the batch marker and its age
    ("required"), the batch marker ("present"), that of task 0 ("task 0"), nothing ("ignored")."""
    first_checked: bool = True
    """The age of batch 0 counts."""
    rows_compared: bool = True
    further_read: bool = True
    """The driver reads the markers of further tasks,"""
    further_fenced: bool = True
    """and fences them before."""

    @property
    def most(self) -> int:
        """Tasks have the numbers below it, and a batch has so many rows."""
        return max(*self.tasks, *self.later, 1)

    def count(self, batch: int, run: int) -> int:
        """The number of tasks."""
        return self.later[batch] if run and self.later else self.tasks[batch]


class TaskAttempt(NamedTuple):
    task: int
    batch: int
    run: int
    step: str
    """read0, init, read, produce, end, done, dead."""
    epoch: int


class B(NamedTuple):
    """The whole world of exactly-once.

    By task: epoch, open transaction's epoch, marker. Behind the tasks' markers are the two batch
    markers; `counts` are the numbers of tasks of the runs that committed them. `ages` has the
    numbers of markers, and that of the plan of batch 0, oldest first: the first `old` are old.
    """

    phase: str
    batch: int
    run: int
    crashes: int
    attempts: tuple[TaskAttempt, ...]
    epochs: tuple[int, ...]
    opened: tuple[int, ...]
    markers: tuple[int, ...]
    counts: tuple[int, ...]
    ages: tuple[int, ...]
    old: int
    visible: tuple[int, ...]


def task_commits(v: TaskCommits, *, walks: int = 0, until: str = "") -> Report:
    """Search the variant, at most to a finding of the kind `until`, or take walks through it."""
    most = v.most
    first = B(
        phase="TASKS",
        batch=0,
        run=0,
        crashes=0,
        attempts=(),
        epochs=(0,) * most,
        opened=(-1,) * most,
        markers=(-1,) * (most + 2),
        counts=(0,) * (most + 2),
        ages=(most + 2,) if v.expiry else (),
        old=0,
        visible=(0,) * (most * len(v.tasks)),
    )
    search = (
        first,
        lambda state: _task_steps(state, v),
        lambda state: _task_findings(state, v),
    )
    if walks:
        return sample(*search, is_end=_is_end, walks=walks)
    return explore(*search, is_end=_is_end, until=until)


def _is_end(state: B) -> bool:
    return state.phase in ("END", "STOPPED")


def _task_findings(state: B, v: TaskCommits) -> Iterator[str]:
    completed = len(v.tasks) if state.phase == "END" else state.batch
    rows = state.visible[: completed * v.most]
    if max(rows if v.later else state.visible, default=0) > 1:
        yield "DUPLICATE"
    if min(rows, default=1) < 1:
        yield "LOSS"
    if state.phase == "STOPPED":
        yield "STUCK"


def _task_steps(state: B, v: TaskCommits) -> Iterator[tuple[str, B]]:
    dead = sum(each.step == "dead" for each in state.attempts)
    for index, each in enumerate(state.attempts):
        if each.step in ("done", "dead"):
            continue
        yield from _one_task_step(state, index, each, v)
        if dead < v.deaths:
            yield f"kill {index}", _moved(state, index, "dead")
    for task, epoch in enumerate(state.opened):
        if epoch >= 0:
            yield f"timeout {task}", _fenced(state, task)
    for position, number in enumerate(state.ages[: state.old]):
        if number < v.most + 2:
            ages = (*state.ages[:position], *state.ages[position + 1 :])
            markers = replaced(state.markers, number, -1)
            without = state._replace(markers=markers, ages=ages, old=state.old - 1)
            yield f"marker {number} expires", without
    yield from _spark_steps(state, v)


def _spark_steps(state: B, v: TaskCommits) -> Iterator[tuple[str, B]]:
    finished, count = 0, v.count(state.batch, state.run)
    for task in range(count):
        mine = [each for each in state.attempts if each[:3] == (task, state.batch, state.run)]
        done = any(each.step == "done" for each in mine)
        finished += done
        alive = sum(each.step != "dead" for each in mine)
        if not done and alive < v.copies and len(mine) < 3 and len(state.attempts) < v.attempts:
            attempt = TaskAttempt(
                task, state.batch, state.run, "read0" if v.marker_first else "init", -1
            )
            yield f"launch task {task}", state._replace(attempts=(*state.attempts, attempt))
    if finished == count:
        yield from _driver_commits(state, count, v)
    if state.crashes < v.crashes:
        yield from _crashes(state, v)


def _driver_commits(state: B, count: int, v: TaskCommits) -> Iterator[tuple[str, B]]:
    further = range(count, v.most)
    if v.further_read and any(state.markers[task] == state.batch for task in further):
        yield "further tasks", state._replace(phase="STOPPED")
        return
    if v.further_fenced:
        for task in further:
            state = _fenced(state, task)
    if state.batch + 1 == len(v.tasks):
        yield "log", state._replace(phase="END")
        return
    yield "log", state._replace(batch=state.batch + 1)


def _crashes(state: B, v: TaskCommits) -> Iterator[tuple[str, B]]:
    again = state._replace(run=state.run + 1, crashes=state.crashes + 1)
    if v.later:  # an executor starts no task of a dead driver
        again = again._replace(attempts=_without(state.attempts, "init"))
    yield "driver crash", again
    attempts = _without(state.attempts, "read0", "init", "read", "produce", "end")
    stopped = again._replace(attempts=attempts, opened=(-1,) * v.most)
    for old in range(state.old + 1, len(state.ages) + 1):
        yield "driver crash, and a week", stopped._replace(old=old)


def _without(attempts: tuple[TaskAttempt, ...], *steps: str) -> tuple[TaskAttempt, ...]:
    return tuple(each._replace(step="dead") if each.step in steps else each for each in attempts)


def _one_task_step(
    state: B, index: int, each: TaskAttempt, v: TaskCommits
) -> Iterator[tuple[str, B]]:
    task = each.task
    if each.step == "init":  # InitProducerId aborts what is open, and fences
        world = _fenced(state, task)
        step = "produce" if v.marker_first else "read"
        yield f"init {index}", _moved(world, index, step, world.epochs[task])
    elif each.step in ("read0", "read"):
        after = "init" if each.step == "read0" else "produce"
        if v.marker and state.markers[task] >= each.batch:
            if not v.rows_compared or _has_same_rows(state, each, v):
                yield f"already committed {index}", _moved(state, index, "done")
            else:
                yield f"other rows {index}", _stopped(state, index, each)
        elif not _may_write(state, each, v):
            yield f"no marker {index}", _stopped(state, index, each)
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
        yield f"EndTxn {index}", _moved(_committed(state, each, v), index, "done")


def _committed(state: B, each: TaskAttempt, v: TaskCommits) -> B:
    count = v.count(each.batch, each.run)
    for row in _rows(each.task, count, v):
        number = each.batch * v.most + row
        visible = replaced(state.visible, number, state.visible[number] + 1)
        state = state._replace(visible=visible)
    if v.marker:
        state = _marked(state, each.task, each.batch, count, v)
        if each.task == 0:
            state = _marked(state, v.most + each.batch % 2, each.batch, count, v)
    return state._replace(opened=replaced(state.opened, each.task, -1))


def _marked(state: B, number: int, batch: int, count: int, v: TaskCommits) -> B:
    ages, old = state.ages, state.old
    if v.expiry:
        old -= number in ages[:old]
        ages = (*(other for other in ages if other != number), number)
    return state._replace(
        markers=replaced(state.markers, number, batch),
        counts=replaced(state.counts, number, count) if v.later else state.counts,
        ages=ages,
        old=old,
    )


def _has_same_rows(state: B, each: TaskAttempt, v: TaskCommits) -> bool:
    count = v.count(each.batch, each.run)
    return not v.later or (
        _rows(each.task, count, v) == _rows(each.task, state.counts[each.task], v)
    )


def _rows(task: int, count: int, v: TaskCommits) -> range:
    """The rows of a task, if the batch has `count` tasks."""
    return range(task, v.most, count)


def _may_write(state: B, each: TaskAttempt, v: TaskCommits) -> bool:
    """The rule of `pyspark_mqd.markers`."""
    if v.before == "ignored":
        return True
    if each.batch == 0:
        return not v.first_checked or v.most + 2 not in state.ages[: state.old]
    if state.markers[each.task] == each.batch - 1:
        return True
    if v.before == "task 0":
        return state.markers[0] >= each.batch - 1
    number = v.most + (each.batch - 1) % 2
    young = v.before == "present" or number not in state.ages[: state.old]
    return young and state.markers[number] == each.batch - 1


def _fenced(state: B, task: int) -> B:
    """The coordinator raises the epoch, and aborts what is open."""
    return state._replace(
        epochs=replaced(state.epochs, task, state.epochs[task] + 1),
        opened=replaced(state.opened, task, -1),
    )


def _stopped(state: B, index: int, each: TaskAttempt) -> B:
    """A task of the current run stops the query; a zombie stops itself."""
    if each[1:3] == (state.batch, state.run):
        return state._replace(phase="STOPPED")
    return _moved(state, index, "dead")


def _moved(state: B, index: int, step: str, epoch: int | None = None) -> B:
    each = state.attempts[index]
    moved = each._replace(step=step, epoch=each.epoch if epoch is None else epoch)
    return state._replace(attempts=replaced(state.attempts, index, moved))
