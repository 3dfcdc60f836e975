"""mqd-spark audit: what producers know of their records against what the log holds, at scale.

The history is files of JSON lines, as `audit_joins` describes them; `python -m chaos.cluster
--history DIR` writes one. The log is a cluster's topics, an archive, or a file of JSON lines with
topic, partition, offset and id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqd.types import TopicPartition
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.audit_joins import (
    KINDS,
    OK,
    IdRule,
    id_of,
    is_damaged,
    parse_rule,
    read_history,
    samples,
    violations,
)
from pyspark_mqd.pipelines.brokers import connected, log_starts, partitions_of
from pyspark_mqd.pipelines.cli import FAILED, Failure, Settings, options, split_list
from pyspark_mqd.pipelines.report import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = "topic string, partition int, offset long, id string"
COUNTS = (
    Column("kind", "VIOLATION"),
    Column("count", "COUNT", right=True),
    Column("meaning", "MEANING"),
)
SAMPLES = (
    Column("kind", "VIOLATION"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("offset", "OFFSET", right=True),
    Column("id", "ID"),
    Column("producer", "PRODUCER"),
    Column("number", "NUMBER", right=True),
    Column("detail", "DETAIL"),
)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit has found. `counts` has every kind, also those that were not found."""

    events: int
    acknowledged: int
    records: int
    counts: Mapping[str, int]
    samples: Sequence[Mapping[str, Any]]

    @property
    def is_clean(self) -> bool:
        return not any(self.counts.values())


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the log is: one of a cluster (options of the format `mqd`), an archive, a file."""

    topics: tuple[str, ...]
    rule: IdRule
    cluster: Mapping[str, str] | None = None
    archive: str = ""
    file: str = ""


def read_log(spark: SparkSession, sources: Sources) -> DataFrame:
    """The log as topic, partition, offset, id."""
    from pyspark.sql import functions as f

    if sources.file:
        rows = spark.read.schema(LOG_SCHEMA).option("mode", "FAILFAST").json(sources.file)
    elif sources.archive:
        rows = spark.read.parquet(sources.archive)
        rows = rows.select("topic", "partition", "offset", id_of(sources.rule).alias("id"))
    else:
        given = {
            **(sources.cluster or {}),
            "subscribe": ",".join(sources.topics),
            "startingOffsets": "earliest",
            "includeHeaders": str(sources.rule.needs_headers).lower(),
        }
        rows = spark.read.format("mqd").options(**given).load()
        rows = rows.select("topic", "partition", "offset", id_of(sources.rule).alias("id"))
    return rows.where(f.col("topic").isin(*sources.topics)) if sources.topics else rows


def audit(
    spark: SparkSession,
    history: Sequence[str],
    sources: Sources,
    *,
    starts: Mapping[TopicPartition, int] | None = None,
    shown: int = 5,
) -> AuditResult:
    """Join both sides, and count what does not fit. Raises Failure for a damaged history."""
    from pyspark.sql import functions as f

    events = read_history(spark, list(history)).cache()
    try:
        about = events.agg(
            f.count("*").alias("events"),
            f.count_if(is_damaged()).alias("damaged"),
            f.count_distinct(f.when(f.col("event") == OK, f.struct("topic", "id"))).alias("acked"),
        ).collect()[0]
        if about["damaged"]:
            raise _damaged(events, about["damaged"])
        wanted = f.col("topic").isin(*sources.topics) if sources.topics else f.lit(True)
        log = read_log(spark, sources).cache()
        found = violations(events.where(wanted), log, starts).cache()
        counted = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        result = AuditResult(
            about["events"],
            about["acked"],
            log.count(),
            {kind: counted.get(kind, 0) for kind in KINDS},
            [row.asDict() for row in samples(found, shown).collect()] if counted else [],
        )
        found.unpersist()
        log.unpersist()
    finally:
        events.unpersist()
    return result


def _damaged(events: DataFrame, count: int) -> Failure:
    line = events.where(is_damaged()).first()
    shown = "" if line is None else str(line["damaged"] or line.asDict())[:200]
    return Failure(
        f"The history has {count} lines that are not events, the first: {shown}",
        remedy="Each line needs event (invoke, ok, fail or info), topic and id.",
    )


@click.command(no_args_is_help=True)
@options(spark=True)
@click.option(
    "--history", metavar="FILE", multiple=True, required=True,
    help="A file or folder of JSON lines. Repeat it for more.",
)  # fmt: skip
@click.option(
    "--topics", metavar="NAME,..", default="", show_default=False,
    help="Topics to audit  [default: all; required with brokers]",
)  # fmt: skip
@click.option(
    "--archive", metavar="DIR", default="", show_default=False,
    help="Read the log from an archive  [default: from the brokers]",
)  # fmt: skip
@click.option(
    "--log-file", metavar="FILE", default="", show_default=False,
    help="Read the log from a file of JSON lines  [default: from the brokers]",
)  # fmt: skip
@click.option(
    "--id", "rule", default="key", metavar="WHERE",
    help="Where the id of a record is: key, value, int64 (first 8 bytes of the value),"
    " header:NAME, or json:PATH.",
)  # fmt: skip
@click.option(
    "--isolation", type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    help="read_committed leaves out records of open and aborted transactions.",
)  # fmt: skip
@click.option(
    "--samples",
    "shown",
    type=click.IntRange(min=0),
    default=5,
    help="Number of samples of each violation.",
)
def command(
    settings: Settings,
    history: tuple[str, ...],
    topics: str,
    archive: str,
    log_file: str,
    rule: str,
    isolation: str,
    shown: int,
) -> None:
    """Find lost, duplicated, reordered, and visible aborted records. Exit code 1 if there are any.

    The history has one JSON object per line: event (invoke, ok, fail or info), topic and id, plus
    producer, partition, number and offset if known. Compacted topics cannot be audited.

    \b
    Example: mqd-spark audit --history run.jsonl --topics orders --id header:id
             mqd-spark audit --history chaos/history.jsonl --log-file chaos/log.jsonl
    """
    for path in history:
        if "://" not in path and not Path(path).exists():
            raise Failure(f"The history '{path}' does not exist.", remedy="Correct --history.")
    wanted = tuple(split_list(topics))
    if archive and log_file:
        raise click.UsageError("--archive and --log-file exclude each other. Drop one of them")
    starts: dict[TopicPartition, int] = {}
    cluster = None
    if not archive and not log_file:
        if not wanted:
            raise click.UsageError("Specify the topics: --topics NAME,..")
        cluster = {**settings.source_options(), "kafka.isolation.level": isolation}
        with connected(settings) as client:
            starts = log_starts(client, partitions_of(client, wanted))
    sources = Sources(wanted, parse_rule(rule), cluster, archive, log_file)
    result = run(settings, history, sources, starts, shown)
    show(settings.output, result)
    raise SystemExit(0 if result.is_clean else FAILED)


def run(
    settings: Settings,
    history: Sequence[str],
    sources: Sources,
    starts: Mapping[TopicPartition, int],
    shown: int,
) -> AuditResult:
    """The audit in a session of its own, with progress."""
    from pyspark_mqd.pipelines.progress import Progress, run_jobs, tasks_done
    from pyspark_mqd.pipelines.session import session

    results = []
    with (
        session(settings, "audit", brokers=False) as spark,
        Progress("audit", unit="tasks") as progress,
    ):
        run_jobs(
            lambda: results.append(audit(spark, history, sources, starts=starts, shown=shown)),
            progress,
            lambda: tasks_done(spark),
        )
    return results[0]


def show(output: str, result: AuditResult) -> None:
    """Counts, and the first few violations of each kind."""
    counts = [
        {"kind": kind, "count": count, "meaning": KINDS[kind]}
        for kind, count in result.counts.items()
    ]
    summary = {
        "events": result.events,
        "acknowledged": result.acknowledged,
        "records": result.records,
        "clean": result.is_clean,
    }
    if output == "json":
        report.show_summary(
            "json",
            {**summary, "violations": dict(result.counts), "samples": list(result.samples)},
        )
        return
    report.show("table", COUNTS, counts)
    click.echo()
    if result.samples:
        report.show("table", SAMPLES, result.samples)
        click.echo()
    report.show_summary("table", summary)
