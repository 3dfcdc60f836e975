"""How much one request may contain."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.config import NodeConfig
from mqd.controller.configs import AlterConfigs, Change, ResourceChanges, decide_alter_configs
from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.delete_topics import DeleteTopics, TopicName, decide_delete_topics
from mqd.errors import MqError
from mqd.limits import (
    CONFIG_BYTES_PER_REQUEST_MAX,
    CONFIG_CHANGES_MAX,
    CREATED_TOPICS_MAX,
    DELETED_TOPICS_MAX,
)
from tests.controller.cluster import DEFAULTS, Replica, create_topics, new_topic, with_brokers

LONG = ("leader.replication.throttled.replicas", ",".join(f"{n}:1" for n in range(1_800)))
TOO_MANY = CONFIG_BYTES_PER_REQUEST_MAX // len("".join(LONG)) + 1


def delete(replica: Replica, *topics: TopicName) -> list[tuple[Any, ...]]:
    return [
        (row.name, row.topic_id, int(row.error_code))
        for row in replica.run(decide_delete_topics, DeleteTopics(topics))
    ]


def test_the_topics_of_a_request_are_bounded() -> None:
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


@pytest.mark.parametrize("validate_only", [False, True])
def test_the_bytes_of_configs_of_new_topics_are_bounded(validate_only: bool) -> None:
    replica = with_brokers(1)
    topics = tuple(new_topic(f"t{n}", 1, 1, configs=(LONG,)) for n in range(TOO_MANY))
    with pytest.raises(MqError, match="excessively large batch operation"):
        decide_create_topics(replica.image, CreateTopics(topics, 1, 1, validate_only), DEFAULTS)
    fewer = CreateTopics(topics[:-1], 1, 1, validate_only)
    decision = decide_create_topics(replica.image, fewer, DEFAULTS)
    assert not any(row.error_code for row in decision.reply)


@pytest.mark.parametrize("changed", [LONG, ("retention.ms", "1")])
def test_existing_configs_count_when_a_resource_is_altered(changed: tuple[str, str]) -> None:
    """A short request could make the controller validate the long lists of an existing resource."""
    replica = with_brokers(1)
    change = (Change(changed[0], 0, changed[1]),)
    resources = tuple(ResourceChanges(2, f"t{n}", change) for n in range(TOO_MANY))
    before = () if changed is LONG else (LONG,)
    for n in range(TOO_MANY):
        create_topics(replica, new_topic(f"t{n}", 1, 1, configs=before))
    config = NodeConfig.load()
    with pytest.raises(MqError, match="excessively large batch operation"):
        decide_alter_configs(replica.image, AlterConfigs(resources, config), DEFAULTS)
    fewer = AlterConfigs(resources[: TOO_MANY * 3 // 4], config)
    decision = decide_alter_configs(replica.image, fewer, DEFAULTS)
    assert not any(row.error_code for row in decision.reply)


def test_the_number_of_configs_of_new_topics_is_bounded() -> None:
    replica = with_brokers(1)
    configs = (("retention.ms", "1"),) * (CONFIG_CHANGES_MAX // 2)
    topics = tuple(new_topic(name, 1, 1, configs=configs) for name in "tuv")
    with pytest.raises(MqError, match=f"at most {CONFIG_CHANGES_MAX} configs"):
        decide_create_topics(replica.image, CreateTopics(topics, 1, 1), DEFAULTS)
    replica.run(decide_create_topics, CreateTopics(topics[:2], 1, 1))
    assert sorted(replica.image.topics) == ["t", "u"]
