"""A query of Spark's Kafka source continues under format `mqd`, and the other way round.

The checkpoint is written by hand, file by file, as Spark 4.3 and spark-sql-kafka 4.2.0 write it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from chaos.ensemble import Ensemble
from mqd.client import sync
from tests.spark.source_tools import Stream, expected, fill, reader

NewTopic = Callable[..., str]


def checkpoint_of_kafka(folder: Path, topic: str, *ends: dict[str, int], planned: int) -> None:
    """Batches that ended at `ends`; those from `planned` on were not done."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    beginning = json.dumps({topic: dict.fromkeys(ends[0], 0)}, separators=(",", ":"))
    (folder / "sources/0/0").write_text(f"v1\n{beginning}")
    for number, end in enumerate(ends):
        about = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}}
        lines = (about, {topic: end})
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        (folder / "offsets" / str(number)).write_text(f"v1\n{text}")
        if number < planned:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def last_offset(folder: Path) -> str:
    newest = max((int(each.name) for each in (folder / "offsets").glob("[0-9]*")), default=0)
    return (folder / "offsets" / str(newest)).read_text().splitlines()[-1]


def test_a_checkpoint_of_sparks_kafka_source(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """From the last offset, and a batch that was planned and not done runs again as planned."""
    topic = new_topic(2)
    fill(client, topic, {0: 30, 1: 20})
    folder = tmp_path / "ck"
    checkpoint_of_kafka(folder, topic, {"0": 10, "1": 5}, {"0": 12, "1": 9}, planned=1)
    stream = Stream(spark, cluster, folder, subscribe=topic)
    assert stream.run() == [6, 29]
    assert stream.batches[1] == expected({0: (10, 11), 1: range(5, 9)})
    assert stream.batches[2] == expected({0: range(12, 30), 1: range(9, 20)})
    assert json.loads(last_offset(folder))["__mqd"]["topics"][topic]["id"]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_first_batch_that_spark_has_not_completed(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
    fail_on_data_loss: str,
) -> None:
    """Its query began at the end of the topic, at offset 10: the file `sources/0/0` says so."""
    topic = new_topic(1)
    fill(client, topic, {0: 30})
    folder = tmp_path / "ck"
    checkpoint_of_kafka(folder, topic, {"0": 20}, planned=0)
    first = {topic: {"0": 10}}
    (folder / "sources/0/0").write_text(f"v1\n{json.dumps(first)}")
    stream = Stream(spark, cluster, folder, subscribe=topic, failOnDataLoss=fail_on_data_loss)
    with pytest.raises(Exception, match="Batch 0 was planned by an earlier run") as caught:
        stream.run(startingOffsets="latest")
    assert "would now choose offset 30" in str(caught.value)
    assert "'sources/0/0' of the checkpoint" in str(caught.value)
    assert "was changed" not in str(caught.value)
    assert stream.run(startingOffsets=json.dumps(first)) == [10, 10]
    assert stream.batches[0] == expected({0: range(10, 20)})
    assert stream.batches[1] == expected({0: range(20, 30)})


def test_a_first_batch_runs_again_from_the_earliest_offsets(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 30})
    checkpoint_of_kafka(tmp_path / "ck", topic, {"0": 20}, planned=0)
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    assert stream.run() == [20, 10]


def test_offsets_that_sparks_kafka_source_can_read(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """It refuses the key `__mqd`. One run with offsetMetadata=false leaves it out, rows or not."""
    topic = new_topic(1)
    fill(client, topic, {0: 4})
    folder = tmp_path / "ck"
    stream = Stream(spark, cluster, folder, subscribe=topic)
    assert stream.run() == [4] and "__mqd" in last_offset(folder)
    assert stream.run(offsetMetadata="false") == []
    assert json.loads(last_offset(folder)) == {topic: {"0": 4}}
    fill(client, topic, {0: 2}, first=4)
    assert stream.run(offsetMetadata="false") == [2]
    assert json.loads(last_offset(folder)) == {topic: {"0": 6}}


def test_an_unchanged_offset_is_returned_as_it_was(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """Spark compares offsets as text: a change of nothing would be a micro-batch of nothing."""
    topic = new_topic(2)
    fill(client, topic, {0: 4})
    made = reader(cluster, subscribe=topic)
    start = {topic: {"1": 0, "0": 4}}
    assert json.dumps(made.latestOffset(start, ReadAllAvailable())) == json.dumps(start)
