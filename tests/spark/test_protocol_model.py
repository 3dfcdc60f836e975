"""The two exactly-once protocols, searched through; wrong variants of them must be found.

The searches here have few attempts and take seconds; walks by chance go through the whole model,
with two driver crashes and up to five attempts. To visit all of its states takes some minutes:

    MQD_WHOLE_MODEL=1 pytest tests/spark/test_protocol_model.py

All are marked `slow`: they read the models beside them and no other code.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.spark.atomic_batch_model import DriverCommits, driver_commits
from tests.spark.exactly_once_model import TaskCommits, task_commits
from tests.spark.older_checkpoint_model import OlderCheckpoint, older_checkpoint

pytestmark = pytest.mark.slow
WHOLE = pytest.mark.skipif("MQD_WHOLE_MODEL" not in os.environ, reason="set MQD_WHOLE_MODEL=1")

A1 = DriverCommits(decision_record=False, fence="after", abort="naive", timeouts="none", attempts=4)
A2 = DriverCommits(
    decision_record=False, fence="before", abort="naive", timeouts="none", attempts=4
)
A3 = DriverCommits(abort="naive", attempts=2)
A4 = DriverCommits(timeouts="any", ignore_refused=True, attempts=3)
A5 = DriverCommits(timeouts="any", attempts=3)
A6 = DriverCommits(attempts=3)
A7 = DriverCommits(sweep=False, attempts=3)
ZOMBIES = DriverCommits(tasks=1, batches=2, attempts=3, zombie_commits=True)
A8 = DriverCommits(tasks=1, batches=2, attempts=3, zombie_commits=True, list_first=False)
LATE = DriverCommits(tasks=1, batches=2, attempts=3, late=True)
A10 = DriverCommits(tasks=1, attempts=2, late=True, checks=False)
RESTORES = DriverCommits(tasks=1, batches=2, attempts=3, restores=True)
A11 = replace(RESTORES, contents_compared=False)
A9 = DriverCommits(tasks=1, batches=2, attempts=3, zombie_commits=True, claims=False)

B1 = TaskCommits(attempts=3, crashes=1)
B2 = TaskCommits(attempts=3, crashes=1, marker_first=True)
B3 = TaskCommits(attempts=3, crashes=1, marker=False)
GROWING = TaskCommits(tasks=(1, 2), attempts=3, crashes=1)
EXPIRY = TaskCommits(tasks=(1, 2), attempts=3, crashes=1, expiry=True)
PARTIAL = TaskCommits(tasks=(1, 2), crashes=1, expiry=True, deaths=0, copies=1)
B4 = replace(PARTIAL, before="ignored")
B5 = replace(PARTIAL, before="task 0")
B6 = replace(PARTIAL, before="present")
B7 = replace(PARTIAL, first_checked=False)
FEWER = TaskCommits(tasks=(2, 1), later=(1, 1), attempts=3, crashes=1)
MORE = TaskCommits(tasks=(1,), later=(2,), attempts=3, crashes=1)
B8 = replace(FEWER, deaths=0, further_read=False)
B9 = replace(FEWER, deaths=0, further_fenced=False)
B10 = replace(FEWER, deaths=0, rows_compared=False)
B11 = replace(MORE, deaths=0, rows_compared=False)


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        pytest.param(A1, "DUPLICATE", id="A1 fence after the EndTxns"),
        pytest.param(A2, "LOSS", id="A2 fence before the EndTxns"),
        pytest.param(A3, "STUCK", id="A3 abort() aborts what is decided"),
        pytest.param(A4, "LOSS", id="A4 timeouts, refusals ignored"),
        pytest.param(A5, "STUCK", id="A5 prepared transactions time out"),
        pytest.param(A7, "OPEN", id="A7 without the sweep"),
        pytest.param(A8, "STUCK", id="A8 a fenced driver sweeps"),
        pytest.param(A9, "STUCK", id="A9 without claims"),
        pytest.param(A10, "OPEN", id="A10 a task prepares after the sweep"),
        pytest.param(A11, "LOSS", id="A11 equal batch ids are equal"),
    ],
)
def test_wrong_variants_of_atomic_batch_are_found(variant: DriverCommits, kind: str) -> None:
    report = driver_commits(variant, until=kind)

    assert report.found[kind]
    assert report.traces[kind]


def test_atomic_batch_loses_nothing_and_leaves_nothing_open() -> None:
    report = driver_commits(A6)

    assert report.traces == {}
    assert report.ends > 100


def test_tasks_that_prepare_after_the_sweep_leave_nothing_open() -> None:
    report = driver_commits(LATE)

    assert report.traces == {}
    assert report.ends > 100


def test_a_killed_driver_whose_commit_continues_does_no_harm() -> None:
    report = driver_commits(ZOMBIES)

    assert report.traces == {}
    assert report.ends > 100


def test_atomic_batch_stops_when_an_older_checkpoint_is_restored() -> None:
    report = driver_commits(RESTORES)

    assert report.found.keys() == {"STUCK"}
    assert "other contents" in report.traces["STUCK"][-1]
    assert report.ends > report.found["STUCK"]


OLDER = OlderCheckpoint()
B12 = replace(OLDER, batch_markers=False, driver_looks=False)
B13 = replace(OLDER, driver_looks=False)
B14 = replace(OLDER, fenced=False)
B15 = replace(OLDER, plans_compared=False)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(B12, id="B12 own markers only"),
        pytest.param(B13, id="B13 own and batch markers only"),
        pytest.param(B14, id="B14 tasks of earlier runs are not fenced"),
        pytest.param(B15, id="B15 equal batch ids are equal"),
    ],
)
def test_rows_that_an_older_checkpoint_doubles_are_found(variant: OlderCheckpoint) -> None:
    assert older_checkpoint(variant, until="DUPLICATE").traces["DUPLICATE"]


def test_exactly_once_stops_when_an_older_checkpoint_is_restored() -> None:
    report = older_checkpoint(OLDER)

    assert report.found.keys() == {"STUCK"}
    restored = [name for name in report.traces["STUCK"] if name.startswith("restore")]
    assert restored and "older" in report.traces["STUCK"][-1]
    assert report.ends > report.found["STUCK"]


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        pytest.param(B2, "DUPLICATE", id="B2 marker before InitProducerId"),
        pytest.param(B3, "DUPLICATE", id="B3 no marker"),
        pytest.param(B4, "DUPLICATE", id="B4 a missing marker is ignored"),
        pytest.param(B5, "DUPLICATE", id="B5 judge by task 0"),
        pytest.param(B6, "DUPLICATE", id="B6 judge by the batch marker without its age"),
        pytest.param(B7, "DUPLICATE", id="B7 the first batch is not checked"),
        pytest.param(B8, "DUPLICATE", id="B8 fewer tasks, further markers are not read"),
        pytest.param(B9, "DUPLICATE", id="B9 fewer tasks, further tasks are not fenced"),
        pytest.param(B10, "LOSS", id="B10 fewer tasks, rows are not compared"),
        pytest.param(B11, "DUPLICATE", id="B11 more tasks, rows are not compared"),
    ],
)
def test_wrong_variants_of_exactly_once_are_found(variant: TaskCommits, kind: str) -> None:
    assert task_commits(variant, until=kind).traces[kind]


@pytest.mark.parametrize("variant", [B1, GROWING], ids=["one task", "more tasks than before"])
def test_exactly_once_loses_and_doubles_nothing(variant: TaskCommits) -> None:
    report = task_commits(variant)

    assert report.traces == {}
    assert report.ends > 5


@pytest.mark.parametrize("variant", [EXPIRY, PARTIAL], ids=["all steps", "four attempts"])
def test_a_query_whose_markers_have_expired_stops(variant: TaskCommits) -> None:
    report = task_commits(variant)

    assert report.found.keys() == {"STUCK"}
    assert report.traces["STUCK"][-1].startswith("no marker")
    assert any(name.endswith("a week") for name in report.traces["STUCK"])
    assert report.ends > report.found["STUCK"]


@pytest.mark.parametrize("variant", [FEWER, MORE], ids=["fewer tasks", "more tasks"])
def test_another_number_of_tasks_in_a_second_run_stops_the_query(variant: TaskCommits) -> None:
    report = task_commits(variant)

    assert report.found.keys() == {"STUCK"}
    assert report.ends > report.found["STUCK"]


WHOLE_A6 = [
    pytest.param(DriverCommits(attempts=5, crashes=1), id="A6 five attempts"),
    pytest.param(DriverCommits(attempts=4, crashes=2), id="A6 two crashes"),
    pytest.param(DriverCommits(attempts=4, zombie_commits=True), id="A6 zombie driver"),
    pytest.param(
        DriverCommits(tasks=1, batches=2, attempts=4, crashes=2, zombie_commits=True),
        id="A6 two batches, zombie driver, two crashes",
    ),
]
WHOLE_B1 = [
    pytest.param(TaskCommits(attempts=4, crashes=2), id="B1 four attempts, two crashes"),
    pytest.param(TaskCommits(tasks=(1, 1), attempts=4, crashes=2), id="B1 two batches"),
    pytest.param(TaskCommits(tasks=(1, 2), attempts=4, crashes=1), id="B1 growing"),
    pytest.param(TaskCommits(tasks=(2, 1), attempts=4, crashes=1), id="B1 shrinking"),
    pytest.param(TaskCommits(tasks=(1, 2), attempts=5, crashes=1), id="B1 five attempts"),
    pytest.param(TaskCommits(tasks=(1, 2), crashes=1, expiry=True), id="B1 expiry"),
    pytest.param(
        TaskCommits(tasks=(1, 2), attempts=5, expiry=True, deaths=0, copies=1),
        id="B1 expiry, two crashes",
    ),
    pytest.param(TaskCommits(tasks=(2, 1), later=(1, 2), crashes=1), id="B1 fewer tasks"),
    pytest.param(TaskCommits(tasks=(1,), later=(2,), crashes=1), id="B1 more tasks"),
]
WALKS = 500


def harmless(variant: TaskCommits) -> set[str]:
    """What may happen: a query stops whose markers are old, or whose tasks have changed."""
    return {"STUCK"} if variant.expiry or variant.later else set()


@pytest.mark.parametrize("variant", WHOLE_A6)
def test_walks_through_the_whole_model_of_atomic_batch(variant: DriverCommits) -> None:
    report = driver_commits(variant, walks=WALKS)

    assert report.traces == {}
    assert report.states > 10 * WALKS


@pytest.mark.parametrize("variant", WHOLE_B1)
def test_walks_through_the_whole_model_of_exactly_once(variant: TaskCommits) -> None:
    report = task_commits(variant, walks=WALKS)

    assert report.traces.keys() <= harmless(variant)
    assert report.states > 10 * WALKS


def test_walks_find_planted_bugs() -> None:
    assert task_commits(B3, walks=WALKS).found["DUPLICATE"]
    assert task_commits(B8, walks=WALKS).found["DUPLICATE"]
    assert driver_commits(A1, walks=WALKS).found["DUPLICATE"]


@WHOLE
def test_a_crash_and_an_older_checkpoint() -> None:
    assert older_checkpoint(replace(OLDER, crashes=True)).found.keys() == {"STUCK"}


@WHOLE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", WHOLE_A6)
def test_the_whole_model_of_atomic_batch(variant: DriverCommits) -> None:
    assert driver_commits(variant).traces == {}


@WHOLE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", WHOLE_B1)
def test_the_whole_model_of_exactly_once(variant: TaskCommits) -> None:
    assert task_commits(variant).traces.keys() <= harmless(variant)
