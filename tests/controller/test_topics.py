"""Create, delete, grow: the codes of Apache Kafka 4.3.1, asked of it with the same requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mqd.config import NodeConfig
from mqd.controller import topics as t
from mqd.controller.brokers import ExpireSessions, decide_expire
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import ErrorCode, MqError
from mqd.limits import CREATED_TOPICS_MAX, DELETED_TOPICS_MAX, PARTITIONS_PER_REQUEST_MAX
from mqd.types import ZERO_UUID, NodeId
from tests.controller.cluster import DEFAULTS, Replica, create_topics, new_topic, with_brokers

ONE = (NodeId(1),)


def code_of(replica: Replica, *topics: t.NewTopic) -> list[int]:
    return [
        int(result.error_code) for result in create_topics(replica, *topics, validate_only=True)
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "nul\0x", "é", "a b", "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(MqError) as refusal:
        t.validate_topic_name(name)
    assert refusal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(with_brokers(1), new_topic(name)) == [17]


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "A-Za_z0.9"])
def test_names_that_are_good(name: str) -> None:
    t.validate_topic_name(name)


@pytest.mark.parametrize(
    ("wish", "code"),
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
def test_one_wish(wish: t.NewTopic, code: int) -> None:
    assert code_of(with_brokers(1), wish) == [code]


def test_a_mixed_list_gets_one_answer_each() -> None:
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


def test_the_defaults_are_the_nodes() -> None:
    replica = with_brokers(1, 2, 3)
    op = t.CreateTopics((new_topic("t"),), partitions_default=6, replication_factor_default=3)
    (result,) = replica.run(t.decide_create_topics, op)
    assert (result.partitions, result.replication_factor) == (6, 3)
    assert sorted(p.leader for p in replica.image.topics["t"].partitions) == [1, 1, 2, 2, 3, 3]


def test_the_default_number_of_replicas_is_not_lowered_to_who_is_registered_by_now() -> None:
    replica = with_brokers(1)
    op = t.CreateTopics((new_topic("t"),), partitions_default=1, replication_factor_default=3)
    (result,) = replica.run(t.decide_create_topics, op)
    assert result.error_code is ErrorCode.INVALID_REPLICATION_FACTOR and not replica.image.topics


def test_brokers_that_are_down_hold_replicas_and_are_not_in_sync() -> None:
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


def test_nothing_is_placed_on_the_fenced() -> None:
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


def delete(replica: Replica, *wishes: t.TopicName) -> list[tuple[Any, ...]]:
    return [
        (row.name, row.topic_id, int(row.error_code))
        for row in replica.run(t.decide_delete_topics, t.DeleteTopics(wishes))
    ]


def test_delete_by_name_and_by_id() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"), new_topic("b"), new_topic("c"))
    a, b = replica.image.topics["a"].topic_id, replica.image.topics["b"].topic_id
    stranger = UUID(int=5)
    assert delete(
        replica,
        t.TopicName("a"),
        t.TopicName(None, b),
        t.TopicName("zz"),
        t.TopicName(None, stranger),
    ) == [
        ("a", a, 0),
        ("b", b, 0),
        ("zz", ZERO_UUID, 3),
        (None, stranger, 100),
    ]
    assert list(replica.image.topics) == ["c"]


def test_delete_refuses_what_is_unclear() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"))
    a = replica.image.topics["a"].topic_id
    assert delete(replica, t.TopicName(None)) == [(None, ZERO_UUID, 42)]
    assert delete(replica, t.TopicName("a", a)) == [("a", a, 42)]
    assert delete(replica, t.TopicName("a"), t.TopicName("a")) == [("a", ZERO_UUID, 42)]
    assert delete(replica, t.TopicName(None, a), t.TopicName(None, a)) == [(None, a, 42)]
    assert delete(replica, t.TopicName("a/b"), t.TopicName("")) == [
        ("a/b", ZERO_UUID, 3),
        ("", ZERO_UUID, 3),
    ]
    assert "a" in replica.image.topics


def test_the_same_topic_by_id_and_by_name_is_refused() -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("a"))
    a = replica.image.topics["a"].topic_id
    assert delete(replica, t.TopicName(None, a), t.TopicName("a")) == [("a", a, 42)]
    assert "a" in replica.image.topics


# -- grow


def grow(
    replica: Replica, *wishes: t.MorePartitions, validate_only: bool = False
) -> list[tuple[str, int]]:
    op = t.CreatePartitions(wishes, validate_only)
    return [(row.name, int(row.error_code)) for row in replica.run(t.decide_create_partitions, op)]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (t.MorePartitions("t", 2), 37),
        (t.MorePartitions("t", 1), 37),
        (t.MorePartitions("t", -1), 37),
        (t.MorePartitions("nope", 5), 3),
        (t.MorePartitions("a/b", 5), 3),
        (t.MorePartitions("t", 3), 0),
        (t.MorePartitions("t", 10_002), 0),
        (t.MorePartitions("t", 10_003), 44),
        (t.MorePartitions("t", 3, (ONE,)), 0),
        (t.MorePartitions("t", 4, (ONE,)), 39),
        (t.MorePartitions("t", 3, (ONE, ONE)), 39),
        (t.MorePartitions("t", 3, ()), 39),
        (t.MorePartitions("t", 3, ((NodeId(7),),)), 39),
        (t.MorePartitions("t", 3, ((NodeId(1), NodeId(1)),)), 39),
        (t.MorePartitions("t", 3, ((),)), 39),
    ],
)
def test_one_growth(wish: t.MorePartitions, code: int) -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    assert grow(replica, wish, validate_only=True) == [(wish.name, code)]
    assert len(replica.image.topics["t"].partitions) == 2


def test_internal_topics_keep_their_number_of_partitions() -> None:
    """By it goes which of them keeps a group: with another, every group would be looked for
    where it is not.
    """
    replica = with_brokers(1)
    create_topics(
        replica, new_topic("__consumer_offsets", 50), new_topic("__transaction_state", 50)
    )
    assert grow(
        replica,
        t.MorePartitions("__consumer_offsets", 51),
        t.MorePartitions("__transaction_state", 60),
    ) == [
        ("__consumer_offsets", 17),
        ("__transaction_state", 17),
    ]


def test_growth_goes_on_where_the_circle_stopped() -> None:
    replica = with_brokers(1, 2, 3)
    create_topics(replica, new_topic("t", 2), new_topic("u", 1))
    assert grow(
        replica, t.MorePartitions("t", 6), t.MorePartitions("u", 1), t.MorePartitions("x", 9)
    ) == [("t", 0), ("u", 37), ("x", 3)]
    assert sorted(p.leader for p in replica.image.topics["t"].partitions) == [1, 1, 2, 2, 3, 3]
    assert grow(replica, t.MorePartitions("t", 8), t.MorePartitions("t", 9)) == [("t", 42)]


def test_a_request_names_so_many_topics_and_no_more() -> None:
    replica = with_brokers(1)
    decisions: list[tuple[Any, Any, int]] = [
        (
            t.decide_create_topics,
            lambda count: t.CreateTopics((new_topic("t"),) * count, 1, 1),
            CREATED_TOPICS_MAX,
        ),
        (
            t.decide_create_partitions,
            lambda count: t.CreatePartitions((t.MorePartitions("t", 2),) * count),
            CREATED_TOPICS_MAX,
        ),
        (
            t.decide_delete_topics,
            lambda count: t.DeleteTopics((t.TopicName("t"),) * count),
            DELETED_TOPICS_MAX,
        ),
    ]
    for decide, op, most in decisions:
        assert len(decide(replica.image, op(most), DEFAULTS).reply) == 1
        with pytest.raises(MqError, match="POLICY_VIOLATION"):
            decide(replica.image, op(most + 1), DEFAULTS)


def test_the_log_of_transactions_needs_no_more_replicas_in_sync_than_it_has() -> None:
    for nodes, wanted in ((1, ("1", 1)), (2, ("2", 2)), (5, ("2", 3))):
        row = t.new_topic_request("__transaction_state", NodeConfig.load(), nodes)
        configs = {one["name"]: one["value"] for one in row["configs"]}
        assert (configs["min.insync.replicas"], row["replication_factor"]) == wanted
        assert (configs["cleanup.policy"], configs["unclean.leader.election.enable"]) == (
            "compact",
            "false",
        )
        assert row["num_partitions"] == 50
