"""Streaming queries against a real cluster: triggers, limits, restarts, new partitions, lag."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from chaos.ensemble import Ensemble
from mqd.client import sync
from mqd.types import TopicPartition
from pyspark_mqd.listener import Lag, MqdListener
from pyspark_mqd.planning import limit_offsets
from tests.spark.source_tools import Stream, expected, fill, read_all, reader, wait_for_markers

NewTopic = Callable[..., str]
LONG: dict[str, Any] = {"transaction_timeout_ms": 600_000}
"""A busy machine may take longer than the default of a minute."""


def test_available_now_reads_in_limited_batches_and_restarts(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """Batches are those of Spark's Kafka source: 300 of 1,000 gives 299, 299, 298, 104."""
    topic = new_topic(3)
    counts = {0: 352, 1: 331, 2: 317}
    fill(client, topic, counts)
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    assert stream.run(maxOffsetsPerTrigger="300") == [299, 299, 298, 104]
    assert stream.values() == expected({part: range(count) for part, count in counts.items()})
    source = stream.progress[0].sources[0]
    assert f'"{topic}": {{"0": 352, "1": 331, "2": 317}}' in source.latestOffset
    assert stream.run() == []
    fill(client, topic, {1: 5}, first=331)
    assert stream.run() == [5]  # from the checkpoint, whatever startingOffsets says
    assert stream.batches[4] == expected({1: range(331, 336)})


