"""A running cluster changes to TLS, also between its nodes, in rolling restarts under load: no
record is lost, and no client sees an error that a retry does not repair.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaos.ensemble import Ensemble, ensemble
from chaos.node import CLUSTER_ID, Node, free_ports
from chaos.workload import Producer
from mqd.io.certificates import Authority, issue_node, node_file, write_private

from .conftest import running

TOPIC = "rolled"


@pytest.fixture
def plain_cluster(tmp_path: Path) -> Iterator[Ensemble]:
    with running(ensemble("mqd", tmp_path)) as cluster:
        yield cluster


def restart(cluster: Ensemble, node_id: int, options: tuple[str, ...]) -> None:
    node = cluster.nodes[node_id]
    assert isinstance(node, Node)
    node.stop()
    node.options = options
    node.start()
    in_sync = sorted(cluster.nodes)
    cluster.wait_until(
        lambda: all(
            sorted(view.isr) == in_sync
            for other in cluster.nodes
            for view in cluster.view(other, [TOPIC]).values()
        ),
        "full ISRs",
    )


@pytest.mark.slow
@pytest.mark.mqd_only
def test_a_cluster_changes_to_tls_under_load(plain_cluster: Ensemble, tmp_path: Path) -> None:
    cluster = plain_cluster
    now = datetime.now(UTC)
    authority = Authority.create("rolling", now=now)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    ports = dict(zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True))

    def renew() -> None:
        for node_id in cluster.nodes:
            pem = issue_node(authority, CLUSTER_ID, node_id, ["127.0.0.1"], now=now)
            write_private(tmp_path / node_file(node_id), pem, replace=True)

    def secured(node_id: int, mode: str) -> tuple[str, ...]:
        node = cluster.nodes[node_id]
        return (
            *before[node_id],
            f"listeners=PLAINTEXT://{node.address},SSL://127.0.0.1:{ports[node_id]}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={tmp_path / node_file(node_id)}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={tmp_path / 'ca.pem'}",
            f"peer.ssl={mode}",
        )

    before = {one: node.options for one, node in cluster.nodes.items() if isinstance(node, Node)}
    cluster.create_topic(TOPIC, 3)
    keys = [(TOPIC, partition) for partition in range(3)]
    renew()
    plain = Producer(1, cluster.bootstrap, keys, 1, rate=200.0)
    plain.start()
    for node_id in cluster.nodes:
        restart(cluster, node_id, secured(node_id, "preferred"))
    tls = Producer(
        2,
        ",".join(f"127.0.0.1:{port}" for port in ports.values()),
        keys,
        2,
        rate=200.0,
        options={"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")},
    )
    tls.start()
    renew()
    for node_id in cluster.nodes:
        restart(cluster, node_id, secured(node_id, "required"))
    tls.wait_for_acknowledgement()
    plain.wait_for_acknowledgement()
    for producer in (plain, tls):
        producer.finish()
        assert producer.acknowledged > 0
    logs = "".join(node.stderr() for node in cluster.nodes.values() if isinstance(node, Node))
    assert "Traceback" not in logs
