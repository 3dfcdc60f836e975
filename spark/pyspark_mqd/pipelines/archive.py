"""`mqd-spark archive`: topics to Parquet (or Delta), partitioned by topic and date, exactly once.

`plan` is the pure part: a streaming DataFrame whose rows are staged files. `Runner` commits each
micro-batch of them. The offsets of Spark's checkpoint and the decisions in the archive agree after
any crash: see `archive_commit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.archive_layout import listing
from pyspark_mqd.pipelines.cli import Failure, Settings, check_source, options, topics_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_mqd.pipelines.archive_stage import Staged

CODECS = ("zstd", "snappy", "lz4", "none")
MAX_OFFSETS = 5_000_000
FROM_ARCHIVE = "from-archive"


@dataclass(frozen=True, slots=True)
class ArchiveConfiguration:
    """What is archived, and where to. `source` has options of the format `mqd`."""

    source: Mapping[str, str]
    to: Path
    checkpoint: str
    delta: bool = False
    codec: str = "zstd"
    headers: bool = True

    def options(self) -> dict[str, str]:
        """Options of the data source `mqd_archive`."""
        return {
            **self.source,
            "includeHeaders": str(self.headers).lower(),
            "archive.root": str(self.to),
            "archive.codec": self.codec,
            "archive.delta": str(self.delta).lower(),
        }


def plan(spark: SparkSession, configuration: ArchiveConfiguration) -> DataFrame:
    """A streaming DataFrame with one row for each staged file of a micro-batch."""
    from pyspark_mqd.pipelines.archive_source import NAME, ArchiveSource

    spark.dataSource.register(ArchiveSource)
    return spark.readStream.format(NAME).options(**configuration.options()).load()


@dataclass(slots=True)
class Runner:
    """Commits micro-batches, and counts what it archived."""

    configuration: ArchiveConfiguration
    batches: int = 0
    records: int = 0
    bytes: int = 0
    files: dict[str, list[int]] = field(default_factory=dict)
    """Topic -> its files, records and bytes."""
    failure: Failure | None = None
    _target: Any = None

    def start(
        self, spark: SparkSession, trigger: Mapping[str, Any], *, name: str = "archive"
    ) -> StreamingQuery:
        """Start the query."""
        writer = plan(spark, self.configuration).writeStream.foreachBatch(self.commit)
        writer = writer.queryName(name).option("checkpointLocation", self.configuration.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def commit(self, frame: DataFrame, batch: int) -> None:
        """Run the tasks of a micro-batch, then make its files visible."""
        from pyspark_mqd.pipelines.archive_stage import Staged

        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        staged = [Staged(*row) for row in frame.collect()]
        try:
            is_new = self.target().commit(query, batch, staged)
        except Failure as failure:
            self.failure = failure
            raise
        if is_new:
            self._count(staged)

    def target(self) -> Any:
        """Where files are committed."""
        if self._target is None:
            self._target = self._open()
        return self._target

    def _open(self) -> Any:
        from pyspark_mqd.pipelines.archive_commit import Archive

        configuration = self.configuration
        if configuration.delta:
            from pyspark_mqd.pipelines.archive_delta import DeltaArchive

            return DeltaArchive(configuration.to, headers=configuration.headers)
        return Archive(configuration.to)

    def _count(self, staged: Sequence[Staged]) -> None:
        self.batches += 1
        for file in staged:
            self.records += file.records
            self.bytes += file.size
            counts = self.files.setdefault(file.topic, [0, 0, 0])
            for index, count in enumerate((bool(file.path), file.records, file.size)):
                counts[index] += count

    def rows(self) -> list[dict[str, Any]]:
        """What was archived, one row a topic."""
        return [
            {"topic": topic, "files": counts[0], "records": counts[1], "bytes": counts[2]}
            for topic, counts in sorted(self.files.items())
        ]


def archive(
    spark: SparkSession,
    *,
    bootstrap: str,
    topics: Sequence[str],
    target: str,
    checkpoint: str,
    **source: str,
) -> Runner:
    """Archive what is available now, and return what was done; for scripts and notebooks."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **source,
    }
    runner = Runner(ArchiveConfiguration(options, local_folder(target, "target"), checkpoint))
    query = runner.start(spark, {"availableNow": True})
    try:
        query.awaitTermination()
    except Exception:
        if runner.failure is not None:
            raise runner.failure from None
        raise
    return runner


COLUMNS = (
    report.Column("topic", "TOPIC"),
    report.Column("files", "FILES", right=True),
    report.Column("records", "RECORDS", right=True),
    report.Column("bytes", "BYTES", right=True),
)


