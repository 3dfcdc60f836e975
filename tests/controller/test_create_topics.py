"""Create topics: the error codes that Apache Kafka 4.3.1 returned for the same requests."""

from __future__ import annotations

import pytest

from mqd.controller.brokers import ExpireSessions, decide_expire
from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.controller.create_topics import (
    CreateTopics,
    NewTopic,
    TopicCreated,
    decide_create_topics,
)
from mqd.controller.decision_options import NOT_KNOWN, DecisionOptions
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import ErrorCode
from mqd.limits import PARTITIONS_PER_REQUEST_MAX
from mqd.types import ZERO_UUID, NodeId
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers

ONE = (NodeId(1),)


def code_of(replica: Replica, *topics: NewTopic) -> list[int]:
    return [
        int(result.error_code) for result in create_topics(replica, *topics, validate_only=True)
    ]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic("t", 0), 37),
        (new_topic("t", -2), 37),
        (new_topic("t", -1), 0),
        (new_topic("t", PARTITIONS_PER_REQUEST_MAX), 0),
        (new_topic("t", PARTITIONS_PER_REQUEST_MAX + 1), 44),
        (new_topic("t", 10**6), 44),
        (new_topic("t", 2**31 - 1), 44),
        (new_topic("t", 1, 0), 38),
        (new_topic("t", 1, -2), 38),
        (new_topic("t", 1, 2), 38),
        (new_topic("t", 1, 32767), 38),
        (new_topic("t", 0, 0), 38),
        (new_topic("t", 1, 1), 0),
        (new_topic("__cluster_metadata"), 42),
        (new_topic("__consumer_offsets", 3), 0),
        (new_topic("t", assignments=((0, ONE),)), 0),
        (new_topic("t", assignments=((1, ONE), (0, ONE))), 0),
        (new_topic("t", 1, assignments=((0, ONE),)), 42),
        (new_topic("t", -1, 1, assignments=((0, ONE),)), 42),
        (new_topic("t", assignments=((0, ONE), (2, ONE))), 39),
        (new_topic("t", assignments=((1, ONE),)), 39),
        (new_topic("t", assignments=((-1, ONE),)), 39),
        (new_topic("t", assignments=((0, ONE), (0, ONE))), 39),
        (new_topic("t", assignments=((0, (NodeId(1), NodeId(1))),)), 39),
        (new_topic("t", assignments=((0, (NodeId(9),)),)), 39),
        (new_topic("t", assignments=((0, (NodeId(-1),)),)), 39),
        (new_topic("t", assignments=((0, ()),)), 39),
        (new_topic("t", assignments=((0, ONE), (1, ()))), 39),
        (new_topic("t", configs=(("retention.ms", None),)), 40),
        (new_topic("t", configs=(("nope", "1"),)), 40),
        (new_topic("t", configs=(("retention.ms", "abc"),)), 40),
        (new_topic("t", configs=(("retention.ms", "-2"),)), 40),
        (new_topic("t", configs=(("cleanup.policy", "zap"),)), 40),
        (new_topic("t", configs=(("retention.ms", "5"), ("retention.ms", "6"))), 0),
        (new_topic("t", configs=(("retention.ms", "x"), ("nope", "6"))), 40),
        (new_topic("t", configs=(("min.insync.replicas", "0"),)), 40),
    ],
)
def test_one_topic(topic: NewTopic, code: int) -> None:
    assert code_of(with_brokers(1), topic) == [code]


def test_a_mixed_list_gets_one_result_each() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("there"), new_topic("a.b"))
    results = create_topics(
        replica,
        new_topic("m1", 2),
        new_topic("m/"),
        new_topic("m2", 0),
        new_topic("there", 0),
        new_topic("a_b"),
        new_topic("twice"),
        new_topic("twice"),
        new_topic("m4"),
    )
    assert [(row.name, int(row.error_code)) for row in results] == [
        ("m1", 0),
        ("m/", 17),
        ("m2", 37),
        ("there", 36),
        ("a_b", 17),
        ("twice", 42),
        ("m4", 0),
    ]
    assert sorted(replica.image.topics) == ["a.b", "m1", "m4", "there"]
    assert (results[0].partitions, results[0].replication_factor, results[0].topic_id) == (
        2,
        1,
        replica.image.topics["m1"].topic_id,
    )
    assert all(row.topic_id == ZERO_UUID and row.error_message for row in results if row.error_code)


def test_the_partitions_of_a_request_are_counted_together() -> None:
    assert code_of(with_brokers(1), new_topic("a", 6000), new_topic("b", 6000)) == [44, 44]
    assert code_of(with_brokers(1), new_topic("a", 6000), new_topic("b", 4000)) == [0, 0]


def test_defaults_come_from_the_node_s_configuration() -> None:
    replica = with_brokers(1, 2, 3)
    op = CreateTopics((new_topic("t"),), partitions_default=6, replication_factor_default=3)
    (result,) = replica.run(decide_create_topics, op)
    assert (result.partitions, result.replication_factor) == (6, 3)
    assert sorted(p.leader for p in replica.image.topics["t"].partitions) == [1, 1, 2, 2, 3, 3]


