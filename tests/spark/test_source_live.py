"""Streams over topics that change while the query runs: every case with a real cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaos.ensemble import Ensemble, ensemble
from mqd.client import sync
from mqd.client.descriptions import (
    EARLIEST,
    ConfigChange,
    ConfigOperation,
    ListedOffset,
    Resource,
    ResourceType,
)
from mqd.types import TopicPartition
from tests.spark.source_tools import (
    POLLING,
    QUERY_SECONDS,
    Stream,
    batch,
    expected,
    fill,
    recreate,
    values,
    wait_for_markers,
)

NewTopic = Callable[..., str]
LONG: dict[str, Any] = {"transaction_timeout_ms": 600_000}
"""A busy machine may take longer than the default of a minute."""
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1",
}


def test_the_default_trigger_follows_the_topic_and_resumes(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """A query without a trigger runs a micro-batch as soon as there are records."""
    topic = new_topic(2)
    fill(client, topic, {0: 10})
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic)
    stream.start(None)
    stream.wait_for(lambda: stream.values() == expected({0: range(10)}))
    fill(client, topic, {1: 5})
    stream.wait_for(lambda: stream.values() == expected({0: range(10), 1: range(5)}))
    stream.stop()
    fill(client, topic, {0: 3}, first=10)
    stream.start(None)
    stream.wait_for(lambda: stream.values() == expected({0: range(13), 1: range(5)}))
    stream.stop()
    assert len(stream.values()) == 18, "no record twice"


def test_a_stream_over_a_compacted_topic(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """Gaps are no loss, although micro-batches begin, end or lie in them."""
    topic = new_topic(1, COMPACTED)
    for _ in range(4):
        fill(client, topic, {0: 5})
    until = {"endingOffsets": f'{{"{topic}":{{"0":20}}}}'}

    def is_compacted() -> bool:
        fill(client, topic, {0: 1}, first=9)  # rolls the active segment
        return batch(spark, cluster, subscribe=topic, **until).count() <= 10

    cluster.wait_until(is_compacted, "the log cleaner")
    left = values(batch(spark, cluster, subscribe=topic))
    stream = Stream(spark, cluster, tmp_path / "ck", subscribe=topic, maxOffsetsPerTrigger="3")
    rows = stream.run()
    # the cleaner goes on between the two reads: older records of a key may be gone
    assert set(stream.values()) == set(left) and sum(rows) == len(stream.values()) <= len(left)
    assert len(stream.progress) > len(rows), "no micro-batch lies in a gap"
    for _ in range(2):  # compaction continues under a query that resumes
        fill(client, topic, {0: 5}, first=20)
    stream.run()
    assert set(expected({0: range(20, 25)})) <= set(stream.values())


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_stream_over_a_transactional_topic(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
    level: str,
) -> None:
    """Aborted records, and micro-batches of markers only. An open transaction holds back a
    committed read while the query runs."""
    committed = level == "read_committed"
    topic = new_topic(1)
    fill(client, topic, {0: 1})
    stream = Stream(
        spark,
        cluster,
        tmp_path / "ck",
        subscribe=topic,
        kafka__isolation__level=level,
        maxOffsetsPerTrigger="1",
    )
    with client.transactional_producer(f"{topic}-txn", **LONG) as producer:
        for commits, numbers in ((True, (1, 2)), (False, (3, 4)), (True, (5,)), (False, (6,))):
            producer.begin()
            for number in numbers:
                producer.send(topic, partition=0, value=b"0-%d" % number)
            producer.commit() if commits else producer.abort()
        wait_for_markers(client, cluster, topic)
        stream.run()
        before = (0, 1, 2, 5) if committed else range(7)
        assert stream.values() == expected({0: before})
        producer.begin()
        producer.send(topic, partition=0, value=b"0-7")
        fill(client, topic, {0: 1}, first=8)
        stream.start(POLLING, maxOffsetsPerTrigger="100")
        if not committed:
            stream.wait_for(lambda: stream.values() == expected({0: range(9)}))
        else:
            query = stream.query
            assert query is not None
            stream.wait_for(lambda: query.lastProgress is not None)
            assert stream.values() == expected({0: before}), "read behind the last stable offset"
        producer.commit()
    stream.wait_for(lambda: stream.values() == expected({0: (*before, 7, 8)}))
    stream.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_is_recreated_while_the_query_runs(
    spark: SparkSession,
    cluster: Ensemble,
    client: sync.BlockingClient,
    new_topic: NewTopic,
    tmp_path: Path,
    fail: str,
) -> None:
    """The query fails and names the topic; with failOnDataLoss=false it reads the new one whole."""
    topic, other = new_topic(1), new_topic(1)
    fill(client, topic, {0: 5})
    fill(client, other, {0: 1}, first=50)
    stream = Stream(
        spark, cluster, tmp_path / "ck", subscribe=f"{topic},{other}", failOnDataLoss=fail
    )
    stream.start(POLLING)
    stream.wait_for(lambda: stream.values() == expected({0: [*range(5), 50]}))
    recreate(client, cluster, topic, 2)
    fill(client, topic, {0: 9, 1: 2}, first=100)
    fill(client, other, {0: 1}, first=51)
    if fail == "true":
        reason = stream.wait_for_failure()
        assert f"topic '{topic}' was deleted" in reason or f"{topic}-0 was deleted" in reason
        assert "Set option 'failOnDataLoss' to 'false'" in reason
        assert stream.values() == expected({0: [*range(5), 50]})
        return
    wanted = {0: [*range(5), 50, 51, *range(100, 109)], 1: (100, 101)}
    stream.wait_for(lambda: stream.values() == expected(wanted))
    stream.stop()


# -- retention


SEGMENT_BYTES = 1_048_576


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three nodes that apply retention every 200 ms."""
    options = ("log.retention.check.interval.ms=200",)
    nodes = ensemble("mqd", tmp_path_factory.mktemp("hasty"), 3, options=options)
    try:
        nodes.start()
        yield nodes
        nodes.stop()
    finally:
        nodes.kill()


