"""The controller counts changes of the metadata for the clients of all nodes (KIP-599)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mqd.client.peer import PeerConnection
from mqd.protocol import apis
from mqd.testing import Cluster, simulated

NONE, UNKNOWN_TOPIC, INVALID_REQUEST, THROTTLED = 0, 3, 42, 89
BURST = 11
"""Partitions that a quota of 1 a second allows at once: those of a window."""


async def ask(connection: PeerConnection, name: str, version: int, **body: Any) -> Any:
    api = apis.by_name(name)
    assert api is not None
    return await connection.request(api, body, version, timeout_s=300)


async def create(
    connection: PeerConnection, name: str, partitions: int, version: int = 7, **more: Any
) -> tuple[int, int]:
    """Code and throttle time."""
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    rows: Mapping[str, Any] = {"topics": [{**topic, "assignments": [], "configs": []}]}
    answer = await ask(connection, "create_topics", version, **rows, timeout_ms=60_000, **more)
    return answer.topics[0].error_code, answer.throttle_time_ms


async def with_quota(cluster: Cluster) -> list[PeerConnection]:
    """Limit changes to 1 a second. Returns a connection to each node, the controller's first."""
    by_id = {node_id: await cluster.connect(node_id) for node_id in cluster.nodes}
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "ANONYMOUS"}],
        "ops": [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}],
    }
    await ask(by_id[1], "alter_client_quotas", 1, entries=[entry], validate_only=False)
    for node_id in by_id:
        with trio.fail_after(10):
            for _ in range(1000):
                if cluster.daemon(node_id).machine.image.client_quotas:
                    break
                await trio.sleep(0.01)
    controller = cluster.daemon(1).controller.controller_id
    return [by_id[node_id] for node_id in sorted(by_id, key=lambda one: one != controller)]


@simulated(seed=1)
async def test_a_client_that_uses_three_nodes_has_one_share() -> None:
    async with Cluster(nodes=3) as cluster:
        first, second, third = await with_quota(cluster)
        assert await create(second, "a", 6) == (NONE, 0)
        begun = trio.current_time()
        code, throttle_ms = await create(third, "b", BURST)
        assert code == NONE, "a request that begins with tokens is carried out whole"
        assert 5_000 < throttle_ms <= 6_000
        code, throttle_ms = await create(first, "c", 1)
        assert code == THROTTLED
        assert 0 < throttle_ms <= 6_000
        await ask(third, "metadata", 12, topics=[])
        assert trio.current_time() - begun > 5, "the node that has the connection mutes it"
        await trio.sleep(2)
        assert await create(second, "c", 1) == (NONE, 0)


@simulated(seed=2)
async def test_earlier_versions_are_only_throttled() -> None:
    async with Cluster(nodes=3) as cluster:
        connections = await with_quota(cluster)
        throttled = []
        for number, connection in enumerate(connections):
            code, throttle_ms = await create(connection, f"t{number}", 3 * BURST, version=4)
            assert code == NONE
            throttled.append(throttle_ms)
        assert min(throttled) > 20_000
        assert throttled == sorted(throttled), "all take tokens of one budget"


@simulated(seed=3)
async def test_deleted_and_added_partitions_count_too() -> None:
    async with Cluster(nodes=3) as cluster:
        _, second, third = await with_quota(cluster)
        assert await create(second, "t", 4) == (NONE, 0)
        more = [{"name": "t", "count": 10, "assignments": None}]
        answer = await ask(
            third, "create_partitions", 3, topics=more, timeout_ms=60_000, validate_only=False
        )
        assert (answer.results[0].error_code, answer.throttle_time_ms) == (NONE, 0)
        answer = await ask(second, "delete_topics", 5, topic_names=["t"], timeout_ms=60_000)
        assert answer.responses[0].error_code == NONE
        assert answer.throttle_time_ms > 5_000
        answer = await ask(third, "delete_topics", 5, topic_names=["t"], timeout_ms=60_000)
        assert answer.responses[0].error_code == 3, "a topic that does not exist takes nothing"


@simulated(seed=4)
async def test_a_client_cannot_use_the_share_of_another() -> None:
    async with Cluster(nodes=3) as cluster:
        _, second, third = await with_quota(cluster)
        names: dict[str, Any] = {
            "client_principal": "User:other",
            "client_id": "x",
            "client_api_version": 2,
        }
        code, throttle_ms = await create(second, "a", 3 * BURST, **names)
        assert code == NONE
        assert throttle_ms > 20_000
        assert (await create(third, "b", 1, **names))[0] == THROTTLED


@simulated(seed=7)
async def test_a_topic_that_is_named_twice_is_refused_whatever_the_quota() -> None:
    """Its rows were not authorized, so the quota must not leave one of them."""
    async with Cluster(nodes=3) as cluster:
        for connection in await with_quota(cluster):
            assert await create(connection, "present", 1) in ((NONE, 0), (36, 0))
            new = {"num_partitions": 2 * BURST, "replication_factor": 1, "assignments": []}
            answer = await ask(
                connection,
                "create_topics",
                7,
                topics=[{"name": "twice", **new, "configs": []}] * 2,
                timeout_ms=60_000,
            )
            assert {row.error_code for row in answer.topics} == {INVALID_REQUEST}
            answer = await ask(
                connection,
                "create_partitions",
                3,
                topics=[{"name": "present", "count": 3 * BURST, "assignments": None}] * 2,
                timeout_ms=60_000,
            )
            assert {row.error_code for row in answer.results} == {INVALID_REQUEST}
            for version, rows in (
                (6, {"topics": [{"name": "present"}] * 2}),
                (5, {"topic_names": ["present"] * 2}),
            ):
                answer = await ask(connection, "delete_topics", version, **rows, timeout_ms=60_000)
                assert {row.error_code for row in answer.responses} == {INVALID_REQUEST}
        topics = cluster.daemon(1).machine.image.topics
        assert len(topics["present"].partitions) == 1
        assert "twice" not in topics


@simulated(seed=8)
async def test_topics_that_clients_create_by_asking_for_them_take_from_the_quota() -> None:
    async with Cluster(nodes=1, options={"auto.create.topics.enable": "true"}) as cluster:
        (connection,) = await with_quota(cluster)
        names = [{"name": f"auto-{number}"} for number in range(4 * BURST)]
        for _ in range(3):
            answer = await ask(
                connection, "metadata", 9, topics=names, allow_auto_topic_creation=True
            )
            assert {row.error_code for row in answer.topics} <= {NONE, UNKNOWN_TOPIC}
        assert answer.throttle_time_ms > 0
        created = [row for row in answer.topics if row.error_code == NONE]
        assert 0 < len(created) <= 2 * BURST
