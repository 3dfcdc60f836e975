"""The part of an archive that runs in tasks: Arrow batches of one offset range to Parquet files.

Files go to a staging folder under names that no other attempt uses, and are synced before they are
reported. So an attempt that fails, or loses, leaves a file that does not count, and the commit
removes it. No Spark here: batches in, descriptions of files out.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date as calendar_date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_mqd.pipelines.archive_layout import SUFFIX, ArchivedRange

ROW_GROUP_ROWS = 262_144
ROW_GROUP_BYTES = 64 << 20
"""A row group is written when either is reached: what a task holds in memory, per date."""

DATES_MAX = 400
"""Open files a range. For one more date, the file least recently written is finished: later
records of its date go to a further part."""

NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = calendar_date(1970, 1, 1).toordinal()
DAY_US = 86_400_000_000
PATH_COLUMNS = ("topic",)
"""Columns that the folder gives, so that files do not repeat them."""


class Staged(NamedTuple):
    """A staged file. `path` and `date` are "" for a range without visible records."""

    topic: str
    partition: int
    start: int
    end: int
    date: str
    records: int
    size: int
    path: str
    stats: str

    @property
    def range(self) -> ArchivedRange:
        return ArchivedRange(self.topic, self.partition, self.start, self.end)


class NotWritten(Exception):
    """A file cannot be staged, such as on a full disk. The message has the remedy."""


@contextmanager
def writing(folder: str) -> Iterator[None]:
    """Raises NotWritten for an error of the file system."""
    try:
        yield
    except OSError as error:
        raise NotWritten(
            f"Cannot write to '{folder}': {error.strerror or error}. Free space or mend the folder,"
            " and start again: nothing is lost."
        ) from error


def stage(
    batches: Iterable[pa.RecordBatch],
    covered: ArchivedRange,
    place: Callable[[str], str],
    *,
    codec: str = "zstd",
) -> Iterator[Staged]:
    """Write the records of a range, and yield each file when all are durable.

    A date has one file, or more parts in order where the range has over DATES_MAX dates.
    `place`: the date of a new file -> its path. Raises NotWritten; no file is left then.
    """
    opened: OrderedDict[str, _File] = OrderedDict()
    done: list[_File] = []
    try:
        for batch in batches:
            for date, part in by_date(batch):
                if date not in opened:
                    if len(opened) == DATES_MAX:
                        done.append(opened.popitem(last=False)[1])
                        done[-1].finish()
                    opened[date] = _File(date, place(date), part.schema, codec)
                opened.move_to_end(date)
                opened[date].write(part)
        done += opened.values()
        for file in opened.values():
            file.finish()
    except BaseException:
        for file in {*done, *opened.values()}:
            file.discard()
        raise
    for file in done:
        yield Staged(*covered, file.date, file.records, file.size, file.path, file.stats())
    if not done:
        yield Staged(*covered, "", 0, 0, "", "{}")


def by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each UTC date, without the columns that the folder gives."""
    if batch.num_rows == 0:
        return
    names = [name for name in batch.schema.names if name not in PATH_COLUMNS]
    kept = batch.select(names)
    moments = kept.column(names.index("timestamp"))
    lowest, highest = (each.as_py() for each in pc.min_max(moments.cast(pa.int64())).values())
    if moments.null_count == 0 and lowest // DAY_US == highest // DAY_US:
        yield date_of(lowest // DAY_US), kept
        return
    days = np.floor_divide(moments.cast(pa.int64()).fill_null(0).to_numpy(), DAY_US)
    missing = moments.is_null().to_numpy(zero_copy_only=False)
    for day in np.unique(days[~missing]).tolist():
        yield date_of(day), kept.filter(pa.array((days == day) & ~missing))
    if missing.any():
        yield NO_DATE, kept.filter(pa.array(missing))


def date_of(day: int) -> str:
    """Days since 1970 as an ISO date; NO_DATE outside of the years 1 to 9999."""
    ordinal = _EPOCH + day
    if not 1 <= ordinal <= calendar_date.max.toordinal():
        return NO_DATE
    return calendar_date.fromordinal(ordinal).isoformat()


def unique_path(folder: Path) -> str:
    """A path in `folder` that no other attempt uses."""
    return str(folder / f"{uuid.uuid4().hex}{SUFFIX}")


def unique_name(path: Path) -> str:
    """`path`, made unique among attempts by a suffix to its name."""
    return str(path.with_name(f"{path.name.removesuffix(SUFFIX)}-{uuid.uuid4().hex}{SUFFIX}"))


class _File:
    """One Parquet file that is written in row groups of a useful size."""

    def __init__(self, date: str, path: str, schema: pa.Schema, codec: str) -> None:
        self.date = date
        self.path = path
        self.records = 0
        self.size = 0
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._offsets: list[int] = []
        self._folder = os.path.dirname(path)
        with writing(self._folder):
            os.makedirs(self._folder, exist_ok=True)
            # Keys and values rarely repeat: a dictionary of them costs time and saves nothing.
            self._writer = pq.ParquetWriter(
                path,
                schema,
                compression=codec,
                use_dictionary=["partition", "timestampType"],
                column_encoding={
                    "offset": "DELTA_BINARY_PACKED",
                    "timestamp": "DELTA_BINARY_PACKED",
                },
                write_statistics=["partition", "offset", "timestamp"],
                store_schema=False,
            )

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self.records += batch.num_rows
        offsets = batch.column(batch.schema.get_field_index("offset"))
        self._offsets = [self._offsets[0] if self._offsets else offsets[0].as_py()]
        self._offsets.append(offsets[-1].as_py())
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            whole = pa.Table.from_batches(self._held)
            with writing(self._folder):
                self._writer.write_table(whole, row_group_size=self._rows)
        self._held, self._rows, self._bytes = [], 0, 0

    def finish(self) -> None:
        """Everything is written and synced."""
        self._flush()
        with writing(self._folder):
            self._writer.close()
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
                self.size = os.fstat(file.fileno()).st_size

    def discard(self) -> None:
        """Remove what was written, whatever its state."""
        try:
            self._writer.close()
        except (OSError, pa.ArrowException):
            pass  # the disk may be full, which is why the file is discarded
        Path(self.path).unlink(missing_ok=True)

    def stats(self) -> str:
        """What Delta's log keeps of a file."""
        low, high = self._offsets[0], self._offsets[-1]
        found: dict[str, Any] = {"numRecords": self.records}
        found |= {"minValues": {"offset": low}, "maxValues": {"offset": high}}
        return json.dumps(found)
