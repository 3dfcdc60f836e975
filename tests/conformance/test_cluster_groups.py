"""Groups and transactions of stock clients go on when the node that coordinates them is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chaos.ensemble import Ensemble

from .members import Feeder, Group
from .test_cluster_committed_offsets import coordinator_of
from .transactional import PRODUCERS, Transactional, read_confluent
from .wire import until

PARTITIONS = 6
SESSION_MS = 30_000
"""Longer than a failover on a busy machine: nobody is to be thrown out, so that nothing is consumed twice."""
KINDS = ("cooperative", "kafka-python", "aiokafka")
HEAL_S = 90.0


@pytest.fixture
def six(cluster: Ensemble, new_name: Callable[[], str]) -> str:
    name = new_name()
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def coordinating_node(cluster: Ensemble, key: str, key_type: int) -> int:
    with coordinator_of(cluster, key, key_type) as wire:
        port = wire.socket.getpeername()[1]
    (found,) = [node_id for node_id, node in cluster.nodes.items() if node.port == port]
    return found


def test_every_record_is_consumed_once_while_the_coordinators_nodes_are_killed(
    cluster: Ensemble, six: str, new_name: Callable[[], str]
) -> None:
    groups = [Group(kind, cluster.bootstrap, new_name(), six, session_ms=SESSION_MS) for kind in KINDS]
    feeder = Feeder(cluster.bootstrap, six, PARTITIONS, rate=100.0)
    try:
        for group in groups:
            group.wait_owned(PARTITIONS, group.join(), group.join())
        for group in groups[:2]:
            victim = coordinating_node(cluster, group.group, 0)
            cluster.nodes[victim].kill()
            consumed = {one.group: len(one.done()) for one in groups}
            for one in groups:
                until(lambda: len(one.done()) > consumed[one.group], f"{one.kind} members consume again", HEAL_S)  # noqa: B023
            cluster.nodes[victim].start()
            cluster.wait_until(lambda: cluster.is_whole({six: PARTITIONS}), "a full ISR", HEAL_S)
        produced = feeder.finish()
        for group in groups:
            group.wait_consumed(produced)
            assert not group.failures()
    finally:
        feeder.stop()
        for group in groups:
            group.end()


@pytest.fixture
def opened(cluster: Ensemble) -> Iterator[Callable[[str, str], Transactional]]:
    producers: list[Transactional] = []

    def make(client: str, transactional_id: str) -> Transactional:
        producers.append(PRODUCERS[client](cluster.bootstrap, transactional_id, 60_000))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close()


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_a_transaction_goes_on_when_its_coordinator_is_killed(
    cluster: Ensemble, six: str, new_name: Callable[[], str], opened: Callable[[str, str], Transactional], client: str
) -> None:
    transactional_id = new_name()
    producer = opened(client, transactional_id)
    producer.run(six, [b"before"])
    victim = coordinating_node(cluster, transactional_id, 1)
    partition = next(index for index in range(PARTITIONS) if cluster.leader(six, index) != victim)
    producer.begin()
    producer.send(six, [b"during"], partition)
    cluster.nodes[victim].kill()
    producer.commit()
    producer.run(six, [b"taken back"], committed=False, partition=partition)
    producer.run(six, [b"after"], partition=partition)
    cluster.nodes[victim].start()
    until(
        lambda: read_confluent(cluster.bootstrap, six, "read_committed", partition)[-2:] == [b"during", b"after"],
        "what was committed is there",
        told=lambda: read_confluent(cluster.bootstrap, six, "read_committed", partition),
    )
    assert b"taken back" not in read_confluent(cluster.bootstrap, six, "read_committed", partition)
