"""The model of mode atomic-batch: tasks leave transactions open, the driver commits them.

The steps of `commit()` have the order of pyspark_mqd/atomic_batch.py. A decision record D lists the
transactions of a batch; from its write on, the batch is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.spark.protocol_search import Report, explore, replaced


@dataclass(frozen=True)
class DriverCommits:
    """One variant of the protocol; the defaults are A6."""

    tasks: int = 2
    batches: int = 1
    attempts: int = 5
    crashes: int = 1
    decision_record: bool = True
    fence: str = "none"
    """Without a decision record: "before" or "after" the EndTxn requests."""
    abort: str = "guarded"
    timeouts: str = "unprepared"
    ignore_refused: bool = False
    sweep: bool = True
    zombie_commits: bool = False
    """A killed driver's commit() may continue beside the new run."""
    verify: bool = True
    """The sweep checks that its driver still owns the query, after it has listed transactions."""


class Attempt(NamedTuple):
    """One task attempt with its own transactional id. A later batch may reuse an id."""

    task: int
    batch: int
    run: int
    status: str
    """"r" running, "d" done (prepared), "x" dead."""
    txn: str
    """"o" open, "c" committed, "a" aborted."""


class Commit(NamedTuple):
    """A commit() in progress. Its steps are in the order of the code; a number is one EndTxn."""

    batch: int
    chosen: tuple[int, ...]
    step: str | int
    owner: int
    listed: tuple[int, ...] = ()


class A(NamedTuple):
    """The whole world of atomic-batch."""

    phase: str
    """PLAN, TASKS, COMMIT, LOG, END, STOPPED."""
    batch: int
    run: int
    crashes: int
    attempts: tuple[Attempt, ...]
    visible: tuple[int, ...]
    """Times that rows of (batch, task) are visible."""
    decision: tuple[int, tuple[int, ...], bool] | None
    """Batch id, chosen attempts, and whether all of them were ended."""
    fenced: bool
    owner: int
    """Epoch of the driver's own transactional id."""
    commit: Commit | None
    zombie: Commit | None


def driver_commits(v: DriverCommits) -> Report:
    """Search the variant."""
    first = A("PLAN", 0, 0, 0, (), (0,) * (v.tasks * v.batches), None, False, 0, None, None)
    return explore(
        first,
        lambda state: _driver_steps(state, v),
        lambda state: _driver_findings(state, v),
        is_end=lambda state: state.phase in ("END", "STOPPED"),
    )


def _driver_findings(state: A, v: DriverCommits) -> Iterator[str]:
    if max(state.visible) > 1:
        yield "DUPLICATE"
    logged = v.batches if state.phase == "END" else state.batch
    if logged and min(state.visible[: logged * v.tasks]) < 1:
        yield "LOSS"
    if state.phase == "STOPPED":
        yield "STUCK"
    if (
        state.phase == "END"
        and state.zombie is None
        and any(each.txn == "o" for each in state.attempts)
    ):
        yield "OPEN"


def _ended(state: A, index: int, v: DriverCommits, *, commit: bool) -> tuple[A, bool]:
    """EndTxn by id, producer id and epoch: idempotent; a commit after an abort is refused."""
    attempt = state.attempts[index]
    if attempt.txn != "o":
        return state, attempt.txn == ("c" if commit else "a")
    visible = state.visible
    if commit:
        place = attempt.batch * v.tasks + attempt.task
        visible = replaced(visible, place, visible[place] + 1)
    attempts = replaced(state.attempts, index, attempt._replace(txn="c" if commit else "a"))
    return state._replace(attempts=attempts, visible=visible), True


def _driver_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    yield from _attempt_steps(state, v)
    if state.phase == "PLAN":
        yield from _plan_steps(state, v)
    elif state.phase == "TASKS":
        yield from _launch_steps(state, v)
    elif state.phase == "COMMIT":
        assert state.commit is not None
        yield from _commit_steps(state, state.commit, v, zombie=False)
        if state.crashes < v.crashes:
            yield "commit raises", _raised(state, v)
    elif state.phase == "LOG":
        following = state.batch + 1
        yield (
            "log",
            state._replace(
                phase="PLAN" if following < v.batches else "END",
                batch=min(following, v.batches - 1),
                commit=None,
            ),
        )
    if state.zombie is not None:
        yield from _commit_steps(state, state.zombie, v, zombie=True)
    if state.crashes < v.crashes:
        again = state._replace(
            phase="PLAN", run=state.run + 1, crashes=state.crashes + 1, commit=None
        )
        yield "driver crash", again
        if v.zombie_commits and state.phase == "COMMIT" and state.zombie is None:
            yield "JVM crash, commit continues", again._replace(zombie=state.commit)


def _attempt_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    dead = sum(each.status == "x" for each in state.attempts)
    for index, each in enumerate(state.attempts):
        if each.status == "r":
            # the last produce, or prepare, is acknowledged only while the transaction is open
            status = "d" if each.txn == "o" else "x"
            yield (
                f"finish {index}",
                state._replace(
                    attempts=replaced(state.attempts, index, each._replace(status=status))
                ),
            )
            if dead < 1:
                yield (
                    f"kill {index}",
                    state._replace(
                        attempts=replaced(state.attempts, index, each._replace(status="x"))
                    ),
                )
        if each.txn == "o" and (
            v.timeouts == "any" or (v.timeouts == "unprepared" and each.status != "d")
        ):
            yield (
                f"time-out {index}",
                state._replace(attempts=replaced(state.attempts, index, each._replace(txn="a"))),
            )


