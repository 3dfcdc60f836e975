"""Delete topics: the error codes that Apache Kafka 4.3.1 returned for the same requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.types import ZERO_UUID
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers


def delete(replica: Replica, *topics: TopicName) -> list[tuple[Any, ...]]:
    return [
        (row.name, row.topic_id, int(row.error_code))
        for row in replica.run(decide_delete_topics, DeleteTopics(topics))
    ]


def test_delete_by_name_and_by_id() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"), new_topic("b"), new_topic("c"))
    a, b = replica.image.topics["a"].topic_id, replica.image.topics["b"].topic_id
    stranger = UUID(int=5)
    assert delete(
        replica,
        TopicName("a"),
        TopicName(None, b),
        TopicName("zz"),
        TopicName(None, stranger),
    ) == [
        ("a", a, 0),
        ("b", b, 0),
        ("zz", ZERO_UUID, 3),
        (None, stranger, 100),
    ]
    assert list(replica.image.topics) == ["c"]


def test_ambiguous_deletions_are_refused() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"))
    a = replica.image.topics["a"].topic_id
    assert delete(replica, TopicName(None)) == [(None, ZERO_UUID, 42)]
    assert delete(replica, TopicName("a", a)) == [("a", a, 42)]
    assert delete(replica, TopicName("a"), TopicName("a")) == [("a", ZERO_UUID, 42)]
    assert delete(replica, TopicName(None, a), TopicName(None, a)) == [(None, a, 42)]
    assert delete(replica, TopicName("a/b"), TopicName("")) == [
        ("a/b", ZERO_UUID, 3),
        ("", ZERO_UUID, 3),
    ]
    assert "a" in replica.image.topics


def test_the_same_topic_by_id_and_by_name_is_refused() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"))
    a = replica.image.topics["a"].topic_id
    assert delete(replica, TopicName(None, a), TopicName("a")) == [("a", a, 42)]
    assert "a" in replica.image.topics


# -- grow
