"""Markers of mode exactly-once: what a task does, and what it refuses."""

from __future__ import annotations

import pytest

from pyspark_mqd.markers import (
    ExactlyOnceError,
    Marker,
    RowSum,
    TaskAction,
    check_extra_tasks,
    check_first_batch,
    check_newest,
    check_same_rows,
    marker_of,
    task_action_by_batch_marker,
    task_action_of,
)
from pyspark_mqd.transaction_ids import batch_group, driver_id, owner_of, task_id, task_of

QUERY = "1f0b3c0e-2f44-4b0e-9a52-0d7a3f7b2f10"
WEEK_MS = 7 * 24 * 3_600_000
NOW_MS = 1_795_420_344_914


def marker(
    batch_id: int, query_id: str = QUERY, *, age_ms: int = 1_000, planned_ms: int | None = None
) -> Marker:
    return Marker(batch_id, query_id, 100, 7, NOW_MS - age_ms, planned_ms)


def verdict(
    found: Marker | None, batch_id: int, task: int = 0, *, accept: bool = False
) -> TaskAction:
    return task_action_of(
        found,
        batch_id=batch_id,
        query_id=QUERY,
        task=task,
        group=f"q-{task}",
        accept_missing=accept,
    )


def by_batch_marker(found: Marker | None, *, retention_ms: int = WEEK_MS) -> TaskAction:
    return task_action_by_batch_marker(
        found,
        batch_id=7,
        query_id=QUERY,
        group="q.batch-even",
        now_ms=NOW_MS,
        retention_ms=retention_ms,
    )


def test_a_marker_survives_its_metadata() -> None:
    for written in (marker(12), marker(12, planned_ms=NOW_MS)):
        assert marker_of(12, written.metadata(), "q-0") == written
        assert len(written.metadata()) < 200


def test_a_marker_without_the_time_of_its_plan_is_read() -> None:
    metadata = f'{{"v":2,"query":"{QUERY}","rows":100,"hash":7,"time":{NOW_MS - 1_000}}}'

    assert marker_of(12, metadata, "q-0") == marker(12)


@pytest.mark.parametrize("metadata", ["", "x", "{}", '{"v":2,"query":"a","rows":1}', "[1]"])
def test_a_foreign_offset_is_refused(metadata: str) -> None:
    with pytest.raises(ExactlyOnceError, match="Group 'q-3' has a committed offset that is not"):
        marker_of(12, metadata, "q-3")


def test_a_marker_of_another_format_stops_the_query() -> None:
    """Its query has no batch markers."""
    with pytest.raises(ExactlyOnceError, match=r"Group 'q-0' has a marker of format 1.*exactlyO"):
        marker_of(12, '{"v":1,"query":"a","rows":1,"crc":1}', "q-0")


@pytest.mark.parametrize(
    ("found", "batch_id", "task", "expected"),
    [
        (None, 0, 0, TaskAction.WRITE),
        (None, 0, 5, TaskAction.WRITE),
        (marker(0), 0, 0, TaskAction.ALREADY_COMMITTED),
        (marker(0), 1, 0, TaskAction.WRITE),
        (marker(6), 7, 3, TaskAction.WRITE),
        (marker(7), 7, 3, TaskAction.ALREADY_COMMITTED),
        (marker(3), 7, 3, TaskAction.CHECK_BATCH_MARKER),
        (None, 7, 3, TaskAction.CHECK_BATCH_MARKER),
        (marker(3), 7, 0, TaskAction.CHECK_BATCH_MARKER),
        (None, 7, 0, TaskAction.CHECK_BATCH_MARKER),
    ],
)
def test_what_a_task_does(
    found: Marker | None, batch_id: int, task: int, expected: TaskAction
) -> None:
    assert verdict(found, batch_id, task) is expected


@pytest.mark.parametrize("found", [None, marker(3)])
def test_a_missing_marker_may_be_accepted(found: Marker | None) -> None:
    assert verdict(found, 7, accept=True) is TaskAction.WRITE


def test_a_new_task_may_write_when_the_batch_before_has_its_marker() -> None:
    assert by_batch_marker(marker(6)) is TaskAction.WRITE
    assert by_batch_marker(marker(6, age_ms=-5_000)) is TaskAction.WRITE, "clocks differ"


@pytest.mark.parametrize("found", [None, marker(4), marker(8)])
def test_a_new_task_stops_without_the_batch_marker(found: Marker | None) -> None:
    with pytest.raises(ExactlyOnceError, match=r"marker of batch 6 is missing.*acceptMissing"):
        by_batch_marker(found)


def test_a_new_task_stops_when_the_batch_marker_is_about_to_expire() -> None:
    """A younger marker of another group may have expired before it."""
    last_ms = WEEK_MS - 3_600_000
    assert by_batch_marker(marker(6, age_ms=last_ms - 1)) is TaskAction.WRITE
    with pytest.raises(ExactlyOnceError, match=r"'q\.batch-even' is about to expire"):
        by_batch_marker(marker(6, age_ms=last_ms))
    assert by_batch_marker(marker(6, age_ms=53_999), retention_ms=60_000) is TaskAction.WRITE
    with pytest.raises(ExactlyOnceError, match=r"'offsets.retention.minutes' of the brokers \(1\)"):
        by_batch_marker(marker(6, age_ms=54_000), retention_ms=60_000)


