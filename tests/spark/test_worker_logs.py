"""Log records of the connector in Spark's table of Python worker logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import Row, SparkSession

from chaos.ensemble import Ensemble
from mqd.client import sync
from pyspark_mqd.sink_tasks import ARROW_BYTES
from tests.spark.source_tools import batch, delete_records, expected, fill, values

NewTopic = Callable[..., str]
LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def logs(spark: SparkSession) -> Iterator[Callable[[str], list[Row]]]:
    """The connector's records with a text. The table keeps those of the whole session."""
    spark.conf.set(LOGGING, "true")

    def found(text: str) -> list[Row]:
        table = spark.tvf.python_worker_logs()
        return table.where((table.logger == "pyspark_mqd") & table.msg.contains(text)).collect()

    yield found
    spark.conf.unset(LOGGING)


@pytest.fixture
def slow_sink(spark: SparkSession) -> Iterator[None]:
    """Spark's default, which `configure` changes."""
    configured = spark.conf.get(ARROW_BYTES)
    spark.conf.set(ARROW_BYTES, "67108864")
    yield
    assert configured is not None
    spark.conf.set(ARROW_BYTES, configured)


def test_lost_records_are_logged_by_the_planner_and_by_tasks(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    logs: Callable[[str], list[Row]],
) -> None:
    topic = new_topic(1)
    fill(client, topic, {0: 10})
    delete_records(client, topic, {0: 4})
    starts = json.dumps({topic: {"0": 1}})
    frame = batch(spark, cluster, subscribe=topic, startingOffsets=starts, failOnDataLoss="false")
    assert values(frame) == expected({0: range(4, 10)})
    gone = f"offsets [1, 4) of partition {topic}-0 were deleted"
    cluster.wait_until(lambda: len(logs(gone)) >= 2, "records of the planner and of the task")
    assert {row.level for row in logs(gone)} == {"WARNING"}
    callers = {row.context["func_name"] for row in logs(gone)}
    assert callers == {"partitions", "read_range"}


@pytest.mark.usefixtures("slow_sink")
def test_a_slow_sink_warns_once(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    logs: Callable[[str], list[Row]],
) -> None:
    """The write has four tasks in two workers; task 0 warns."""
    source, target = new_topic(4), new_topic(1)
    fill(client, source, dict.fromkeys(range(4), 5))
    sentence = "Build the session with pyspark_mqd.configure(builder)"
    frame = batch(spark, cluster, subscribe=source).select("value")
    writer = frame.write.format("mqd").mode("append").option("topic", target)
    writer.option("kafka.bootstrap.servers", cluster.bootstrap).save()
    cluster.wait_until(lambda: logs(sentence), "the warning")
    assert len(logs(sentence)) == 1
