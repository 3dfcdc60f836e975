"""The two exactly-once protocols, searched through; wrong variants of them must be found.

The searches here have few attempts and take seconds. The whole model, with two driver crashes and
up to five attempts, takes some minutes:

    MQD_WHOLE_MODEL=1 pytest tests/spark/test_protocol_model.py
"""

from __future__ import annotations

import os

import pytest

from tests.spark.atomic_batch_model import DriverCommits, driver_commits
from tests.spark.exactly_once_model import TaskCommits, task_commits

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
A9 = DriverCommits(tasks=1, batches=2, attempts=3, zombie_commits=True, claims=False)

B1 = TaskCommits(attempts=3, crashes=1)
B2 = TaskCommits(attempts=3, crashes=1, marker_first=True)
B3 = TaskCommits(attempts=3, crashes=1, marker=False)
GROWING = TaskCommits(tasks=(1, 2), attempts=3, crashes=1)
EXPIRY = TaskCommits(tasks=(1, 2), attempts=3, crashes=1, expiry=True)
B4 = TaskCommits(tasks=(1, 2), attempts=3, crashes=1, expiry=True, before="ignored")


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        pytest.param(A1, "DUPLICATE", id="A1 fence after the EndTxns"),
        pytest.param(A2, "LOSS", id="A2 fence before the EndTxns"),
        pytest.param(A3, "STUCK", id="A3 abort() aborts what is decided"),
        pytest.param(A4, "LOSS", id="A4 time-outs, refusals ignored"),
        pytest.param(A5, "STUCK", id="A5 prepared transactions time out"),
        pytest.param(A7, "OPEN", id="A7 without the sweep"),
        pytest.param(A8, "STUCK", id="A8 a fenced driver sweeps"),
        pytest.param(A9, "STUCK", id="A9 without claims"),
        pytest.param(A10, "OPEN", id="A10 a task prepares after the sweep"),
    ],
)
def test_wrong_variants_of_atomic_batch_are_found(variant: DriverCommits, kind: str) -> None:
    report = driver_commits(variant)

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


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        pytest.param(B2, "DUPLICATE", id="B2 marker before InitProducerId"),
        pytest.param(B3, "DUPLICATE", id="B3 no marker"),
        pytest.param(B4, "DUPLICATE", id="B4 a missing marker is ignored"),
    ],
)
def test_wrong_variants_of_exactly_once_are_found(variant: TaskCommits, kind: str) -> None:
    assert task_commits(variant).traces[kind]


@pytest.mark.parametrize("variant", [B1, GROWING], ids=["one task", "more tasks than before"])
def test_exactly_once_loses_and_doubles_nothing(variant: TaskCommits) -> None:
    report = task_commits(variant)

    assert report.traces == {}
    assert report.ends > 5


def test_a_query_whose_markers_have_expired_stops() -> None:
    report = task_commits(EXPIRY)

    assert report.found.keys() == {"STUCK"}
    assert report.traces["STUCK"][-1].startswith("no marker")
    assert any(name.endswith("a week") for name in report.traces["STUCK"])


@WHOLE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(DriverCommits(attempts=5, crashes=1), id="A6 five attempts"),
        pytest.param(DriverCommits(attempts=4, crashes=2), id="A6 two crashes"),
        pytest.param(DriverCommits(attempts=4, zombie_commits=True), id="A6 zombie driver"),
        pytest.param(
            DriverCommits(tasks=1, batches=2, attempts=4, crashes=2, zombie_commits=True),
            id="A6 two batches, zombie driver, two crashes",
        ),
        pytest.param(
            DriverCommits(tasks=1, batches=2, attempts=4, late=True, zombie_commits=True),
            id="A6 late tasks, zombie driver",
        ),
    ],
)
def test_the_whole_model_of_atomic_batch(variant: DriverCommits) -> None:
    assert driver_commits(variant).traces == {}


@WHOLE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(TaskCommits(attempts=4, crashes=2), id="B1 four attempts, two crashes"),
        pytest.param(TaskCommits(tasks=(1, 1), attempts=4, crashes=2), id="B1 two batches"),
        pytest.param(TaskCommits(tasks=(1, 2), attempts=4, crashes=1), id="B1 growing"),
        pytest.param(TaskCommits(tasks=(2, 1), attempts=4, crashes=1), id="B1 shrinking"),
        pytest.param(TaskCommits(tasks=(1, 2), attempts=5, crashes=1), id="B1 five attempts"),
    ],
)
def test_the_whole_model_of_exactly_once(variant: TaskCommits) -> None:
    assert task_commits(variant).traces == {}
