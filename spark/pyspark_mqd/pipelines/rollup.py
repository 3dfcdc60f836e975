"""`mqd-spark rollup`: counts and sums over windows of time, with a watermark and a state store.

`aggregate` is pure: a DataFrame with the columns of the source to one row a window and group. A
window goes to a topic or to Parquet once, when the watermark has passed its end. The live table
shows windows that are still open.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import (
    Failure,
    Settings,
    accept_option,
    check_source,
    options,
    split_list,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_SHOWN = 20
_AGGREGATE = re.compile(r"(?:(count)|(sum|min|max|avg):(\$\.\S+?))(?:=(\w+))?")
_PLAIN_GROUPS = ("topic", "partition", "key")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: `sum` of the number at a JSON path of the value, under a name."""

    function: str
    path: str
    name: str


@dataclass(frozen=True, slots=True)
class RollupConfiguration:
    """What is aggregated. `by` has topic, partition, key, or JSON paths of the value."""

    source: Mapping[str, str]
    checkpoint: str
    window: str = "1 minute"
    slide: str | None = None
    watermark: str = "1 minute"
    by: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = (Aggregate("count", "", "count"),)
    event_time: str | None = None
    sink: Mapping[str, str] = field(default_factory=dict)


def parse_aggregate(text: str) -> Aggregate:
    """`count`, `sum:$.path`, each with `=name` if wanted. Raises a usage error."""
    found = _AGGREGATE.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no aggregate. Write count, or sum:$.path, min:, max:, avg:",
            param_hint="--aggregate",
        )
    count, function, path, name = found.groups()
    if count:
        return Aggregate("count", "", name or "count")
    return Aggregate(function, path, name or f"{function}_{column_name(path)}")


def column_name(path: str) -> str:
    """A JSON path as the name of a column: `$.user.id` is `user_id`."""
    return re.sub(r"\W+", "_", path).strip("_")


def plan(spark: SparkSession, configuration: RollupConfiguration) -> DataFrame:
    """A streaming DataFrame with one row a window and group."""
    frame = spark.readStream.format("mqd").options(**configuration.source).load()
    return aggregate(frame, configuration)


def aggregate(frame: DataFrame, configuration: RollupConfiguration) -> DataFrame:
    """Columns `window_start`, `window_end`, the groups, the aggregates."""
    from pyspark.sql import functions as f

    text = f.decode("value", "UTF-8")
    moment: Column = f.col("timestamp")
    if configuration.event_time is not None:
        moment = f.try_to_timestamp(f.get_json_object(text, configuration.event_time))
    groups: list[Column] = []
    for each in configuration.by:
        if each in _PLAIN_GROUPS:
            column = f.decode("key", "UTF-8") if each == "key" else f.col(each)
            groups.append(column.alias(each))
        else:
            groups.append(f.get_json_object(text, each).alias(column_name(each)))
    values = [
        f.get_json_object(text, each.path).try_cast("double").alias(f"_{index}")
        for index, each in enumerate(configuration.aggregates)
        if each.path
    ]
    rows = frame.select(moment.alias("_time"), *groups, *values)
    rows = rows.withWatermark("_time", configuration.watermark)
    window = f.window("_time", configuration.window, configuration.slide or configuration.window)
    names = [name_of_group(each) for each in configuration.by]
    grouped = rows.groupBy(window.alias("window"), *names)
    made = [
        (f.count("*") if not each.path else getattr(f, each.function)(f"_{index}")).alias(each.name)
        for index, each in enumerate(configuration.aggregates)
    ]
    return grouped.agg(*made).select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        *names,
        *[each.name for each in configuration.aggregates],
    )


def name_of_group(group: str) -> str:
    """The column of a group."""
    return group if group in _PLAIN_GROUPS else column_name(group)


def as_records(frame: DataFrame, by: Sequence[str]) -> DataFrame:
    """Rows of the sink: the group as the key, all columns as JSON in the value."""
    from pyspark.sql import functions as f

    names = [name_of_group(each) for each in by]
    key = f.to_json(f.struct("window_start", *names)).cast("binary")
    value = f.to_json(f.struct(*frame.columns)).cast("binary")
    return frame.select(key.alias("key"), value.alias("value"))


