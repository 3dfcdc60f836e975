"""An archive without Spark: staging, dates, the decision, crashes at every point, Delta's log."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from pyspark_mqd.pipelines import archive_stage  # noqa: E402
from pyspark_mqd.pipelines.archive_commit import Archive, ArchiveDecision  # noqa: E402
from pyspark_mqd.pipelines.archive_layout import (  # noqa: E402
    ArchivedRange,
    covered_ranges,
    listing,
    staging_folder,
)
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


def staged_in(
    archive: Archive,
    start: int,
    end: int,
    hours: float = 0.0,
    *,
    topic: str = "t",
    query: str = "q",
) -> list[Staged]:
    batches = [batch_of(start, end, hours=hours)] if end > start else []
    covered = ArchivedRange(topic, 0, start, max(end, start + 1))
    return list(stage(batches, covered, place_in(archive, query)))


def place_in(archive: Archive, query: str = "q") -> Callable[[str], str]:
    return lambda _: unique_path(staging_folder(archive.root, query))


def offsets_in(root: Path) -> list[int]:
    from pyarrow import dataset

    table = dataset.dataset(root, format="parquet", partitioning="hive").to_table()
    return sorted(table["offset"].to_pylist()) if "offset" in table.schema.names else []


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "lake")


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


def test_small_batches_share_row_groups(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(archive_stage, "ROW_GROUP_ROWS", 100)
    batches = [batch_of(start, start + 10) for start in range(0, 250, 10)]
    covered = ArchivedRange("t", 0, 0, 250)
    (file,) = stage(batches, covered, place_in(archive))
    assert pq.ParquetFile(file.path).num_row_groups == 3
    assert file.records == 250 and file.size == os.path.getsize(file.path)


def test_a_failing_source_leaves_no_file(archive: Archive) -> None:
    def batches() -> Iterator[Any]:
        yield batch_of(0, 10)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        list(stage(batches(), ArchivedRange("t", 0, 0, 20), place_in(archive)))
    assert list(staging_folder(archive.root, "q").iterdir()) == []


def test_more_dates_than_open_files(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_stage, "DATES_MAX", 3)
    batches = [batch_of(0, 5, hours=24.0), batch_of(5, 10, hours=24.0)]
    files = list(stage(batches, ArchivedRange("t", 0, 0, 10), place_in(archive)))
    assert sum(file.records for file in files) == 10
    archive.commit("q", 0, files)
    names = [each.path.name for each in listing(archive.root) if each.date == "2026-11-23"]
    assert names == ["0-0-10.1.parquet", "0-0-10.parquet"]
    assert offsets_in(archive.root) == list(range(10))
    assert covered_ranges(listing(archive.root)) == {("t", 0): [(0, 10)]}
    assert not archive.commit("q", 0, staged_in(archive, 0, 10))


def test_a_file_that_cannot_be_written_names_its_folder(archive: Archive) -> None:
    archive.root.mkdir()
    (archive.root / "_mqd").write_text("in the way")
    with pytest.raises(archive_stage.NotWritten, match=r"/_mqd/staging/q': Not a directory\. Free"):
        staged_in(archive, 0, 10)


def test_an_empty_range_is_remembered(archive: Archive) -> None:
    assert archive.commit("q", 0, staged_in(archive, 5, 5))
    ((_, date, covered),) = listing(archive.root)
    assert (date, covered) == ("", ArchivedRange("t", 0, 5, 6))


def test_a_replayed_batch_changes_nothing(archive: Archive) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10))
    assert archive.commit("q", 1, staged_in(archive, 10, 20))
    assert not archive.commit("q", 1, staged_in(archive, 10, 20))
    split = [*staged_in(archive, 10, 15), *staged_in(archive, 15, 15), *staged_in(archive, 16, 20)]
    assert not archive.commit("q", 1, split)  # other tasks, and fewer visible records
    assert offsets_in(archive.root) == list(range(20))
    assert not staging_folder(archive.root, "q").exists()


@pytest.mark.parametrize("end", [15, 100])
def test_an_old_copy_of_the_checkpoint_is_refused(archive: Archive, end: int) -> None:
    """Its next micro-batch has the id of the last one, and ends elsewhere."""
    archive.commit("q", 0, staged_in(archive, 0, 10))
    archive.commit("q", 1, staged_in(archive, 10, 20))
    with pytest.raises(Failure, match="with other offsets than the checkpoint plans") as failed:
        archive.commit("q", 1, staged_in(archive, 10, end))
    assert "from-archive" in failed.value.remedy
    assert offsets_in(archive.root) == list(range(20))


def test_a_topic_with_the_longest_name(archive: Archive) -> None:
    archive.commit("q", 0, staged_in(archive, 0, 10, topic="t" * 249))
    archive.commit("q", 1, staged_in(archive, 10, 10, topic="t" * 249))
    assert covered_ranges(listing(archive.root)) == {("t" * 249, 0): [(0, 11)]}


def test_queries_have_staging_folders_of_their_own(archive: Archive) -> None:
    first = staged_in(archive, 0, 10, query="a")
    archive.commit("b", 0, staged_in(archive, 0, 10, topic="u", query="b"))
    archive.commit("a", 0, first)
    assert len(list(listing(archive.root))) == 2


def test_a_staged_file_that_is_missing_is_no_decision(archive: Archive) -> None:
    staged = staged_in(archive, 0, 10)
    Path(staged[0].path).unlink()
    with pytest.raises(Failure, match="of 't-0-0-10' is missing"):
        archive.commit("q", 0, staged)
    assert archive.commit("q", 0, staged_in(archive, 0, 10))


STAGED = "_mqd/staging/q/0a.parquet"
TARGET = "topic=t/date=2026-11-23/0-0-10.parquet"


@pytest.mark.parametrize(
    "renames",
    [
        [["{outside}", TARGET]],
        [["../victim", TARGET]],
        [["_mqd/staging/q/../../../victim", TARGET]],
        [["_mqd/staging/other/0a.parquet", TARGET]],
        [[STAGED, "../stolen"]],
        [[STAGED, "{outside}"]],
        [[STAGED, "topic=../date=2026-11-23/0-0-10.parquet/../../stolen"]],
        [[STAGED, "topic=t/date=../0-0-10.parquet"]],
    ],
)
def test_a_decision_reaches_no_file_outside(archive: Archive, renames: list[list[str]]) -> None:
    victim = archive.root.parent / "victim"
    victim.write_text("content")
    folder = staging_folder(archive.root, "q")
    folder.mkdir(parents=True)
    (folder / "0a.parquet").write_text("staged")
    rows = [[each.replace("{outside}", str(victim)) for each in pair] for pair in renames]
    path = archive.root / "_mqd" / "decision-q.json"
    path.write_text(json.dumps({"batch": 0, "renames": rows, "empty": []}))
    with pytest.raises(Failure, match=r"decision-q\.json' .* is damaged"):
        archive.commit("q", 1, [])
    assert victim.read_text() == "content" and (folder / "0a.parquet").exists()
    assert sorted(each.name for each in archive.root.parent.iterdir()) == ["lake", "victim"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"batch": "0", "renames": [], "empty": []}',
        '{"batch": -1, "renames": [], "empty": []}',
        '{"batch": 0, "renames": [["a"]], "empty": []}',
        '{"batch": 0, "renames": [[1, 2]], "empty": []}',
        '{"batch": 0, "renames": 1, "empty": []}',
        '{"batch": 0, "renames": [], "empty": ["../../touched"]}',
        '{"batch": 0, "renames": [], "empty": [5]}',
        '{"batch": 0, "renames": [], "empty": ["_mqd/empty/../0-0-1"]}',
    ],
)
def test_a_damaged_decision_is_named(archive: Archive, text: str) -> None:
    path = archive.root / "_mqd" / "decision-q.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(Failure, match=r"decision-q\.json' .* is damaged") as failed:
        archive.commit("q", 1, [])
    assert "Restore the file" in failed.value.remedy
    path.write_bytes(b"\xff")
    with pytest.raises(Failure, match="is damaged"):
        archive.commit("q", 1, [])


def test_a_full_disk_is_a_failure_that_a_restart_mends(archive: Archive) -> None:
    def replace(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Failure, match="/lake': No space left on device") as failed:
            archive.commit("q", 0, staged_in(archive, 0, 10))
    assert failed.value.remedy == "Free space or mend the folder, and start again: nothing is lost."
    archive.commit("q", 0, staged_in(archive, 0, 10))
    assert offsets_in(archive.root) == list(range(10))


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

            patch.setattr(os, name, call)

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
    with pytest.raises(Failure, match=r"lost the file 'topic=t/date=2026-11-23/0-0-10\.parquet'"):
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
    assert archive.commit("other", 0, staged_in(archive, 10, 15, query="other"))
    assert offsets_in(archive.root) == list(range(15))


def test_decisions_are_read_back() -> None:
    decision = ArchiveDecision(7, ((STAGED, TARGET),), ("_mqd/empty/t/0-10-12",))
    assert ArchiveDecision.parse(decision.text(), "q") == decision
    assert decision.ranges() == {("t", 0): [(0, 12)]}


def test_days_that_have_no_date() -> None:
    """Brokers allow timestamps that no calendar has: such records go where those without one go."""
    assert archive_stage.date_of(0) == "1970-01-01"
    assert archive_stage.date_of(-1) == "1969-12-31"
    assert archive_stage.date_of(2_932_896) == "9999-12-31"
    for day in (2_932_897, 10**8, -719_163):
        assert archive_stage.date_of(day) == archive_stage.NO_DATE
