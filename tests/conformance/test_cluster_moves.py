"""Partitions that move to other nodes, and leaders that are elected on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import pytest

from chaos.ensemble import Ensemble

from .clients import CLIENTS, TIMEOUT_S, Client, Message
from .wire import Wire, until

NONE, UNKNOWN_TOPIC, INVALID_ASSIGNMENT, ELECTION_NOT_NEEDED, NO_REASSIGNMENT = 0, 3, 39, 84, 85
PREFERRED, UNCLEAN = 0, 1


def alter(wire: Wire, topic: str, replicas: list[int] | None, partition: int = 0) -> int:
    """AlterPartitionReassignments of one partition (None: cancel); its error code."""
    rows = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    answer = wire.ask("AlterPartitionReassignments", 0, timeout_ms=10_000, topics=rows)
    assert answer.error_code == 0, answer
    ((row,),) = [response.partitions for response in answer.responses]
    return int(row.error_code)


def moving(wire: Wire, topic: str) -> list[tuple[int, list[int], list[int], list[int]]]:
    """ListPartitionReassignments: (partition, replicas, adding, removing) of a topic."""
    answer = wire.ask("ListPartitionReassignments", 0, timeout_ms=10_000, topics=None)
    assert answer.error_code == 0, answer
    return [
        (
            row.partition_index,
            list(row.replicas),
            list(row.adding_replicas),
            list(row.removing_replicas),
        )
        for found in answer.topics
        if found.name == topic
        for row in found.partitions
    ]


def has_replicas(cluster: Ensemble, topic: str, replicas: tuple[int, ...]) -> bool:
    """Whether partition 0 has these replicas on every node, in this order, all in sync, and a
    leader among them.
    """
    views = [cluster.view(node_id, [topic]).get((topic, 0)) for node_id in cluster.nodes]
    return all(
        row is not None
        and row.replicas == replicas
        and row.isr == tuple(sorted(replicas))
        and row.leader in replicas
        for row in views
    )


def test_a_partition_moves_with_its_records(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2]})
    messages = [Message(b"%d" % i, timestamp_ms=1_700_000_000_000 + i) for i in range(500)]
    assert CLIENTS[0].produce(cluster.bootstrap, topic, messages) == list(range(500))
    assert alter(connect(2), topic, [3, 2]) == NONE
    cluster.wait_until(lambda: has_replicas(cluster, topic, (3, 2)), "the move to end")
    until(lambda: moving(connect(1), topic) == [], "the list to be empty")
    assert CLIENTS[0].consume(cluster.bootstrap, topic, 500) == [
        message.at(i) for i, message in enumerate(messages)
    ]
    assert alter(connect(3), topic, [3]) == NONE
    cluster.wait_until(lambda: has_replicas(cluster, topic, (3,)), "the second move to end")
    assert CLIENTS[0].produce(cluster.bootstrap, topic, messages[:1]) == [500]


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_clients_follow_a_partition_to_another_node(
    cluster: Ensemble, client: Client, connect: Any, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1]}, configs={"min.insync.replicas": "1"})
    for number, replicas in enumerate(([2], [3, 1], [1])):
        assert client.produce(cluster.bootstrap, topic, [Message(b"%d" % number)]) == [number]
        assert alter(connect(1), topic, replicas) == NONE
        cluster.wait_until(lambda: has_replicas(cluster, topic, tuple(replicas)), "the move to end")  # noqa: B023
    assert [message.value for message in client.consume(cluster.bootstrap, topic, 3)] == [
        b"0",
        b"1",
        b"2",
    ]


def test_a_reassignment_to_a_dead_node_is_listed_and_can_be_cancelled(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2]})
    cluster.nodes[3].kill()
    cluster.wait_until(lambda: cluster.brokers(1) == {1, 2}, "node 3 to be missed")
    assert alter(connect(1), topic, [2, 3]) == NONE
    wire = connect(2)
    until(lambda: moving(wire, topic) != [], "the move to be listed")
    ((partition, replicas, adding, removing),) = moving(wire, topic)
    assert (partition, sorted(replicas), adding, removing) == (0, [1, 2, 3], [3], [1])
    assert alter(connect(1), topic, None) == NONE
    until(lambda: moving(wire, topic) == [], "the list to be empty")
    assert alter(connect(1), topic, None) == NO_REASSIGNMENT
    cluster.nodes[3].start()
    # Kafka keeps the order of the merged list, so another replica is preferred now
    cluster.wait_until(
        lambda: has_replicas(cluster, topic, (1, 2)) or has_replicas(cluster, topic, (2, 1)),
        "the old replicas",
    )


def test_invalid_reassignments_are_refused(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2]})
    wire = connect(1)
    assert alter(wire, topic, [1, 99]) == INVALID_ASSIGNMENT
    assert alter(wire, topic, [1, 1]) == INVALID_ASSIGNMENT
    assert alter(wire, topic, []) == INVALID_ASSIGNMENT
    assert alter(wire, topic, [1, 2], partition=7) == UNKNOWN_TOPIC
    assert alter(wire, new_name(), [1, 2]) == UNKNOWN_TOPIC
    assert moving(wire, topic) == []


def test_kafka_python_moves_a_partition(cluster: Ensemble, new_name: Callable[[], str]) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2]})
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): [2, 3]})
        cluster.wait_until(lambda: has_replicas(cluster, topic, (2, 3)), "the move to end")
        until(
            lambda: topic not in str(admin.list_partition_reassignments()), "the list to be empty"
        )
    finally:
        admin.close()


# -- elections


def elect(wire: Wire, kind: int, topic: str, partition: int = 0) -> int:
    """ElectLeaders of one partition; its error code."""
    answer = wire.ask(
        "ElectLeaders",
        2,
        election_type=kind,
        topic_partitions=[{"topic": topic, "partitions": [partition]}],
        timeout_ms=10_000,
    )
    assert answer.error_code == 0, answer
    ((row,),) = [result.partition_result for result in answer.replica_election_results]
    return int(row.error_code)


def away_from_the_preferred(cluster: Ensemble, topic: str, replicas: list[int]) -> None:
    """A topic whose preferred leader was absent for a while and does not lead."""
    cluster.create_topic(topic, assignment={0: replicas})
    preferred = cluster.nodes[replicas[0]]
    preferred.stop()
    cluster.wait_until(lambda: cluster.leader(topic) not in (None, replicas[0]), "another leader")
    preferred.start()
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "a full ISR")
    assert cluster.leader(topic) == replicas[1]


def test_the_preferred_leader_is_elected_on_request(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    away_from_the_preferred(cluster, topic, [2, 3, 1])
    wire = connect(1)
    assert elect(wire, UNCLEAN, topic) == ELECTION_NOT_NEEDED, "there is a leader"
    assert elect(wire, PREFERRED, topic) == NONE
    cluster.wait_until(
        lambda: all(cluster.view(n, [topic])[topic, 0].leader == 2 for n in cluster.nodes),
        "node 2 to lead",
    )
    assert elect(wire, PREFERRED, topic) == ELECTION_NOT_NEEDED
    assert elect(wire, PREFERRED, topic, partition=5) == UNKNOWN_TOPIC
    assert elect(wire, PREFERRED, new_name()) == UNKNOWN_TOPIC


def test_confluent_elects_the_preferred_leader(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    away_from_the_preferred(cluster, topic, [3, 1, 2])
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0)
    result = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [place]).result(TIMEOUT_S)
    assert result[place] is None
    cluster.wait_until(lambda: cluster.leader(topic) == 3, "node 3 to lead")


def test_kafka_python_elects_the_preferred_leader(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    away_from_the_preferred(cluster, topic, [1, 2, 3])
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        admin.elect_leaders(0, {topic: [0]})
        cluster.wait_until(lambda: cluster.leader(topic) == 1, "node 1 to lead")
    finally:
        admin.close()
