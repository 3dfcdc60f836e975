"""Records that are gone before they were read: named by default, passed over on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from chaos.ensemble import Ensemble
from mqd.client import sync
from pyspark_mqd.connection import close_clients
from pyspark_mqd.errors import DataLoss
from tests.spark.source_tools import (
    Stream,
    batch,
    change_leader,
    delete,
    delete_records,
    expected,
    fill,
    read_all,
    reader,
    recreate,
    values,
)

NewTopic = Callable[..., str]
EVERYTHING = ReadAllAvailable()
CONTINUE: dict[str, Any] = {"failOnDataLoss": "false"}


def test_retention_overtakes_a_slow_query(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """Through Spark: the query fails and names the range; with the option it continues."""
    topic = new_topic(2)
    fill(client, topic, {0: 10, 1: 10})
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    assert stream.run() == [20]
    fill(client, topic, {0: 10}, first=10)
    delete_records(client, topic, {0: 14})
    gone = rf"offsets \[10, 14\) of partition {topic}-0 were deleted: its log starts at 14 now"
    with pytest.raises(Exception, match=gone) as error:
        stream.run()
    assert "Some data may have been lost because they are not available" in str(error.value)
    assert "Set option 'failOnDataLoss' to 'false'" in str(error.value)
    assert stream.run(**CONTINUE) == [6]
    assert stream.batches[1] == expected({0: range(14, 20)})


def test_a_recreated_topic_is_noticed_although_it_has_grown(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """Through Spark. Plain offsets cannot show it; with the option, the new topic is read whole."""
    topic = new_topic(1)
    fill(client, topic, {0: 5})
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    assert stream.run() == [5]
    recreate(client, cluster, topic, 2)
    fill(client, topic, {0: 9, 1: 2}, first=100)
    with pytest.raises(Exception, match=f"topic '{topic}' was deleted and created again"):
        stream.run()
    assert stream.run(**CONTINUE) == [11]
    assert stream.batches[1] == expected({0: range(100, 109), 1: (100, 101)})


@pytest.mark.parametrize("strategy", ["subscribe", "subscribePattern"])
def test_a_deleted_topic_is_named(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    strategy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, other = new_topic(1), new_topic(1)
    fill(client, topic, {0: 5})
    fill(client, other, {0: 5})
    given = {strategy: f"{topic},{other}" if strategy == "subscribe" else f"{topic}|{other}"}
    made = reader(cluster, **given)
    end = made.latestOffset(made.initialOffset(), EVERYTHING)
    delete(client, cluster, topic)
    fill(client, other, {0: 3}, first=5)
    gone = f"partition {topic}-0 was deleted, so its records from offset 5 on are gone"
    with pytest.raises(DataLoss, match=gone):
        made.latestOffset(end, EVERYTHING)
    patient = reader(cluster, **given, **CONTINUE)
    with caplog.at_level(logging.WARNING):
        later = patient.latestOffset(end, EVERYTHING)
    assert gone in caplog.text and topic not in later
    assert read_all(patient, patient.partitions(end, later)) == expected({0: range(5, 8)})
    assert patient.latestOffset(later, EVERYTHING) == later
    with pytest.raises(DataLoss, match=gone):  # the batch again, without the option
        made.partitions(end, later)


def test_a_shorter_topic_without_its_id(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """Offsets of Spark's Kafka source have no ids: a shorter topic is what they can show."""
    topic = new_topic(1)
    fill(client, topic, {0: 3})
    made = reader(cluster, subscribe=topic)
    with pytest.raises(DataLoss, match=f"partition {topic}-0 offset was changed from 500 to 3"):
        made.latestOffset({topic: {"0": 500}}, EVERYTHING)
    patient = reader(cluster, subscribe=topic, **CONTINUE)
    end = patient.latestOffset({topic: {"0": 500}}, EVERYTHING)
    assert end[topic] == {"0": 3} and not patient.partitions({topic: {"0": 500}}, end)


