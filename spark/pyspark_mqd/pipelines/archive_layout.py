"""Where an archive has its files, and what their names mean: pure names, then a few functions on
folders.

    ROOT/topic=orders/date=2026-11-23/orders-0-1000-2000.parquet
    ROOT/_mqd/empty/orders/orders-0-2000-2003      a range without visible records, zero bytes
    ROOT/_mqd/staging/<query>/<batch>/...          files of a micro-batch that is not committed
    ROOT/_mqd/decision-<query>.json                the last committed micro-batch of a query

A file `<topic>-<partition>-<start>-<end>.parquet` holds the records of that date whose offset is in
`[start, end)`. A range with records of several dates has one file of the same name in each folder.
So the ranges of all names, with those of `_mqd/empty`, are what the archive covers. Readers skip
folders that begin with `_`: Spark, pyarrow and DuckDB do so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

OWN = "_mqd"
EMPTY = f"{OWN}/empty"
STAGING = f"{OWN}/staging"
SUFFIX = ".parquet"

_NAME = re.compile(r"(.+)-(\d+)-(\d+)-(\d+)(?:\.parquet)?")


class ArchivedRange(NamedTuple):
    """Offsets `[start, end)` of a partition that the archive covers."""

    topic: str
    partition: int
    start: int
    end: int


class ArchivedFile(NamedTuple):
    """One file of the archive: `date` is "" for a range without visible records."""

    path: Path
    date: str
    range: ArchivedRange


def name_of(covered: ArchivedRange) -> str:
    """The name of a range, without a suffix."""
    return f"{covered.topic}-{covered.partition}-{covered.start}-{covered.end}"


def data_path(covered: ArchivedRange, date: str) -> str:
    """The path below the root of the records of one date in a range."""
    return f"topic={covered.topic}/date={date}/{name_of(covered)}{SUFFIX}"


def empty_path(covered: ArchivedRange) -> str:
    """The path below the root of the mark for a range without visible records."""
    return f"{EMPTY}/{covered.topic}/{name_of(covered)}"


def parse_name(name: str) -> ArchivedRange | None:
    """The range that a file's name gives; None for a file that is not ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    topic, partition, start, end = found.groups()
    return ArchivedRange(topic, int(partition), int(start), int(end))


def listing(root: Path, topics: Iterable[str] | None = None) -> Iterator[ArchivedFile]:
    """Every file of the archive, of `topics` only where they are given."""
    wanted = None if topics is None else set(topics)
    for name in _folders(root):
        topic = name.removeprefix("topic=")
        if topic != name and (wanted is None or topic in wanted):
            yield from _files(root / name, is_empty=False)
    yield from empty_ranges(root, wanted)


def empty_ranges(root: Path, topics: Iterable[str] | None = None) -> Iterator[ArchivedFile]:
    """The marks of ranges without visible records, of `topics` only where they are given."""
    wanted = None if topics is None else set(topics)
    for topic in _folders(root / EMPTY):
        if wanted is None or topic in wanted:
            yield from _files(root / EMPTY / topic, is_empty=True)


def mark_empty(root: Path, paths: Iterable[str]) -> None:
    """Make the marks at these paths below the root, durably. Repeats are harmless."""
    folders: set[Path] = set()
    for path in paths:
        mark = root / path
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        folders.add(mark.parent)
    for folder in folders:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Names in `folder` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path, *, is_empty: bool) -> Iterator[ArchivedFile]:
    for path in sorted(folder.iterdir() if is_empty else folder.glob(f"date=*/*{SUFFIX}")):
        covered = parse_name(path.name)
        if covered is not None:
            date = "" if is_empty else path.parent.name.removeprefix("date=")
            yield ArchivedFile(path, date, covered)


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def covered_ranges(files: Iterable[ArchivedFile]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """(topic, partition) -> its ranges, joined where they touch or overlap, in order."""
    by_partition: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for _, _, (topic, partition, start, end) in files:
        by_partition.setdefault((topic, partition), set()).add((start, end))
    return {key: _joined(sorted(ranges)) for key, ranges in sorted(by_partition.items())}


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