class Slow(Stream):
    """A query whose first micro-batch ends on request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.resumed = threading.Event()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        super()._take(frame, batch_id)
        assert self.resumed.wait(QUERY_SECONDS)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_overtakes_a_running_query(
    spark: SparkSession, hasty: Ensemble, tmp_path: Path, fail: str
) -> None:
    """Retention by size deletes segments that the query has not read."""
    topic = f"overtaken-{fail}"
    tp = TopicPartition(topic, 0)
    limits = {"segment.bytes": str(SEGMENT_BYTES), "retention.bytes": "-1", "retention.ms": "-1"}
    hasty.create_topic(topic, configs=limits)
    with sync.connect(hasty.bootstrap) as client:
        with client.producer() as producer:
            for number in range(20):  # four records a segment
                key, value = bytes(SEGMENT_BYTES // 5), b"0-%d" % number
                producer.send(topic, partition=0, key=key, value=value)
        stream = Slow(
            spark,
            hasty,
            tmp_path / "ck",
            subscribe=topic,
            maxOffsetsPerTrigger="2",
            failOnDataLoss=fail,
        )
        stream.start(POLLING)
        stream.wait_for(lambda: stream.values() == expected({0: range(2)}))
        change = ConfigChange("retention.bytes", ConfigOperation.SET, str(SEGMENT_BYTES))
        resource = Resource(ResourceType.TOPIC, topic)
        assert client.admin.alter_configs({resource: [change]}) == {resource: None}

        def log_start() -> int:
            found = client.admin.list_offsets({tp: EARLIEST})[tp]
            assert isinstance(found, ListedOffset), found
            return found.offset

        hasty.wait_until(lambda: log_start() > 2, "retention")
        stream.resumed.set()
        if fail == "true":
            reason = stream.wait_for_failure()
            assert f"of partition {tp} were deleted: its log starts at" in reason
            return
        stream.wait_for(lambda: "0-19" in stream.values())
        stream.stop()
        start = log_start()
        found = stream.values()
    assert set(expected({0: range(start, 20)})) <= set(found) and len(set(found)) < 20
    assert len(found) == len(set(found)), "a record twice"
