"""The model of mode atomic-batch: tasks leave transactions open, the driver commits them.

The steps of `commit()` have the order of pyspark_mqd/atomic_batch.py. A decision record D lists the
transactions of a batch; from its write on, the batch is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.spark.protocol_search import Report, explore, replaced, sample

NO_CLAIM = -1
"""In D, when the batch of the newest plan is complete."""


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
    list_first: bool = True
    """Orphans are listed before the last write of D, which fails for a fenced driver."""
    claims: bool = True
    """A plan leaves its claim in D, and commit() decides only under the claim of its own plan."""
    late: bool = False
    """A task opens its transaction some time after its start, perhaps when orphans were listed."""
    checks: bool = True
    """With `late`: a task that has prepared reads D, and aborts its transaction if it came late."""
    restores: bool = False
    """Once, the checkpoint before the last batch is restored when the source has one row more."""
    contents_compared: bool = True
    """With `restores`: a batch with the id of D must have its contents."""


class Attempt(NamedTuple):
    """One task attempt with its own transactional id. A later batch may reuse an id."""

    task: int
    batch: int
    run: int
    status: str
    """"r" running, "p" prepared, "d" done, "s" superseded, "x" dead."""
    txn: str
    """"n" none yet, "o" open, "c" committed, "a" aborted."""
    claim: int = 0
    """With `late`: of the plan that it was launched by."""
    more: bool = False
    """It has the row by which the source has grown: task 0 of the batch that is planned again."""


class Work(NamedTuple):
    """A commit() or a plan in progress, at a step in the order of the code; a number: one
    EndTxn.
    """

    batch: int
    chosen: tuple[int, ...]
    step: str | int
    owner: int
    claim: int = 0
    listed: tuple[int, ...] = ()
    plans: bool = False


class A(NamedTuple):
    """The whole world of atomic-batch."""

    phase: str
    """PLAN, PLANNED, TASKS, COMMIT, LOG, END, STOPPED."""
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
    claim: int
    """The claim of the newest plan, in D."""
    plan: int
    """The claim of the current run."""
    work: Work | None
    zombie: Work | None
    again: int = -1
    """The batch that was planned again after an older checkpoint was restored."""
    decided_again: bool = False
    """D has the contents of the second plan."""


def driver_commits(v: DriverCommits, *, walks: int = 0, until: str = "") -> Report:
    """Search the variant, at most to a finding of the kind `until`, or take walks through it."""
    counts = (0,) * (v.tasks * v.batches + v.restores)  # the last one: of the row of the source
    first = A("PLAN", 0, 0, 0, (), counts, None, False, 0, 0, 0, None, None)
    search = (
        first,
        lambda state: _driver_steps(state, v),
        lambda state: _driver_findings(state, v),
    )
    if walks:
        return sample(*search, is_end=_is_end, walks=walks)
    return explore(*search, is_end=_is_end, until=until)


def _is_end(state: A) -> bool:
    """A query that has ended may have late tasks."""
    late = any(each.txn == "n" or each.status == "p" for each in state.attempts)
    return state.phase == "STOPPED" or (state.phase == "END" and not late)


def _driver_findings(state: A, v: DriverCommits) -> Iterator[str]:
    if max(state.visible) > 1:
        yield "DUPLICATE"
    logged = v.batches if state.phase == "END" else state.batch
    if logged and min(state.visible[: logged * v.tasks]) < 1:
        yield "LOSS"
    if 0 <= state.again < logged and not state.visible[-1]:
        yield "LOSS"
    needless = any(each.status == "s" and each.claim == state.plan for each in state.attempts)
    if state.phase == "STOPPED" or (state.phase == "TASKS" and needless):
        yield "STUCK"
    if (
        state.phase == "END"
        and state.zombie is None
        # a late transaction that is not prepared times out
        and any(each.txn == "o" and (each.status == "d" or not v.late) for each in state.attempts)
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
        if attempt.more:
            visible = replaced(visible, -1 % len(visible), visible[-1] + 1)
    attempts = replaced(state.attempts, index, attempt._replace(txn="c" if commit else "a"))
    return state._replace(attempts=attempts, visible=visible), True


def _driver_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    yield from _attempt_steps(state, v)
    if v.restores and state.again < 0 and state.phase in ("PLAN", "END"):
        completed = state.batch - (state.phase == "PLAN")
        if completed >= 0:
            world = state._replace(
                phase="PLAN", batch=completed, again=completed, run=state.run + 1
            )
            yield "an older checkpoint is restored, the source has grown", world
    if state.phase == "END":
        return
    if state.phase == "PLAN":
        yield from _plan_steps(state, v)
    elif state.phase == "TASKS":
        yield from _launch_steps(state, v)
    elif state.phase == "LOG":
        following = state.batch + 1
        last = following == v.batches
        yield "log", state._replace(phase="END" if last else "PLAN", batch=state.batch + (not last))
    if state.work is not None:
        yield from _work_steps(state, _Place(state.work, zombie=False), v)
    if state.zombie is not None:
        yield from _work_steps(state, _Place(state.zombie, zombie=True), v)
    if state.crashes < v.crashes:
        if state.phase == "COMMIT":
            yield "commit raises", _raised(state, v)
        again = state._replace(
            phase="PLAN", run=state.run + 1, crashes=state.crashes + 1, work=None
        )
        yield "driver crash", again
        if v.zombie_commits and state.work is not None and state.zombie is None:
            yield "JVM crash, its Python worker continues", again._replace(zombie=state.work)


def _attempt_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    dead = sum(each.status == "x" for each in state.attempts)
    for index, each in enumerate(state.attempts):
        if each.status == "p":
            yield _check_step(state, index, v)
        if each.txn == "n":
            opened = each._replace(txn="o")
            world = state._replace(attempts=replaced(state.attempts, index, opened))
            yield f"first record of {index}", world
        elif each.status == "r":
            # the last produce, or prepare, is acknowledged only while the transaction is open
            prepared = "p" if v.late else "d"
            status = prepared if each.txn == "o" else "x"
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
            v.timeouts == "any" or (v.timeouts == "unprepared" and each.status not in "pd")
        ):
            yield (
                f"timeout {index}",
                state._replace(attempts=replaced(state.attempts, index, each._replace(txn="a"))),
            )


def _check_step(state: A, index: int, v: DriverCommits) -> tuple[str, A]:
    """A task that has prepared reads D: its batch is decided without it, or is of another run."""
    each, decision = state.attempts[index], state.decision
    decided = decision is not None and not decision[2]
    superseded = v.checks and (decided or state.claim != each.claim)
    world = _ended(state, index, v, commit=False)[0] if superseded else state
    after = world.attempts[index]._replace(status="s" if superseded else "d")
    return f"check {index}", world._replace(attempts=replaced(world.attempts, index, after))


def _plan_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    """Before tasks, on the driver: fence older drivers, roll a decision forward, then sweep."""
    world = state._replace(owner=state.owner + 1)
    sweeping = Work(state.batch, (), "list", world.owner, plans=True)
    world = world._replace(phase="PLANNED", work=sweeping)
    if not v.decision_record or state.decision is None or state.decision[2]:
        yield "plan", world
        return
    world, complete = _rolled_forward(world, v)
    yield ("roll forward", world) if complete else ("refused", world._replace(phase="STOPPED"))


def _rolled_forward(state: A, v: DriverCommits) -> tuple[A, bool]:
    assert state.decision is not None
    batch, chosen, _ = state.decision
    complete = True
    for index in chosen:
        state, ended = _ended(state, index, v, commit=True)
        complete &= ended
    return state._replace(decision=(batch, chosen, True)), complete or v.ignore_refused


def _launch_steps(state: A, v: DriverCommits) -> Iterator[tuple[str, A]]:
    chosen = []
    for task in range(v.tasks):
        mine = [
            i for i, each in enumerate(state.attempts) if each[:3] == (task, state.batch, state.run)
        ]
        done = [i for i in mine if state.attempts[i].status == "d"]
        chosen += done[:1]  # Spark's commit coordinator takes the first that finishes
        if len(mine) < 2 and len(state.attempts) < v.attempts and not done:
            more = task == 0 and state.batch == state.again
            attempt = Attempt(task, state.batch, state.run, "r", "o", more=more)
            if v.late:
                attempt = attempt._replace(txn="n", claim=state.plan)
            yield f"launch task {task}", state._replace(attempts=(*state.attempts, attempt))
    if len(chosen) == v.tasks:
        work = Work(state.batch, tuple(chosen), "init", -1, state.plan)
        yield "commit is called", state._replace(phase="COMMIT", work=work)


class _Place:
    """Where work goes on: in the driver, or in a zombie that has no effect on Spark."""

    def __init__(self, work: Work, *, zombie: bool) -> None:
        self.work = work
        self.zombie = zombie
        self.name = "zombie " if zombie else ""

    def at(self, world: A, step: str | int, **changes: Any) -> A:
        """The next step."""
        later = self.work._replace(step=step, **changes)
        return world._replace(zombie=later) if self.zombie else world._replace(work=later)

    def over(self, world: A) -> A:
        """It returns."""
        if self.zombie:
            return world._replace(zombie=None)
        return world._replace(phase="TASKS" if self.work.plans else "LOG", work=None)

    def stopped(self, world: A) -> A:
        """A transaction that is decided cannot be committed."""
        return world._replace(zombie=None) if self.zombie else world._replace(phase="STOPPED")

    def fenced(self, world: A, v: DriverCommits) -> A:
        """Another driver owns the query."""
        return world._replace(zombie=None) if self.zombie else _raised(world, v)


def _work_steps(state: A, place: _Place, v: DriverCommits) -> Iterator[tuple[str, A]]:
    """The next step of a plan or a commit."""
    work, name = place.work, place.name
    step = work.step
    if step == "init":
        owner = state.owner + 1
        yield f"{name}init", place.at(state._replace(owner=owner), "read", owner=owner)
    elif step == "read":
        yield from _read_steps(state, place, v)
    elif step == "write":
        if not v.decision_record:
            yield f"{name}write fence", place.at(state._replace(fenced=True), 0)
        elif work.owner != state.owner:
            yield f"{name}write is fenced", place.fenced(state, v)
        else:
            decided = state._replace(decision=(work.batch, work.chosen, False))
            decided = decided._replace(decided_again=work.batch == state.again)
            yield f"{name}write decision", place.at(decided, 0)
    elif step == "close":
        if work.owner != state.owner:
            yield f"{name}close is fenced", place.fenced(state, v)
        else:
            yield f"{name}close", place.at(state._replace(claim=NO_CLAIM), "list")
    elif isinstance(step, int):
        world, ended = _ended(state, work.chosen[step], v, commit=True)
        last: str = "list" if v.list_first else "done"
        if ended or v.ignore_refused:
            yield f"{name}EndTxn {step}", place.at(world, step + 1 if step + 1 < v.tasks else last)
        else:
            yield f"{name}EndTxn {step} is refused", place.stopped(world)
    else:
        yield from _sweep_steps(state, place, v)


def _read_steps(state: A, place: _Place, v: DriverCommits) -> Iterator[tuple[str, A]]:
    work, name, decision = place.work, place.name, state.decision
    if v.decision_record and v.claims and state.claim != work.claim:
        yield f"{name}superseded", place.fenced(state, v)
    elif v.decision_record and decision is not None and _is_refused(state, work, decision[0], v):
        world = state
        for index in work.chosen:
            world, _ = _ended(world, index, v, commit=False)
        yield f"{name}other contents", place.stopped(world)
    elif v.decision_record and decision is not None and decision[0] >= work.batch:
        world, complete = state, True
        if decision[0] == work.batch and not decision[2]:
            world, complete = _rolled_forward(state, v)
        for index in work.chosen:
            if index not in decision[1]:
                world, _ = _ended(world, index, v, commit=False)
        if not complete:
            yield f"{name}roll forward is refused", place.stopped(world)
        else:
            yield f"{name}decided before", place.at(world, "close")
    elif not v.decision_record and state.fenced:
        yield f"{name}already committed", place.over(state)
    else:
        first: str | int = "write" if v.decision_record or v.fence == "before" else 0
        yield f"{name}not decided", place.at(state, first)


def _is_refused(state: A, work: Work, decided: int, v: DriverCommits) -> bool:
    """D is of a later batch, or of this one with other contents."""
    if not v.restores or not v.contents_compared:
        return False
    planned_again = work.batch == state.again
    return decided > work.batch or (decided == work.batch and state.decided_again != planned_again)


def _sweep_steps(state: A, place: _Place, v: DriverCommits) -> Iterator[tuple[str, A]]:
    """list, done, sweep: a driver that is fenced after it has listed orphans aborts none."""
    work, name, decision = place.work, place.name, state.decision
    if work.step == "list":
        decided = decision[1] if decision is not None else work.chosen
        listed = tuple(
            i for i, each in enumerate(state.attempts) if each.txn == "o" and i not in decided
        )
        following = "done" if v.list_first or work.plans else "sweep"
        yield f"{name}list", place.at(state, following, listed=listed if v.sweep else ())
    elif work.step == "done":
        following = "sweep" if v.list_first or work.plans else "list"
        if not v.decision_record:
            fenced = state.fenced or not work.plans
            yield f"{name}write fence", place.at(state._replace(fenced=fenced), following)
        elif work.owner != state.owner:
            yield f"{name}end is fenced", place.fenced(state, v)
        else:
            world = state
            if work.plans:
                world = world._replace(claim=work.owner)
                world = world if place.zombie else world._replace(plan=work.owner)
            elif decision is not None:
                world = world._replace(decision=(*decision[:2], True), claim=NO_CLAIM)
            yield f"{name}all ended", place.at(world, following)
    else:
        world = state
        for index in work.listed:  # by id, producer id and epoch, so a reused id is not hit
            world, _ = _ended(world, index, v, commit=False)
        yield f"{name}sweep", place.over(world)


def _raised(state: A, v: DriverCommits) -> A:
    """commit() raised: Spark calls abort() with all messages, and the query is started again."""
    assert state.work is not None
    decided = state.decision is not None and state.decision[0] >= state.work.batch
    # abort() fences too, so what it reads of D is final
    world = state._replace(owner=state.owner + 1)
    if v.abort == "naive" or not decided:
        for index in state.work.chosen:
            world, _ = _ended(world, index, v, commit=False)
    return world._replace(phase="PLAN", run=state.run + 1, crashes=state.crashes + 1, work=None)
