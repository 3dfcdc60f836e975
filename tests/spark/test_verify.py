"""Whether an archive covers its logs, judged by ranges: each planted flaw is found, and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mqd.types import TopicPartition
from pyspark_mqd.pipelines import verify
from pyspark_mqd.pipelines.archive_layout import ArchivedRange, data_path, empty_path
from pyspark_mqd.pipelines.cli import Failure
from pyspark_mqd.pipelines.verify_checks import (
    BEHIND,
    BEYOND,
    DAMAGED,
    EXTRA,
    GAP,
    HEAD,
    OVERLAP,
    Log,
    Problem,
    judge,
    judge_all,
    problem_rows,
    without,
)

T0 = TopicPartition("t", 0)
LOG = Log(0, 30, 30)


def problems(
    ranges: list[tuple[int, int]], log: Log | None = LOG, lag_max: int = 0
) -> list[tuple[str, int, int]]:
    return [
        (each.kind, each.start, each.end)
        for each in judge(T0, ranges, log, lag_max=lag_max).problems
    ]


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ([(0, 10), (10, 30)], []),
        ([(10, 30), (0, 10), (0, 10)], []),
        ([(0, 10), (12, 30)], [(GAP, 10, 12)]),
        ([(0, 10), (8, 30)], [(OVERLAP, 8, 10)]),
        ([(0, 30), (5, 10)], [(OVERLAP, 5, 10)]),
        ([(0, 12), (0, 30)], [(OVERLAP, 0, 12)]),
        ([(5, 30)], [(HEAD, 0, 5)]),
        ([(0, 20)], [(BEHIND, 20, 30)]),
        ([], [(BEHIND, 0, 30)]),
        ([(0, 40)], [(BEYOND, 30, 40)]),
        ([(0, 5), (9, 3), (5, 30)], [(DAMAGED, 9, 3)]),
        ([(50, 60)], [(HEAD, 0, 30), (BEYOND, 50, 60)]),
    ],
)
def test_each_flaw_is_found_once(
    ranges: list[tuple[int, int]], found: list[tuple[str, int, int]]
) -> None:
    assert problems(ranges) == found


def test_what_has_expired_in_the_log_is_not_compared() -> None:
    assert problems([(0, 10), (10, 30)], Log(15, 30, 30)) == []
    assert problems([(0, 10)], Log(15, 30, 30)) == [(BEHIND, 15, 30)]


def test_the_archive_ends_at_the_last_stable_offset() -> None:
    assert problems([(0, 20)], Log(0, 20, 30)) == []
    assert problems([(0, 25)], Log(0, 20, 30)) == []


@pytest.mark.parametrize(("lag_max", "found"), [(9, [(BEHIND, 20, 30)]), (10, [])])
def test_an_archive_that_runs_may_lag(lag_max: int, found: list[tuple[str, int, int]]) -> None:
    assert problems([(0, 20)], lag_max=lag_max) == found
    assert judge(T0, [(0, 20)], LOG, lag_max=lag_max).lag == 10


def test_partitions_on_one_side_only_are_found() -> None:
    ranges = {("t", 0): [(0, 30)], ("gone", 0): [(0, 5)]}
    found = judge_all(
        ranges,
        {T0: LOG, TopicPartition("t", 1): Log(0, 7, 7), TopicPartition("t", 2): Log(4, 4, 4)},
    )
    assert [
        (row["kind"], row["topic"], row["partition"], row["offsets"]) for row in problem_rows(found)
    ] == [
        (EXTRA, "gone", 0, 5),
        (BEHIND, "t", 1, 7),
    ]
    assert problem_rows(judge_all(ranges, None)) == []


def test_a_kind_of_problem_can_be_left_aside() -> None:
    coverage = judge(T0, [(5, 20)], LOG, lag_max=0)
    assert [each.kind for each in without(coverage, HEAD).problems] == [BEHIND]


# -- with files


def write(root: Path, covered: ArchivedRange, offsets: dict[str, list[int]]) -> None:
    for date, rows in offsets.items():
        path = root / data_path(covered, date)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"offset": pa.array(rows, pa.int64())}), path)
    if not offsets:
        path = root / empty_path(covered)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two dates in one range, and a range without visible records."""
    write(tmp_path, ArchivedRange("t", 0, 0, 10), {"2026-11-22": [0, 1, 2], "2026-11-23": [3, 9]})
    write(tmp_path, ArchivedRange("t", 0, 10, 12), {})
    write(tmp_path, ArchivedRange("t", 0, 12, 20), {"2026-11-23": [13, 19]})
    return tmp_path


