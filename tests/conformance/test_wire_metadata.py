"""Metadata with auto-creation, DescribeCluster, DescribeTopicPartitions, FindCoordinator."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from .conftest import Broker
from .wire import Wire, create_topic, has_leaders, metadata, topic_id, until

NONE, UNKNOWN_TOPIC_OR_PARTITION, COORDINATOR_NOT_AVAILABLE, INVALID_TOPIC, INVALID_REQUEST = (
    0,
    3,
    15,
    17,
    42,
)
UNKNOWN_TOPIC_ID, MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 100, 114, 115


@pytest.mark.parametrize("version", range(14))
def test_every_version(
    wire: Wire, broker: Broker, new_name: Callable[[], str], version: int
) -> None:
    name = create_topic(wire, new_name(), partitions=2)
    answer = metadata(wire, [name], version=version)
    assert sorted((node.host, node.port) for node in answer.brokers) == broker.addresses
    assert {node.rack for node in answer.brokers} == {None}
    (leader,) = (node.node_id for node in answer.brokers if node.port == broker.port)
    everyone = sorted(node.node_id for node in answer.brokers)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (NONE, name)
    assert not topic.is_internal
    assert sorted(p.partition_index for p in topic.partitions) == [0, 1]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (NONE, leader)
        assert (sorted(partition.replica_nodes), sorted(partition.isr_nodes)) == (
            everyone,
            everyone,
        )
        if version >= 7:
            assert partition.leader_epoch == 0
    if version >= 1:
        assert answer.controller_id in everyone
    if version >= 2:
        assert answer.cluster_id
    if version >= 10:
        assert topic.topic_id.int != 0
    if version >= 8:
        assert topic.authorized_operations in (-(2**31), set(), None) or isinstance(
            topic.authorized_operations, set
        )


def test_all_and_no_topics(wire: Wire, topic: str) -> None:
    assert topic in {row.name for row in metadata(wire, None).topics}
    assert topic in {row.name for row in metadata(wire, [], version=0).topics}, (
        "in version 0 an empty list means all"
    )
    assert metadata(wire, [], version=1).topics == []
    assert metadata(wire, [], version=12).topics == []


def test_topics_by_id(wire: Wire, topic: str) -> None:
    identity = topic_id(wire, topic)
    answer = wire.ask(
        "Metadata",
        12,
        topics=[{"topic_id": identity, "name": None}, {"topic_id": uuid.uuid4(), "name": None}],
    )
    rows = {row.topic_id == identity: row for row in answer.topics}
    assert (rows[True].error_code, rows[True].name) == (NONE, topic)
    assert (rows[False].error_code, rows[False].name) == (UNKNOWN_TOPIC_ID, None)


def test_unknown_topics_are_not_created_without_a_request(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    for version in (4, 8, 12):
        for _ in range(2):
            (row,) = metadata(wire, [name], version=version).topics
            assert (row.error_code, row.name, row.partitions) == (
                UNKNOWN_TOPIC_OR_PARTITION,
                name,
                [],
            )


@pytest.mark.parametrize("version", [0, 1, 3, 4, 8, 12])
def test_auto_creation(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    """Below version 4 there is no flag: the request is enough.

    The first response is error 3, as if the topic were not being created.
    """
    name = new_name()
    (row,) = metadata(wire, [name], version=version, create=True).topics
    assert row.error_code == UNKNOWN_TOPIC_OR_PARTITION
    until(lambda: has_leaders(wire, name, 1), "the topic")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "nul\0", "ä", "a b"])
def test_invalid_names(wire: Wire, name: str) -> None:
    for create in (False, True):
        (row,) = metadata(wire, [name], create=create).topics
        assert row.error_code == INVALID_TOPIC


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(wire: Wire, broker: Broker, version: int) -> None:
    answer = wire.ask("DescribeCluster", version, endpoint_type=1)
    assert answer.error_code == NONE
    assert sorted((node.host, node.port) for node in answer.brokers) == broker.addresses
    assert {node.rack for node in answer.brokers} == {None}
    assert answer.controller_id in {node.broker_id for node in answer.brokers}
    assert answer.cluster_id == metadata(wire, []).cluster_id


def test_describe_cluster_endpoint_types(wire: Wire) -> None:
    assert wire.ask("DescribeCluster", 1, endpoint_type=2).error_code == MISMATCHED_ENDPOINT_TYPE
    assert wire.ask("DescribeCluster", 1, endpoint_type=9).error_code == UNSUPPORTED_ENDPOINT_TYPE


def test_describe_topic_partitions_pages(wire: Wire, new_name: Callable[[], str]) -> None:
    base = new_name()
    names = sorted(create_topic(wire, f"{base}-{letter}", partitions=3) for letter in "ab")
    missing = new_name()

    def page(
        cursor: dict[str, object] | None, limit: int
    ) -> tuple[list[tuple[str, int]], dict[str, object] | None]:
        answer = wire.ask(
            "DescribeTopicPartitions",
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        seen = [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        assert {topic.error_code for topic in answer.topics} <= {NONE}
        following = answer.next_cursor
        return seen, following and {
            "topic_name": following.topic_name,
            "partition_index": following.partition_index,
        }

    everything = [(name, partition) for name in names for partition in range(3)]
    assert page(None, 2000) == (everything, None)
    seen, cursor = page(None, 4)
    assert (seen, cursor) == (everything[:4], {"topic_name": names[1], "partition_index": 1})
    assert page(cursor, 4) == (everything[4:], None)
    answer = wire.ask(
        "DescribeTopicPartitions",
        0,
        topics=[{"name": missing}],
        response_partition_limit=10,
        cursor=None,
    )
    assert [(row.name, row.error_code) for row in answer.topics] == [
        (missing, UNKNOWN_TOPIC_OR_PARTITION)
    ]


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(wire: Wire, broker: Broker, version: int) -> None:
    """It may return "not yet" while the coordinator's topic is being created; then it names a node
    that responds.
    """

    def ask() -> tuple[str, int] | None:
        keys = {"key": "some-group"} if version < 4 else {"coordinator_keys": ["some-group"]}
        answer = wire.ask("FindCoordinator", version, key_type=0, **keys)
        row = answer if version < 4 else answer.coordinators[0]
        assert row.error_code in (NONE, COORDINATOR_NOT_AVAILABLE), row
        return (row.host, row.port) if row.error_code == NONE else None

    assert until(ask, "a coordinator") in broker.addresses


def test_find_coordinator_of_an_unknown_kind(wire: Wire) -> None:
    assert wire.ask("FindCoordinator", 3, key="x", key_type=9).error_code == INVALID_REQUEST
