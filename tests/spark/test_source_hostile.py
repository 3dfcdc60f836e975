"""Records, names, options and checkpoints as nobody writes them: right rows, or one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chaos.ensemble import Ensemble
from mqd.client import sync
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record
from tests.spark.source_tools import Stream, batch, expected, fill, values
from tests.spark.test_takeover import checkpoint_of_kafka

NewTopic = Callable[..., str]
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
MESSAGE_MAX = 4_000


class Prebuilt:
    """A batch with timestamps that the client's producers refuse."""

    def __init__(self, *timestamps: int) -> None:
        self.partition = 0
        self.records = len(timestamps)
        self._records = [Record(0, each, None, b"%d" % each) for each in timestamps]
        self.data = build_batch(self._records)

    def finish(self, *identity: int, transactional: bool) -> None:
        names = ("producer_id", "producer_epoch", "base_sequence")
        given: dict[str, Any] = dict(zip(names, identity, strict=True))
        self.data = build_batch(self._records, transactional=transactional, **given)


def test_timestamps_before_1970_and_after_9999(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    """-1 is what Kafka calls no timestamp; Spark's own source shows it as a time, too."""
    topic = new_topic(1, ANY_TIME)
    stamps = (-1, -5, -62_135_596_800_001, 0, 253_402_300_800_000, 9_223_372_036_854_775)
    with client.raw_producer() as producer:
        for each in stamps:
            producer.send(topic, Prebuilt(each))
        producer.flush()
    rows = batch(spark, cluster, subscribe=topic).selectExpr("unix_millis(timestamp) AS found")
    assert [row["found"] for row in rows.collect()] == list(stamps)


def test_a_timestamp_that_spark_cannot_hold(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1, ANY_TIME)
    fill(client, topic, {0: 3})
    with client.producer() as producer:
        producer.send(topic, partition=0, value=b"0-3", timestamp=2**62)
    sentence = (
        rf"Records at offsets \[\d, 4\) of partition {topic}-0 cannot be read: "
        "a timestamp does not fit into microseconds"
    )
    with pytest.raises(Exception, match=sentence):
        batch(spark, cluster, subscribe=topic).collect()
    assert values(batch(spark, cluster, subscribe=topic, columns="value")) == expected(
        {0: range(4)}
    )


def test_nulls_and_a_hundred_thousand_headers(
    spark: SparkSession, cluster: Ensemble, client: sync.BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    many = [(f"h{number}", b"x" if number % 2 else None) for number in range(100_000)]
    with client.producer() as producer:
        producer.send(topic, partition=0, key=None, value=None, headers=many)
        producer.send(topic, partition=0, key=b"", value=b"", headers=[("", b"")])
    frame = batch(spark, cluster, subscribe=topic, includeHeaders="true").selectExpr(
        "key", "value", "size(headers) AS count", "headers[size(headers) - 1] AS last"
    )
    found = [
        (row["key"], row["value"], row["count"], tuple(row["last"])) for row in frame.collect()
    ]
    assert found == [(None, None, 100_000, ("h99999", b"x")), (b"", b"", 1, ("", b""))]


def test_a_name_of_249_characters(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    topic = (new_topic(1) + "a.b_c-" * 42)[:249]
    cluster.create_topic(topic, 2)
    fill(client, topic, {0: 3, 1: 2})
    everything = expected({0: range(3), 1: range(2)})
    assert values(batch(spark, cluster, subscribe=topic)) == everything
    assert values(batch(spark, cluster, assign=json.dumps({topic: [1]}))) == expected({1: range(2)})
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    assert stream.run() == [5] and stream.values() == everything


def ten_mb() -> str:
    return json.dumps({f"t{topic}": dict.fromkeys(range(10), 1) for topic in range(120_000)})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            lambda: {"startingOffsets": ten_mb()},
            "Partitions specified for Kafka start offsets don't match",
        ),
        (lambda: {"startingOffsets": ten_mb()[:-1]}, r"Expected e\.g\."),
        (lambda: {"startingOffsets": '{"t":{"0":NaN}}'}, r"Expected e\.g\."),
        (lambda: {"startingOffsets": "[" * 100_000}, r"Expected e\.g\."),
        (lambda: {"subscribe": "x" * 10_000_000}, "which cannot exist"),
        (lambda: {"startingTimestamp": "-1"}, "Expected a single long value, got -1"),
    ],
    ids=["10 MB", "10 MB cut off", "NaN", "deep", "10 MB of a name", "negative time"],
)
def test_hostile_options(
    spark: SparkSession,
    cluster: Ensemble,
    new_topic: NewTopic,
    options: Callable[[], dict[str, str]],
    sentence: str,
) -> None:
    with pytest.raises(Exception, match=sentence) as error:
        batch(spark, cluster, **{"subscribe": new_topic(1), **options()}).count()
    assert len(str(error.value)) < MESSAGE_MAX


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"logOffset":5}}',
         "The checkpoint holds an offset that is not of this source: {{\"logOffset\": 5}}"),
        ('v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"{t}":{{"0":NaN}}}}',
         "The checkpoint holds an offset that is not of this source"),
        ('v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"{t}":{{"0":99}}}}',
         "offset was changed from 99 to 3"),
        ('v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"none":{{"0":1}}}}',
         "partition none-0 was deleted"),
        # what Spark itself reports
        ('v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"{t}":{{"0"',
         "JSONDecodeError"),
        ("v99\n", "UnsupportedLogVersion"),
        ("\0\1", "MALFORMED_LOG_FILE"),
        ("", "Incomplete log file"),
    ],
    ids=["foreign", "NaN", "too far", "other topic", "cut off", "version", "garbage", "empty"],
)  # fmt: skip
def test_hostile_checkpoints(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
    text: str,
    sentence: str,
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 3})
    folder = tmp_path / "ck"
    checkpoint_of_kafka(folder, topic, {"0": 1}, planned=1)
    (folder / "offsets" / "0").write_text(text.format(t=topic))
    stream = Stream(spark, cluster, folder, subscribe=topic)
    stream.start()
    assert sentence.format() in stream.wait_for_failure()
