"""Metadata in all its versions, and the pages of DescribeTopicPartitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from mqd.controller.brokers import Heartbeat, Register
from mqd.types import NodeId
from tests.controller.cluster import CLUSTER
from tests.server.handlers.node import FakeNode, running_node

UNASKED = -(2**31)


def names(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize("version", range(14))
async def test_every_version(version: int) -> None:
    async with running_node() as node:
        await node.create("a", partitions=2)
        response = await node.request(
            "metadata",
            version,
            topics=names("a", "zz", "a/b", "a"),
            allow_auto_topic_creation=False,
        )
        assert [(row.name, row.error_code) for row in response.topics] == [
            ("a", 0),
            ("zz", 3),
            ("a/b", 17),
        ]
        assert [(row.node_id, row.host, row.port) for row in response.brokers] == [
            (1, "localhost", 9091)
        ]
        partitions = response.topics[0].partitions
        assert [
            (row.partition_index, row.leader_id, list(row.replica_nodes), list(row.isr_nodes))
            for row in partitions
        ] == [
            (0, 1, [1], [1]),
            (1, 1, [1], [1]),
        ]
        if version >= 1:
            assert response.controller_id == 1
        if version >= 2:
            assert response.cluster_id == CLUSTER
        if version >= 7:
            assert partitions[0].leader_epoch == 0
        if version >= 10:
            assert response.topics[0].topic_id == node.image.topics["a"].topic_id


async def test_all_topics_and_none() -> None:
    async with running_node() as node:
        await node.create("a", "b")
        for version, requested, expected in (
            (0, [], ["a", "b"]),
            (1, [], []),
            (1, None, ["a", "b"]),
            (12, [], []),
            (12, None, ["a", "b"]),
        ):
            response = await node.request("metadata", version, topics=requested)
            assert sorted(row.name for row in response.topics) == expected


async def test_by_id() -> None:
    async with running_node() as node:
        await node.create("a", "b")
        topic_id, unknown_id = node.image.topics["a"].topic_id, UUID(int=77)
        rows = [
            {"name": None, "topic_id": topic_id},
            {"name": None, "topic_id": unknown_id},
            {"name": "b"},
        ]
        response = await node.request("metadata", 12, topics=rows)
        assert [(row.name, row.topic_id, row.error_code) for row in response.topics] == [
            ("a", topic_id, 0),
            (None, unknown_id, 100),
        ]


@pytest.mark.parametrize(
    ("version", "row"),
    [
        (10, {"name": None, "topic_id": UUID(int=7)}),
        (11, {"name": "a", "topic_id": UUID(int=7)}),
        (12, {"name": None}),
    ],
)
async def test_ids_in_versions_without_ids(version: int, row: dict[str, Any]) -> None:
    async with running_node() as node:
        response = await node.request("metadata", version, topics=[row])
        assert [topic.error_code for topic in response.topics] == [42] and not response.brokers


async def test_a_missing_topic_is_created_for_the_next_request(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        for version in (1, 9):
            name = f"new{version}"
            response = await node.request("metadata", version, topics=names(name, "b/d"))
            assert [row.error_code for row in response.topics] == [3, 17]
            await trio.sleep(0.1)
            response = await node.request("metadata", version, topics=names(name))
            assert (response.topics[0].error_code, len(response.topics[0].partitions)) == (0, 1)
        assert sorted(node.image.topics) == ["new1", "new9"]


async def test_a_missing_topic_is_not_created_without_permission(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.request("metadata", 9, topics=names("t"), allow_auto_topic_creation=False)
        await trio.sleep(0.1)
        assert not node.image.topics
    async with running_node(auto_create_topics_enable="false") as node:
        assert (await node.request("metadata", 9, topics=names("t"))).topics[0].error_code == 3
        await trio.sleep(0.1)
        assert not node.image.topics


async def test_authorized_operations_on_request() -> None:
    async with running_node() as node:
        await node.create("a")
        requested: dict[str, Any] = {
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        }
        response = await node.request("metadata", 8, topics=names("a"), **requested)
        assert (
            response.cluster_authorized_operations,
            response.topics[0].topic_authorized_operations,
        ) == (8096, 3576)
        requested = {
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        }
        response = await node.request("metadata", 12, topics=names("zz"), **requested)
        assert response.topics[0].topic_authorized_operations == 3576
        response = await node.request("metadata", 8, topics=names("a"))
        assert (
            response.cluster_authorized_operations,
            response.topics[0].topic_authorized_operations,
        ) == (UNASKED, UNASKED)


async def test_internal_topics_are_marked_even_when_missing() -> None:
    async with running_node() as node:
        await node.create("__consumer_offsets")
        requested = names("__consumer_offsets", "__transaction_state", "x")
        response = await node.request(
            "metadata", 5, topics=requested, allow_auto_topic_creation=False
        )
        assert [row.is_internal for row in response.topics] == [True, True, False]


async def test_partitions_of_a_fenced_broker() -> None:
    async with running_node() as node:
        epoch = await node.controller.register(
            Register(NodeId(2), CLUSTER, UUID(int=2), "two", 9092, "r2")
        )
        await node.controller.heartbeat(Heartbeat(NodeId(2), epoch, node.image.index))
        await node.create("a", partitions=2)
        await node.controller.heartbeat(
            Heartbeat(NodeId(2), epoch, node.image.index, want_fence=True)
        )
        response = await node.request("metadata", 9, topics=names("a"))
        assert [broker.node_id for broker in response.brokers] == [1]
        (lost,) = [row for row in response.topics[0].partitions if row.leader_id == -1]
        assert (
            lost.error_code,
            list(lost.offline_replicas),
            list(lost.replica_nodes),
            list(lost.isr_nodes),
        ) == (5, [2], [2], [])
        old = (
            (await node.request("metadata", 0, topics=names("a")))
            .topics[0]
            .partitions[lost.partition_index]
        )
        assert (old.error_code, list(old.replica_nodes)) == (5, [])
        cluster = await node.request("describe_cluster", 2, include_fenced_brokers=True)
        assert [(row.broker_id, row.rack, row.is_fenced) for row in cluster.brokers] == [
            (1, None, False),
            (2, "r2", True),
        ]
        assert [row.broker_id for row in (await node.request("describe_cluster", 2)).brokers] == [1]


async def test_without_the_controller_no_leader_is_named() -> None:
    async with running_node() as node:
        await node.create("a")
        node.replica.in_contact = False
        for topics in (names("a"), None):
            (row,) = (await node.request("metadata", 9, topics=topics)).topics[0].partitions
            assert (row.error_code, row.leader_id) == (5, -1)
        (row,) = (
            (await node.request("describe_topic_partitions", 0, topics=names("a")))
            .topics[0]
            .partitions
        )
        assert (row.error_code, row.leader_id) == (5, -1)
        node.replica.in_contact = True
        (row,) = (await node.request("metadata", 9, topics=names("a"))).topics[0].partitions
        assert (row.error_code, row.leader_id) == (0, 1)


# -- DescribeTopicPartitions


async def page(
    node: FakeNode, topics: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> tuple[Any, Any]:
    where = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    response = await node.request(
        "describe_topic_partitions",
        0,
        topics=names(*topics),
        response_partition_limit=limit,
        cursor=where,
    )
    rows = [
        (row.name, row.error_code, [partition.partition_index for partition in row.partitions])
        for row in response.topics
    ]
    following = response.next_cursor
    return rows, None if following is None else (following.topic_name, following.partition_index)


async def test_pages() -> None:
    async with running_node() as node:
        await node.create("a.b", "xx")
        await node.create("v", partitions=4)
        assert await page(node, ["v"], 2) == ([("v", 0, [0, 1])], ("v", 2))
        assert await page(node, ["v", "a.b", "v"], 2) == (
            [("a.b", 0, [0]), ("v", 0, [0])],
            ("v", 1),
        )
        assert await page(node, ["v", "a.b"], 2, ("v", 1)) == ([("v", 0, [1, 2])], ("v", 3))
        assert await page(node, ["v", "a.b"], 9, ("v", 4)) == ([("v", 0, [])], None)
        assert await page(node, ["v"], 4) == ([("v", 0, [0, 1, 2, 3])], None)
        assert await page(node, ["v", "a.b"], 1) == ([("a.b", 0, [0])], ("v", 0))
        assert await page(node, ["v"], 0) == ([("v", 0, [0])], ("v", 1))
        assert await page(node, ["v"], -1) == ([("v", 0, [0])], ("v", 1))
        assert await page(node, ["zz", "v"]) == ([("v", 0, [0, 1, 2, 3]), ("zz", 3, [])], None)
        assert await page(node, ["a/b"]) == ([("a/b", 17, [])], None)
        assert await page(node, [], 3, ("v", 2)) == ([("v", 0, [2, 3]), ("xx", 0, [0])], None)
        assert await page(node, [], 1, ("b", 2)) == ([("v", 0, [0])], ("v", 1))
        for cursor in (("v", -1), ("u", 0)):
            assert await page(node, ["v", "a.b"], 2, cursor) == (
                [("v", 42, []), ("a.b", 42, [])],
                None,
            )


async def test_the_pages_contain_every_partition_once() -> None:
    async with running_node() as node:
        await node.create("a", "b", partitions=3)
        await node.create("c", partitions=7)
        seen: list[tuple[str, int]] = []
        cursor: Any = None
        while True:
            rows, cursor = await page(node, [], 2, cursor)
            seen += [(name, partition) for name, _, partitions in rows for partition in partitions]
            if cursor is None:
                break
        assert seen == [("a", n) for n in range(3)] + [("b", n) for n in range(3)] + [
            ("c", n) for n in range(7)
        ]


# -- DescribeCluster


async def test_describe_cluster() -> None:
    async with running_node() as node:
        for version in (0, 1, 2):
            response = await node.request(
                "describe_cluster", version, include_cluster_authorized_operations=version > 0
            )
            assert (response.error_code, response.cluster_id, response.controller_id) == (
                0,
                CLUSTER,
                1,
            )
            assert [(row.broker_id, row.host, row.port) for row in response.brokers] == [
                (1, "localhost", 9091)
            ]
            assert response.cluster_authorized_operations == (8096 if version else UNASKED)
        for endpoint, code in ((2, 114), (3, 115), (0, 115)):
            response = await node.request("describe_cluster", 1, endpoint_type=endpoint)
            assert (
                response.error_code,
                response.cluster_id,
                response.controller_id,
                list(response.brokers),
            ) == (code, "", -1, [])


async def test_the_only_broker_is_listed_while_it_stops() -> None:
    """librdkafka drops brokers that are missing in the response, and would have none left."""
    async with running_node() as node:
        epoch = node.image.brokers[NodeId(1)].epoch
        await node.controller.heartbeat(
            Heartbeat(NodeId(1), epoch, node.image.index, want_fence=True)
        )
        assert not node.image.alive_brokers()
        response = await node.request("metadata", 12, topics=names())
        assert [row.node_id for row in response.brokers] == [1]
