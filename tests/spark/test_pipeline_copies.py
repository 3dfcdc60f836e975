"""`mirror` and `replay` on a real cluster: values, keys, headers, timestamps, partitions, order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition
from pyspark_mqd.pipelines import mirror, mirror_target, replay
from pyspark_mqd.pipelines.archive import ArchiveConfiguration, Runner
from pyspark_mqd.pipelines.cli import Failure, Settings
from pyspark_mqd.pipelines.replay_read import Bounds, tasks_of
from pyspark_mqd.pipelines.session import EXACTLY_ONCE

NOW = {"availableNow": True}
Record = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def produce(client: BlockingClient, topic: str, values: range, partitions: int) -> None:
    begun = int(time.time() * 1_000) - 1_000_000
    with client.producer() as producer:
        for number in values:
            headers = [("n", b"%d" % number), ("null", None)] if number % 3 == 0 else []
            producer.enqueue(
                topic,
                None if number % 7 == 0 else b"v%d" % number,
                key=b"k%d" % (number % 10),
                partition=number % partitions,
                headers=headers,
                timestamp=begun + number,
            )
        producer.flush()


def records(client: BlockingClient, topic: str, partitions: int) -> dict[int, list[Record]]:
    """All committed records of a topic, by partition, in order."""
    found: dict[int, list[Record]] = {p: [] for p in range(partitions)}
    start = {TopicPartition(topic, p): 0 for p in found}
    with client.consumer(start, end="end", read_committed=True) as consumer:
        for batch in consumer:
            for each in batch.records:
                headers = tuple((name, value) for name, value in each.headers)
                found[batch.partition].append((each.key, each.value, headers, each.timestamp))
    return found


def test_mirror(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    for name, value in EXACTLY_ONCE.items():
        spark.conf.set(name, value)
    source = new_topic(3)
    target = f"copy.{source}"
    produce(client, source, range(600), 3)
    configuration = mirror_target.MirrorConfiguration(
        {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": source,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": "250",
        },
        {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "deliveryGuarantee": "exactly-once",
            "markerTopic": target,
            "timestampColumn": "timestamp",
        },
        str(tmp_path / "checkpoint"),
        prefix="copy.",
    )
    assert mirror_target.prepare_target(client, configuration, {source: 3}) == [target]
    assert mirror_target.prepare_target(client, configuration, {source: 3}) == []
    mirror.start(spark, configuration, NOW).awaitTermination()
    produce(client, source, range(600, 700), 3)
    for name in ("2", ".2.crc"):  # the last micro-batch runs again
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    mirror.start(spark, configuration, NOW).awaitTermination()
    assert records(client, target, 3) == records(client, source, 3)

    by_key = replace(configuration, same_partitions=False)
    assert mirror_target.prepare_target(client, by_key, {source: 5}) == []
    assert mirror_target.prepare_target(client, configuration, {source: 5}) == [target]
    assert len(records(client, target, 5)) == 5
    assert mirror_target.prepare_target(client, configuration, {source: 4}) == []


def test_replay(
    spark: Any,
    cluster: Ensemble,
    client: BlockingClient,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target, other = new_topic(3), new_topic(3), new_topic(2)
    produce(client, source, range(300), 3)
    bootstrap = {"kafka.bootstrap.servers": cluster.bootstrap}
    options = {**bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    options["maxOffsetsPerTrigger"] = "100"
    lake = ArchiveConfiguration(options, tmp_path / "lake", str(tmp_path / "checkpoint"))
    Runner(lake).start(spark, NOW).awaitTermination()
    files = replay.archived_files(tmp_path / "lake", source, delta=False)

    def run(topic: str, bounds: Bounds, **more: Any) -> int:
        tasks = tuple(tasks_of(files, bounds))
        return replay.run(
            spark, replay.ReplayConfiguration(tasks, bounds, bootstrap, topic, **more)
        )

    assert run(target, Bounds()) == 300
    assert records(client, target, 3) == records(client, source, 3)
    assert run(other, Bounds(10, 20), same_partitions=False, rate=1_000.0) == 30
    assert sum(len(found) for found in records(client, other, 2).values()) == 30

    settings = Settings(bootstrap=cluster.bootstrap)
    with pytest.raises(Failure, match="confirmation"):
        replay.check_target(settings, target, 3, yes=False)
    replay.check_target(settings, target, 3, yes=True)
    with pytest.raises(Failure, match="has 2 partitions"):
        replay.check_target(settings, other, 3, yes=True)


def test_replay_refuses_before_it_starts_spark(tmp_path: Path) -> None:
    done = CliRunner().invoke(replay.command, ["--from", str(tmp_path), "--topic", "t"])
    assert isinstance(done.exception, Failure)