# -- where windows go


def to_topic(frame: DataFrame, configuration: RollupConfiguration, topic: str) -> Any:
    """The query that writes closed windows to a topic."""
    rows = as_records(frame, configuration.by)
    writer = rows.writeStream.outputMode("append").format("mqd").option("topic", topic)
    return writer.options(**configuration.sink)


def to_parquet(frame: DataFrame, folder: Path) -> Any:
    """The query that writes closed windows to files, one set a micro-batch."""

    def write(batch: DataFrame, number: int) -> None:
        write_batch(batch, number, folder)

    return frame.writeStream.outputMode("append").foreachBatch(write)


def write_batch(batch: DataFrame, number: int, folder: Path) -> None:
    """Replace the files of one micro-batch in `folder/batch=N`: a re-run gives the same folder."""
    target, scratch = folder / f"batch={number:08d}", folder / "_mqd" / f"batch-{number}"
    batch.coalesce(1).write.mode("overwrite").parquet(str(scratch))
    if batch.sparkSession.read.parquet(str(scratch)).isEmpty():
        shutil.rmtree(scratch)
        return
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch.rename(target)


class LiveTable:
    """The newest windows, printed again after each micro-batch."""

    def __init__(self, rows_max: int, groups: int, *, output: str = "table") -> None:
        self._rows_max = rows_max
        self._key_columns = 2 + groups
        self._output = output
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def update(self, frame: DataFrame, number: int) -> None:
        """Take the windows that a micro-batch changed, and print the newest ones."""
        columns = frame.columns
        for row in frame.collect():
            values = row.asDict()
            key = tuple(str(values[name]) for name in columns[: self._key_columns])
            self._rows[key] = values
        for key in sorted(self._rows)[: -self._rows_max]:
            del self._rows[key]
        self.print(columns)

    def print(self, columns: Sequence[str]) -> None:
        """The table. On a terminal it replaces the previous one."""
        rows = [self._rows[key] for key in sorted(self._rows)]
        if self._output == "json":
            sys.stdout.write("".join(json.dumps(row, default=str) + "\n" for row in rows))
        else:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            titles = [report.Column(name, name.upper().replace("_", " ")) for name in columns]
            sys.stdout.write(report.table(titles, rows))
        sys.stdout.flush()


def start(
    writer: Any,
    configuration: RollupConfiguration,
    trigger: Mapping[str, Any],
    *,
    name: str = "rollup",
) -> StreamingQuery:
    """Start the query of one of the writers above."""
    writer = writer.queryName(name).option("checkpointLocation", configuration.checkpoint)
    query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
    return query