def _plan_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    """Before tasks, on the driver: fence older drivers, then roll a decision forward."""
    owned = state._replace(owner=state.owner + 1, phase="TASKS")
    if not v.decision_record or state.decision is None or state.decision[2]:
        yield "plan", owned
        return
    batch, chosen, _ = state.decision
    complete = True
    for index in chosen:
        owned, ended = _ended(owned, index, v, commit=True)
        complete &= ended
    if complete or v.ignore_refused:
        yield "roll forward", owned._replace(decision=(batch, chosen, True))
    else:
        yield "roll forward is refused", owned._replace(phase="STOPPED")


def _launch_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    chosen = []
    for task in range(v.tasks):
        mine = [
            i for i, each in enumerate(state.attempts) if each[:3] == (task, state.batch, state.run)
        ]
        done = [i for i in mine if state.attempts[i].status == "d"]
        chosen += done[:1]  # Spark's commit coordinator takes the first that finishes
        if len(mine) < 2 and len(state.attempts) < v.attempts and not done:
            attempt = Attempt(task, state.batch, state.run, "r", "o")
            yield f"launch task {task}", state._replace(attempts=(*state.attempts, attempt))
    if len(chosen) == v.tasks:
        commit = Commit(state.batch, tuple(chosen), "init", -1)
        yield "commit is called", state._replace(phase="COMMIT", commit=commit)


def _commit_steps(
    state: A, commit: Commit, v: DriverCommits, *, zombie: bool
) -> Iterator[tuple[str, A]]:
    """The steps of commit(). `zombie`: its JVM is dead, so its end has no effect on Spark."""

    def at(world: A, step: str | int, **changes: Any) -> A:
        later = commit._replace(step=step, **changes)
        return world._replace(zombie=later) if zombie else world._replace(commit=later)

    def over(world: A) -> A:
        return world._replace(zombie=None) if zombie else world._replace(phase="LOG", commit=None)

    def failed(world: A) -> A:
        return world._replace(zombie=None) if zombie else world._replace(phase="STOPPED")

    name = "zombie " if zombie else ""
    decision, step = state.decision, commit.step
    if step == "init":
        yield (
            f"{name}init",
            at(state._replace(owner=state.owner + 1), "read", owner=state.owner + 1),
        )
    elif step == "read":
        if v.decision_record and decision is not None and decision[0] >= commit.batch:
            world = state
            if decision[0] == commit.batch and not decision[2]:
                for index in decision[1]:
                    world, ended = _ended(world, index, v, commit=True)
                    if not ended and not v.ignore_refused:
                        yield f"{name}roll forward is refused", failed(world)
                        return
                world = world._replace(decision=(*decision[:2], True))
            for index in commit.chosen:
                if index not in decision[1]:
                    world, _ = _ended(world, index, v, commit=False)
            yield f"{name}already decided", at(world, "list") if not zombie else over(world)
        elif not v.decision_record and state.fenced:
            yield f"{name}already committed", over(state)
        else:
            yield (
                f"{name}not decided",
                at(state, "write" if v.decision_record or v.fence == "before" else 0),
            )
    elif step == "write":
        if not v.decision_record:
            yield f"{name}write fence", at(state._replace(fenced=True), 0)
        elif commit.owner != state.owner:
            yield f"{name}write is fenced", over(state) if zombie else _raised(state, v)
        else:
            yield (
                f"{name}write decision",
                at(state._replace(decision=(commit.batch, commit.chosen, False)), 0),
            )
    elif isinstance(step, int):
        world, ended = _ended(state, commit.chosen[step], v, commit=True)
        following: str | int = step + 1 if step + 1 < v.tasks else "done"
        if ended or v.ignore_refused:
            yield f"{name}EndTxn {step}", at(world, following)
        else:
            yield f"{name}EndTxn {step} is refused", failed(state)
    elif step == "done":
        if not v.decision_record:
            yield (
                f"{name}write fence",
                over(state._replace(fenced=True))
                if not v.sweep
                else at(state._replace(fenced=True), "list"),
            )
        elif commit.owner == state.owner:
            yield (
                f"{name}all ended",
                at(state._replace(decision=(commit.batch, commit.chosen, True)), "list"),
            )
        else:
            yield f"{name}end is fenced", over(state) if zombie else _raised(state, v)
    elif not v.sweep:
        yield f"{name}return", over(state)
    elif step == "list":
        decided = decision[1] if decision is not None else commit.chosen
        listed = tuple(
            i for i, each in enumerate(state.attempts) if each.txn == "o" and i not in decided
        )
        yield f"{name}list", at(state, "verify" if v.verify else "sweep", listed=listed)
    elif step == "verify":
        yield f"{name}verify", at(state, "sweep") if commit.owner == state.owner else over(state)
    else:
        world = state
        for index in commit.listed:  # by id, producer id and epoch, so a reused id is not hit
            world, _ = _ended(world, index, v, commit=False)
        yield f"{name}sweep", over(world)


def _raised(state: A, v: DriverCommits) -> A:
    """commit() raised: Spark calls abort() with all messages, and the query is started again."""
    assert state.commit is not None
    decided = state.decision is not None and state.decision[0] >= state.commit.batch
    world = state._replace(
        owner=state.owner + 1
    )  # abort() fences too, so that the decision is final when it is read
    if v.abort == "naive" or not decided:
        for index in state.commit.chosen:
            if world.attempts[index].txn == "o":
                world, _ = _ended(world, index, v, commit=False)
    return world._replace(phase="PLAN", run=state.run + 1, crashes=state.crashes + 1, commit=None)
