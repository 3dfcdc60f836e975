"""An archive as a Delta table, without Spark: one Delta commit a micro-batch, exactly once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

from pyspark_mqd.pipelines.archive_delta import DeltaArchive, files_of  # noqa: E402
from pyspark_mqd.pipelines.archive_layout import (  # noqa: E402
    ArchivedRange,
    covered_ranges,
    data_path,
)
from pyspark_mqd.pipelines.archive_stage import Staged, stage, unique_name  # noqa: E402
from pyspark_mqd.pipelines.cli import Failure  # noqa: E402
from tests.spark.test_pipelines_archive_files import batch_of  # noqa: E402


def staged_in(root: Path, start: int, end: int, hours: float = 0.0) -> list[Staged]:
    batches = [batch_of(start, end, hours=hours)] if end > start else []
    covered = ArchivedRange("t", 0, start, max(end, start + 1))
    return list(stage(batches, covered, lambda date: unique_name(root / data_path(covered, date))))


def rows(archive: DeltaArchive) -> Any:
    return archive.table().to_pyarrow_table().sort_by("offset")


@pytest.fixture
def archive(tmp_path: Path) -> DeltaArchive:
    return DeltaArchive(tmp_path / "table", headers=False)


def test_a_batch_is_one_commit_and_is_not_repeated(archive: DeltaArchive) -> None:
    assert archive.commit("q", 0, staged_in(archive.root, 0, 48, hours=1.0))
    assert archive.commit("q", 1, staged_in(archive.root, 48, 60))
    again = staged_in(archive.root, 48, 60)
    assert not archive.commit("q", 1, again)
    assert not Path(again[0].path).exists()
    table = rows(archive)
    assert table["offset"].to_pylist() == list(range(60))
    assert set(table["topic"].to_pylist()) == {"t"}
    assert len(set(table["date"].to_pylist())) == 3
    assert archive.table().version() == 2
    assert covered_ranges(files_of(archive.table())) == {("t", 0): [(0, 60)]}


def test_duckdb_reads_it(archive: DeltaArchive) -> None:
    duckdb = pytest.importorskip("duckdb")
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    dataset = archive.table().to_pyarrow_dataset()
    found = duckdb.sql("select count(*), max(\"offset\") from dataset where topic = 't'").fetchall()
    assert dataset is not None and found == [(10, 9)]


def test_files_of_a_batch_that_was_not_committed_are_invisible(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    staged_in(archive.root, 10, 20)
    assert rows(archive)["offset"].to_pylist() == list(range(10))


def test_a_range_without_records_is_a_commit(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    archive.commit("q", 1, staged_in(archive.root, 10, 10))
    assert archive.table().transaction_version("q") == 1
    assert archive.table().history(1)[0]["mqd.empty"] == '[["t", 0, 10, 11]]'
    assert archive.commit("q", 2, staged_in(archive.root, 11, 20))


def test_a_table_that_was_optimized_has_unknown_ranges(archive: DeltaArchive) -> None:
    for batch in range(2):
        archive.commit("q", batch, staged_in(archive.root, batch * 10, batch * 10 + 10))
    version = archive.table().version()
    assert archive.table().optimize.compact()["numFilesRemoved"] == 2
    with pytest.raises(Failure, match="its offset range is unknown"):
        files_of(archive.table())
    archive.table().restore(version)
    assert covered_ranges(files_of(archive.table())) == {("t", 0): [(0, 20)]}


def test_an_old_copy_of_the_checkpoint_is_refused(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    archive.commit("q", 1, staged_in(archive.root, 10, 20))
    more = staged_in(archive.root, 10, 100)
    with pytest.raises(Failure, match="with other offsets than the checkpoint plans") as failed:
        archive.commit("q", 1, more)
    assert "from-archive" in failed.value.remedy
    assert not Path(more[0].path).exists()
    split = [*staged_in(archive.root, 10, 15), *staged_in(archive.root, 15, 20)]
    assert not archive.commit("q", 1, split)  # the same offsets in other tasks
    assert rows(archive)["offset"].to_pylist() == list(range(20))


def test_a_table_that_was_deleted_is_refused(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    shutil.rmtree(archive.root)
    with pytest.raises(Failure, match="has no micro-batch of query 'q'"):
        archive.commit("q", 1, staged_in(archive.root, 10, 20))


def test_a_topic_with_the_longest_name(archive: DeltaArchive) -> None:
    covered = ArchivedRange("t" * 249, 0, 0, 10)
    staged = stage(
        [batch_of(0, 10)],
        covered,
        lambda date: unique_name(archive.root / data_path(covered, date)),
    )
    archive.commit("q", 0, list(staged))
    assert covered_ranges(files_of(archive.table())) == {("t" * 249, 0): [(0, 10)]}


def test_an_error_after_the_commit_removes_no_file(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    (archive.root / "_mqd").write_text("in the way of the marks")
    staged = [*staged_in(archive.root, 10, 20), *staged_in(archive.root, 20, 20)]
    with pytest.raises(Failure, match="Cannot write to the archive"):
        archive.commit("q", 1, staged)
    (archive.root / "_mqd").unlink()
    assert not archive.commit("q", 1, staged_in(archive.root, 10, 21))
    assert rows(archive)["offset"].to_pylist() == list(range(20))


def test_a_wrong_checkpoint_is_refused(archive: DeltaArchive) -> None:
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    with pytest.raises(Failure, match="do not belong together"):
        archive.commit("q", 5, staged_in(archive.root, 10, 20))
    with pytest.raises(Failure, match="already has offsets of 't-0-5-15'"):
        archive.commit("other", 0, staged_in(archive.root, 5, 15))
