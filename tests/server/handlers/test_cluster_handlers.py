"""Elections, reassignments, unregistering and features in the wire format, and requests that only
nodes may send.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mqd.controller.brokers import Heartbeat, Register
from mqd.errors import ErrorCode
from mqd.limits import REFUSED_PARTITIONS_NAMED_MAX
from mqd.types import NodeId
from tests.controller.cluster import CLUSTER
from tests.server.handlers.node import FakeNode, running_node

TWO = NodeId(2)


async def second(node: FakeNode) -> int:
    epoch: int = await node.controller.register(
        Register(TWO, CLUSTER, UUID(int=2), "two", 9092, "r2")
    )
    await node.controller.heartbeat(Heartbeat(TWO, epoch, node.image.index))
    return epoch


async def elect(node: FakeNode, kind: int, rows: list[Any] | None, version: int = 2) -> Any:
    return await node.request(
        "elect_leaders", version, election_type=kind, topic_partitions=rows, timeout_ms=1000
    )


async def move(
    node: FakeNode, replicas: list[int] | None, partition: int = 0, version: int = 1, **rest: Any
) -> Any:
    topics = [{"name": "t", "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    response = await node.request(
        "alter_partition_reassignments", version, timeout_ms=1000, topics=topics, **rest
    )
    assert response.error_code == 0
    return response.responses[0].partitions[0]


async def moves(node: FakeNode, topics: list[Any] | None = None) -> list[Any]:
    response = await node.request("list_partition_reassignments", 0, timeout_ms=1000, topics=topics)
    return [
        (
            topic.name,
            row.partition_index,
            list(row.replicas),
            list(row.adding_replicas),
            list(row.removing_replicas),
        )
        for topic in response.topics
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_error_for_a_long_list_of_elections_is_short(version: int) -> None:
    """The response was 17 times as long as the request: twenty connections made a node encode for
    seconds, and hold hundreds of megabytes.
    """
    async with running_node() as node:
        response = await elect(
            node, 0, [{"topic": "t", "partitions": list(range(99_000))}], version
        )
        if version >= 1:
            assert response.error_code == ErrorCode.POLICY_VIOLATION
        (row,) = response.replica_election_results
        assert {p.error_code for p in row.partition_result} == {ErrorCode.POLICY_VIOLATION}
        assert len(row.partition_result) == REFUSED_PARTITIONS_NAMED_MAX


async def test_elections() -> None:
    async with running_node() as node:
        epoch = await second(node)
        await node.create("t", partitions=2, factor=2)
        (led_by_two,) = [
            i for i, p in enumerate(node.image.topics["t"].partitions) if p.leader == TWO
        ]
        rows = [{"topic": "t", "partitions": [0, 1, 7]}, {"topic": "none", "partitions": [0]}]
        response = await elect(node, 0, rows)
        got = {
            (r.topic, p.partition_id): p.error_code
            for r in response.replica_election_results
            for p in r.partition_result
        }
        assert got == {("t", 0): 84, ("t", 1): 84, ("t", 7): 3, ("none", 0): 3}
        (row,) = (await elect(node, 0, None)).replica_election_results
        assert (row.topic, list(row.partition_result)) == ("t", [])
        await node.controller.heartbeat(Heartbeat(TWO, epoch, node.image.index, want_fence=True))
        (row,) = (await elect(node, 0, None, version=0)).replica_election_results
        assert [(p.partition_id, p.error_code) for p in row.partition_result] == [(led_by_two, 80)]
        assert (await elect(node, 5, None)).error_code == ErrorCode.INVALID_REQUEST


async def test_an_unclean_election_takes_any_live_replica() -> None:
    async with running_node(min_insync_replicas="1") as node:
        epoch = await second(node)
        await node.create("t", partitions=1, factor=2)
        one = Heartbeat(
            NodeId(1), node.image.brokers[NodeId(1)].epoch, node.image.index, want_fence=True
        )
        await node.controller.heartbeat(one)
        await node.controller.heartbeat(Heartbeat(TWO, epoch, node.image.index, want_fence=True))
        await node.controller.heartbeat(Heartbeat(NodeId(1), one.broker_epoch, node.image.index))
        assert node.image.topics["t"].partitions[0].leader == -1
        rows = [{"topic": "t", "partitions": [0]}]
        assert (await elect(node, 0, rows)).replica_election_results[0].partition_result[
            0
        ].error_code == 80
        assert (await elect(node, 1, rows)).replica_election_results[0].partition_result[
            0
        ].error_code == 0
        partition = node.image.topics["t"].partitions[0]
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
        assert (await elect(node, 1, rows)).replica_election_results[0].partition_result[
            0
        ].error_code == 84


async def test_reassignments_are_begun_listed_and_cancelled() -> None:
    async with running_node() as node:
        await second(node)
        await node.create("t", partitions=1)
        home = node.image.topics["t"].partitions[0].replicas[0]
        away = 3 - home
        assert (await move(node, [away])).error_code == 0
        expected = ("t", 0, [away, home], [away], [home])
        assert await moves(node) == [expected]
        assert await moves(
            node,
            [{"name": "t", "partition_indexes": [0, 5]}, {"name": "u", "partition_indexes": [0]}],
        ) == [expected]
        assert (await move(node, None)).error_code == 0
        assert await moves(node) == [] and node.image.topics["t"].partitions[0].replicas == (home,)


@pytest.mark.parametrize(
    ("replicas", "partition", "rest", "code"),
    [
        (None, 0, {}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], 0, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], 0, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], 0, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1], 4, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (
            [1, 2],
            0,
            {"allow_replication_factor_change": False},
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
        ([1, 2], 0, {}, ErrorCode.NONE),
    ],
)
async def test_invalid_reassignments_are_refused(
    replicas: list[int] | None, partition: int, rest: dict[str, Any], code: ErrorCode
) -> None:
    async with running_node() as node:
        await second(node)
        await node.create("t", partitions=1)
        assert (await move(node, replicas, partition, **rest)).error_code == code


async def test_a_broker_is_unregistered() -> None:
    async with running_node() as node:
        await second(node)
        assert (await node.request("unregister_broker", 0, broker_id=2)).error_code == 0
        assert (
            await node.request("unregister_broker", 0, broker_id=2)
        ).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("name", "level", "kind", "code"),
    [
        ("mqd.metadata.version", 3, 1, 0),
        ("mqd.metadata.version", 2, 2, 95),
        ("mqd.metadata.version", 4, 1, 95),
        ("mqd.metadata.version", 0, 1, 95),
        ("mqd.metadata.version", 0, 2, 95),
        ("metadata.version", 25, 1, 95),
        ("mqd.metadata.version", 1, 9, 95),
    ],
)
async def test_features(name: str, level: int, kind: int, code: int) -> None:
    async with running_node() as node:
        updates = [{"feature": name, "max_version_level": level, "upgrade_type": kind}]
        response = await node.request(
            "update_features", 2, timeout_ms=1000, feature_updates=updates, validate_only=False
        )
        assert response.error_code == code


@pytest.mark.parametrize("level", [2, 3])
async def test_a_version_that_a_node_does_not_support_is_not_finalized(level: int) -> None:
    async with running_node() as node:
        node.image.features["mqd.metadata.version"] = 1
        reported = node.controller.operations.metadata_versions_max
        reported[NodeId(1)] = 0
        node.raft.speaks_handshake_v3 = lambda _node_id: level > 2
        updates = [
            {"feature": "mqd.metadata.version", "max_version_level": level, "upgrade_type": 1}
        ]
        for validate_only in (True, False):
            response = await node.request(
                "update_features",
                2,
                timeout_ms=1000,
                feature_updates=updates,
                validate_only=validate_only,
            )
            assert (
                response.error_code == 95
                and "that node 1 runs a release that supports it. Start it with this release"
                in response.error_message
            )
        if level > 2:
            reported[NodeId(1)] = level
        node.raft.speaks_handshake_v3 = lambda _node_id: True
        response = await node.request(
            "update_features", 2, timeout_ms=1000, feature_updates=updates, validate_only=False
        )
        assert response.error_code == 0
        assert node.image.features["mqd.metadata.version"] == level


async def test_requests_that_only_nodes_may_send() -> None:
    async with running_node() as node:
        fields: dict[str, Any] = {"broker_id": 1, "broker_epoch": 1, "topics": []}
        for name, version in (("alter_partition", 3), ("report_offline_replicas", 0)):
            response = await node.request(name, version, **fields)
            assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_large_reassignment_is_split_into_several_decisions() -> None:
    async with running_node() as node:
        await node.create("t", partitions=1200)
        operations: list[Any] = []
        submit = node.controller.submit

        async def counted(op: Any) -> Any:
            operations.append(op)
            return await submit(op)

        node.controller.submit = counted  # type: ignore[method-assign]  # replaced by the test
        partitions = [
            {"partition_index": index, "replicas": [1]} for index in (*range(1200), 0, 1199)
        ]
        response = await node.request(
            "alter_partition_reassignments",
            0,
            timeout_ms=1000,
            topics=[{"name": "t", "partitions": partitions}],
        )
        rows = [(row.partition_index, row.error_code) for row in response.responses[0].partitions]
        assert rows == [*((index, 0) for index in range(1200)), (0, 42), (1199, 42)]
        assert len(operations) >= 3
        partitions = [{"partition_index": index, "replicas": [1]} for index in range(10_001)]
        response = await node.request(
            "alter_partition_reassignments",
            0,
            timeout_ms=1000,
            topics=[{"name": "t", "partitions": partitions}],
        )
        assert response.error_code == 44
