"""Add partitions: the error codes that Apache Kafka 4.3.1 returned for the same requests."""

from __future__ import annotations

import pytest

from mqd.controller.create_partitions import (
    CreatePartitions,
    MorePartitions,
    decide_create_partitions,
)
from mqd.types import NodeId
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers

ONE = (NodeId(1),)


def grow(
    replica: Replica, *growths: MorePartitions, validate_only: bool = False
) -> list[tuple[str, int]]:
    op = CreatePartitions(growths, validate_only)
    return [(row.name, int(row.error_code)) for row in replica.run(decide_create_partitions, op)]


@pytest.mark.parametrize(
    ("growth", "code"),
    [
        (MorePartitions("t", 2), 37),
        (MorePartitions("t", 1), 37),
        (MorePartitions("t", -1), 37),
        (MorePartitions("nope", 5), 3),
        (MorePartitions("a/b", 5), 3),
        (MorePartitions("t", 3), 0),
        (MorePartitions("t", 10_002), 0),
        (MorePartitions("t", 10_003), 44),
        (MorePartitions("t", 3, (ONE,)), 0),
        (MorePartitions("t", 4, (ONE,)), 39),
        (MorePartitions("t", 3, (ONE, ONE)), 39),
        (MorePartitions("t", 3, ()), 39),
        (MorePartitions("t", 3, ((NodeId(7),),)), 39),
        (MorePartitions("t", 3, ((NodeId(1), NodeId(1)),)), 39),
        (MorePartitions("t", 3, ((),)), 39),
    ],
)
def test_one_growth(growth: MorePartitions, code: int) -> None:
    replica = with_brokers(1)
    create_topics(replica, new_topic("t", 2))
    assert grow(replica, growth, validate_only=True) == [(growth.name, code)]
    assert len(replica.image.topics["t"].partitions) == 2


def test_internal_topics_keep_their_number_of_partitions() -> None:
    """The number of partitions decides which of them keeps a group. With another number, the
    coordinator of existing groups would change.
    """
    replica = with_brokers(1)
    create_topics(
        replica, new_topic("__consumer_offsets", 50), new_topic("__transaction_state", 50)
    )
    assert grow(
        replica,
        MorePartitions("__consumer_offsets", 51),
        MorePartitions("__transaction_state", 60),
    ) == [
        ("__consumer_offsets", 17),
        ("__transaction_state", 17),
    ]


def test_new_partitions_continue_the_round_of_brokers() -> None:
    replica = with_brokers(1, 2, 3)
    create_topics(replica, new_topic("t", 2), new_topic("u", 1))
    assert grow(
        replica, MorePartitions("t", 6), MorePartitions("u", 1), MorePartitions("x", 9)
    ) == [("t", 0), ("u", 37), ("x", 3)]
    assert sorted(p.leader for p in replica.image.topics["t"].partitions) == [1, 1, 2, 2, 3, 3]
    assert grow(replica, MorePartitions("t", 8), MorePartitions("t", 9)) == [("t", 42)]
