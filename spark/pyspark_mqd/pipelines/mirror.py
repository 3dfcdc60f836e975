"""`mqd-spark mirror`: topics of one cluster to another, exactly once, headers and partitions kept.

`plan` is pure: rows of the source with the topic renamed. The sink's guarantee makes the copy
exactly-once; the offsets in Spark's checkpoint are the only other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.options import compile_pattern
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.cli import Failure, Settings, options, parse_pairs, split_list

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from mqd.client.sync import BlockingClient

GUARANTEES = ("exactly-once", "atomic-batch", "at-least-once")
MAX_OFFSETS = 1_000_000


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is copied, and how topics are named in the target cluster."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    checkpoint: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Source topic -> target topic; other topics get the prefix."""
    prefix: str = ""
    same_partitions: bool = True

    def target_of(self, topic: str) -> str:
        """The name of a topic in the target cluster."""
        return self.names.get(topic, self.prefix + topic)


def plan(spark: SparkSession, configuration: Configuration) -> DataFrame:
    """A streaming DataFrame with the columns of the sink."""
    frame = spark.readStream.format("mqd").options(**configuration.source).load()
    return renamed(frame, configuration)


def renamed(frame: DataFrame, configuration: Configuration) -> DataFrame:
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
    configuration: Configuration,
    trigger: Mapping[str, Any],
    *,
    name: str = "mirror",
) -> StreamingQuery:
    """Start the query."""
    writer = plan(spark, configuration).writeStream.format("mqd").options(**configuration.target)
    writer = writer.option("checkpointLocation", configuration.checkpoint).queryName(name)
    return (writer.trigger(**trigger) if trigger else writer).start()


def refuse_circle(
    configuration: Configuration, topics: Iterable[str], pattern: str | None, *, same_cluster: bool
) -> None:
    """Raises Failure where the query would read what it writes."""
    if not same_cluster:
        return
    expression = None if pattern is None else compile_pattern(pattern)
    for topic in topics:
        target = configuration.target_of(topic)
        if target in set(topics) or (expression is not None and expression.search(target)):
            raise Failure(
                f"Topic '{target}' would be read and written by this mirror: source and target"
                " are the same cluster.",
                remedy="Name the target's topics differently: --prefix copy. or --map a=b.",
            )


def prepare_target(
    client: BlockingClient, configuration: Configuration, counts: Mapping[str, int]
) -> list[str]:
    """Create missing topics; check that partitions fit. Returns the topics that were created."""
    from pyspark_mqd.pipelines.topics import create_missing, partition_counts

    wanted: dict[str, int] = {}
    for topic, count in counts.items():
        target = configuration.target_of(topic)
        wanted[target] = max(count, wanted.get(target, 0))
    created = create_missing(client, wanted)
    for target, found in partition_counts(client, wanted).items():
        if configuration.same_partitions and found is not None and found < wanted[target]:
            raise Failure(
                f"Topic '{target}' has {found} partitions in the target cluster, and its source"
                f" has {wanted[target]}.",
                remedy="Add partitions, or mirror by key with --no-same-partitions.",
            )
    return created


def summary_of(
    configuration: Configuration, topics: Iterable[str], created: Sequence[str], records: int
) -> dict[str, Any]:
    """What the command prints at its end."""
    copied = [f"{topic} to {configuration.target_of(topic)}" for topic in sorted(topics)]
    return {"topics": copied, "created": list(created), "records": records}


