"""The part of `replay` that runs in tasks: archived files of one partition, in order of offsets.

Pure but for the files and the clock that `Pace` is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_mqd.pipelines.archive_layout import ArchivedFile

COLUMNS = ("key", "value", "headers", "partition", "timestamp", "offset")
ROWS_MAX = 32_768
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("offset", pa.int64()),
    ]
)


class Bounds(NamedTuple):
    """Which records: `end_offset` and `end_us` are exclusive; None is no bound."""

    start_offset: int = 0
    end_offset: int | None = None
    start_us: int | None = None
    end_us: int | None = None

    def holds(self, file: ArchivedFile) -> bool:
        """Whether the file may have such records, by its name and date."""
        _, _, start, end = file.range
        if end <= self.start_offset or (self.end_offset is not None and start >= self.end_offset):
            return False
        if not file.date or file.date.startswith("__"):
            return bool(file.date) and self.start_us is None and self.end_us is None
        day = (pa.scalar(file.date).cast(pa.date32()).value or 0) * 86_400_000_000
        if self.start_us is not None and day + 86_400_000_000 <= self.start_us:
            return False
        return self.end_us is None or day < self.end_us

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Rows within the bounds; None for all."""
        tests = []
        offset, moment = batch.column("offset"), batch.column("timestamp").cast(pa.int64())
        if self.start_offset > 0:
            tests.append(pc.greater_equal(offset, self.start_offset))
        if self.end_offset is not None:
            tests.append(pc.less(offset, self.end_offset))
        if self.start_us is not None:
            tests.append(pc.greater_equal(moment, self.start_us))
        if self.end_us is not None:
            tests.append(pc.less(moment, self.end_us))
        mask = None
        for test in tests:
            mask = test if mask is None else pc.and_(mask, test)
        return mask


class Task(NamedTuple):
    """What one task replays: the files of a partition, grouped by range, in order."""

    partition: int
    ranges: tuple[tuple[str, ...], ...]


def tasks_of(files: Sequence[ArchivedFile], bounds: Bounds) -> list[Task]:
    """One task for each partition that has records within the bounds."""
    kept = sorted(
        (file for file in files if bounds.holds(file)),
        key=lambda file: (file.range.partition, file.range.start, file.date),
    )
    tasks = []
    for partition, its_files in groupby(kept, key=lambda file: file.range.partition):
        ranges = groupby(its_files, key=lambda file: file.range)
        paths = tuple(tuple(str(file.path) for file in group) for _, group in ranges)
        tasks.append(Task(partition, paths))
    return tasks


def read_task(task: Task, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The records of a task as Arrow batches, in order of offsets."""
    for paths in task.ranges:
        for batch in _batches(paths):
            mask = bounds.mask(batch)
            kept = batch if mask is None else batch.filter(mask)
            if kept.num_rows:
                yield kept


def _batches(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """One file is in order already; the files of several dates are merged."""
    if len(paths) == 1:
        file = pq.ParquetFile(paths[0])
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(ROWS_MAX, columns=columns):
            yield shaped(batch)
        return
    parts = [pa.Table.from_batches(_batches([path]), SCHEMA) for path in paths]
    yield from pa.concat_tables(parts).sort_by("offset").to_batches(ROWS_MAX)


def shaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `SCHEMA`; headers are null where the archive has none."""
    arrays = []
    for field in SCHEMA:
        if field.name in batch.schema.names:
            array = batch.column(field.name)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Pace:
    """Holds batches back so that a task gives at most `rate` records a second."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._begun = clock()
        self._given = 0

    def hold(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, in batches of at most a second's records."""
        rows_max = max(1, int(self._rate))
        for batch in batches:
            for start in range(0, batch.num_rows, rows_max):
                part = batch.slice(start, rows_max)
                early = self._given / self._rate - (self._clock() - self._begun)
                if early > 0:
                    self._sleep(early)
                self._given += part.num_rows
                yield part
