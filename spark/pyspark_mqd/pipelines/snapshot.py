"""`mqd-spark snapshot`: the latest value per key of compacted topics, as of now or of a time.

`latest` is pure. A tombstone (a null value) deletes its key. Within a partition the highest offset
wins; a key that is in two partitions, because partitions were added, takes the later timestamp.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import Failure, Settings, options, split_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN = 20
COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class SnapshotConfiguration:
    """What is read: `source` has options of the format `mqd`, with the time or the offsets."""

    source: Mapping[str, str]


def plan(spark: SparkSession, configuration: SnapshotConfiguration) -> DataFrame:
    """A batch DataFrame with one row for each key that has a value."""
    return latest(spark.read.format("mqd").options(**configuration.source).load())


def latest(frame: DataFrame) -> DataFrame:
    """The latest row of each key, without keys whose latest row is a tombstone or that are null."""
    from pyspark.sql import functions as f

    row = f.struct("value", "headers", "partition", "offset", "timestamp")
    keyed = frame.where("key is not null")
    by_partition = keyed.groupBy("topic", "key", "partition").agg(
        f.max_by(row, f.col("offset")).alias("row")
    )
    by_key = by_partition.groupBy("topic", "key").agg(
        f.max_by(f.col("row"), f.struct("row.timestamp", "row.partition")).alias("row")
    )
    return by_key.select("key", "row.*", "topic").where("value is not null").select(*COLUMNS)


def write(frame: DataFrame, target: Path, *, overwrite: bool) -> None:
    """Write Parquet files beside the target, then move them there. Raises Failure."""
    if target.exists() and not overwrite:
        raise Failure(
            f"The folder '{target}' exists.", remedy="Choose another one, or use --overwrite."
        )
    scratch = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        frame.write.partitionBy("topic").parquet(str(scratch))
        if target.exists():
            old = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
            target.rename(old)
            scratch.rename(target)
            shutil.rmtree(old)
        else:
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


SHOWN = (
    report.Column("topic", "TOPIC"),
    report.Column("key", "KEY"),
    report.Column("value", "VALUE"),
    report.Column("partition", "PARTITION", right=True),
    report.Column("offset", "OFFSET", right=True),
    report.Column("timestamp", "TIMESTAMP"),
)


def shown(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows for the report."""
    return [
        {
            **{name: row[name] for name in ("topic", "partition", "offset", "timestamp")},
            "key": bytes(row["key"]),
            "value": bytes(row["value"]),
        }
        for row in rows
    ]


@click.command()
@options(spark=True)
@click.option("--topics", metavar="NAME,..", required=True, help="Topics to read.")
@click.option("--to", metavar="DIR", help="Write Parquet to DIR  [default: print rows]")
@click.option(
    "--as-of-time", metavar="TIME", help="Read records up to this timestamp, ISO 8601, UTC."
)
@click.option("--as-of-offsets", metavar="JSON", help="Read records before these offsets, as JSON.")
@click.option("--overwrite", is_flag=True, help="Replace DIR if it exists.")
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS_SHOWN, help="Number of rows to print."
)
@click.option(
    "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed leaves out records of open and aborted transactions.",
)  # fmt: skip
def command(
    settings: Settings,
    topics: str,
    to: str | None,
    as_of_time: str | None,
    as_of_offsets: str | None,
    overwrite: bool,
    limit: int,
    isolation: str,
) -> None:
    """Write the latest value per key of compacted topics, tombstones applied.

    With --as-of-time, only records up to that time are read. Compaction may have removed values
    that were the latest at that time; raise min.compaction.lag.ms to retain them for longer.

    \b
    Example: mqd-spark snapshot --topics customers --to customers.parquet
    """
    from pyspark_mqd.pipelines.replay import parse_time

    if as_of_time is not None and as_of_offsets is not None:
        raise click.UsageError("--as-of-time and --as-of-offsets exclude each other. Drop one")
    source = {
        **settings.source_options(),
        "subscribe": ",".join(split_list(topics)),
        "includeHeaders": "true",
        "kafka.isolation.level": isolation,
    }
    if as_of_time is not None:
        source["asOfTimestamp"] = str(parse_time(as_of_time) // 1_000)
    if as_of_offsets is not None:
        source["asOfOffsets"] = as_of_offsets
    _run(settings, SnapshotConfiguration(source), to, limit, overwrite=overwrite)


def _run(
    settings: Settings,
    configuration: SnapshotConfiguration,
    to: str | None,
    limit: int,
    *,
    overwrite: bool,
) -> None:
    from pyspark_mqd.pipelines.archive import local_folder
    from pyspark_mqd.pipelines.progress import Progress, run_jobs, tasks_done
    from pyspark_mqd.pipelines.session import is_merged, session

    target = None if to is None else local_folder(to, "--to")
    rows: list[Any] = []
    progress = Progress("snapshot", unit="tasks", quiet=is_merged(settings.output))
    with session(settings, "snapshot") as spark:
        frame = plan(spark, configuration)

        def work() -> None:
            if target is None:
                rows.extend(frame.orderBy("topic", "key").take(limit))
            else:
                write(frame, target, overwrite=overwrite)

        with progress:
            run_jobs(work, progress, lambda: tasks_done(spark))
        if target is None:
            report.show(settings.output, SHOWN, shown(rows))
            return
        keys = spark.read.parquet(str(target)).count()
        report.show_summary(settings.output, {"folder": str(target), "keys": keys})
