"""How much one request may contain."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.errors import MqError
from mqd.limits import CREATED_TOPICS_MAX, DELETED_TOPICS_MAX
from tests.controller.cluster import DEFAULTS, Replica, new_topic, with_brokers


def delete(replica: Replica, *topics: TopicName) -> list[tuple[Any, ...]]:
    return [
        (row.name, row.topic_id, int(row.error_code))
        for row in replica.run(decide_delete_topics, DeleteTopics(topics))
    ]


def test_a_request_names_so_many_topics_and_no_more() -> None:
    replica = with_brokers(1)
    decisions: list[tuple[Any, Any, int]] = [
        (
            decide_create_topics,
            lambda count: CreateTopics((new_topic("t"),) * count, 1, 1),
            CREATED_TOPICS_MAX,
        ),
        (
            decide_create_partitions,
            lambda count: CreatePartitions((MorePartitions("t", 2),) * count),
            CREATED_TOPICS_MAX,
        ),
        (
            decide_delete_topics,
            lambda count: DeleteTopics((TopicName("t"),) * count),
            DELETED_TOPICS_MAX,
        ),
    ]
    for decide, op, most in decisions:
        assert len(decide(replica.image, op(most), DEFAULTS).reply) == 1
        with pytest.raises(MqError, match="POLICY_VIOLATION"):
            decide(replica.image, op(most + 1), DEFAULTS)
