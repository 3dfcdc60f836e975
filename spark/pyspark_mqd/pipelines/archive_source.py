"""The data source `mqd_archive`: reads offset ranges of topics and writes them to Parquet in place.

Its rows describe staged files (`archive_stage.Staged`), a few for each task. The records never
leave the Python worker that fetched them: no row crosses to the JVM and back, which would cost
more than everything else. Offsets, limits, triggers and recovery are those of the format `mqd`,
whose reader does that work here.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mqd.pipelines.archive_layout import ArchivedRange, data_path, staging_folder
from pyspark_mqd.pipelines.wrapped_reader import WrappedReader, source_of

NAME = "mqd_archive"
STAGED = (
    "topic string, partition int, start long, end long, date string, records long, size long,"
    " path string, stats string"
)
OWN_OPTIONS = ("archive.root", "archive.codec", "archive.delta")


class ArchiveSource(DataSource):
    """Options: those of the format `mqd`, and `archive.root`, `.codec`, `.delta`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> str:
        return STAGED

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        own = {name: self.options[name] for name in OWN_OPTIONS}
        left = {name: value for name, value in self.options.items() if name not in own}
        source = source_of(left)
        return ArchiveReader(source.streamReader(source.schema()), own)


class ArchiveReader(WrappedReader):
    """The reader of the format `mqd`, but `read` stages files and returns what they hold."""

    def __init__(self, reader: Any, own: dict[str, str]) -> None:
        super().__init__(reader)
        self._own = own

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        from pyspark_mqd.pipelines.archive_stage import stage, unique_name, unique_path

        covered = range_of(partition)
        if covered is None:
            return  # Spark makes one empty task where there is no range
        root = Path(self._own["archive.root"])

        def place(date: str) -> str:
            if self._own["archive.delta"] == "true":
                return unique_name(root / data_path(covered, date))
            return unique_path(staging_folder(root, query_of_task()))

        batches = self._reader.read(partition)
        for file in stage(batches, covered, place, codec=self._own["archive.codec"]):
            yield tuple(file)


def query_of_task() -> str:
    """The id of the streaming query that this task belongs to.

    It outlives restarts of the query.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    assert query is not None
    return query


def range_of(partition: Any) -> ArchivedRange | None:
    """The offset range of a planned task of the format `mqd`."""
    tp = getattr(partition, "tp", None)
    if tp is None:
        return None
    return ArchivedRange(tp.topic, tp.partition, partition.start, partition.end)