def test_new_partitions_that_do_not_start_at_zero(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    fill(client, topic, {0: 3, 1: 10})
    delete_records(client, topic, {1: 4})
    start = {topic: {"0": 3}}
    made = reader(cluster, subscribe=topic)
    end = made.latestOffset(start, EVERYTHING)
    with pytest.raises(DataLoss, match=f"added partition {topic}-1 starts from 4 instead of 0"):
        made.partitions(start, end)
    patient = reader(cluster, subscribe=topic, **CONTINUE)
    assert read_all(patient, patient.partitions(start, end)) == expected({1: range(4, 10)})


def test_records_vanish_after_the_plan(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between plan and task: the task reports the range, or reads what is left of it."""
    topic = new_topic(1)
    fill(client, topic, {0: 20})
    made = reader(cluster, subscribe=topic, minPartitions="2")
    patient = reader(cluster, subscribe=topic, minPartitions="2", **CONTINUE)
    start = made.initialOffset()
    end = made.latestOffset(start, EVERYTHING)
    tasks, patient_tasks = made.partitions(start, end), patient.partitions(start, end)
    delete_records(client, topic, {0: 13})
    with pytest.raises(DataLoss, match=rf"offsets \[0, 10\) of partition {topic}-0 were deleted"):
        read_all(made, tasks[:1])
    with pytest.raises(DataLoss, match=rf"offsets \[10, 13\) of partition {topic}-0 were deleted"):
        read_all(made, tasks[1:])
    with pytest.raises(DataLoss, match=rf"offsets \[0, 13\) of partition {topic}-0 were deleted"):
        made.partitions(start, end)
    with caplog.at_level(logging.WARNING):
        assert read_all(patient, patient_tasks) == expected({0: range(13, 20)})
    assert f"offsets [10, 13) of partition {topic}-0 were deleted" in caplog.text


def test_a_topic_is_recreated_after_the_plan(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """A task never reads another topic's records as if they were those of the plan."""
    topic = new_topic(1)
    fill(client, topic, {0: 8})
    made = reader(cluster, subscribe=topic)
    start = made.initialOffset()
    end = made.latestOffset(start, EVERYTHING)
    tasks = made.partitions(start, end)
    recreate(client, cluster, topic, 1)
    fill(client, topic, {0: 8}, first=100)
    close_clients()  # a task's process has not seen the old topic
    with pytest.raises(DataLoss, match=f"topic '{topic}' was deleted and created again"):
        read_all(made, tasks)


def test_a_truncated_log_is_noticed_although_it_has_grown(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """An offset says in which leader epoch it was read. Here epoch 0 ends at 5, and not at 8."""
    topic = new_topic(1)
    fill(client, topic, {0: 5})
    made = reader(cluster, subscribe=topic)
    end = made.latestOffset(made.initialOffset(), EVERYTHING)
    change_leader(client, cluster, topic)
    fill(client, topic, {0: 5}, first=5)
    later = made.latestOffset(end, EVERYTHING)
    assert read_all(made, made.partitions(end, later)) == expected({0: range(5, 10)})
    start = {**end, topic: {"0": 8}}
    with pytest.raises(DataLoss, match=rf"{topic}-0 was truncated to 5 .* \[5, 8\) is gone"):
        made.latestOffset(start, EVERYTHING)
    patient = reader(cluster, subscribe=topic, **CONTINUE)
    later = patient.latestOffset(start, EVERYTHING)
    assert read_all(patient, patient.partitions(start, later)) == expected({0: range(5, 10)})
    assert patient.latestOffset(later, EVERYTHING) == later


def test_batch_queries(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 10})
    delete_records(client, topic, {0: 4})
    given = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":1}}}}'}
    with pytest.raises(Exception, match=rf"offsets \[1, 4\) of partition {topic}-0 were deleted"):
        batch(spark, cluster, **given).count()
    assert values(batch(spark, cluster, **given, **CONTINUE)) == expected({0: range(4, 10)})
