"""What the nodes report about themselves and the quorum: the admin clients of three libraries and
the raw protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka.admin
import confluent_kafka.admin as confluent_admin
import kafka
import pytest

from chaos.ensemble import Ensemble

from .clients import TIMEOUT_S
from .conftest import RACKS
from .wire import Wire, metadata, until


def addresses(cluster: Ensemble) -> set[tuple[int, str, int, str]]:
    return {
        (node_id, "127.0.0.1", node.port, RACKS[node_id]) for node_id, node in cluster.nodes.items()
    }


def test_every_node_lists_every_node(cluster: Ensemble, connect: Callable[[int], Wire]) -> None:
    ids = set()
    for node_id in cluster.nodes:
        answer = metadata(connect(node_id), [])
        assert {(row.node_id, row.host, row.port, row.rack) for row in answer.brokers} == addresses(
            cluster
        )
        assert answer.controller_id in cluster.nodes
        ids.add(answer.cluster_id)
    assert len(ids) == 1


def test_confluent_describes_the_cluster(cluster: Ensemble) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_cluster().result(TIMEOUT_S)
    assert {(node.id, node.host, node.port, node.rack) for node in described.nodes} == addresses(
        cluster
    )
    assert described.controller.id in cluster.nodes


def test_kafka_python_describes_the_cluster_and_its_quorum(cluster: Ensemble) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        described = admin.describe_cluster()
        assert {row["broker_id"] for row in described["brokers"]} == set(cluster.nodes)
        quorum = admin.describe_metadata_quorum()
        assert "error_code" not in quorum or quorum["error_code"] == 0
    finally:
        admin.close()


def test_aiokafka_describes_the_cluster(cluster: Ensemble) -> None:
    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            described = await admin.describe_cluster()
            assert {row["node_id"] for row in described["brokers"]} == set(cluster.nodes)
        finally:
            await admin.close()

    asyncio.run(run())


def test_every_node_names_the_leader_of_the_quorum(
    cluster: Ensemble, connect: Callable[[int], Wire]
) -> None:
    def quorum(node_id: int) -> tuple[int, int, frozenset[int]] | None:
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = connect(node_id).ask("DescribeQuorum", 1, topics=topics)
        if answer.error_code != 0:
            return None
        ((row,),) = [topic.partitions for topic in answer.topics]
        assert row.error_code == 0
        assert row.high_watermark > 0
        return (
            row.leader_id,
            row.leader_epoch,
            frozenset(voter.replica_id for voter in row.current_voters),
        )

    def agreed() -> tuple[int, int, frozenset[int]] | None:
        views = {quorum(node_id) for node_id in cluster.nodes}
        return views.pop() if len(views) == 1 else None

    leader, epoch, voters = until(agreed, "one answer from all nodes")
    assert leader in voters
    assert voters == frozenset(cluster.nodes)
    assert epoch > 0


def test_each_broker_returns_its_own_configuration(cluster: Ensemble) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    for node_id in cluster.nodes:
        resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.BROKER, str(node_id))
        (future,) = admin.describe_configs([resource]).values()
        configs = future.result(TIMEOUT_S)
        assert configs["min.insync.replicas"].value == "2"
        assert configs["broker.session.timeout.ms"].value == str(cluster.session_ms)


def test_replicas_are_on_the_nodes_in_the_metadata(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    name = new_name()
    cluster.create_topic(name, assignment={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    wanted = {1: {0, 2}, 2: {0, 1}, 3: {1, 2}}

    def held(node_id: int) -> set[int]:
        results = connect(node_id).ask("DescribeLogDirs", 1, topics=None).results
        return {
            row.partition_index
            for result in results
            for topic in result.topics
            if topic.name == name
            for row in topic.partitions
        }

    # a new topic's ISR is full before its followers have received it
    until(lambda: {node_id: held(node_id) for node_id in cluster.nodes} == wanted, "the replicas")


def test_new_topics_are_spread_over_nodes(cluster: Ensemble, new_name: Callable[[], str]) -> None:
    name = new_name()
    cluster.create_topic(name, 6)
    rows = cluster.view(1, [name]).values()
    assert all(len(set(row.replicas)) == 3 for row in rows)
    led = [row.leader for row in rows]
    assert {node_id: led.count(node_id) for node_id in cluster.nodes} == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_stopped_node_is_not_listed_until_it_restarts(cluster: Ensemble, end: str) -> None:
    controller = cluster.controller()
    victim = next(node_id for node_id in cluster.nodes if node_id != controller)
    others = set(cluster.nodes) - {victim}
    getattr(cluster.nodes[victim], end)()
    for node_id in others:
        cluster.wait_until(lambda: cluster.brokers(node_id) == others, "the node to be missed")  # noqa: B023
    cluster.nodes[victim].start()
    for node_id in cluster.nodes:
        cluster.wait_until(
            lambda: cluster.brokers(node_id) == set(cluster.nodes),  # noqa: B023
            "the node to be back",
        )
