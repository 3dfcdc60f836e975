from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqd.client import cluster_admin
from mqd.client.admin import Admin
from mqd.client.cluster import connect
from mqd.client.descriptions import (
    ConfigOperation,
    ElectionType,
    PartitionState,
    QuorumReplica,
    Reassignment,
    Resource,
    ResourceType,
)
from mqd.client.errors import ClientError
from mqd.client.throttle import (
    Throttled,
    clear_throttle,
    find_throttle,
    set_throttle,
    throttle_changes,
)
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import (
    ALTER_REASSIGNMENTS,
    DESCRIBE_PARTITIONS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    FakeCluster,
    HangUp,
)

A0, A1, NOPE = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("nope", 0)


@asynccontextmanager
async def administering(cluster: FakeCluster) -> AsyncIterator[Admin]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client:
        yield Admin(client, timeout_s=10.0)


def code(result: object) -> ErrorCode | None:
    return result.code if isinstance(result, ClientError) else None


async def test_partitions_are_described_page_by_page(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(nursery)
    for name in "abc":
        cluster.add_topic(name, 3)
    first = cluster.topics["a"][0]
    first.replicas, first.isr, first.elr, cluster.fenced = [1, 2], [1], [2], {2}
    monkeypatch.setattr(cluster_admin, "PAGE_PARTITIONS", 2)
    async with administering(cluster) as admin:
        found = await admin.describe_partitions()
        assert list(found) == [TopicPartition(name, index) for name in "abc" for index in range(3)]
        assert found[A0] == PartitionState(1, 0, (1, 2), (1,), (2,), (), (2,))
        assert sorted({tp.topic for tp in await admin.describe_partitions(["c", "a", "nope"])}) == [
            "a",
            "c",
        ]
        assert await admin.describe_partitions([]) == {}
    assert cluster.one.requests.count((DESCRIBE_PARTITIONS, 0)) == 5 + 3


async def test_pages_without_progress_end(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(
        DESCRIBE_PARTITIONS,
        *[{"topics": [], "next_cursor": {"topic_name": "a", "partition_index": 1}}] * 3,
    )
    async with administering(cluster) as admin:
        with pytest.raises(ClientError, match="do not go forward"):
            await admin.describe_partitions()


async def test_an_older_broker_describes_partitions_without_elr(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 2)
    del cluster.one.versions[DESCRIBE_PARTITIONS]
    async with administering(cluster) as admin:
        assert await admin.describe_partitions(["a"]) == {
            A0: PartitionState(1, 0, (1,), (1,)),
            A1: PartitionState(1, 0, (1,), (1,)),
        }


async def test_elections(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    led, unled = cluster.add_topic("a", 2)
    led.leader, led.replicas, led.isr = 2, [1, 2], [2, 1]
    unled.leader, unled.replicas, unled.isr = -1, [3, 1], [3]
    cluster.fenced = {3}
    async with administering(cluster) as admin:
        results = await admin.elect_leaders(ElectionType.PREFERRED, [A0, NOPE])
        assert results[A0] is None and code(results[NOPE]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results = await admin.elect_leaders(ElectionType.PREFERRED, [A0])
        # Retriable in Kafka's table, but returned at once.
        assert code(results[A0]) is ErrorCode.ELECTION_NOT_NEEDED
        led.leader, led.isr = 2, [2]
        assert (
            code((await admin.elect_leaders(ElectionType.PREFERRED, [A0]))[A0])
            is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        )
        assert (
            await admin.elect_leaders(ElectionType.UNCLEAN, [A1]) == {A1: None}
            and unled.leader == 1
        )
        led.isr = [1, 2]
        assert await admin.elect_leaders(ElectionType.PREFERRED) == {A0: None, A1: None}
        assert await admin.elect_leaders(ElectionType.PREFERRED) == {}
    assert cluster.one.requests.count((ELECT_LEADERS, 2)) == 6


async def test_reassignments_begin_are_listed_and_are_cancelled(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    for each in cluster.add_topic("a", 2):
        each.leader, each.replicas = 1, [1, 2]
    cluster.moves_hang = True
    async with administering(cluster) as admin:
        results = await admin.alter_partition_reassignments({A0: (3, 2), A1: (9,), NOPE: (1,)})
        assert results[A0] is None
        assert (
            code(results[A1]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            and code(results[NOPE]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        found = await admin.list_partition_reassignments()
        assert found == {A0: Reassignment((3, 2, 1), (3,), (1,))}
        assert found[A0].target == (3, 2) and found[A0].original == (2, 1)
        assert await admin.list_partition_reassignments([]) == {}
        assert await admin.alter_partition_reassignments({A0: None}) == {A0: None}
        assert await admin.list_partition_reassignments() == {}
        assert (
            code((await admin.alter_partition_reassignments({A0: None}))[A0])
            is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        )


async def test_a_cancellation_with_a_lost_response_is_reported(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    cluster.add_topic("a")
    cluster.moves_hang = True
    async with administering(cluster) as admin:
        await admin.alter_partition_reassignments({A0: (2,)})
        cluster.one.script(ALTER_REASSIGNMENTS, HangUp(after=True))
        error = (await admin.alter_partition_reassignments({A0: None}))[A0]
        assert (
            error is not None and "an earlier attempt of this call got no response" in error.message
        )


async def test_the_quorum(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    async with administering(cluster) as admin:
        found = await admin.describe_quorum()
        assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 3, 10)
        assert found.voters == (QuorumReplica(1, 10, 100_000, 100_000),) and found.observers == ()
        cluster.one.script(DESCRIBE_QUORUM, {"error_code": 42, "error_message": "no"})
        with pytest.raises(ClientError, match="describing the quorum: no"):
            await admin.describe_quorum()
        cluster.quorum = {"error_code": 3}
        with pytest.raises(ClientError):
            await Admin(admin._client, timeout_s=0.01).describe_quorum()


async def test_fenced_nodes_are_described_and_unregistered(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    cluster.fenced = {2}
    async with administering(cluster) as admin:
        assert (await admin.describe_cluster()).fenced == {2}
        await admin.unregister_broker(2)
        assert [broker.node_id for broker in (await admin.describe_cluster()).brokers] == [1, 3]
        with pytest.raises(ClientError) as caught:
            await admin.unregister_broker(2)
        assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_throttle_names_old_replicas_for_leaders_and_new_for_followers() -> None:
    changes = throttle_changes(
        {A0: ((1, 2), (2, 3)), A1: ((1, 2), (2, 1)), TopicPartition("b", 0): ((1,), (4,))},
        {1, 2, 3},
        500,
    )
    topic, append, put = ResourceType.TOPIC, ConfigOperation.APPEND, ConfigOperation.SET
    assert changes[Resource(topic, "a")] == [
        ("leader.replication.throttled.replicas", append, "0:1,0:2"),
        ("follower.replication.throttled.replicas", append, "0:3"),
    ]
    rates = [
        ("leader.replication.throttled.rate", put, "500"),
        ("follower.replication.throttled.rate", put, "500"),
    ]
    nodes = [resource for resource in changes if resource.type is ResourceType.BROKER]
    assert [resource.name for resource in nodes] == ["1", "2", "3"]  # 4 cannot be reached
    assert all(changes[resource] == rates for resource in nodes)


async def test_a_throttle_is_set_found_and_removed(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery, nodes=3)
    cluster.add_topic("a")
    cluster.add_topic("b")
    async with administering(cluster) as admin:
        assert not await find_throttle(admin, ["a", "b"], [1, 2, 3])
        assert await set_throttle(admin, {A0: ((1,), (2,))}, {1, 2, 3}, 500) == {}
        found = await find_throttle(admin, ["a", "b"], [1, 2, 3])
        assert found == Throttled(("a",), (1, 2))
        assert await clear_throttle(admin, found) == {}
        assert not await find_throttle(admin, ["a", "b"], [1, 2, 3])
    assert not any(cluster.configs.values())