def test_a_first_batch_that_was_planned_long_ago_stops() -> None:
    check_first_batch(None, now_ms=NOW_MS, retention_ms=WEEK_MS)
    check_first_batch(NOW_MS - 1_000, now_ms=NOW_MS, retention_ms=WEEK_MS)
    with pytest.raises(ExactlyOnceError, match=r"Batch 0 was planned .*acceptMissingMarkers"):
        check_first_batch(NOW_MS - WEEK_MS, now_ms=NOW_MS, retention_ms=WEEK_MS)


def look(*found: Marker | None, planned_ms: int | None = None, alone: bool = False) -> None:
    check_newest(
        {f"q-{number}": each for number, each in enumerate(found)},
        batch_id=7,
        query_id=QUERY,
        planned_ms=planned_ms,
        alone=alone,
    )


def test_a_marker_of_a_later_batch_stops_every_task() -> None:
    with pytest.raises(
        ExactlyOnceError,
        match=r"'q-1' has the marker of batch 9: the checkpoint is older .*has written no row",
    ):
        look(marker(6), marker(9))
    with pytest.raises(
        ExactlyOnceError, match=r"may have written rows a second time: compare .*Restore"
    ):
        look(marker(6), marker(8), alone=True)


def test_a_marker_of_a_batch_that_was_planned_again_stops_tasks_that_would_write() -> None:
    with pytest.raises(ExactlyOnceError, match="from before Spark planned it again"):
        look(marker(7, planned_ms=NOW_MS - 60_000), planned_ms=NOW_MS)


def test_markers_that_permit_a_batch() -> None:
    """A crash leaves markers of the batch itself, and those of older batches."""
    look(None, marker(6), marker(7), marker(9, "another"), planned_ms=NOW_MS)
    look(marker(7, planned_ms=NOW_MS), planned_ms=NOW_MS)
    look(marker(7, planned_ms=NOW_MS), planned_ms=None)


def test_markers_of_another_checkpoint_stop_the_query() -> None:
    with pytest.raises(ExactlyOnceError, match="exactlyOnceId"):
        verdict(marker(6, "another"), 7)
    with pytest.raises(ExactlyOnceError, match="exactlyOnceId"):
        by_batch_marker(marker(6, "another"))


def committed(rows: RowSum) -> Marker:
    return Marker(4, QUERY, rows.rows, rows.hashes, NOW_MS)


def test_other_rows_in_a_second_run_stop_the_query() -> None:
    rows = RowSum(2, 900)

    assert check_same_rows(committed(rows), rows, task=1, accept_changed=False)
    for other in (RowSum(1, 900), RowSum(2, 901), RowSum(3, 900)):
        with pytest.raises(ExactlyOnceError, match="not deterministic") as caught:
            check_same_rows(committed(rows), other, task=1, accept_changed=False)
        assert "by compaction or retention" in str(caught.value)
        assert "set option 'acceptChangedRows' to 'true' for one start" in str(caught.value)


def test_changed_rows_are_accepted_where_none_is_lost() -> None:
    rows = RowSum(2, 900)

    assert check_same_rows(committed(rows), rows, task=1, accept_changed=True)
    for other in (RowSum(0, 0), RowSum(1, 900), RowSum(2, 901)):
        assert not check_same_rows(committed(rows), other, task=1, accept_changed=True)
    with pytest.raises(ExactlyOnceError, match="does not apply, because 1 rows would be lost"):
        check_same_rows(committed(rows), RowSum(3, 900), task=1, accept_changed=True)


def test_sums_add_up_in_any_order() -> None:
    one, other = RowSum(1, 5), RowSum(10, 2**64 - 1)

    assert one + other == other + one == RowSum(11, 4)


def test_tasks_of_an_earlier_run_that_this_run_lacks_stop_the_query() -> None:
    """Four tasks, three of which committed batch 1; the second run of the batch has one task."""
    own = marker(1)
    with pytest.raises(ExactlyOnceError, match=r"committed before with more tasks: this run has 1"):
        check_extra_tasks({"q-1": None, "q-2": own}, batch_id=1, query_id=QUERY, tasks=1)
    harmless = {"q-1": marker(0), "q-2": marker(1, "another"), "q-3": None}
    check_extra_tasks(harmless, batch_id=1, query_id=QUERY, tasks=1)


def test_groups_of_batch_markers_alternate_and_are_no_task() -> None:
    names = [batch_group("orders", batch_id) for batch_id in (0, 1, 2)]

    assert names == ["orders.batch-even", "orders.batch-odd", "orders.batch-even"]
    assert [owner_of(name) for name in names] == [None] * 3
    assert [task_of(name, "orders") for name in (*names, driver_id("orders", 3))] == [None] * 4
    assert task_of(task_id("orders", 12), "orders") == 12
    assert task_of("orders-b-12", "orders") is task_of("orders-012", "orders") is None