@click.command()
@options(spark=True, stream=True)
@click.option("--topics", metavar="NAME,..", help="Topics to copy.")
@click.option("--topics-pattern", metavar="REGEX", help="Copy all topics that match.")
@click.option("--to", metavar="HOST:PORT,..", required=True, help="Nodes of the target cluster.")
@click.option("--prefix", default="", metavar="TEXT", help="Put TEXT before the names of topics.")
@click.option(
    "--map", "mapped", multiple=True, metavar="A=B", help="Copy topic A to B. Repeat it for more."
)
@click.option(
    "--same-partitions/--no-same-partitions", default=True,
    help="Keep the partition of each record, or choose it by key.",
)  # fmt: skip
@click.option(
    "--delivery-guarantee", type=click.Choice(GUARANTEES), default="exactly-once",
    help="The guarantee of the sink.",
)  # fmt: skip
@click.option(
    "--starting-offsets", default="earliest", metavar="PLACE",
    help="Where a new checkpoint begins: earliest, latest, or Spark's JSON.",
)  # fmt: skip
@click.option(
    "--max-offsets-per-trigger", type=click.IntRange(1), default=MAX_OFFSETS,
    help="The size of a micro-batch at most.",
)  # fmt: skip
@click.option(
    "--marker-topic", metavar="NAME",
    help="The target topic under which markers are committed  [default: the first one]",
)  # fmt: skip
def command(
    settings: Settings,
    topics: str | None,
    topics_pattern: str | None,
    to: str,
    prefix: str,
    mapped: tuple[str, ...],
    same_partitions: bool,
    delivery_guarantee: str,
    starting_offsets: str,
    max_offsets_per_trigger: int,
    marker_topic: str | None,
) -> None:
    """Copy topics to another cluster, with keys, headers, timestamps and partitions.

    Topics that the target lacks are created. Records of aborted transactions are not copied. A
    restart with the same checkpoint continues where the last run ended.

    \b
    Example: mqd-spark mirror --topics orders --to west:9092 --checkpoint state/mirror
    """
    if (topics is None) == (topics_pattern is None):
        raise click.UsageError("Specify the topics: --topics NAME,.. or --topics-pattern REGEX")
    names = split_list(topics or "")
    source = {
        **settings.source_options(),
        **({"subscribe": ",".join(names)} if names else {"subscribePattern": topics_pattern or ""}),
        "includeHeaders": "true",
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "kafka.isolation.level": "read_committed",
    }
    target = {
        **settings.client,
        "kafka.bootstrap.servers": to,
        "timestampColumn": "timestamp",
        "deliveryGuarantee": delivery_guarantee,
    }
    configuration = Configuration(
        source, target, settings.checkpoint, parse_pairs(mapped, "--map"), prefix, same_partitions
    )
    counts, created = _prepare(settings, configuration, names, topics_pattern)
    if not counts:
        raise Failure(f"No topic matches '{topics_pattern}'.")
    marker = marker_topic or configuration.target_of(next(iter(counts)))
    configuration = replace(configuration, target={**target, "markerTopic": marker})
    _run(settings, configuration, counts, created)


def _prepare(
    settings: Settings, configuration: Configuration, names: Sequence[str], pattern: str | None
) -> tuple[dict[str, int], list[str]]:
    from pyspark_mqd.pipelines.brokers import connected
    from pyspark_mqd.pipelines.topics import require_partitions

    far_settings = replace(settings, bootstrap=configuration.target["kafka.bootstrap.servers"])
    with connected(settings) as near, connected(far_settings) as far:
        found = names
        if pattern is not None:
            expression = compile_pattern(pattern)  # as the source reads it
            found = [each.name for each in near.admin.list_topics() if expression.search(each.name)]
        counts = require_partitions(near, found)
        ids = {each.admin.describe_cluster().cluster_id for each in (near, far)}
        refuse_circle(configuration, counts, pattern, same_cluster=len(ids) == 1)
        return counts, prepare_target(far, configuration, counts)


def _run(
    settings: Settings,
    configuration: Configuration,
    counts: Mapping[str, int],
    created: Sequence[str],
) -> None:
    from pyspark_mqd.pipelines.progress import Progress, run_query
    from pyspark_mqd.pipelines.session import EXACTLY_ONCE, is_merged, session

    progress = Progress("mirror", quiet=is_merged(settings.output))
    with session(settings, "mirror", EXACTLY_ONCE) as spark:
        try:
            with progress:
                query = start(spark, configuration, settings.trigger.arguments())
                run_query(query, progress)
        finally:
            summary = summary_of(configuration, counts, created, progress.done)
            report.show_summary(settings.output, summary)
