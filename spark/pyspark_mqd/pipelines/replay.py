"""`mqd-spark replay`: archived records back into a topic, in order, within offsets and times.

Each task reads one archived partition from the files themselves, so that order needs no shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.archive_layout import ArchivedFile, listing
from pyspark_mqd.pipelines.cli import Failure, Settings, confirm, options

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_mqd.pipelines.replay_read import Bounds, Task

GUARANTEES = ("at-least-once", "atomic-batch")


@dataclass(frozen=True, slots=True)
class ReplayConfiguration:
    """What is replayed, and where to. `target` has options of the format `mqd`."""

    tasks: tuple[Task, ...]
    bounds: Bounds
    target: Mapping[str, str]
    topic: str
    same_partitions: bool = True
    rate: float | None = None


def plan(spark: SparkSession, configuration: ReplayConfiguration) -> DataFrame:
    """The records as a DataFrame with the columns of the sink; one task a partition."""
    tasks, bounds, rate = configuration.tasks, configuration.bounds, configuration.rate
    share = None if rate is None else rate / max(1, len(tasks))

    def read(indexes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark_mqd.pipelines.replay_read import Pace, read_task

        for batch in indexes:
            for index in batch.column(0).to_pylist():
                found = read_task(tasks[index], bounds)
                yield from found if share is None else Pace(share).hold(found)

    indexes = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    columns = (
        "key binary, value binary, headers array<struct<key:string,value:binary>>,"
        " partition int, timestamp timestamp, offset long"
    )
    frame = indexes.mapInArrow(read, columns)
    kept = ["key", "value", "headers", "timestamp"]
    if configuration.same_partitions:
        kept.append("partition")
    return frame.select(*kept)


def run(spark: SparkSession, configuration: ReplayConfiguration) -> int:
    """Write the records to the topic; returns how many."""
    from pyspark.sql import Observation, functions as f

    written = Observation("replay")
    frame = plan(spark, configuration).observe(written, f.count(f.lit(1)).alias("records"))
    writer = frame.write.format("mqd").mode("append")
    writer = writer.option("topic", configuration.topic).option("timestampColumn", "timestamp")
    writer.options(**configuration.target).save()
    return int(written.get["records"])


def parse_time(text: str) -> int:
    """An ISO 8601 time, UTC where it names no zone, in microseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-23T10:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


def archived_files(root: Path, topic: str, *, delta: bool) -> list[ArchivedFile]:
    """The files of a topic. Raises Failure where there is none."""
    if delta:
        from pyspark_mqd.pipelines.archive_delta import files_of, require_deltalake

        table = require_deltalake().DeltaTable(str(root))
        files = [file for file in files_of(table) if file.range.topic == topic]
    else:
        files = [file for file in listing(root, [topic]) if file.date]
    if not files:
        raise Failure(
            f"The archive '{root}' has no records of topic '{topic}'.",
            remedy="See what it has: ls the folder for topic=NAME.",
        )
    return files


def check_target(settings: Settings, topic: str, partitions: int, *, yes: bool) -> None:
    """The topic exists with enough partitions, and is empty or the user confirms."""
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import records_in, require_partitions

    with connected(settings) as client:
        (found,) = require_partitions(client, [topic]).values()
        if found < partitions:
            raise Failure(
                f"Topic '{topic}' has {found} partitions, and the archive has {partitions}.",
                remedy="Add partitions, or choose them by key with --no-same-partitions.",
            )
        held = records_in(client, topic, found)
    if held:
        confirm(f"Topic '{topic}' is not empty: it has {held:,} offsets.", yes=yes)


@click.command()
@options(spark=True)
@click.option("--from", "root", metavar="DIR", required=True, help="Folder of the archive.")
@click.option("--topic", metavar="NAME", required=True, help="Archived topic.")
@click.option("--to", metavar="NAME", help="Topic to write to  [default: the archived topic]")
@click.option("--delta", is_flag=True, help="DIR is a Delta table.")
@click.option(
    "--partition", "only", type=click.IntRange(0), multiple=True,
    help="Replay this partition only. Repeat it for more.",
)  # fmt: skip
@click.option("--from-offset", type=click.IntRange(0), default=0, help="Start at this offset.")
@click.option("--to-offset", type=click.IntRange(0), help="End before this offset.")
@click.option("--from-time", metavar="TIME", help="Start at this record timestamp, ISO 8601, UTC.")
@click.option("--to-time", metavar="TIME", help="End before this record timestamp.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="NUMBER",
    help="Write at most this many records per second  [default: no limit]",
)  # fmt: skip
@click.option(
    "--same-partitions/--no-same-partitions", default=True,
    help="Keep the partition of each record, or choose it by key.",
)  # fmt: skip
@click.option(
    "--delivery-guarantee", type=click.Choice(GUARANTEES), default="at-least-once",
    help="Guarantee of the sink. With atomic-batch all records become visible at once, or none.",
)  # fmt: skip
@click.option(
    "--yes", is_flag=True, help="Write to a topic that is not empty, without a confirmation."
)
def command(
    settings: Settings,
    root: str,
    topic: str,
    to: str | None,
    delta: bool,
    only: tuple[int, ...],
    from_offset: int,
    to_offset: int | None,
    from_time: str | None,
    to_time: str | None,
    rate: float | None,
    same_partitions: bool,
    delivery_guarantee: str,
    yes: bool,
) -> None:
    """Write archived records back into a topic, in order, with headers and timestamps.

    --from-offset and --to-offset are offsets of the archived topic; records get new offsets in the
    target. A target that is not empty requires a confirmation or --yes.

    \b
    Example: mqd-spark replay --from lake --topic orders --to orders.again
    """
    from pyspark_mqd.pipelines.replay_read import Bounds, tasks_of

    start_us = None if from_time is None else parse_time(from_time)
    end_us = None if to_time is None else parse_time(to_time)
    bounds = Bounds(from_offset, to_offset, start_us, end_us)
    files = archived_files(Path(root), topic, delta=delta)
    tasks = tuple(task for task in tasks_of(files, bounds) if not only or task.partition in only)
    if not tasks:
        raise Failure(f"The archive '{root}' has no such records of topic '{topic}'.")
    wanted = 1 + max(task.partition for task in tasks) if same_partitions else 1
    target = to or topic
    check_target(settings, target, wanted, yes=yes)
    sink = {**settings.source_options(), "deliveryGuarantee": delivery_guarantee}
    _run(settings, ReplayConfiguration(tasks, bounds, sink, target, same_partitions, rate))


def _run(settings: Settings, configuration: ReplayConfiguration) -> None:
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.progress import Progress, run_jobs
    from pyspark_mqd.pipelines.session import is_merged, session
    from pyspark_mqd.pipelines.topics import records_in, require_partitions

    def offsets(client: Any) -> int:
        (count,) = require_partitions(client, [configuration.topic]).values()
        return records_in(client, configuration.topic, count)

    done: list[int] = []

    progress = Progress("replay", quiet=is_merged(settings.output))
    with connected(settings) as client, session(settings, "replay") as spark:
        before = offsets(client)

        def count() -> int:
            """While it runs, offsets of the topic: markers of transactions have some, too."""
            return done[0] if done else offsets(client) - before

        with progress:
            run_jobs(lambda: done.append(run(spark, configuration)), progress, count)
        summary = {"topic": configuration.topic, "partitions": len(configuration.tasks)}
        report.show_summary(settings.output, {**summary, "records": progress.done})
