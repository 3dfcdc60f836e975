"""Nodes die, freeze, restart and are partitioned under stock clients: no acknowledged record is
lost, and clients wait no longer than necessary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import check
from chaos.ensemble import Ensemble, mqd_ensemble
from chaos.links import Links
from chaos.rolling import CLIENTS as ROLLING_CLIENTS, roll
from chaos.workload import Producer, Reader, gather, read_all

from .batches import batch
from .clients import CLIENTS, Message
from .conftest import SESSION_MS, running
from .wire import Wire, produce

NOT_LEADER = 6
RATE = 300.0


class Load:
    """An idempotent producer and a consumer, both with librdkafka's defaults, on one partition."""

    def __init__(self, cluster: Ensemble, topic: str) -> None:
        self.cluster, self.key = cluster, (topic, 0)
        self.producer = Producer(0, cluster.bootstrap, [self.key], 0, rate=RATE)
        self.reader = Reader(0, cluster.bootstrap, [self.key])
        self.producer.start()
        self.reader.start()
        self.producer.wait_for_acknowledgement()

    def flows(self, since: float, timeout_s: float) -> float:
        """Wait for an acknowledgement from after that moment; returns the seconds since then."""
        limit = since + timeout_s
        while (last := self.producer.silence.last[self.key]) < since:
            assert time.monotonic() < limit, (
                f"nothing was acknowledged for {timeout_s} s {self.producer.errors}"
            )
            time.sleep(0.005)
        return last - since

    def finish(self) -> None:
        """Every sent record has an outcome, and the history has no anomalies."""
        self.producer.finish()
        self.reader.finish()
        assert self.reader.errors == []
        assert (
            check(
                gather([self.producer], [self.reader], read_all(self.cluster.bootstrap, [self.key]))
            )
            == []
        )


def placed(cluster: Ensemble, topic: str, role: str) -> int:
    """A topic whose leader is, or is not, the controller; returns the victim: leader or
    controller.
    """
    controller = None
    while controller is None:
        controller = cluster.controller()
    others = [node_id for node_id in cluster.nodes if node_id != controller]
    leader = controller if role == "both" else others[0]
    cluster.create_topic(
        topic,
        assignment={0: [leader, *(node_id for node_id in cluster.nodes if node_id != leader)]},
    )
    return controller if role == "controller" else leader


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("role", ["leader", "controller", "both"])
def test_clients_survive_the_end_of_a_node(
    cluster: Ensemble, role: str, end: str, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    victim = placed(cluster, topic, role)
    load = Load(cluster, topic)
    getattr(cluster.nodes[victim], end)()
    load.flows(time.monotonic(), 30)
    cluster.create_topic(new_name(), replicas=2, wait=False)  # there is a controller again
    cluster.nodes[victim].start()
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "a full ISR")
    load.finish()


def test_all_nodes_are_killed_and_nothing_is_lost(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic)
    load = Load(cluster, topic)
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.wait_ready()
    load.flows(time.monotonic(), 60)
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "a full ISR")
    load.finish()


def test_a_frozen_leader_is_replaced_and_resumes_as_a_follower(
    cluster: Ensemble, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    victim = placed(cluster, topic, "leader")
    load = Load(cluster, topic)
    cluster.nodes[victim].pause()
    cluster.wait_until(lambda: cluster.leader(topic) not in (None, victim), "another leader")
    cluster.nodes[victim].resume()
    load.flows(time.monotonic(), 60)
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "a full ISR")
    load.finish()


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(
            one, id=one.name, marks=() if one.name == "confluent-kafka" else pytest.mark.slow
        )
        for one in ROLLING_CLIENTS
    ],
)
def test_no_error_of_a_rolling_restart_reaches_a_client(cluster: Ensemble, client: Any) -> None:
    loads, errors = roll(cluster, 1, (client,))
    assert errors == []
    assert loads[0].acked == loads[0].sent > 500


# -- better than Kafka


@pytest.mark.mqd_only  # Kafka waits for its own old session
def test_a_killed_node_serves_again_at_once(tmp_path: Path) -> None:
    """Its new registration replaces the old one, however long the session: a producer whose
    partition is only on that node gets acknowledgements, and every copy is in sync again.
    """
    session_ms = 90_000
    with running(mqd_ensemble(tmp_path, 3, session_ms=session_ms)) as cluster:
        cluster.create_topic("at-once", 6)
        cluster.create_topic(
            "alone", assignment={node_id - 1: [node_id] for node_id in cluster.nodes}
        )
        for node_id, node in cluster.nodes.items():
            node.kill()
            begun = time.monotonic()
            node.start()
            assert CLIENTS[0].produce(
                node.address, "alone", [Message(b"v")], partition=node_id - 1
            ) == [0]
            cluster.wait_until(lambda: cluster.is_whole({"at-once": 6}), "a full ISR")
            assert time.monotonic() - begun < session_ms / 1000 / 3


@pytest.mark.mqd_only  # a leader of Kafka keeps its clients
def test_a_leader_without_a_quorum_refuses_its_clients(
    cluster: Ensemble, connect: Callable[[int], Wire], new_name: Callable[[], str]
) -> None:
    topic = new_name()
    cluster.create_topic(topic, assignment={0: [1, 2, 3]})
    wire = connect(1)
    assert produce(wire, topic, batch(b"v")).error_code == 0
    parked = connect(1)
    cluster.nodes[2].pause()
    cluster.nodes[3].pause()
    begun = time.monotonic()
    row = produce(parked, topic, batch(b"parked"))
    assert row.error_code == NOT_LEADER, "the parked requests"
    assert time.monotonic() - begun < 2.5 * SESSION_MS / 1000
    assert produce(wire, topic, batch(b"new"), acks=1).error_code == NOT_LEADER
    cluster.nodes[2].resume()
    cluster.nodes[3].resume()
    cluster.wait_until(lambda: cluster.is_whole({topic: 1}), "the cluster to heal")
    assert CLIENTS[0].produce(cluster.bootstrap, topic, [Message(b"after")])[0] >= 1


# a client of Kafka stays with a leader that is partitioned from its peers until they reconnect
@pytest.mark.mqd_only
@pytest.mark.parametrize("role", [pytest.param("leader", marks=pytest.mark.slow), "both"])
def test_clients_leave_a_leader_that_is_partitioned_from_its_peers(
    tmp_path: Path, role: str
) -> None:
    links = Links()
    try:
        with running(mqd_ensemble(tmp_path, 3, session_ms=SESSION_MS, links=links)) as cluster:
            victim = placed(cluster, "cut", role)
            load = Load(cluster, "cut")
            links.isolate([victim])
            begun = time.monotonic()
            cluster.wait_until(
                lambda: cluster.leader("cut") not in (None, victim), "another leader"
            )
            load.flows(time.monotonic(), 15)
            assert time.monotonic() - begun < 5 * SESSION_MS / 1000, "the partition still exists"
            links.heal()
            cluster.wait_until(lambda: cluster.is_whole({"cut": 1}), "a full ISR")
            load.finish()
    finally:
        links.close()
