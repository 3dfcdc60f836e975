"""Topics by weight: the pure order, and the consumer."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from mqd.client.cluster import connect
from mqd.client.consumer import open_consumer
from mqd.client.errors import InvalidType, InvalidValue
from mqd.client.topic_weights import TopicWeights, check_weights
from mqd.types import TopicPartition
from tests.client.fake import FakeCluster
from tests.client.test_consumer import fill


def test_records_are_taken_in_the_ratio_of_the_weights_whatever_the_batches() -> None:
    weights = TopicWeights({"urgent": 8, "normal": 2})
    taken: Counter[str] = Counter()
    for _ in range(2000):
        topic = weights.choose(["normal", "other", "urgent"])
        size = {"urgent": 3, "normal": 7, "other": 1}[topic]
        weights.taken(topic, size)
        taken[topic] += size
    total = sum(taken.values())
    for topic, weight in (("urgent", 8), ("normal", 2), ("other", 1)):
        assert abs(taken[topic] / total - weight / 11) < 0.01, taken


def test_a_topic_without_records_saves_nothing_up() -> None:
    weights = TopicWeights({"urgent": 4})
    for _ in range(1000):
        weights.taken(weights.choose(["normal"]), 1)
    order = []
    for _ in range(10):
        topic = weights.choose(["normal", "urgent"])
        weights.taken(topic, 1)
        order.append(topic)
    assert order.count("normal") == 2


def test_empty_batches_block_nothing() -> None:
    weights = TopicWeights({"a": 5})
    weights.taken(weights.choose(["a", "b"]), 0)
    weights.taken(weights.choose(["a", "b"]), 10)
    assert weights.choose(["a", "b"]) == "b"


def test_wrong_weights_are_refused() -> None:
    check_weights("weights", None)
    for wrong in ({"a": 0}, {"a": 1_000_001}, {"a b": 1}):
        with pytest.raises(InvalidValue):
            check_weights("weights", wrong)
    for wrong_type in (["a"], {"a": 1.5}, {1: 1}):
        with pytest.raises(InvalidType):
            check_weights("weights", wrong_type)


async def test_a_consumer_reads_by_weight_and_misses_nothing(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    for topic in ("urgent", "normal"):
        cluster.add_topic(topic, 2)
        for index in range(2):
            fill(cluster.partition(TopicPartition(topic, index)), 40, each=1)
    start = {TopicPartition(topic, index): 0 for topic in ("urgent", "normal") for index in (0, 1)}
    order: list[str] = []
    async with (
        connect([("fake", 9001)], network=cluster) as client,
        open_consumer(client, start, end="end", weights={"urgent": 4, "normal": 1}) as consumer,
    ):
        await trio.testing.wait_all_tasks_blocked()
        async for batch in consumer:
            order += [batch.topic] * len(batch.records)
    assert Counter(order) == {"urgent": 80, "normal": 80}
    assert order[:100].count("normal") <= 25
