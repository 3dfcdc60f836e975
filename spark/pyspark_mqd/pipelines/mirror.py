"""`mqd-spark mirror`: topics of one cluster to another, exactly once, with headers and partitions.

`plan` is pure: rows of the source with the topic renamed. The sink's guarantee makes the copy
exactly-once; the offsets in Spark's checkpoint are the only other state. Topics and partitions that
the target lacks are made at the start and before each micro-batch (`mirror_source`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.options import compile_pattern
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import (
    Failure,
    Settings,
    accept_option,
    check_source,
    client_of_file,
    is_security_option,
    options,
    parse_pairs,
    topics_of,
)
from pyspark_mqd.pipelines.mirror_target import MirrorConfiguration, prepare_target, refuse_circle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GUARANTEES = ("exactly-once", "atomic-batch", "at-least-once")
MAX_OFFSETS = 1_000_000


def plan(spark: SparkSession, configuration: MirrorConfiguration) -> DataFrame:
    """A streaming DataFrame with the columns of the sink."""
    from pyspark_mqd.pipelines.mirror_source import NAME, MirrorSource, options_of

    spark.dataSource.register(MirrorSource)
    frame = spark.readStream.format(NAME).options(**options_of(configuration)).load()
    return renamed(frame, configuration)


def renamed(frame: DataFrame, configuration: MirrorConfiguration) -> DataFrame:
    """Rows of the source as rows for the sink."""
    from pyspark.sql import functions as f

    topic: Column = f.concat(f.lit(configuration.prefix), f.col("topic"))
    for source, target in sorted(configuration.names.items()):
        topic = f.when(f.col("topic") == source, f.lit(target)).otherwise(topic)
    columns = ["key", "value", "headers", "timestamp"]
    if configuration.same_partitions:
        columns.append("partition")
    return frame.select(*columns, topic.alias("topic"))


def start(
    spark: SparkSession,
    configuration: MirrorConfiguration,
    trigger: Mapping[str, Any],
    *,
    name: str = "mirror",
) -> StreamingQuery:
    """Start the query."""
    writer = plan(spark, configuration).writeStream.format("mqd").options(**configuration.target)
    writer = writer.option("checkpointLocation", configuration.checkpoint).queryName(name)
    return (writer.trigger(**trigger) if trigger else writer).start()


def summary_of(
    configuration: MirrorConfiguration, topics: Iterable[str], existing: Set[str], records: int
) -> dict[str, Any]:
    """What the command prints at its end. `existing`: topics that the target had at the start."""
    targets = {topic: configuration.target_of(topic) for topic in sorted(topics)}
    created = sorted(set(targets.values()) - existing)
    copied = [f"{topic} to {target}" for topic, target in targets.items()]
    return {"topics": copied, "created": created, "records": records}


def topics_read(query: StreamingQuery) -> set[str]:
    """The topics in the newest progress of a query; empty before its first micro-batch."""
    from pyspark_mqd.pipelines.progress import topics_in

    newest = query.lastProgress
    return set() if newest is None else topics_in(newest["sources"][0]["endOffset"])


@click.command()
@options(spark=True, stream=True)
@click.option("--topics", metavar="NAME,..", help="Topics to copy.")
@click.option("--topics-pattern", metavar="REGEX", help="Copy all topics that match.")
@click.option(
    "--to", metavar="HOST:PORT,..", required=True, help="Bootstrap servers of the target cluster."
)
@click.option(
    "--to-command-config", metavar="FILE", show_default=False,
    help="Client properties for TLS and login at the target cluster  [default: as at the source]",
)  # fmt: skip
@click.option(
    "--prefix", default="", metavar="TEXT", show_default=False,
    help="Prefix of the names in the target cluster  [default: none]",
)  # fmt: skip
@click.option(
    "--map", "mapped", multiple=True, metavar="A=B", help="Copy topic A to B. Repeat it for more."
)
@click.option(
    "--same-partitions/--no-same-partitions", default=True,
    help="Keep the partition of each record, or choose it by key.",
)  # fmt: skip
@click.option(
    "--delivery-guarantee", type=click.Choice(GUARANTEES), default="exactly-once",
    help="Delivery guarantee of the copy.",
)  # fmt: skip
@click.option(
    "--starting-offsets", default="earliest", metavar="POSITION",
    help="Where a new query starts: earliest, latest, or offsets as JSON.",
)  # fmt: skip
@click.option(
    "--max-offsets-per-trigger", type=click.IntRange(1), default=MAX_OFFSETS,
    help="Maximum number of offsets in a micro-batch.",
)  # fmt: skip
@click.option(
    "--marker-topic", metavar="NAME",
    help="Target topic under whose name the sink commits its markers  [default: the first one]",
)  # fmt: skip
@accept_option
def command(
    settings: Settings,
    topics: str | None,
    topics_pattern: str | None,
    to: str,
    to_command_config: str | None,
    prefix: str,
    mapped: tuple[str, ...],
    same_partitions: bool,
    delivery_guarantee: str,
    starting_offsets: str,
    max_offsets_per_trigger: int,
    marker_topic: str | None,
    accept_missing_markers: bool,
) -> None:
    """Copy topics to another cluster, with keys, headers, timestamps and partitions.

    Topics and partitions that the target lacks are created, also those that appear while the
    command runs. Records of aborted transactions are not copied. A restart with the same checkpoint
    resumes where the last run ended.

    \b
    Example: mqd-spark mirror --topics orders --to west:9092 --checkpoint state/mirror
    """
    names = topics_of(topics, topics_pattern)
    source = {
        **settings.source_options(),
        **({"subscribe": ",".join(names)} if names else {"subscribePattern": topics_pattern or ""}),
        "includeHeaders": "true",
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "kafka.isolation.level": "read_committed",
    }
    check_source(source)
    client = settings.client
    if to_command_config is not None:
        client = {
            **{name: value for name, value in client.items() if not is_security_option(name)},
            **client_of_file(to_command_config, "--to-command-config"),
        }
    target = {
        **client,
        "kafka.bootstrap.servers": to,
        "timestampColumn": "timestamp",
        "deliveryGuarantee": delivery_guarantee,
        "acceptMissingMarkers": str(accept_missing_markers).lower(),
    }
    configuration = MirrorConfiguration(
        source,
        target,
        settings.checkpoint,
        parse_pairs(mapped, "--map"),
        prefix,
        same_partitions,
        topics_pattern,
    )
    configuration, counts, existing = _prepare(settings, configuration, names)
    if not counts:
        raise Failure(
            f"No topic matches '{topics_pattern}'.",
            remedy="See which topics exist with `mqctl topic list`.",
        )
    marker = marker_topic or configuration.target_of(next(iter(counts)))
    target = {**configuration.target, "markerTopic": marker}
    _run(settings, replace(configuration, target=target), counts, existing)


def _prepare(
    settings: Settings, configuration: MirrorConfiguration, names: Sequence[str]
) -> tuple[MirrorConfiguration, dict[str, int], set[str]]:
    """Make the target ready; returns the whole configuration, topic -> partitions of the source,
    and the topics that the target had before."""
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import require_partitions

    pattern = configuration.pattern
    with connected(settings) as near, connected(configuration.target_settings()) as far:
        found = names
        if pattern is not None:
            expression = compile_pattern(pattern)  # as the source reads it
            found = [each.name for each in near.admin.list_topics() if expression.search(each.name)]
        counts = require_partitions(near, found)
        ids = {each.admin.describe_cluster().cluster_id for each in (near, far)}
        configuration = replace(configuration, same_cluster=len(ids) == 1)
        refuse_circle(configuration, counts)
        existing = {each.name for each in far.admin.list_topics()}
        prepare_target(far, configuration, counts)
    return configuration, counts, existing


def _run(
    settings: Settings,
    configuration: MirrorConfiguration,
    counts: Mapping[str, int],
    existing: Set[str],
) -> None:
    from pyspark_mqd.pipelines.progress import Progress, run_query
    from pyspark_mqd.pipelines.session import EXACTLY_ONCE, is_merged, session

    progress = Progress("mirror", quiet=is_merged(settings.output))
    with session(settings, "mirror", EXACTLY_ONCE) as spark:
        query = start(spark, configuration, settings.trigger.arguments())
        try:
            with progress:
                run_query(query, progress)
        finally:
            topics = counts.keys() | topics_read(query)
            summary = summary_of(configuration, topics, existing, progress.done)
            report.show_summary(settings.output, summary)
