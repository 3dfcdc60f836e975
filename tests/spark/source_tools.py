"""What tests of the source share: records into topics, rows out of queries, readers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaos.ensemble import Ensemble
from mqd.client import sync
from mqd.client.descriptions import LATEST, ElectionType
from mqd.client.errors import ClientError
from mqd.types import TopicPartition
from pyspark_mqd import source, source_schema
from pyspark_mqd.stream_reader import StreamReader

QUERY_SECONDS = 90
AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}
POLLING: Mapping[str, Any] = {"processingTime": "100 milliseconds"}
FAST = {"fetchOffset.retryIntervalMs": "100"}
"""A loss is looked at again, but soon."""


def fill(
    client: sync.BlockingClient,
    topic: str,
    counts: Mapping[int, int],
    *,
    first: int = 0,
    **options: Any,
) -> None:
    """`counts[partition]` records each: value `b"<partition>-<number>"`, key `b"<number>"`."""
    client.admin.describe_topics([topic])  # its partitions as they are now
    with client.producer(**options) as producer:
        for partition, count in counts.items():
            for number in range(first, first + count):
                value = b"%d-%d" % (partition, number)
                producer.enqueue(topic, partition=partition, key=b"%d" % number, value=value)
        producer.flush()


def batch(spark: SparkSession, cluster: Ensemble, **options: str) -> DataFrame:
    """A batch query; `__` in a keyword is a dot."""
    return spark.read.format("mqd").options(**settings(cluster, options)).load()


def settings(cluster: Ensemble, options: Mapping[str, str]) -> dict[str, str]:
    given = {key.replace("__", "."): value for key, value in options.items()}
    return {"kafka.bootstrap.servers": cluster.bootstrap, **FAST, **given}


def values(frame: DataFrame) -> list[str]:
    """The values of a query, sorted."""
    return sorted(row.value.decode() for row in frame.select("value").collect())


def expected(counts: Mapping[int, Iterable[int]]) -> list[str]:
    """The values that `fill` wrote: partition -> numbers."""
    return sorted(f"{part}-{number}" for part, numbers in counts.items() for number in numbers)


class Stream:
    """A streaming query whose rows are collected batch by batch, under one checkpoint."""

    def __init__(
        self, spark: SparkSession, cluster: Ensemble, checkpoint: Path, **options: str
    ) -> None:
        self.spark = spark
        self.cluster = cluster
        self.checkpoint = checkpoint
        self.options = settings(cluster, {"startingOffsets": "earliest", **options})
        self.batches: dict[int, list[str]] = {}
        """Batch id -> values; a batch that runs again replaces what it had."""
        self.query: StreamingQuery | None = None
        self.progress: list[Any] = []

    def start(
        self, trigger: Mapping[str, Any] | None = AVAILABLE_NOW, **options: str
    ) -> StreamingQuery:
        """Start the query; without a trigger, Spark's default applies."""
        given = {key.replace("__", "."): value for key, value in options.items()}
        frame = self.spark.readStream.format("mqd").options(**{**self.options, **given}).load()
        writer = frame.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(self.checkpoint)
        )
        self.query = (writer if trigger is None else writer.trigger(**trigger)).start()
        return self.query

    def run(self, trigger: Mapping[str, Any] | None = AVAILABLE_NOW, **options: str) -> list[int]:
        """Run to the end; returns the rows of each batch. Raises what stops the query."""
        query = self.start(trigger, **options)
        try:
            if not query.awaitTermination(QUERY_SECONDS):
                raise TimeoutError("the query does not end")
        finally:
            self.progress = query.recentProgress
            query.stop()
        return [each.numInputRows for each in self.progress if each.numInputRows]

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait while the query runs; a query that has failed raises."""
        query = self.query
        assert query is not None

        def is_so() -> bool:
            failure = query.exception()
            if failure is not None:
                raise failure
            return bool(condition())

        self.cluster.wait_until(is_so, f"rows; so far {self.batches}", QUERY_SECONDS)

    def wait_for_failure(self) -> str:
        """Wait until the query fails; returns the reason."""
        query = self.query
        assert query is not None
        self.cluster.wait_until(lambda: query.exception() is not None, "a failure", QUERY_SECONDS)
        return str(query.exception())

    def stop(self) -> None:
        assert self.query is not None
        self.query.stop()

    def values(self) -> list[str]:
        return sorted(value for rows in self.batches.values() for value in rows)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = values(frame)


def reader(cluster: Ensemble, **options: str) -> StreamReader:
    """The reader of a streaming query, in this process: for what needs no Spark."""
    given = settings(cluster, {"startingOffsets": "earliest", **options})
    made = source.stream_reader(given, source_schema.schema_of(given))
    assert isinstance(made, StreamReader)
    return made


def read_all(made: StreamReader, partitions: Iterable[Any]) -> list[str]:
    """The values that the tasks of a micro-batch read."""
    return sorted(
        value.decode()
        for partition in partitions
        for rows in made.read(partition)
        for value in rows.column("value").to_pylist()
    )


def recreate(client: sync.BlockingClient, cluster: Ensemble, topic: str, partitions: int) -> None:
    """Delete a topic and create it again under its name."""
    delete(client, cluster, topic)
    cluster.create_topic(topic, partitions)


def delete(client: sync.BlockingClient, cluster: Ensemble, topic: str) -> None:
    """Delete a topic and wait until no node knows it."""
    client.admin.delete_topic(topic)
    cluster.wait_until(
        lambda: not any(cluster.view(node, [topic]) for node in cluster.nodes),
        f"{topic} to be gone",
    )


def wait_for_markers(client: sync.BlockingClient, cluster: Ensemble, topic: str) -> None:
    """Partition 0 has no open transaction: markers come a little later than the answer."""
    tp = TopicPartition(topic, 0)

    def is_settled() -> bool:
        stable = client.admin.list_offsets({tp: LATEST}, read_committed=True)[tp]
        return stable == client.admin.list_offsets({tp: LATEST})[tp]

    cluster.wait_until(is_settled, "the transactions to end")


def change_leader(client: sync.BlockingClient, cluster: Ensemble, topic: str) -> None:
    """Let another replica of partition 0 lead: its leader epoch grows."""
    tp = TopicPartition(topic, 0)
    before = cluster.leader(topic)
    row = cluster.view(cluster.running[0], [topic])[tp]
    replicas = (*row.replicas[1:], row.replicas[0])
    client.admin.alter_partition_reassignments({tp: replicas})
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "the new order of replicas")
    client.admin.elect_leaders(ElectionType.PREFERRED, [tp])
    cluster.wait_until(lambda: cluster.leader(topic) not in (None, before), "another leader")


def delete_records(client: sync.BlockingClient, topic: str, before: Mapping[int, int]) -> None:
    """What retention does: partition -> new log start."""
    places = {TopicPartition(topic, partition): place for partition, place in before.items()}
    for outcome in client.admin.delete_records(places).values():
        if isinstance(outcome, ClientError):
            raise outcome