def local_folder(place: str, option: str) -> Path:
    """A folder that all workers and the driver share. Raises Failure for an object store."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(parts.path).absolute()
    if "://" in place:
        raise Failure(
            f"{option} '{place}' is not on a file system: an object store has no atomic rename,"
            " and this command relies on one.",
            remedy="Archive to a folder that the driver and all workers mount, and copy from it.",
        )
    return Path(place).absolute()


def resume_offsets(
    partitions: Mapping[str, int], covered: Mapping[tuple[str, int], Sequence[tuple[int, int]]]
) -> str:
    """`startingOffsets` at the end of what is archived; the earliest offset (-2) elsewhere."""
    places: dict[str, dict[str, int]] = {}
    for topic, count in sorted(partitions.items()):
        for partition in range(count):
            ranges = covered.get((topic, partition))
            places.setdefault(topic, {})[str(partition)] = ranges[-1][1] if ranges else -2
    return json.dumps(places)


def _from_archive(settings: Settings, topics: Sequence[str], to: Path, *, delta: bool) -> str:
    from pyspark_mqd.pipelines.archive_layout import covered_ranges
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import require_partitions

    if delta:
        from pyspark_mqd.pipelines.archive_delta import DeltaArchive, covered_by

        covered = covered_ranges(covered_by(DeltaArchive(to, headers=True).table(), to))
    else:
        covered = covered_ranges(listing(to, topics))
    with connected(settings) as client:
        return resume_offsets(require_partitions(client, topics), covered)


@click.command()
@options(spark=True, stream=True)
@click.option("--topics", metavar="NAME,..", help="Topics to archive.")
@click.option("--topics-pattern", metavar="REGEX", help="Archive all topics that match.")
@click.option("--to", metavar="DIR", required=True, help="The folder of the archive.")
@click.option("--delta", is_flag=True, help="Write a Delta table in DIR, not plain Parquet.")
@click.option(
    "--starting-offsets",
    default="earliest",
    metavar="POSITION",
    help="Where a new query starts: earliest, latest, from-archive, or offsets as JSON.",
)
@click.option(
    "--max-offsets-per-trigger", type=click.IntRange(1), default=MAX_OFFSETS,
    help="Maximum number of offsets in a micro-batch.",
)  # fmt: skip
@click.option(
    "--min-partitions", type=click.IntRange(1),
    help="Split offset ranges into at least this many tasks  [default: one per partition]",
)  # fmt: skip
@click.option("--codec", type=click.Choice(CODECS), default="zstd", help="Compression of files.")
@click.option("--headers/--no-headers", default=True, help="Archive the headers of records.")
@click.option(
    "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed leaves out records of open and aborted transactions.",
)  # fmt: skip
@click.option("--allow-data-loss", is_flag=True, help="Continue if unread records were deleted.")
def command(
    settings: Settings,
    topics: str | None,
    topics_pattern: str | None,
    to: str,
    delta: bool,
    starting_offsets: str,
    max_offsets_per_trigger: int,
    min_partitions: int | None,
    codec: str,
    headers: bool,
    isolation: str,
    allow_data_loss: bool,
) -> None:
    """Write topics to Parquet files under DIR/topic=NAME/date=YYYY-MM-DD, exactly once.

    A restart with the same checkpoint resumes where the last run ended. DIR is a folder that the
    driver and all workers share. Dates are those of the records' timestamps, in UTC.

    \b
    Example: mqd-spark archive --topics orders --to lake --checkpoint state/orders
    """
    names = topics_of(topics, topics_pattern)
    root = local_folder(to, "--to")
    if starting_offsets == FROM_ARCHIVE:
        if not names:
            raise click.UsageError("--starting-offsets from-archive needs --topics NAME,..")
        starting_offsets = _from_archive(settings, names, root, delta=delta)
    source = {
        **settings.source_options(),
        **({"subscribe": ",".join(names)} if names else {"subscribePattern": topics_pattern or ""}),
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "kafka.isolation.level": isolation,
        "failOnDataLoss": str(not allow_data_loss).lower(),
        **({"minPartitions": str(min_partitions)} if min_partitions else {}),
    }
    check_source(source)
    configuration = ArchiveConfiguration(source, root, settings.checkpoint, delta, codec, headers)
    _run(settings, Runner(configuration))


def _run(settings: Settings, runner: Runner) -> None:
    from pyspark_mqd.pipelines.progress import Progress, run_query
    from pyspark_mqd.pipelines.session import is_merged, session

    with session(settings, "archive") as spark:
        try:
            with Progress("archive", quiet=is_merged(settings.output)) as progress:
                query = runner.start(spark, settings.trigger.arguments())
                run_query(query, progress, lambda: runner.records)
        except Exception:
            if runner.failure is not None:
                raise runner.failure from None
            raise
        finally:
            report.show(settings.output, COLUMNS, runner.rows())