def test_processing_time_follows_the_topic_and_resumes(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """New partitions and new topics are picked up, from their first record."""
    topic = new_topic(1)
    fill(client, topic, {0: 10})
    stream = Stream(
        spark, cluster, tmp_path / "ck", subscribePattern=f"^{topic}", kafka__group__id="unused"
    )
    stream.start({"processingTime": "100 milliseconds"})
    stream.wait_for(lambda: len(stream.values()) == 10)
    client.admin.add_partitions({topic: 3})
    cluster.wait_until(lambda: cluster.is_whole({topic: 3}), "three partitions")
    fill(client, topic, {0: 5, 2: 5}, first=10)
    wanted: dict[int, Iterable[int]] = {0: range(15), 2: range(10, 15)}
    stream.wait_for(lambda: stream.values() == expected(wanted))
    stream.stop()
    fill(client, topic, {1: 4})
    other = f"{topic}-more"
    cluster.create_topic(other, 1)
    fill(client, other, {0: 3}, first=100)
    stream.start({"processingTime": "100 milliseconds"})
    wanted = {0: [*range(15), *range(100, 103)], 1: range(4), 2: range(10, 15)}
    stream.wait_for(lambda: stream.values() == expected(wanted))
    stream.stop()


@pytest.mark.filterwarnings("ignore")
def test_once_reads_everything_in_one_batch(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    fill(client, topic, {0: 30, 1: 30})
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic, maxOffsetsPerTrigger="10")
    assert stream.run({"once": True}) == [60]


def test_commits_and_lag_by_the_listener(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """Also the last batch is committed: `mqctl group lag` sees the query."""
    topic = new_topic(2)
    fill(client, topic, {0: 40, 1: 20})
    seen: list[list[Lag | None]] = []
    listener = MqdListener(on_lag=lambda _, lags: seen.append(lags))
    spark.streams.addListener(listener)
    try:
        stream = Stream(
            spark,
            cluster,
            tmp_path / "ck",
            subscribe=topic,
            commitOffsets="true",
            kafka__group__id=f"{topic}-group",
            maxOffsetsPerTrigger="30",
        )
        assert stream.run() == [30, 30]

        def committed() -> dict[TopicPartition, int]:
            rows = client.admin.list_group_offsets([f"{topic}-group"])[f"{topic}-group"]
            assert isinstance(rows, dict)
            return {tp: row.offset for tp, row in rows.items()}

        wanted = {TopicPartition(topic, 0): 40, TopicPartition(topic, 1): 20}
        cluster.wait_until(lambda: committed() == wanted, "the commit of the last batch")
        assert not listener.failures
        rows = client.admin.group_lag(f"{topic}-group")
        assert {row.tp: row.end for row in rows} == wanted
        assert [Lag(10, 20, 15.0)] in seen and [Lag(0, 0, 0.0)] in seen
    finally:
        spark.streams.removeListener(listener)


# -- decisions of the driver, without a query


def test_minimum_and_delay(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """The first batch never waits; later ones wait for the minimum or the delay, as in Spark."""
    topic = new_topic(1)
    fill(client, topic, {0: 3})
    made = reader(cluster, subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="1s")
    limit = made.getDefaultReadLimit()
    first = made.latestOffset(made.initialOffset(), limit)
    assert first[topic] == {"0": 3}
    begun = time.monotonic()
    fill(client, topic, {0: 3}, first=3)
    assert made.latestOffset(first, limit) == first
    while (second := made.latestOffset(first, limit)) == first:
        assert time.monotonic() < begun + 30
    assert time.monotonic() - begun > 0.5 and second[topic] == {"0": 6}
    fill(client, topic, {0: 10}, first=6)
    assert made.latestOffset(second, limit)[topic] == {"0": 16}
    assert made.latestOffset(second, ReadAllAvailable())[topic] == {"0": 16}


def test_limits(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    fill(client, topic, {0: 900, 1: 90}, batch_bytes=2_000)
    assert reader(cluster, subscribe=topic).getDefaultReadLimit() == ReadAllAvailable()
    made = reader(cluster, subscribe=topic, maxOffsetsPerTrigger="100")
    assert made.getDefaultReadLimit() == ReadMaxRows(100)
    start = made.initialOffset()
    ends = {TopicPartition(topic, 0): 900, TopicPartition(topic, 1): 90}
    wanted = limit_offsets(100, dict.fromkeys(ends, 0), ends)
    found = made.latestOffset(start, ReadMaxRows(100))
    assert {TopicPartition(topic, int(part)): end for part, end in found[topic].items()} == wanted
    made = reader(cluster, subscribe=topic, kafka__fetch__max__bytes="2147483647")
    assert len(read_all(made, made.partitions(start, found))) == 99  # more than a frame may have
    made = reader(cluster, subscribe=topic, maxBytesPerTrigger="5000")
    assert made.getDefaultReadLimit() == ReadMaxBytes(5000)
    part = made.latestOffset(start, ReadMaxBytes(5000))[topic]
    assert 0 < part["0"] < 900 and 0 < part["1"] < 90
    total = made.latestOffset(start, ReadAllAvailable())[topic]
    assert total == {"0": 900, "1": 90}


def test_the_first_batch_can_run_again(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """A crash in batch 0 of a query that started at the latest offsets: nothing is skipped."""
    topic = new_topic(1)
    fill(client, topic, {0: 5})
    options = {"subscribe": topic, "startingOffsets": "latest"}
    crashed = reader(cluster, **options)
    start = crashed.initialOffset()
    fill(client, topic, {0: 4}, first=5)
    end = crashed.latestOffset(start, ReadAllAvailable())
    fill(client, topic, {0: 4}, first=9)
    client.admin.add_partitions({topic: 2})
    cluster.wait_until(lambda: cluster.is_whole({topic: 2}), "two partitions")
    again = reader(cluster, **options)
    tasks = again.partitions(again.initialOffset(), end)
    assert read_all(again, tasks) == expected({0: range(5, 9)})
    later = again.latestOffset(end, ReadAllAvailable())
    assert read_all(again, again.partitions(end, later)) == expected({0: range(9, 13)})


def test_plans_are_pure(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """The same offsets give the same tasks, whatever has come since, in any process."""
    topic = new_topic(2)
    fill(client, topic, {0: 100, 1: 30})
    options = {"subscribe": topic, "minPartitions": "5"}
    made = reader(cluster, **options)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    tasks: Sequence[Any] = made.partitions(start, end)
    planned = [(each.tp, each.start, each.end) for each in tasks]
    assert len(planned) == 5
    fill(client, topic, {0: 100, 1: 300}, first=100)
    client.admin.add_partitions({topic: 4})
    cluster.wait_until(lambda: cluster.is_whole({topic: 4}), "four partitions")
    again = reader(cluster, **options)
    same: Sequence[Any] = again.partitions(start, end)
    assert [(each.tp, each.start, each.end) for each in same] == planned


def test_open_transactions_end_a_batch(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """read_committed: a batch ends at the last stable offset. Aborted records are no loss."""
    topic = new_topic(1)
    made = reader(cluster, subscribe=topic, isolation__level="read_committed")
    start = made.initialOffset()
    with client.transactional_producer(f"{topic}-txn", **LONG) as producer:
        for commits, number in ((True, 0), (False, 1)):
            producer.begin()
            producer.send(topic, partition=0, value=b"0-%d" % number)
            producer.commit() if commits else producer.abort()
        producer.begin()
        producer.send(topic, partition=0, value=b"0-2")
        fill(client, topic, {0: 1}, first=3)
        end = made.latestOffset(start, ReadAllAvailable())
        assert end[topic] == {"0": 4}  # two records and two markers
        assert read_all(made, made.partitions(start, end)) == expected({0: (0,)})
        assert made.latestOffset(end, ReadAllAvailable()) == end
        assert made.partitions(end, end) == []
        producer.commit()
    wait_for_markers(client, cluster, topic)
    later = made.latestOffset(end, ReadAllAvailable())
    assert read_all(made, made.partitions(end, later)) == expected({0: (2, 3)})


def test_available_now_ignores_what_comes_later(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """Also below minOffsetsPerTrigger: the backlog is read, unlike in Spark's Kafka source."""
    topic = new_topic(1)
    fill(client, topic, {0: 12})
    made = reader(cluster, subscribe=topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="8")
    limit = made.getDefaultReadLimit()
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    fill(client, topic, {0: 50}, first=12)
    first = made.latestOffset(start, limit)
    second = made.latestOffset(first, limit)
    assert (first[topic], second[topic]) == ({"0": 8}, {"0": 12})
    assert made.latestOffset(second, limit) == second
    assert made.reportLatestOffset() == {topic: {"0": 12}}


def test_commit_of_spark_is_a_fallback(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 7})
    group = f"{topic}-group"
    made = reader(cluster, subscribe=topic, commitOffsets="true", group__id=group)
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    made.commit(end)
    rows = client.admin.list_group_offsets([group])[group]
    assert isinstance(rows, dict) and rows[TopicPartition(topic, 0)].offset == 7
    reader(cluster, subscribe=topic).commit(end)  # without the option: nothing
