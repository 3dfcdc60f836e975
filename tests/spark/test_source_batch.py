"""Batch queries against a real cluster: rows, ranges, columns, time travel, transactions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from chaos.ensemble import Ensemble
from mqd.client import sync
from mqd.protocol.compression import Codec
from tests.spark.source_tools import batch, expected, fill, values, wait_for_markers

NewTopic = Callable[..., str]
LONG: dict[str, Any] = {"transaction_timeout_ms": 600_000}
"""A busy machine may take longer than the default of a minute."""


def test_rows_are_those_of_the_log(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """All columns, all codecs, null keys and values, records with and without headers."""
    topic = new_topic(3)
    now = int(time.time() * 1000)
    written = []
    for partition, codec in enumerate((Codec.NONE, Codec.LZ4, Codec.ZSTD)):
        with client.producer(codec=codec) as producer:
            for number in range(50):
                key = None if number % 5 == 0 else b"k%d" % number
                value = None if number % 7 == 0 else b"v" * number
                headers = [("a", b"1"), ("b", None)] if number % 2 else []
                producer.enqueue(
                    topic,
                    partition=partition,
                    key=key,
                    value=value,
                    headers=headers,
                    timestamp=now + number,
                )
                row = (topic, partition, number, key, value, now + number, headers or None)
                written.append(row)
            producer.flush()
    rows = batch(spark, cluster, subscribe=topic, includeHeaders="true").collect()
    found = [
        (
            row.topic,
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            round(row.timestamp.timestamp() * 1000),
            None
            if row.headers is None
            else [(each.key, each.value and bytes(each.value)) for each in row.headers],
        )
        for row in rows
    ]
    assert sorted(found, key=lambda row: row[1:3]) == written
    assert {row.timestampType for row in rows} == {0}


def test_log_append_time(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    fill(client, topic, {0: 3})
    rows = batch(spark, cluster, subscribe=topic, columns="timestampType,timestamp").collect()
    assert [row.timestampType for row in rows] == [1, 1, 1]
    assert all(abs(row.timestamp.timestamp() - time.time()) < 600 for row in rows)


def test_ranges_and_strategies(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    fill(client, topic, {0: 10, 1: 20})
    starts = json.dumps({topic: {"0": 4, "1": -2, "2": -2}})
    ends = json.dumps({topic: {"0": -1, "1": 7, "2": 0}})
    given = {"startingOffsets": starts, "endingOffsets": ends, "subscribe": topic}
    found = values(batch(spark, cluster, **given))
    assert found == expected({0: range(4, 10), 1: range(7)})
    assigned = batch(spark, cluster, assign=json.dumps({topic: [1, 9]}))
    assert values(assigned) == expected({1: range(20)})
    by_pattern = batch(spark, cluster, subscribePattern=topic[:-1] + "[0-9]")
    assert values(by_pattern) == expected({0: range(10), 1: range(20)})
    assert values(batch(spark, cluster, subscribePattern="no-such-topic-.*")) == []


def test_timestamps(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    now = int(time.time() * 1000)
    with client.producer() as producer:
        for partition in range(2):
            for number in range(10):
                value = b"%d-%d" % (partition, number)
                producer.enqueue(topic, partition=partition, value=value, timestamp=now + number)
        producer.flush()
    given = {"subscribe": topic, "startingTimestamp": str(now + 3), "endingTimestamp": str(now + 6)}
    both = {0: range(3, 6), 1: range(3, 6)}
    assert values(batch(spark, cluster, **given)) == expected(both)
    each = json.dumps({topic: {"0": now + 8, "1": now + 9}})
    found = values(batch(spark, cluster, subscribe=topic, startingOffsetsByTimestamp=each))
    assert found == expected({0: (8, 9), 1: (9,)})
    late = {"subscribe": topic, "startingTimestamp": str(now + 60_000)}
    with pytest.raises(Exception, match=f"No offset matched from .* topic-partition {topic}-0"):
        batch(spark, cluster, **late).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert values(batch(spark, cluster, **late, **strategy)) == []
    # time travel: the topic as it was
    as_of = datetime.fromtimestamp((now + 4) / 1000).astimezone().isoformat()
    found = values(batch(spark, cluster, subscribe=topic, asOfTimestamp=as_of))
    assert found == expected({0: range(5), 1: range(5)})
    offsets = json.dumps({topic: {"1": 2}})
    found = values(batch(spark, cluster, subscribe=topic, asOfOffsets=offsets))
    assert found == expected({1: range(2)})


def test_ranges_are_split_into_tasks(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    fill(client, topic, {0: 100, 1: 50})

    def sizes(**options: str) -> list[int]:
        frame = batch(spark, cluster, subscribe=topic, columns="value", **options)
        by_task = frame.groupBy(functions.spark_partition_id().alias("task")).count()
        return [row["count"] for row in by_task.orderBy("task").collect()]

    assert sizes(minPartitions="7") == [20, 20, 20, 20, 20, 25, 25]
    assert sizes(maxRecordsPerPartition="40") == [33, 33, 34, 25, 25]
    assert sizes() == [100, 50]


def test_columns_are_chosen(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 2})
    frame = batch(spark, cluster, subscribe=topic, columns="OFFSET,value")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.collect()] == [(0, b"0-0"), (1, b"0-1")]
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    chosen = spark.read.format("mqd").options(**options)
    rows = chosen.schema("value binary, timestampType int").load().collect()
    assert [tuple(row) for row in rows] == [(b"0-0", 0), (b"0-1", 0)]
    with pytest.raises(Exception, match="'value' as string, but the source gives binary"):
        chosen.schema("value string").load().count()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW viewed USING mqd OPTIONS "
        f"(`kafka.bootstrap.servers` '{cluster.bootstrap}', subscribe '{topic}')"
    )
    row: Any = spark.sql("SELECT count(*) AS found FROM viewed").head()
    assert row["found"] == 2


def test_filters_narrow_ranges_only_on_request(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """Spark refuses every query of a source with pushFilters while its own setting is off."""
    topic = new_topic(3)
    fill(client, topic, {0: 30, 1: 30, 2: 30})
    condition = "partition IN (0, 2) AND offset >= 5 AND offset < 9"
    wanted = expected({0: range(5, 9), 2: range(5, 9)})
    assert values(batch(spark, cluster, subscribe=topic).where(condition)) == wanted
    pushed = batch(spark, cluster, subscribe=topic, filterPushdown="true")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        pushed.where(condition).count()
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        assert values(pushed.where(condition)) == wanted
        narrowed = pushed.where("partition = 1 AND offset > 10 AND offset <= 12")
        assert narrowed.rdd.getNumPartitions() == 1
        assert values(narrowed) == expected({1: (11, 12)})
        for moment in ("2020-01-01", "1969-12-31 23:59:59.999"):  # -1 ms: "latest" on the wire
            since = pushed.where(f"timestamp >= timestamp '{moment}'")
            assert values(since) == expected(dict.fromkeys(range(3), range(30)))
    finally:
        spark.conf.unset(setting)


def test_compacted_topics_have_gaps_and_no_loss(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1",
        },
    )
    for _ in range(4):
        fill(client, topic, {0: 5})
    frame = batch(spark, cluster, subscribe=topic)
    deadline = time.monotonic() + 60
    while frame.count() == 20:  # until the cleaner has been here
        assert time.monotonic() < deadline
        fill(client, topic, {0: 1}, first=9)  # rolls the active segment
        frame = batch(spark, cluster, subscribe=topic, endingOffsets=json.dumps({topic: {"0": 20}}))
    found = values(frame)
    assert set(found) <= set(expected({0: range(5)})) and len(found) < 20


def test_transactions(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """Committed, aborted and open ones: the end of a committed read is the last stable offset."""
    topic = new_topic(1)
    fill(client, topic, {0: 1})
    with client.transactional_producer(f"{topic}-txn", **LONG) as producer:
        for commits, number in ((True, 1), (False, 2), (True, 3)):
            producer.begin()
            producer.send(topic, partition=0, value=b"0-%d" % number)
            producer.commit() if commits else producer.abort()
        producer.begin()
        producer.send(topic, partition=0, value=b"0-4")
        fill(client, topic, {0: 1}, first=5)
        committed = {"subscribe": topic, "kafka__isolation__level": "read_committed"}
        assert values(batch(spark, cluster, **committed)) == expected({0: (0, 1, 3)})
        everything = expected({0: range(6)})
        assert values(batch(spark, cluster, subscribe=topic)) == everything
        producer.commit()
    wait_for_markers(client, cluster, topic)
    assert values(batch(spark, cluster, **committed)) == expected({0: (0, 1, 3, 4, 5)})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "no-such-topic"}, "Topic 'no-such-topic' does not exist"),
        ({"startingOffsets": '{{"{t}":{{"0":1}}}}'}, "offsets don't match what are assigned"),
        (
            {"startingOffsets": '{{"{t}":{{"0":9,"1":0}}}}'},
            "resolved start offset 9 is greater than the resolved end offset 2",
        ),
        (
            {"endingOffsets": '{{"{t}":{{"0":9,"1":0}}}}'},
            r"offsets \[2, 9\) of partition {t}-0 do not exist: its log ends at 2",
        ),
        ({"kafka__security__protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"asOfOffsets": '{{"{t}":{{"7":1}}}}'}, "names {t}-7, which the query does not read"),
        (
            {"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__max__block__ms": "300"},
            "127.0.0.1:1",
        ),
    ],
)
def test_refusals(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    options: dict[str, str],
    sentence: str,
) -> None:
    topic = new_topic(2)
    fill(client, topic, {0: 2})
    given: dict[str, Any] = {key: value.format(t=topic) for key, value in options.items()}
    with pytest.raises(Exception, match=sentence.format(t=topic)):
        batch(spark, cluster, **{"subscribe": topic, **given}).count()
