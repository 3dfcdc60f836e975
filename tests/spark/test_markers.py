"""Markers of mode exactly-once: what a task does, and what it refuses."""

from __future__ import annotations

import pytest

from pyspark_mqd.markers import (
    ExactlyOnceError,
    Marker,
    RowSum,
    Verdict,
    check_extra_tasks,
    check_same_rows,
    judge,
    judge_by_task_0,
    marker_of,
)

QUERY = "1f0b3c0e-2f44-4b0e-9a52-0d7a3f7b2f10"


def marker(batch_id: int, query_id: str = QUERY) -> Marker:
    return Marker(batch_id, query_id, 100, 7)


def verdict(found: Marker | None, batch_id: int, task: int = 0, *, accept: bool = False) -> Verdict:
    return judge(
        found,
        batch_id=batch_id,
        query_id=QUERY,
        task=task,
        group=f"q-{task}",
        accept_missing=accept,
    )


def test_a_marker_survives_its_metadata() -> None:
    written = marker(12)

    assert marker_of(12, written.metadata(), "q-0") == written
    assert len(written.metadata()) < 200


@pytest.mark.parametrize("metadata", ["", "x", "{}", '{"v":2,"query":"a","rows":1,"crc":1}', "[1]"])
def test_a_foreign_offset_is_refused(metadata: str) -> None:
    with pytest.raises(ExactlyOnceError, match="Group 'q-3' has a committed offset that is not"):
        marker_of(12, metadata, "q-3")


@pytest.mark.parametrize(
    ("found", "batch_id", "task", "expected"),
    [
        (None, 0, 0, Verdict.WRITE),
        (None, 0, 5, Verdict.WRITE),
        (marker(0), 0, 0, Verdict.ALREADY_COMMITTED),
        (marker(0), 1, 0, Verdict.WRITE),
        (marker(6), 7, 3, Verdict.WRITE),
        (marker(7), 7, 3, Verdict.ALREADY_COMMITTED),
        (marker(3), 7, 3, Verdict.LOOK_AT_TASK_0),
        (None, 7, 3, Verdict.LOOK_AT_TASK_0),
    ],
)
def test_what_a_task_does(
    found: Marker | None, batch_id: int, task: int, expected: Verdict
) -> None:
    assert verdict(found, batch_id, task) is expected


@pytest.mark.parametrize("found", [None, marker(3)])
def test_task_0_without_the_marker_of_the_batch_before_stops(found: Marker | None) -> None:
    with pytest.raises(ExactlyOnceError, match=r"batch 6 is missing.*acceptMissingMarkers"):
        verdict(found, 7)
    assert verdict(found, 7, accept=True) is Verdict.WRITE


@pytest.mark.parametrize("last", [6, 7])
def test_a_new_task_may_write_when_task_0_has_a_marker(last: int) -> None:
    found = judge_by_task_0(marker(last), batch_id=7, query_id=QUERY, group="q-0")

    assert found is Verdict.WRITE


@pytest.mark.parametrize("found", [None, marker(5)])
def test_a_new_task_stops_when_markers_have_expired(found: Marker | None) -> None:
    with pytest.raises(ExactlyOnceError, match="batch 6 is missing"):
        judge_by_task_0(found, batch_id=7, query_id=QUERY, group="q-0")


def test_an_older_checkpoint_stops() -> None:
    with pytest.raises(ExactlyOnceError, match="the checkpoint is older"):
        verdict(marker(9), 7)


def test_markers_of_another_checkpoint_stop_the_query() -> None:
    with pytest.raises(ExactlyOnceError, match="exactlyOnceId"):
        verdict(marker(6, "another"), 7)
    with pytest.raises(ExactlyOnceError, match="exactlyOnceId"):
        judge_by_task_0(marker(6, "another"), batch_id=7, query_id=QUERY, group="q-0")


def test_other_rows_in_a_second_run_stop_the_query() -> None:
    rows = RowSum(2, 900)
    committed = Marker(4, QUERY, rows.rows, rows.checksum)

    check_same_rows(committed, rows, task=1)
    for other in (RowSum(1, 900), RowSum(2, 901)):
        with pytest.raises(ExactlyOnceError, match="not deterministic"):
            check_same_rows(committed, other, task=1)


def test_sums_add_up_in_any_order() -> None:
    one, other = RowSum(1, 5), RowSum(10, 2**64 - 1)

    assert one + other == other + one
    assert (one + other).checksum == (other + one).checksum
    assert one.checksum != other.checksum


def test_tasks_of_an_earlier_run_that_this_run_lacks_stop_the_query() -> None:
    """Four tasks, three of which committed batch 1; the second run of the batch has one task."""
    own = Marker(1, QUERY, 5, 7)
    with pytest.raises(ExactlyOnceError, match=r"committed before with more tasks: this run has 1"):
        check_extra_tasks({"q-1": None, "q-2": own}, batch_id=1, query_id=QUERY, tasks=1)
    harmless = {"q-1": Marker(0, QUERY, 5, 7), "q-2": Marker(1, "another", 5, 7), "q-3": None}
    check_extra_tasks(harmless, batch_id=1, query_id=QUERY, tasks=1)
