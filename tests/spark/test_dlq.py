"""Dead letters on a real cluster: every style of headers, re-driven once however often it
is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition
from pyspark_mqd.pipelines.dead_letters import Choice, chosen, error_headers, sample, summary
from pyspark_mqd.pipelines.dlq import (
    _preview,
    read_dead_letters,
    start_park,
    start_redrive,
    targets,
)

CONNECT = "org.apache.kafka.connect.errors.DataException"
SPRING = "java.lang.IllegalStateException"


def connect_headers(topic: str, offset: int) -> list[tuple[str, bytes]]:
    fields = {
        "topic": topic,
        "partition": "1",
        "offset": str(offset),
        "exception.class.name": CONNECT,
        "exception.message": "bad data",
    }
    return [(f"__connect.errors.{name}", value.encode()) for name, value in fields.items()]


def spring_headers(topic: str, offset: int) -> list[tuple[str, bytes]]:
    return [
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", (1).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", offset.to_bytes(8, "big")),
        (
            "kafka_dlt-exception-fqcn",
            b"org.springframework.kafka.listener.ListenerExecutionFailedException",
        ),
        ("kafka_dlt-exception-cause-fqcn", SPRING.encode()),
        ("kafka_dlt-exception-message", b"not ready"),
    ]


def read_all(client: BlockingClient, topic: str, partitions: int) -> list[Any]:
    """Every committed record: (partition, key, value, headers)."""
    rows = []
    with client.consumer(
        {TopicPartition(topic, index): "beginning" for index in range(partitions)},
        end="end",
        read_committed=True,
    ) as consumer:
        for batch in consumer:
            rows += [
                (batch.partition, each.key, each.value, list(each.headers))
                for each in batch.records
            ]
    return sorted(rows, key=lambda row: (row[1], row[2]))


@pytest.fixture
def topics(client: BlockingClient, new_topic: Callable[..., str]) -> tuple[str, str]:
    """A topic, and its dead letters: 3 of Connect, 2 of Spring, 1 of ours, 1 without headers."""
    origin, dead = new_topic(2), new_topic(2)
    with client.producer() as producer:
        sent = [
            (b"c%d" % n, [("trace", b"t%d" % n), *connect_headers(origin, n)]) for n in range(3)
        ]
        sent += [(b"s%d" % n, spring_headers(origin, n)) for n in range(2)]
        sent.append((b"own", error_headers(ValueError("x"), origin, 0, 9)))
        sent.append((b"unknown", []))
        for key, headers in sent:
            producer.send(dead, b"value of " + key, key=key, headers=headers)
    return origin, dead


def finish(query: Any) -> None:
    assert query.awaitTermination(120)
    assert query.exception() is None


def test_dead_letters_are_grouped_and_sampled(
    spark: Any, cluster: Ensemble, topics: tuple[str, str]
) -> None:
    origin, dead = topics
    frame = read_dead_letters(spark, {"kafka.bootstrap.servers": cluster.bootstrap}, dead).cache()
    rows = [
        (row["error"], row["topic"], row["count"], row["latest_message"])
        for row in summary(frame, ["error", "topic"]).collect()
    ]
    assert rows == [
        (CONNECT, origin, 3, "bad data"),
        (SPRING, origin, 2, "not ready"),
        ("(no error header)", None, 1, None),
        ("ValueError", origin, 1, "x"),
    ]
    samples = [
        row.asDict(recursive=True) for row in sample(frame.where("error is not null"), 1).collect()
    ]
    assert [(row["error"], _preview(row)["original"]) for row in samples] == [
        ("ValueError", f"{origin}:0:9"),
        (SPRING, f"{origin}:1:1"),
        (CONNECT, f"{origin}:1:2"),
    ]
    assert targets(frame, None) == [{"topic": None, "records": 1}, {"topic": origin, "records": 6}]
    assert chosen(frame, Choice(error="State", where="key = 's0'")).count() == 1
    frame.unpersist()


def test_dead_letters_are_redriven_once_however_often_it_is_repeated(
    spark: Any, client: BlockingClient, cluster: Ensemble, topics: tuple[str, str], tmp_path: Path
) -> None:
    origin, dead = topics
    source, choice = (
        {"kafka.bootstrap.servers": cluster.bootstrap},
        Choice(error="DataException|State"),
    )
    for _ in range(2):  # the second run finds nothing new
        finish(
            start_redrive(
                spark,
                source,
                dead,
                choice,
                checkpoint=str(tmp_path),
                drop_error_headers=True,
                same_partition=True,
            )
        )
    assert read_all(client, origin, 2) == [
        *((1, b"c%d" % n, b"value of c%d" % n, [("trace", b"t%d" % n)]) for n in range(3)),
        *((1, b"s%d" % n, b"value of s%d" % n, []) for n in range(2)),
    ]


def test_the_rest_is_parked(
    spark: Any,
    client: BlockingClient,
    cluster: Ensemble,
    topics: tuple[str, str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    _, dead = topics
    source, rest = (
        {"kafka.bootstrap.servers": cluster.bootstrap},
        Choice(where="error is null or error = 'ValueError'"),
    )
    folder, parked = str(tmp_path / "parked"), new_topic(1)
    finish(start_park(spark, source, dead, rest, checkpoint=str(tmp_path / "park"), folder=folder))
    kept = (
        spark.read.parquet(folder)
        .select("key", "error", "original_offset")
        .orderBy("key")
        .collect()
    )
    assert [(bytes(row["key"]), row["error"], row["original_offset"]) for row in kept] == [
        (b"own", "ValueError", 9),
        (b"unknown", None, None),
    ]
    finish(start_park(spark, source, dead, rest, checkpoint=str(tmp_path / "topic"), topic=parked))
    assert [row[1:3] for row in read_all(client, parked, 1)] == [
        (b"own", b"value of own"),
        (b"unknown", b"value of unknown"),
    ]
