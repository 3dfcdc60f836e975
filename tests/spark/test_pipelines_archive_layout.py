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
    name_of,
    parse_name,
)


@pytest.mark.parametrize("topic", ["orders", "a-1-2-3", "x.y_z-0", "1"])
def test_names_are_read_back(topic: str) -> None:
    covered = ArchivedRange(topic, 7, 100, 2_000)
    assert parse_name(name_of(covered)) == covered
    assert parse_name(data_path(covered, "2026-11-23").rpartition("/")[2]) == covered


@pytest.mark.parametrize("name", ["part-0.snappy.parquet", "orders-0-1.parquet", "notes.txt"])
def test_other_files_are_not_ours(name: str) -> None:
    assert parse_name(name) is None


def test_listing(tmp_path: Path) -> None:
    first, second, empty = (ArchivedRange("t", 0, *each) for each in ((0, 5), (5, 9), (9, 12)))
    other = ArchivedRange("u", 0, 0, 3)
    paths = [data_path(first, "2026-01-01"), data_path(first, "2026-01-02")]
    paths += [data_path(second, "2026-01-02"), empty_path(empty), data_path(other, "2026-01-01")]
    for path in [*paths, "_mqd/staging/q/1/t-0-12-15.parquet", "topic=t/date=2026-01-01/x.crc"]:
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