def test_the_default_replication_factor_is_not_lowered_to_the_brokers() -> None:
    replica = with_brokers(1)
    op = CreateTopics((new_topic("t"),), partitions_default=1, replication_factor_default=3)
    (result,) = replica.run(decide_create_topics, op)
    assert result.error_code is ErrorCode.INVALID_REPLICATION_FACTOR and not replica.image.topics


def test_fenced_brokers_get_replicas_outside_the_isr() -> None:
    replica = with_brokers(1, 2, 3)
    replica.run(
        decide_expire, ExpireSessions(((NodeId(3), replica.image.brokers[NodeId(3)].epoch),))
    )
    (result,) = create_topics(replica, new_topic("t", 1, 3))
    assert result.error_code is ErrorCode.NONE
    partition = replica.image.topics["t"].partitions[0]
    assert (
        sorted(partition.replicas) == [1, 2, 3]
        and sorted(partition.isr) == [1, 2]
        and partition.leader in partition.isr
    )
    (result,) = create_topics(replica, new_topic("u", 1, 4))
    assert (result.error_code, "3 broker(s) are registered" in result.error_message) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        True,
    )


def test_no_replica_is_placed_on_fenced_brokers() -> None:
    replica = with_brokers(1, 2)
    replica.run(
        decide_expire, ExpireSessions(((NodeId(1), replica.image.brokers[NodeId(1)].epoch),))
    )
    create_topics(replica, new_topic("t", 4))
    assert {p.leader for p in replica.image.topics["t"].partitions} == {2}
    (result,) = create_topics(replica, new_topic("u", assignments=((0, ONE),)))
    assert result.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    replica.run(
        decide_expire, ExpireSessions(((NodeId(2), replica.image.brokers[NodeId(2)].epoch),))
    )
    (result,) = create_topics(replica, new_topic("u"))
    assert result.error_code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_validate_only_changes_nothing() -> None:
    replica = with_brokers(1)
    before = encode_snapshot(replica.image)
    (result,) = create_topics(replica, new_topic("t", 3), validate_only=True)
    assert (result.error_code, result.partitions) == (0, 3)
    assert encode_snapshot(replica.image) == before


# -- delete


def test_brokers_get_no_more_partitions_than_they_can_open() -> None:
    replica = with_brokers(1, 2)
    create_topics(replica, new_topic("t", 2, 2))
    options = DecisionOptions(partitions_max={NodeId(1): 4, NodeId(2): 3, NodeId(3): 0})

    def created(*topics: NewTopic) -> list[TopicCreated]:
        op = CreateTopics(topics, 1, 1, validate_only=True)
        return list(replica.run(decide_create_topics, op, options))

    both = (NodeId(1), NodeId(2))
    (refused,) = created(new_topic("a", 2, 2))
    assert refused.error_code is ErrorCode.POLICY_VIOLATION and refused.error_message is not None
    assert refused.error_message.startswith("Broker 2 has 2 partitions, and its limit of open")
    assert "allows 3: it cannot open 2 more" in refused.error_message
    codes = [row.error_code for row in created(new_topic("a", 1, 2), new_topic("b", 1, 2))]
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION], (
        "each topic counts towards the limit of the next"
    )
    on_one = new_topic("a", assignments=((0, ONE), (1, ONE)))
    assert created(on_one)[0].error_code is ErrorCode.NONE

    def grown(*replicas: tuple[NodeId, ...]) -> ErrorCode:
        growth = MorePartitions("t", 2 + len(replicas), replicas)
        op = CreatePartitions((growth,), True)
        (row,) = replica.run(decide_create_partitions, op, options)
        return ErrorCode(row.error_code)

    assert grown(both) is ErrorCode.NONE
    assert grown(both, both) is ErrorCode.POLICY_VIOLATION
    options = DecisionOptions(partitions_max={NodeId(1): NOT_KNOWN})
    assert grown(both, both) is ErrorCode.NONE


def test_brokers_get_no_more_partitions_in_memory_than_their_memory_allows() -> None:
    """Partitions on disk do not count."""
    replica = with_brokers(1)
    in_memory = (("mqd.storage", " memory "),)
    create_topics(replica, new_topic("disk", 5), new_topic("t", 2, configs=in_memory))
    options = DecisionOptions(memory_partitions_max={NodeId(1): 4})

    def created(*topics: NewTopic) -> list[TopicCreated]:
        op = CreateTopics(topics, 1, 1, validate_only=True)
        return list(replica.run(decide_create_topics, op, options))

    (refused,) = created(new_topic("a", 3, configs=in_memory))
    assert refused.error_code is ErrorCode.POLICY_VIOLATION and refused.error_message is not None
    assert "has 2 partitions in memory, and its memory allows 4" in refused.error_message
    two, one = new_topic("a", 2, configs=in_memory), new_topic("b", 1, configs=in_memory)
    codes = [row.error_code for row in created(two, one, new_topic("c", 9))]
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]

    def grown(name: str, count: int) -> ErrorCode:
        op = CreatePartitions((MorePartitions(name, count),), True)
        (row,) = replica.run(decide_create_partitions, op, options)
        return ErrorCode(row.error_code)

    assert grown("t", 4) is ErrorCode.NONE
    assert grown("t", 5) is ErrorCode.POLICY_VIOLATION
    assert grown("disk", 50) is ErrorCode.NONE
