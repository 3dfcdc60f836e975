"""`archive` on a real cluster: every record once, readable by anything, whatever crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.pipelines.archive import ArchiveConfiguration, Runner
from pyspark_mqd.pipelines.archive_layout import covered_ranges, listing
from pyspark_mqd.pipelines.cli import Failure

NOW = {"availableNow": True}


def produce(client: BlockingClient, topic: str, values: range, partitions: int = 1) -> None:
    with client.producer() as producer:
        for number in values:
            headers = [("n", b"%d" % number)] if number % 2 else []
            producer.enqueue(
                topic, b"v%d" % number, key=b"k%d" % number, partition=number % partitions,
                headers=headers,
            )  # fmt: skip
        producer.flush()


@pytest.fixture
def lake(tmp_path: Path, cluster: Ensemble) -> Callable[..., ArchiveConfiguration]:
    def configure(
        topic: str, *, checkpoint: str = "checkpoint", **source: Any
    ) -> ArchiveConfiguration:
        delta = source.pop("delta", False)
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
        options |= {"startingOffsets": "earliest", **source}
        return ArchiveConfiguration(options, tmp_path / "lake", str(tmp_path / checkpoint), delta)

    return configure


def run(spark: Any, configuration: ArchiveConfiguration) -> Runner:
    runner = Runner(configuration)
    query = runner.start(spark, NOW, name="archive-test")
    try:
        query.awaitTermination()
    except Exception:
        if runner.failure is not None:
            raise runner.failure from None
        raise
    return runner


def test_archive(
    spark: Any, client: BlockingClient, new_topic: Callable[..., str], lake: Callable[..., Any]
) -> None:
    topic = new_topic(3)
    produce(client, topic, range(3_000), 3)
    configuration = lake(topic, maxOffsetsPerTrigger="1000")
    runner = run(spark, configuration)
    assert (runner.batches, runner.records) == (4, 3_000)
    produce(client, topic, range(3_000, 3_300), 3)
    assert run(spark, configuration).records == 300
    assert run(spark, configuration).records == 0  # nothing new
    covered = covered_ranges(listing(configuration.to, [topic]))
    assert covered == {(topic, p): [(0, 1_100)] for p in range(3)}
    wanted = sorted(b"v%d" % number for number in range(3_300))
    root = str(configuration.to)

    rows = spark.read.parquet(root)
    assert {row.topic for row in rows.select("topic").distinct().collect()} == {topic}
    assert sorted(bytes(row.value) for row in rows.select("value").collect()) == wanted
    row = rows.where("decode(key, 'UTF-8') = 'k7'").collect()[0]
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("n", b"7")]
    assert rows.where("headers is null").count() == 1_650

    import duckdb
    from pyarrow import dataset

    table = dataset.dataset(root, format="parquet", partitioning="hive").to_table()
    assert sorted(table["value"].to_pylist()) == wanted
    query = f"select count(*), count(distinct value), min(topic) from '{root}/**/*.parquet'"
    answer = duckdb.sql(query)
    assert answer is not None and answer.fetchall() == [(3_300, 3_300, topic)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", ["decision", "first rename"])
def test_a_driver_that_dies_between_staging_and_rename(
    spark: Any,
    client: BlockingClient,
    new_topic: Callable[..., str],
    lake: Callable[..., Any],
    after: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(2)
    produce(client, topic, range(100), 2)
    configuration = lake(topic)
    real, left = os.replace, [1 if after == "decision" else 2]

    def replace(source: Any, target: Any) -> None:
        if left[0] == 0:
            raise OSError(5, "the driver dies here")
        left[0] -= 1
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Exception, match="the driver dies here"):
            run(spark, configuration)
    produce(client, topic, range(100, 120), 2)
    again = run(spark, configuration)  # the micro-batch runs again, then the next one
    assert again.records == 20
    values = [bytes(row.value) for row in spark.read.parquet(str(configuration.to)).collect()]
    assert sorted(values) == sorted(b"v%d" % number for number in range(120))


def test_the_last_batch_replayed(
    spark: Any, client: BlockingClient, new_topic: Callable[..., str], lake: Callable[..., Any]
) -> None:
    topic = new_topic(1)
    produce(client, topic, range(50))
    configuration = lake(topic, maxOffsetsPerTrigger="20")
    run(spark, configuration)
    commits = Path(configuration.checkpoint) / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink(missing_ok=True)
    assert run(spark, configuration).records == 0
    assert spark.read.parquet(str(configuration.to)).count() == 50


def test_a_new_checkpoint_does_not_archive_twice(
    spark: Any, client: BlockingClient, new_topic: Callable[..., str], lake: Callable[..., Any]
) -> None:
    topic = new_topic(1)
    produce(client, topic, range(10))
    run(spark, lake(topic))
    with pytest.raises(Failure, match="already has offsets"):
        run(spark, lake(topic, checkpoint="other"))


def test_delta(
    spark: Any, client: BlockingClient, new_topic: Callable[..., str], lake: Callable[..., Any]
) -> None:
    deltalake = pytest.importorskip("deltalake")
    topic = new_topic(2)
    produce(client, topic, range(100), 2)
    configuration = lake(topic, delta=True, maxOffsetsPerTrigger="60")
    assert run(spark, configuration).records == 100
    for name in ("1", ".1.crc"):
        (Path(configuration.checkpoint) / "commits" / name).unlink(missing_ok=True)
    produce(client, topic, range(100, 110), 2)
    assert run(spark, configuration).records == 10
    table = deltalake.DeltaTable(str(configuration.to))
    assert table.version() == 3  # created, then one commit for each micro-batch
    assert sorted(table.to_pyarrow_table()["value"].to_pylist()) == sorted(
        b"v%d" % number for number in range(110)
    )
