"""Mode atomic-batch in a Spark session: restarts, failing tasks, replays, batch writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.atomic_batch import unknown_query
from pyspark_mqd.checkpoint_files import query_id_of
from pyspark_mqd.transaction_ids import identity_of
from tests.spark.reading import open_transactions, values_in
from tests.spark.streams import Stream, fill, query_id_of_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewTopic = Callable[..., str]


@pytest.fixture
def stream(spark: SparkSession, cluster: Ensemble, new_topic: NewTopic, tmp_path: Path) -> Stream:
    options = {"deliveryGuarantee": "atomic-batch"}
    return Stream(spark, cluster, new_topic(8), new_topic(3), tmp_path / "checkpoint", options)


def test_eight_tasks_into_three_partitions_with_restarts(
    client: BlockingClient, stream: Stream
) -> None:
    fill(client, stream.source, range(1_600), 8)
    stream.run(maxOffsetsPerTrigger="800")
    fill(client, stream.source, range(1_600, 2_000), 8)
    stream.run()

    assert values_in(client, stream.target) == values_in(client, stream.source)
    query = identity_of(query_id_of_checkpoint(stream.checkpoint))
    assert open_transactions(client, query) == []


@pytest.mark.slow
def test_failing_tasks_and_a_replayed_batch(client: BlockingClient, stream: Stream) -> None:
    fill(client, stream.source, range(800), 8)
    with pytest.raises(Exception, match="this task fails"):
        stream.run(fail_on=b"value-700")
    assert values_in(client, stream.target, stable=False) == []

    stream.run(value="concat(cast(value as string), '-', uuid())")
    stream.forget_commit(0)
    stream.run(value="concat(cast(value as string), '-', uuid())")
    names = [b"-".join(value.split(b"-")[:2]) for value in values_in(client, stream.target)]
    assert sorted(names) == values_in(client, stream.source)


@pytest.mark.slow
def test_an_older_checkpoint_with_a_source_that_has_grown_loses_nothing_silently(
    client: BlockingClient, stream: Stream, tmp_path: Path
) -> None:
    fill(client, stream.source, range(10), 8)
    stream.run()
    with stream.older_checkpoint(tmp_path / "newest"):
        fill(client, stream.source, range(10, 20), 8)
        stream.run()
    fill(client, stream.source, range(20, 100), 8)
    with pytest.raises(Exception, match=r"with 10 rows .* has 90 rows .*restore the newest one"):
        stream.run()
    query = identity_of(query_id_of_checkpoint(stream.checkpoint))
    assert open_transactions(client, query) == []
    assert len(values_in(client, stream.target)) == 20

    shutil.rmtree(stream.checkpoint)
    (tmp_path / "newest").rename(stream.checkpoint)
    stream.run()
    assert values_in(client, stream.target) == values_in(client, stream.source)


def test_a_batch_write_is_visible_at_once_and_once(
    spark: SparkSession, cluster: Ensemble, client: BlockingClient, new_topic: NewTopic
) -> None:
    topic = new_topic(3)

    def write(**options: str) -> None:
        data = spark.range(0, 400, 1, 4).selectExpr("cast(id as string) as value")
        (
            data.write.format("mqd")
            .mode("append")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", topic)
            .option("deliveryGuarantee", "atomic-batch")
            .options(**options)
            .save()
        )

    job = f"job-{topic[-8:]}-x"
    write(exactlyOnceId=job)
    with pytest.raises(Exception, match="is complete: its rows are in the topic"):
        write(exactlyOnceId=job)
    assert values_in(client, topic) == sorted(b"%d" % number for number in range(400))
    write()
    assert len(values_in(client, topic)) == 800


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_the_id_of_a_query_is_in_its_checkpoint(tmp_path: Path, form: str) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "abc"}))

    assert query_id_of(form.format(tmp_path)) == "abc"


@pytest.mark.parametrize("checkpoint", [None, "", "s3a://bucket/checkpoint", "/nowhere/at/all"])
def test_a_checkpoint_elsewhere_needs_a_name(checkpoint: str | None) -> None:
    assert query_id_of(checkpoint) is None
    assert "Set option 'exactlyOnceId'" in str(unknown_query(checkpoint))
