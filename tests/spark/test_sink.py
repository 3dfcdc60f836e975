"""The sink with delivery guarantee at-least-once, in a Spark session, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from chaos.ensemble import Ensemble
from mqd.client.columns import partition_for_keys
from mqd.client.sync import BlockingClient
from tests.spark.reading import rows_in, values_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NewTopic = Callable[..., str]
HEADERS = "array<struct<key:string,value:binary>>"


def write(data: DataFrame, cluster: Ensemble, **options: Any) -> None:
    writer = data.write.format("mqd").mode("append")
    writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap)
    for key, value in options.items():
        writer = writer.option(key.replace("__", "."), value)
    writer.save()


def numbers(spark: SparkSession, count: int, tasks: int = 8) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr(
        "cast(id as string) as key", "concat('value-', id) as value"
    )


def test_eight_tasks_into_three_partitions(
    spark: SparkSession, cluster: Ensemble, client: BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(3)

    write(numbers(spark, 5_000), cluster, topic=topic, kafka__compression__type="lz4")

    found = rows_in(client, topic)
    assert sorted(row for part in found.values() for row in part) == sorted(
        (b"%d" % number, b"value-%d" % number) for number in range(5_000)
    )
    for partition, rows in found.items():
        keys = pa.array([key for key, _ in rows], pa.binary())
        assert set(partition_for_keys(keys, 3).tolist()) == {partition}


def test_columns_topic_partition_headers_and_tombstones(
    spark: SparkSession, cluster: Ensemble, client: BlockingClient, new_topic: NewTopic
) -> None:
    one, other = new_topic(2), new_topic(2)
    rows = [
        (one, 1, bytearray(b"k"), None, [("h", bytearray(b"1")), ("h", None)]),
        (other, 0, None, bytearray(b"v"), None),
        (one, 1, bytearray(b"k"), bytearray(b"w"), []),
    ]
    schema = f"topic string, partition int, key binary, value binary, headers {HEADERS}, more int"
    data = spark.createDataFrame([(*row, 7) for row in rows], schema).coalesce(1)

    write(data, cluster)

    found = rows_in(client, one, ("key", "value", "headers"))
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert found == {0: [], 1: [(b"k", None, headers), (b"k", b"w", None)]}
    assert rows_in(client, other) == {0: [(None, b"v")], 1: []}


@pytest.mark.parametrize(
    ("expression", "options", "words"),
    [
        ("'v' as value", {}, "topic option required when no 'topic' attribute is present"),
        ("'t' as topic, id as value", {}, "value attribute unsupported type bigint"),
        ("cast(null as string) as topic, 'v' as value", {}, "contains a null topic"),
        ("'v' as value", {"topic": "t", "kafka__transactional__id": "x"}, "transactional.id"),
        ("'v' as value", {"topic": "t", "deliveryGuarantee": "exactly-once"}, "a batch write"),
        ("'v' as value, 9 as partition", {"topic": ""}, "with partition count 1 is not present"),
    ],
)
def test_refusals(
    spark: SparkSession,
    cluster: Ensemble,
    new_topic: NewTopic,
    expression: str,
    options: dict[str, str],
    words: str,
) -> None:
    if options.get("topic") == "":
        options = options | {"topic": new_topic(1)}
    data = spark.range(1).selectExpr(*expression.split(", "))

    with pytest.raises(Exception) as caught:
        write(data, cluster, **options)
    assert words in str(caught.value)


def test_mode_overwrite_is_refused(spark: SparkSession, cluster: Ensemble) -> None:
    data = numbers(spark, 1).write.format("mqd").option("topic", "t").mode("overwrite")

    with pytest.raises(Exception, match="Save mode Overwrite not allowed for Kafka"):
        data.option("kafka.bootstrap.servers", cluster.bootstrap).save()


def test_a_stream_resumes_at_its_checkpoint(
    spark: SparkSession,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    source, target = new_topic(2), new_topic(3)

    def run() -> None:
        data = (
            spark.readStream.format("mqd")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            data.writeStream.format("mqd")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", target)
            .option("taskHeaders", "true")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write(numbers(spark, 1_000, 2), cluster, topic=source)
    run()
    assert len(values_in(client, target)) == 1_000
    write(numbers(spark, 500, 2), cluster, topic=source)
    run()

    assert values_in(client, target) == values_in(client, source)
    rows = [row for part in rows_in(client, target, ("headers",)).values() for (row,) in part]
    tags = {tuple(each["value"] for each in row) for row in rows}
    assert len(tags) == 1_500, "query, batch, task and sequence number tell all rows apart"
    assert {each["key"] for each in rows[0]} == {
        "spark.query",
        "spark.batch",
        "spark.task",
        "spark.seq",
    }
    assert {batch for _, batch, _, _ in tags} == {b"0", b"1"}
