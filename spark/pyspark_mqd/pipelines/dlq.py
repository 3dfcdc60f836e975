"""mqd-spark dlq: show dead letters, redrive or park them.

`summary` and `sample` only read. `redrive` and `park` are streaming queries over the records that
are available now, with a checkpoint and the delivery guarantee exactly-once. An interrupted run
resumes, and a later run takes only newer dead letters. The dead letters stay in their topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import (
    HELP_NAMES,
    Failure,
    Settings,
    confirm,
    options,
    split_list,
)
from pyspark_mqd.pipelines.dead_letters import (
    GROUPS,
    Choice,
    Moment,
    chosen,
    redriven,
    sample,
    summary,
    target_of,
    with_origin,
)
from pyspark_mqd.pipelines.report import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

GUARANTEES = ("exactly-once", "atomic-batch", "at-least-once")
PREVIEW_CHARACTERS = 80
MAX_OFFSETS = 1_000_000

SAMPLES = (
    Column("error", "ERROR"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("offset", "OFFSET", right=True),
    Column("timestamp", "TIME"),
    Column("original", "CAME-FROM"),
    Column("key", "KEY"),
    Column("value", "VALUE"),
    Column("message", "MESSAGE"),
)
TARGETS = (Column("topic", "TO-TOPIC"), Column("records", "RECORDS", right=True))


# -- queries


def read_dead_letters(
    spark: SparkSession, source: Mapping[str, str], topics: str, *, streaming: bool = False
) -> DataFrame:
    """The dead letters of these topics, from their first one on."""
    reader: Any = spark.readStream if streaming else spark.read
    given = {
        "includeHeaders": "true",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **source,
        "subscribe": topics,
    }
    if streaming:
        given.setdefault("maxOffsetsPerTrigger", str(MAX_OFFSETS))
    return with_origin(reader.format("mqd").options(**given).load())


def targets(frame: DataFrame, to: str | None) -> list[dict[str, Any]]:
    """How many dead letters go to which topic; topic None: no header names the original one."""
    counted = frame.groupBy(target_of(to).alias("topic")).count().orderBy("topic").collect()
    return [{"topic": row["topic"], "records": row["count"]} for row in counted]


def start_redrive(
    spark: SparkSession,
    source: Mapping[str, str],
    topics: str,
    choice: Choice,
    *,
    checkpoint: str,
    to: str | None = None,
    guarantee: str = "exactly-once",
    drop_error_headers: bool = False,
    same_partition: bool = False,
) -> StreamingQuery:
    """Send the chosen dead letters that are available now to their original topics, or to `to`."""
    frame = chosen(read_dead_letters(spark, source, topics, streaming=True), choice)
    rows = redriven(
        frame, to=to, drop_error_headers=drop_error_headers, same_partition=same_partition
    )
    sink = {
        **source,
        "deliveryGuarantee": guarantee,
        "markerTopic": split_list(topics)[0],
        "checkpointLocation": checkpoint,
    }
    writer = rows.writeStream.format("mqd").options(**sink)
    return writer.queryName("mqd-dlq-redrive").trigger(availableNow=True).start()


def start_park(
    spark: SparkSession,
    source: Mapping[str, str],
    topics: str,
    choice: Choice,
    *,
    checkpoint: str,
    folder: str | None = None,
    topic: str | None = None,
    guarantee: str = "exactly-once",
) -> StreamingQuery:
    """Copy the chosen dead letters that are available now to Parquet files, or to a topic as is."""
    frame = chosen(read_dead_letters(spark, source, topics, streaming=True), choice)
    if folder is not None:
        writer = frame.writeStream.format("parquet").option("path", folder)
    else:
        assert topic is not None
        sink = {**source, "deliveryGuarantee": guarantee, "topic": topic}
        rows = frame.select("key", "value", "headers")
        writer = rows.writeStream.format("mqd").options(**sink)
    writer = writer.option("checkpointLocation", checkpoint).queryName("mqd-dlq-park")
    return writer.trigger(availableNow=True).start()


# -- the commands


def _choosing(function: FunctionT) -> FunctionT:
    """Options that choose dead letters, gathered as one `choice`."""

    def gather(
        settings: Settings,
        error: str | None,
        message: str | None,
        original_topic: str | None,
        since: datetime | None,
        until: datetime | None,
        where: str | None,
        **rest: Any,
    ) -> Any:
        choice = Choice(error, message, original_topic, since, until, where)
        return function(settings, choice=choice, **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    decorated: Any = gather
    for option in (
        click.option(
            "--where",
            metavar="SQL",
            help="Select dead letters by a condition, such as \"key = 'k7'\".",
        ),
        click.option("--until", type=Moment(), help="Select dead letters written before TIME."),
        click.option(
            "--since", type=Moment(), help="Select dead letters written at or after TIME."
        ),
        click.option(
            "--original-topic", metavar="NAME", help="Select dead letters from this original topic."
        ),
        click.option(
            "--message", metavar="REGEX", help="Select dead letters whose error message matches."
        ),
        click.option(
            "--error", metavar="REGEX", help="Select dead letters whose error class matches."
        ),
        click.option("--topics", metavar="NAME,..", required=True, help="Topics of dead letters."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


_checkpoint = click.option(
    "--checkpoint", metavar="DIR", required=True,
    help="Store progress in DIR; the same command with the same DIR resumes.",
)  # fmt: skip
_guarantee = click.option(
    "--delivery-guarantee", "guarantee", type=click.Choice(GUARANTEES), default="exactly-once",
    help="Delivery guarantee of the target topics.",
)  # fmt: skip
_yes = click.option("--yes", is_flag=True, help="Skip the confirmation.")


@click.group(context_settings=HELP_NAMES, no_args_is_help=True)
def command() -> None:
    """Show dead letters, redrive or park them.

    Headers of Kafka Connect, Spring for Apache Kafka, Kafka Streams and the mqd recipes name the
    error and the original topic, partition and offset.

    \b
    Example: mqd-spark dlq summary --topics orders.dlq
    """


@command.command("summary")
@options(spark=True)
@_choosing
@click.option(
    "--by", "grouping", default="error,topic", metavar="NAME,..",
    help=f"Group by: {', '.join(GROUPS)}.",
)  # fmt: skip
def summary_(settings: Settings, choice: Choice, topics: str, grouping: str) -> None:
    """Count dead letters by error, original topic and more.

    \b
    Example: mqd-spark dlq summary --topics orders.dlq --by error,hour
    """
    by = split_list(grouping)
    unknown = [name for name in by if name not in GROUPS]
    if unknown or not by:
        raise click.BadParameter(f"choose among {', '.join(GROUPS)}", param_hint="--by")
    names = [name.replace("-", "_") for name in by]
    rows = _collected(settings, topics, lambda frame: summary(chosen(frame, choice), by))
    columns = [Column(name, name.replace("_", "-").upper()) for name in names]
    columns.append(Column("count", "COUNT", right=True))
    columns += [Column("first", "FIRST"), Column("last", "LAST")]
    if "message" not in by:
        columns.append(Column("latest_message", "LATEST-MESSAGE"))
    report.show(settings.output, columns, rows)


@command.command("sample")
@options(spark=True)
@_choosing
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=3,
    help="Dead letters per error and original topic.",
)
def sample_(settings: Settings, choice: Choice, topics: str, count: int) -> None:
    """Show the newest dead letters of each error and topic.

    With -o json, values are whole and headers are included.

    \b
    Example: mqd-spark dlq sample --topics orders.dlq --error Timeout --count 1 -o json
    """
    rows = _collected(settings, topics, lambda frame: sample(chosen(frame, choice), count))
    shown = [row if settings.output == "json" else _preview(row) for row in rows]
    report.show(settings.output, SAMPLES, shown)


def _preview(row: Mapping[str, Any]) -> dict[str, Any]:
    """A dead letter on one line of a table."""
    came = [row["original_topic"], row["original_partition"], row["original_offset"]]
    shown = {**row, "original": ":".join("-" if part is None else str(part) for part in came)}
    for name in ("key", "value", "message"):
        each = row[name]
        text = each.decode("utf-8", "replace") if isinstance(each, bytes | bytearray) else each
        shown[name] = text if text is None else text[:PREVIEW_CHARACTERS]
    return shown


@command.command("redrive")
@options(spark=True)
@_choosing
@_checkpoint
@_guarantee
@_yes
@click.option("--to", metavar="TOPIC", help="Send to this topic instead of the original ones.")
@click.option("--drop-error-headers", is_flag=True, help="Leave out the headers of the error.")
@click.option(
    "--same-partition", is_flag=True, help="Send to the original partitions instead of by key."
)
def redrive(
    settings: Settings,
    choice: Choice,
    topics: str,
    guarantee: str,
    yes: bool,
    to: str | None,
    drop_error_headers: bool,
    same_partition: bool,
) -> None:
    """Send dead letters back to their topics, exactly once. Requires a confirmation or --yes.

    The count in the confirmation includes dead letters that an earlier run with the same checkpoint
    has sent. They are not sent again.

    \b
    Example: mqd-spark dlq redrive --topics orders.dlq --error Timeout --checkpoint state/redrive
    """
    with _session(settings) as spark:
        source = settings.source_options()
        frame = chosen(read_dead_letters(spark, source, topics), choice)
        planned = targets(frame, to)
        lost = sum(row["records"] for row in planned if row["topic"] is None)
        known = [row for row in planned if row["topic"] is not None]
        check_targets(settings, [row["topic"] for row in known])
        if not known:
            raise Failure(
                f"No dead letter in '{topics}' fits ({choice.described()})"
                + (f", and {lost} have no header that names their topic." if lost else "."),
                remedy="Specify a topic with --to." if lost else "See `mqd-spark dlq summary`.",
            )
        plan = f"Dead letters of '{topics}' ({choice.described()}):\n"
        confirm(plan + report.table(TARGETS, known), yes=yes)
        query = start_redrive(
            spark,
            source,
            topics,
            choice,
            checkpoint=settings.checkpoint,
            to=to,
            guarantee=guarantee,
            drop_error_headers=drop_error_headers,
            same_partition=same_partition,
        )
        read = _follow(query, "redrive")
    report.show_summary(
        settings.output,
        {
            "topics": [row["topic"] for row in known],
            "records": sum(row["records"] for row in known),
            "without_origin": lost,
            "read_by_this_run": read,
        },
    )


@command.command("park")
@options(spark=True)
@_choosing
@_checkpoint
@_guarantee
@_yes
@click.option("--to", "folder", metavar="DIR", help="Write Parquet files with the error's columns.")
@click.option("--to-topic", "topic", metavar="TOPIC", help="Copy to this topic, headers included.")
def park(
    settings: Settings,
    choice: Choice,
    topics: str,
    guarantee: str,
    yes: bool,
    folder: str | None,
    topic: str | None,
) -> None:
    """Copy dead letters to files or a topic, exactly once. Requires a confirmation or --yes.

    \b
    Example: mqd-spark dlq park --topics orders.dlq --to parked --checkpoint state/park
    """
    if (folder is None) == (topic is None):
        raise click.UsageError("Specify the target: --to DIR or --to-topic TOPIC")
    if topic is not None:
        if topic in split_list(topics):
            raise click.UsageError(f"Topic '{topic}' is also a source. Specify another --to-topic")
        check_targets(settings, [topic])
    confirm(
        f"Dead letters of '{topics}' ({choice.described()}) are copied to '{folder or topic}'.",
        yes=yes,
    )
    with _session(settings) as spark:
        query = start_park(
            spark,
            settings.source_options(),
            topics,
            choice,
            checkpoint=settings.checkpoint,
            folder=None if folder is None else str(Path(folder)),
            topic=topic,
            guarantee=guarantee,
        )
        read = _follow(query, "park")
    report.show_summary(settings.output, {"to": folder or topic, "read_by_this_run": read})


def check_targets(settings: Settings, names: list[str]) -> None:
    """Raises Failure where a topic to write to does not exist."""
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import require_partitions

    if names:
        with connected(settings) as client:
            require_partitions(client, names)


def _session(settings: Settings) -> Any:
    from pyspark_mqd.pipelines.session import EXACTLY_ONCE, session

    return session(settings, "dlq", EXACTLY_ONCE)


def _collected(
    settings: Settings, topics: str, plan: Callable[[DataFrame], DataFrame]
) -> list[dict[str, Any]]:
    """The rows of a batch query over the dead letters, with progress."""
    from pyspark_mqd.pipelines.progress import Progress, run_jobs, tasks_done

    rows: list[dict[str, Any]] = []
    with _session(settings) as spark, Progress("dlq", unit="tasks") as progress:
        frame = plan(read_dead_letters(spark, settings.source_options(), topics))
        run_jobs(
            lambda: rows.extend(row.asDict(recursive=True) for row in frame.collect()),
            progress,
            lambda: tasks_done(spark),
        )
    return rows


def _follow(query: StreamingQuery, label: str) -> int:
    """Wait for the query's end with progress; returns how many records it has read."""
    from pyspark_mqd.pipelines.progress import Progress, run_query

    with Progress(label, unit="records") as progress:
        run_query(query, progress)
        return progress.done
