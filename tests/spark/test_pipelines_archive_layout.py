"""Names and folders of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mqd.pipelines.archive_layout import (
    ArchivedFile,
    ArchivedRange,
    covered_ranges,
    data_path,
    empty_path,
    listing,
    parse_data_path,
    parse_empty_path,
    parse_name,
)


@pytest.mark.parametrize("topic", ["orders", "a-1-2-3", "x.y_z-0", "1", "..a", "t" * 249])
def test_names_are_read_back(topic: str) -> None:
    covered = ArchivedRange(topic, 7, 100, 2_000)
    for part in (0, 3):
        path = data_path(covered, "2026-11-23", part)
        assert parse_data_path(path) == covered
        assert parse_name(topic, path.rpartition("/")[2]) == covered
        assert max(map(len, path.split("/"))) <= 255
    assert parse_data_path(data_path(covered, "__HIVE_DEFAULT_PARTITION__")) == covered
    assert parse_empty_path(empty_path(covered)) == covered
    assert max(map(len, empty_path(covered).split("/"))) <= 255


@pytest.mark.parametrize("name", ["part-0.snappy.parquet", "0-1.parquet", "notes.txt", "0-1-2"])
def test_other_files_are_not_ours(name: str) -> None:
    assert parse_name("orders", name) is None


@pytest.mark.parametrize(
    "path",
    [
        "/topic=t/date=2026-11-23/0-0-5.parquet",
        "../topic=t/date=2026-11-23/0-0-5.parquet",
        "topic=t/date=../0-0-5.parquet",
        "topic=a/b/date=2026-11-23/0-0-5.parquet",
        "topic=t/date=2026-11-23/0-0-5",
    ],
)
def test_paths_out_of_the_archive_have_no_range(path: str) -> None:
    assert parse_data_path(path) is None


@pytest.mark.parametrize("path", ["_mqd/empty/../0-0-5", "_mqd/empty/./0-0-5", "/0-0-5", "0-0-5"])
def test_marks_out_of_the_archive_have_no_range(path: str) -> None:
    assert parse_empty_path(path) is None


def test_listing(tmp_path: Path) -> None:
    first, second, empty = (ArchivedRange("t", 0, *each) for each in ((0, 5), (5, 9), (9, 12)))
    other = ArchivedRange("u", 0, 0, 3)
    paths = [data_path(first, "2026-01-01"), data_path(first, "2026-01-02")]
    paths += [data_path(second, "2026-01-02"), empty_path(empty), data_path(other, "2026-01-01")]
    for path in [*paths, "_mqd/staging/q/0-12-15.parquet", "topic=t/date=2026-01-01/x.crc"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    files = list(listing(tmp_path, ["t"]))
    assert [(each.date, each.range) for each in files] == [
        ("2026-01-01", first),
        ("2026-01-02", first),
        ("2026-01-02", second),
        ("", empty),
    ]
    assert {each.range.topic for each in listing(tmp_path)} == {"t", "u"}
    assert covered_ranges(files) == {("t", 0): [(0, 12)]}


def test_gaps_stay() -> None:
    ranges = [(10, 12), (0, 5), (4, 6), (6, 7)]
    files = [ArchivedFile(Path("x"), "", ArchivedRange("t", 1, *each)) for each in ranges]
    assert covered_ranges(files) == {("t", 1): [(0, 7), (10, 12)]}