def run(*arguments: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(
        verify.command, [*arguments, "--offline", "-o", "json"], catch_exceptions=False
    )
    return result.exit_code, json.loads(result.stdout)


def test_holes_inside_of_ranges_and_empty_ranges_are_no_loss(archive: Path) -> None:
    code, shown = run("--archive", str(archive), "--footers")
    assert (code, shown["files"], shown["problems"]) == (0, 4, 0)


def test_a_file_that_is_missing_is_a_gap(archive: Path) -> None:
    (archive / empty_path(ArchivedRange("t", 0, 10, 12))).unlink()
    code, shown = run("--archive", str(archive))
    assert (code, shown["problems"], shown["offsets_in_doubt"]) == (1, 1, 2)


def test_a_file_with_other_offsets_than_its_name_is_found(archive: Path) -> None:
    write(archive, ArchivedRange("t", 0, 12, 20), {"2026-11-23": [13, 20]})
    assert run("--archive", str(archive))[0] == 0
    code, shown = run("--archive", str(archive), "--footers")
    assert code == 1
    assert "holds offsets 13 to 20" in json.dumps(shown["problem_rows"])


def test_a_file_that_is_cut_short_is_found(archive: Path) -> None:
    path = archive / data_path(ArchivedRange("t", 0, 12, 20), "2026-11-23")
    path.write_bytes(path.read_bytes()[:-20])
    found = verify.check_footers(verify.files_in(archive, []))
    assert [(each.kind, each.start, each.end) for each in found] == [(DAMAGED, 12, 20)]


def test_problems_go_to_their_partitions() -> None:
    found = judge_all({("t", 0): [(0, 30)], ("t", 1): [(0, 30)]}, None)
    planted = Problem(DAMAGED, TopicPartition("t", 1), 0, 30, "detail")
    assert [each.problems for each in verify.add_problems(found, [planted])] == [(), (planted,)]


# -- with a Delta table


def test_empty_ranges_of_a_delta_table_are_no_loss(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from pyspark_mqd.pipelines.archive_delta import DeltaArchive
    from tests.spark.test_pipelines_archive_delta import staged_in

    archive = DeltaArchive(tmp_path / "table", headers=False)
    archive.commit("q", 0, staged_in(archive.root, 0, 10))
    archive.commit("q", 1, staged_in(archive.root, 10, 10))
    archive.commit("q", 2, staged_in(archive.root, 11, 20))
    code, shown = run("--archive", str(archive.root), "--footers")
    assert (code, shown["files"], shown["problems"]) == (0, 3, 0)


def clean_up(table: Any) -> list[int]:
    """Delta's log clean-up at once; returns the versions that the log still has."""
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    return [each["version"] for each in table.history()]


def test_empty_ranges_of_a_delta_table_outlive_a_clean_up_of_its_log(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from pyspark_mqd.pipelines.archive_delta import DeltaArchive
    from tests.spark.test_pipelines_archive_delta import staged_in

    archive = DeltaArchive(tmp_path / "table", headers=False)
    for number, (start, end) in enumerate([(0, 10), (10, 10), (11, 20), (20, 20)]):
        archive.commit("q", number, staged_in(archive.root, start, end))
    shutil.rmtree(archive.root / "_mqd")  # as if it had crashed after the Delta commits
    again = DeltaArchive(archive.root, headers=False)
    assert not again.commit("q", 3, staged_in(archive.root, 20, 20))
    assert clean_up(again.table()) == [5]
    code, shown = run("--archive", str(archive.root), "--footers")
    assert (code, shown["files"], shown["problems"]) == (0, 4, 0)
    with pytest.raises(Failure, match="already has offsets of 't-0-20-21'"):
        again.commit("other", 0, staged_in(archive.root, 20, 20))