@click.command()
@options(spark=True, stream=True)
@click.option("--topics", metavar="NAME,..", required=True, help="Topics to aggregate.")
@click.option("--window", default="1 minute", metavar="INTERVAL", help="Length of a window.")
@click.option(
    "--slide",
    metavar="INTERVAL",
    help="Start a window every INTERVAL  [default: the length of a window]",
)
@click.option(
    "--watermark", default="1 minute", metavar="INTERVAL",
    help="How late a record may be; later records are dropped.",
)  # fmt: skip
@click.option(
    "--by", default="topic", metavar="COLUMN,..",
    help="Group by topic, partition, key, or JSON paths of the value such as $.user.id.",
)  # fmt: skip
@click.option(
    "--aggregate", "aggregates", multiple=True, default=("count",), metavar="WHAT",
    help="count, or sum, min, max or avg of a path, such as sum:$.price; '=NAME' renames the"
    " column. Repeat it for more.",
)  # fmt: skip
@click.option(
    "--event-time", metavar="PATH",
    help="JSON path of the event time  [default: the record's timestamp]",
)  # fmt: skip
@click.option("--to-topic", metavar="NAME", help="Write closed windows to this topic, as JSON.")
@click.option("--to-parquet", metavar="DIR", help="Write closed windows to Parquet files in DIR.")
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS_SHOWN, help="Number of rows in the live table."
)
@click.option(
    "--starting-offsets", default="earliest", metavar="POSITION",
    help="Where a new query starts: earliest, latest, or offsets as JSON.",
)  # fmt: skip
@click.option(
    "--max-offsets-per-trigger", type=click.IntRange(1),
    help="Maximum number of offsets in a micro-batch  [default: no limit]",
)  # fmt: skip
@click.option(
    "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed leaves out records of open and aborted transactions.",
)  # fmt: skip
@click.option(
    "--delivery-guarantee", default="exactly-once",
    type=click.Choice(["exactly-once", "atomic-batch", "at-least-once"]),
    help="Delivery guarantee of --to-topic.",
)  # fmt: skip
@accept_option
def command(
    settings: Settings,
    topics: str,
    window: str,
    slide: str | None,
    watermark: str,
    by: str,
    aggregates: tuple[str, ...],
    event_time: str | None,
    to_topic: str | None,
    to_parquet: str | None,
    limit: int,
    starting_offsets: str,
    max_offsets_per_trigger: int | None,
    delivery_guarantee: str,
    isolation: str,
    accept_missing_markers: bool,
) -> None:
    """Aggregate records over time windows, into a topic, Parquet files or a live table.

    Without --to-topic and --to-parquet, a live table of the newest windows is printed.

    \b
    Example: mqd-spark rollup --topics orders --by '$.country' --aggregate 'sum:$.price' \\
               --to-topic revenue --checkpoint state/revenue
    """
    if to_topic is not None and to_parquet is not None:
        raise click.UsageError("--to-topic and --to-parquet exclude each other. Drop one of them")
    groups = tuple(split_list(by))
    for each in groups:
        if each not in _PLAIN_GROUPS and not each.startswith("$."):
            raise click.BadParameter(
                f"{each!r} is not topic, partition, key or a path '$.name'", param_hint="--by"
            )
    limits = {} if max_offsets_per_trigger is None else {
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger)
    }  # fmt: skip
    configuration = RollupConfiguration(
        source={
            **settings.source_options(),
            "subscribe": ",".join(split_list(topics)),
            "startingOffsets": starting_offsets,
            "kafka.isolation.level": isolation,
            **limits,
        },
        checkpoint=settings.checkpoint,
        window=window,
        slide=slide,
        watermark=watermark,
        by=groups,
        aggregates=tuple(parse_aggregate(each) for each in aggregates),
        event_time=event_time,
        sink={
            **settings.source_options(),
            "deliveryGuarantee": delivery_guarantee,
            "acceptMissingMarkers": str(accept_missing_markers).lower(),
        },
    )
    check_source(configuration.source)
    _run(settings, configuration, to_topic, to_parquet, limit)


def _run(
    settings: Settings,
    configuration: RollupConfiguration,
    topic: str | None,
    parquet: str | None,
    limit: int,
) -> None:
    from pyspark_mqd.pipelines.archive import local_folder
    from pyspark_mqd.pipelines.progress import Progress, run_query
    from pyspark_mqd.pipelines.session import EXACTLY_ONCE, ROCKSDB, is_merged, session

    folder = None if parquet is None else local_folder(parquet, "--to-parquet")
    if topic is not None:
        _check_topic(settings, topic)
    defaults = {**EXACTLY_ONCE, **ROCKSDB, "spark.sql.shuffle.partitions": "4"}
    is_live = topic is None and folder is None
    progress = Progress("rollup", quiet=is_live or is_merged(settings.output))
    with session(settings, "rollup", defaults) as spark:
        frame = plan(spark, configuration)
        if topic is not None:
            writer = to_topic(frame, configuration, topic)
        elif folder is not None:
            writer = to_parquet(frame, folder)
        else:
            live = LiveTable(limit, len(configuration.by), output=settings.output)
            writer = frame.writeStream.outputMode("update").foreachBatch(live.update)
        with progress:
            query = start(writer, configuration, settings.trigger.arguments())
            run_query(query, progress)
        if not is_live:
            summary = {"to": topic or str(folder), "records": progress.done}
            report.show_summary(settings.output, summary)


def _check_topic(settings: Settings, topic: str) -> None:
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import partition_counts

    with connected(settings) as client:
        if partition_counts(client, [topic])[topic] is None:
            raise Failure(
                f"Topic '{topic}' does not exist.",
                remedy=f"Create it: mqctl topic create {topic} --partitions 3",
            )
