"""An archive without Spark: staging, dates, the decision, crashes at every point, Delta's log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from pyspark_mqd.pipelines import archive_commit, archive_stage  # noqa: E402
from pyspark_mqd.pipelines.archive_commit import Archive, Decision  # noqa: E402
from pyspark_mqd.pipelines.archive_layout import ArchivedRange, listing  # noqa: E402
from pyspark_mqd.pipelines.archive_stage import Staged, stage, unique_path  # noqa: E402
from pyspark_mqd.pipelines.cli import Failure  # noqa: E402

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


def batch_of(start: int, end: int, *, hours: float = 0.0, topic: str = "t") -> Any:
    """Records `[start, end)`, each `hours` after the one before."""
    count = end - start
    moments = [NOON + timedelta(hours=hours * index) for index in range(count)]
    columns = [
        [b"k%d" % offset for offset in range(start, end)],
        [b"v%d" % offset for offset in range(start, end)],
        *([topic] * count, [0] * count, list(range(start, end)), moments, [0] * count),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def staged_in(archive: Archive, start: int, end: int, hours: float = 0.0) -> list[Staged]:
    batches = [batch_of(start, end, hours=hours)] if end > start else []
    covered = ArchivedRange("t", 0, start, max(end, start + 1))
    return list(stage(batches, covered, lambda _: unique_path(archive.staging)))


def offsets_in(root: Path) -> list[int]:
    from pyarrow import dataset

    table = dataset.dataset(root, format="parquet", partitioning="hive").to_table()
    return sorted(table["offset"].to_pylist()) if "offset" in table.schema.names else []


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "lake", "tag")


def test_a_range_becomes_one_file_a_date(archive: Archive) -> None:
    files = staged_in(archive, 0, 48, hours=1.0)
    assert [(file.date, file.records) for file in files] == [
        ("2026-11-23", 12),
        ("2026-11-24", 24),
        ("2026-11-25", 12),
    ]
    assert files[1].stats == (
        '{"numRecords": 24, "minValues": {"offset": 12}, "maxValues": {"offset": 35}}'
    )
    assert archive.commit("q", 0, files)
    assert offsets_in(archive.root) == list(range(48))


def test_rows_without_a_timestamp_and_before_1970() -> None:
    moments = [None, datetime(1969, 12, 31, 23, tzinfo=UTC), NOON]
    batch = batch_of(0, 3).set_column(5, "timestamp", pa.array(moments, SCHEMA.field(5).type))
    parts = {date: part["offset"].to_pylist() for date, part in archive_stage.by_date(batch)}
    assert parts == {"1969-12-31": [1], "2026-11-23": [2], archive_stage.NO_DATE: [0]}


def test_small_batches_share_row_groups(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(archive_stage, "ROW_GROUP_ROWS", 100)
    batches = [batch_of(start, start + 10) for start in range(0, 250, 10)]
    covered = ArchivedRange("t", 0, 0, 250)
    (file,) = stage(batches, covered, lambda _: unique_path(archive.staging))
    assert pq.ParquetFile(file.path).num_row_groups == 3
    assert file.records == 250 and file.size == os.path.getsize(file.path)


def test_a_failing_source_leaves_no_file(archive: Archive) -> None:
    def batches() -> Iterator[Any]:
        yield batch_of(0, 10)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        list(stage(batches(), ArchivedRange("t", 0, 0, 20), lambda _: unique_path(archive.staging)))
    assert list(archive.staging.iterdir()) == []


def test_too_many_dates_are_refused(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_stage, "DATES_MAX", 3)
    with pytest.raises(archive_stage.ManyDates, match="more than 3 dates"):
        staged_in(archive, 0, 5, hours=24.0)
    assert list(archive.staging.iterdir()) == []


def test_an_empty_range_is_remembered(archive: Archive) -> None:
    assert archive.commit("q", 0, staged_in(archive, 5, 5))
    ((_, date, covered),) = listing(archive.root)
    assert (date, covered) == ("", ArchivedRange("t", 0, 5, 6))


def test_a_replayed_batch_changes_nothing(archive: Archive) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10))
    assert archive.commit("q", 1, staged_in(archive, 10, 20))
    assert not archive.commit("q", 1, staged_in(archive, 10, 20))
    assert not archive.commit("q", 1, staged_in(archive, 10, 15))  # read differently, no matter
    assert offsets_in(archive.root) == list(range(20))
    assert not archive.staging.exists()


class Crash(BaseException):
    pass


def crash_points() -> list[Callable[[pytest.MonkeyPatch], None]]:
    """Each makes the process die at one point of a commit."""

    def at(name: str, count: int) -> Callable[[pytest.MonkeyPatch], None]:
        def plant(patch: pytest.MonkeyPatch) -> None:
            real: Any = getattr(os, name)
            left = [count]

            def call(*arguments: Any) -> Any:
                if left[0] == 0:
                    raise Crash
                left[0] -= 1
                return real(*arguments)

            patch.setattr(archive_commit.os, name, call)

        return plant

    return [at("replace", count) for count in range(4)] + [at("fsync", count) for count in range(5)]


@pytest.mark.parametrize("plant", crash_points())
def test_a_crash_at_any_point_neither_loses_nor_doubles(
    archive: Archive, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10))
    staged = staged_in(archive, 10, 50, hours=1.0)
    assert len(staged) == 3
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(Crash):
            archive.commit("q", 1, staged)
    archive.commit("q", 1, staged_in(archive, 10, 50, hours=7.0))  # the re-run reads other dates
    archive.commit("q", 2, staged_in(archive, 50, 60))
    assert offsets_in(archive.root) == list(range(60))


def test_a_lost_file_of_a_committed_batch_stops_the_query(archive: Archive) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10))
    next(listing(archive.root)).path.unlink()
    with pytest.raises(Failure, match=r"lost the file 'topic=t/date=2026-11-23/t-0-0-10\.parquet'"):
        archive.commit("q", 1, staged_in(archive, 10, 20))


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_a_checkpoint_of_another_archive_is_refused(archive: Archive, batch: int) -> None:
    for number in range(3):
        archive.commit("q", number, staged_in(archive, number * 10, number * 10 + 10))
    with pytest.raises(Failure, match="do not belong together"):
        archive.commit("q", batch, staged_in(archive, 90, 100))
    with pytest.raises(Failure, match="has no micro-batch of query 'other'"):
        archive.commit("other", 3, staged_in(archive, 90, 100))


def test_a_new_query_does_not_archive_offsets_twice(archive: Archive) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10))
    with pytest.raises(Failure, match=r"already has offsets of 't-0-5-15'") as failed:
        archive.commit("other", 0, staged_in(archive, 5, 15))
    assert "from-archive" in failed.value.remedy
    assert archive.commit("other", 0, staged_in(archive, 10, 15))
    assert offsets_in(archive.root) == list(range(15))


def test_decisions_are_read_back() -> None:
    decision = Decision(7, (("a", "b"), ("c", "d")), ("e",))
    assert Decision.parse(decision.text()) == decision


def test_days_that_have_no_date() -> None:
    """Brokers allow timestamps that no calendar has: such records go where those without one go."""
    assert archive_stage.date_of(0) == "1970-01-01"
    assert archive_stage.date_of(-1) == "1969-12-31"
    assert archive_stage.date_of(2_932_896) == "9999-12-31"
    for day in (2_932_897, 10**8, -719_163):
        assert archive_stage.date_of(day) == archive_stage.NO_DATE
