"""An open transaction whose coordinator was killed is ended by the next producer of that id.

That one producer survives the failure is tested in test_cluster_groups.py, with confluent-kafka and
aiokafka. Not with kafka-python 3.0.12: its `await_ready` raises for a node that refuses
connections, where its sender expects False. The request that needed the coordinator, EndTxn or
InitProducerId, is then in no queue any more, and `commit_transaction` waits forever. It does so
with Apache Kafka as well, whose FindCoordinator also names the dead node until it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from chaos.ensemble import Ensemble

from .transactional import PRODUCERS, TRANSACTION_MS, Transactional, read_confluent
from .wire import until

PARTITIONS = 6
TRANSACTION = 1
"""The type of keys for FindCoordinator."""
HEAL_S = 90.0


@pytest.fixture
def opened(cluster: Ensemble) -> Iterator[Callable[[str, str], Transactional]]:
    """Opens transactional producers: a kind of client and a transactional id."""
    producers: list[Transactional] = []

    def make(client: str, transactional_id: str) -> Transactional:
        producers.append(PRODUCERS[client](cluster.bootstrap, transactional_id, TRANSACTION_MS))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close()


def coordinators(cluster: Ensemble, transactional_id: str) -> set[int]:
    """Its coordinator according to each running node; -1 for a node that names none."""
    found = set()
    for node_id in cluster.running:
        body = {"key_type": TRANSACTION, "coordinator_keys": [transactional_id]}
        said = -1
        with suppress(OSError):
            (row,) = cluster.request(node_id, "find_coordinator", 4, body).coordinators
            said = row.node_id if row.error_code == 0 else -1
        found.add(said)
    return found


@pytest.mark.parametrize("client", tuple(PRODUCERS))
def test_the_next_producer_of_an_id_survives_a_killed_coordinator(
    cluster: Ensemble,
    new_name: Callable[[], str],
    opened: Callable[[str, str], Transactional],
    client: str,
) -> None:
    topic, transactional_id = new_name(), new_name()
    cluster.create_topic(topic, partitions=PARTITIONS)
    zombie = opened(client, transactional_id)
    (victim,) = coordinators(cluster, transactional_id)
    partition = next(index for index in range(PARTITIONS) if cluster.leader(topic, index) != victim)
    zombie.run(topic, [b"before"], partition=partition)
    zombie.begin()
    zombie.send(topic, [b"lost"], partition)
    cluster.nodes[victim].kill()
    until(
        lambda: not coordinators(cluster, transactional_id) & {victim, -1},
        "every node names another coordinator",
        HEAL_S,
        details=lambda: coordinators(cluster, transactional_id),
    )
    heir = opened(client, transactional_id)
    heir.run(topic, [b"taken back"], committed=False, partition=partition)
    heir.run(topic, [b"after"], partition=partition)
    cluster.nodes[victim].start()
    until(
        lambda: (
            read_confluent(cluster.bootstrap, topic, "read_committed", partition)
            == [b"before", b"after"]
        ),
        "what was committed is there, and nothing else",
        HEAL_S,
        details=lambda: read_confluent(cluster.bootstrap, topic, "read_committed", partition),
    )
