"""Where an archive has its files, and what their names mean: pure names, then a few functions on
folders.

    ROOT/topic=orders/date=2026-11-23/0-1000-2000.parquet
    ROOT/_mqd/empty/orders/0-2000-2003         a range without visible records, zero bytes
    ROOT/_mqd/staging/<query>/<random>.parquet files of a micro-batch that is not committed
    ROOT/_mqd/decision-<query>.json            the last committed micro-batch of a query

A file `<partition>-<start>-<end>.parquet` holds the records of that date whose offset is in
`[start, end)`. A range with records of several dates has one file of the same name in each folder.
More parts of the same date have a number: `0-1000-2000.1.parquet`. In a Delta table the attempt is
in the name too: `0-1000-2000-<random>.parquet`. So the ranges of all names, with those of
`_mqd/empty`, are what the archive covers. Readers skip folders that begin with `_`: Spark, pyarrow
and DuckDB do so.

A topic's name has up to 249 characters and a file's name 255, so only folders have the topic.
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

_NAME = r"([0-9]+)-([0-9]+)-([0-9]+)"
_DATA = re.compile(rf"{_NAME}(?:\.[0-9]+)?(?:-[0-9a-f]{{32}})?\.parquet")
_TOPIC = r"((?!\.{1,2}/)[A-Za-z0-9._-]{1,249})"
_DATE = r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|__HIVE_DEFAULT_PARTITION__)"
_DATA_PATH = re.compile(rf"topic={_TOPIC}/date={_DATE}/{_NAME}(?:\.[0-9]+)?\.parquet")
_EMPTY_PATH = re.compile(rf"{EMPTY}/{_TOPIC}/{_NAME}")


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


def staging_folder(root: Path, query: str) -> Path:
    """Where the tasks of a query stage files. No other query has files there."""
    return root / STAGING / query


def name_of(covered: ArchivedRange) -> str:
    """A range in messages."""
    return f"{covered.topic}-{covered.partition}-{covered.start}-{covered.end}"


def data_path(covered: ArchivedRange, date: str, part: int = 0) -> str:
    """The path below the root of the records of one date in a range, or of a further part of it."""
    number = f".{part}" if part else ""
    return f"topic={covered.topic}/date={date}/{_file_name(covered)}{number}{SUFFIX}"


def empty_path(covered: ArchivedRange) -> str:
    """The path below the root of the mark for a range without visible records."""
    return f"{EMPTY}/{covered.topic}/{_file_name(covered)}"


def _file_name(covered: ArchivedRange) -> str:
    return f"{covered.partition}-{covered.start}-{covered.end}"


def parse_name(topic: str, name: str) -> ArchivedRange | None:
    """The range that the name of a file of records gives; None for a file that is not ours."""
    found = _DATA.fullmatch(name)
    return None if found is None else _range_of(topic, *found.groups())


def parse_data_path(path: str) -> ArchivedRange | None:
    """The inverse of `data_path`; None for any other path, such as one out of the archive."""
    found = _DATA_PATH.fullmatch(path)
    return None if found is None else _range_of(*found.groups())


def parse_empty_path(path: str) -> ArchivedRange | None:
    """The inverse of `empty_path`; None for any other path."""
    found = _EMPTY_PATH.fullmatch(path)
    return None if found is None else _range_of(*found.groups())


def _range_of(topic: str, partition: str, start: str, end: str) -> ArchivedRange:
    return ArchivedRange(topic, int(partition), int(start), int(end))


def listing(root: Path, topics: Iterable[str] | None = None) -> Iterator[ArchivedFile]:
    """Every file of the archive, of `topics` only where they are given."""
    wanted = None if topics is None else set(topics)
    for name in _folders(root):
        topic = name.removeprefix("topic=")
        if topic != name and (wanted is None or topic in wanted):
            yield from _data_files(root / name, topic)
    yield from empty_ranges(root, wanted)


def empty_ranges(root: Path, topics: Iterable[str] | None = None) -> Iterator[ArchivedFile]:
    """The marks of ranges without visible records, of `topics` only where they are given."""
    wanted = None if topics is None else set(topics)
    for topic in _folders(root / EMPTY):
        if wanted is None or topic in wanted:
            for path in sorted((root / EMPTY / topic).iterdir()):
                covered = parse_empty_path(f"{EMPTY}/{topic}/{path.name}")
                if covered is not None:
                    yield ArchivedFile(path, "", covered)


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


def _data_files(folder: Path, topic: str) -> Iterator[ArchivedFile]:
    for path in sorted(folder.glob(f"date=*/*{SUFFIX}")):
        covered = parse_name(topic, path.name)
        if covered is not None:
            yield ArchivedFile(path, path.parent.name.removeprefix("date="), covered)


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
