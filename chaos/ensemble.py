"""Broker processes that form one cluster, of mqd or of Apache Kafka, and the metadata that each of
them returns.

Every request goes to one chosen node over a new connection, to see that node's metadata, which may
be stale. A client of the whole cluster would get the response of any node.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqd.client.security import Security
from mqd.protocol.apis import by_name
from mqd.protocol.schema import decode_response_header, encode_request_header

from .client_security import PLAINTEXT, librdkafka_options
from .cluster_security import ClusterSecurity
from .links import Links
from .node import (
    CLUSTER_ID,
    LOOPBACK,
    KafkaNode,
    Node,
    NodeFailed,
    Process,
    free_ports,
    write_peers,
)

REQUEST_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.02
KAFKA_PORT_STEP = 10
TOPIC_ALREADY_EXISTS = 36
RETRIED = frozenset({0, 7, 41, 14, 15, 38, TOPIC_ALREADY_EXISTS})
"""Errors of CreateTopics that a starting cluster returns, or that a retry gets: timeout, no
controller yet, too few brokers yet.
"""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The state of one partition by the metadata of one node. `leader` -1: none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


View = Mapping[tuple[str, int], PartitionView]
"""(topic, partition) -> its state by the metadata of one node."""


class Ensemble:
    """The nodes of one cluster. `kind` is "mqd" or "kafka". `session_ms`: their broker session
    timeout. With `security`, clients use the `secured_ports` (node id -> port).
    """

    def __init__(
        self,
        kind: str,
        nodes: Mapping[int, Process],
        session_ms: int,
        security: ClusterSecurity | None = None,
        secured_ports: Mapping[int, int] | None = None,
    ) -> None:
        self.kind = kind
        self.nodes = dict(nodes)
        self.session_ms = session_ms
        self.security = security
        self._secured_ports = dict(secured_ports or {})
        self.started_s = 0.0

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, for clients."""
        if self._secured_ports:
            return ",".join(f"{LOOPBACK}:{port}" for port in self._secured_ports.values())
        return self.plain_bootstrap

    @property
    def plain_bootstrap(self) -> str:
        """Addresses of the PLAINTEXT listeners of all nodes."""
        return ",".join(node.address for node in self.nodes.values())

    @property
    def client_security(self) -> Security:
        """The security of clients."""
        return PLAINTEXT if self.security is None else self.security.client()

    @property
    def client_options(self) -> dict[str, Any]:
        """The security of clients of librdkafka; empty for PLAINTEXT."""
        return librdkafka_options(self.client_security)

    @property
    def command_config(self) -> Path | None:
        """The file of the client properties; None for PLAINTEXT."""
        return None if self.security is None else self.security.command_config

    @property
    def running(self) -> list[int]:
        """Nodes with a process that is not suspended."""
        return [node_id for node_id, node in self.nodes.items() if node.running and not node.paused]

    # -- start and stop

    def start(self) -> float:
        """Start all nodes, and wait until each of them serves and knows the others. Returns the
        seconds that took. Raises NodeFailed.
        """
        started_at = time.monotonic()
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_until(
            lambda: all(len(self.brokers(node_id)) == len(self.nodes) for node_id in self.nodes),
            "all nodes to meet",
        )
        if self.security is not None:
            self.security.create_users(self.plain_bootstrap)
        self.started_s = time.monotonic() - started_at
        return self.started_s

    def stop(self) -> None:
        """Stop all nodes cleanly at the same time. Raises NodeFailed if one of them does not end
        cleanly.
        """
        alive = [node for node in self.nodes.values() if node.running]
        for node in alive:
            if node.paused:
                node.resume()
            node.terminate()
        failures = []
        for node in alive:
            try:
                node.wait_stopped()
            except NodeFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def kill(self) -> None:
        """Kill every process that still runs, at the end of a failed test."""
        for node in self.nodes.values():
            if node.running:
                node.kill()

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> float:
        """Poll a condition until it is true; returns the monotonic time of that. Raises NodeFailed
        after the timeout.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise NodeFailed(f"{self.kind}: waited {timeout_s:.0f} s for {what}")
            time.sleep(POLL_INTERVAL_S)
        return time.monotonic()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        replicas: int = -1,
        wait: bool = True,
    ) -> None:
        """Create a topic, and wait until every node reports it with full ISRs.

        `assignment`: partition -> its replicas, the leader first.
        """
        rows = [
            {"partition_index": index, "broker_ids": list(nodes)}
            for index, nodes in (assignment or {}).items()
        ]
        topic = {
            "name": name,
            "num_partitions": -1 if rows else partitions,
            "replication_factor": -1 if rows else replicas,
            "assignments": rows,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }

        def create() -> bool:
            with suppress(OSError):
                response = self.request(
                    self.running[0],
                    "create_topics",
                    5,
                    {"topics": [topic], "timeout_ms": 10_000},
                    timeout_s=15,
                )
                (row,) = response.topics
                if row.error_code not in RETRIED:
                    raise NodeFailed(
                        f"{self.kind} does not create {name}: error {row.error_code} "
                        f"{row.error_message}"
                    )
                return bool(row.error_code in (0, TOPIC_ALREADY_EXISTS))
            return False

        self.wait_until(create, f"topic {name}")
        if wait:
            self.wait_until(
                lambda: self.is_whole({name: len(rows) or partitions}), f"topic {name} to be whole"
            )

    # -- what one node reports

    def request(
        self,
        node_id: int,
        name: str,
        version: int,
        body: Mapping[str, Any],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """One request to one node, and its response. Raises OSError."""
        api = by_name(name)
        assert api is not None, name
        frame = encode_request_header(api, version, 1, "chaos") + api.encode_request(version, body)
        with socket.create_connection(
            (LOOPBACK, self.nodes[node_id].port), timeout_s
        ) as connection:
            connection.sendall(len(frame).to_bytes(4, "big") + frame)
            with connection.makefile("rb") as stream:
                size = stream.read(4)
                response = stream.read(int.from_bytes(size, "big")) if len(size) == 4 else b""
        if not response:
            raise ConnectionError("closed")
        return api.decode_response(
            version, response, decode_response_header(api, version, response)[1]
        )

    def view(self, node_id: int, topics: Iterable[str]) -> View:
        """Every partition of these topics that this node knows, with its state. Empty if the node
        does not respond.
        """
        body = {"topics": [{"name": name} for name in topics], "allow_auto_topic_creation": False}
        try:
            response = self.request(node_id, "metadata", 9, body)
        except OSError:
            return {}
        return {
            (topic.name, row.partition_index): PartitionView(
                row.leader_id,
                row.leader_epoch,
                tuple(row.replica_nodes),
                tuple(sorted(row.isr_nodes)),
            )
            for topic in response.topics
            if topic.error_code == 0
            for row in topic.partitions
        }

    def brokers(self, node_id: int) -> set[int]:
        """The live brokers by the metadata of this node."""
        try:
            return {
                row.node_id for row in self.request(node_id, "metadata", 9, {"topics": []}).brokers
            }
        except OSError:
            return set()

    def controller(self) -> int | None:
        """The node that reports itself as the leader of the metadata quorum; None if no node
        does.
        """
        body = {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        }
        best: tuple[int, int] | None = None
        for node_id in self.running:
            with suppress(OSError):
                response = self.request(node_id, "describe_quorum", 0, body, timeout_s=2.0)
                if (
                    response.error_code == 0
                    and response.topics
                    and response.topics[0].partitions[0].error_code == 0
                ):
                    row = response.topics[0].partitions[0]
                    if row.leader_id >= 0 and (best is None or row.leader_epoch > best[0]):
                        best = row.leader_epoch, row.leader_id
        return best[1] if best is not None else None

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The leader with the highest epoch that any running node reports."""
        seen = [
            view[topic, partition]
            for node_id in self.running
            if (topic, partition) in (view := self.view(node_id, [topic]))
        ]
        best = max(seen, key=lambda row: row.leader_epoch, default=None)
        return best.leader if best is not None and best.leader >= 0 else None

    def is_whole(self, topics: Mapping[str, int]) -> bool:
        """Whether every node reports a leader and a full ISR for every partition (topic -> their
        count), and all reports are equal.
        """
        wanted = {
            (topic, partition) for topic, count in topics.items() for partition in range(count)
        }
        views = [self.view(node_id, topics) for node_id in self.nodes]
        return all(
            view.keys() == wanted
            and view == views[0]
            and all(
                row.leader >= 0 and row.isr == tuple(sorted(row.replicas)) for row in view.values()
            )
            for view in views
        )


def mqd_ensemble(
    directory: Path,
    count: int = 3,
    *,
    session_ms: int | None = None,
    options: tuple[str, ...] = (),
    racks: dict[int, str] | None = None,
    links: Links | None = None,
    security: ClusterSecurity | None = None,
) -> Ensemble:
    """A cluster of `mqd start` processes, not yet started.

    With `links`, the connections between nodes go through them.
    """
    client_ports, peer_ports = free_ports(count), free_ports(count)
    ports = {number + 1: (client_ports[number], peer_ports[number]) for number in range(count)}
    chosen = (*_replication(count), *_session(session_ms), *options)
    secured_ports = _secured_ports(ports, security)
    nodes = {}
    for node_id, (port, _) in ports.items():
        home = directory / str(node_id)
        home.mkdir(parents=True, exist_ok=True)
        seen = dict(ports)
        if links is not None:
            seen |= {
                other: (ports[other][0], links.add(node_id, other, ports[other][1]))
                for other in ports
                if other != node_id
            }
        write_peers(home / "peers.toml", seen, racks)
        own = (
            ()
            if security is None
            else security.node_options("mqd", node_id, CLUSTER_ID, port, secured_ports[node_id])
        )
        nodes[node_id] = Node(
            home, (*chosen, *own), node_id=node_id, port=port, peers=home / "peers.toml"
        )
    return Ensemble("mqd", nodes, session_ms or 3000, security, secured_ports)


def kafka_ensemble(
    directory: Path,
    count: int = 3,
    *,
    session_ms: int | None = None,
    options: tuple[str, ...] = (),
    racks: dict[int, str] | None = None,
    security: ClusterSecurity | None = None,
) -> Ensemble:
    """A cluster of Apache Kafka processes (scripts/kafka.sh), formatted and not yet started.

    Raises NodeFailed.
    """
    base = free_ports(count, step=KAFKA_PORT_STEP)[0]
    chosen = (*_session(session_ms), *options)
    command = [
        "bash",
        str(KafkaNode.SCRIPT),
        "format",
        str(count),
        str(base),
        str(directory),
        *chosen,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"KAFKA_HEAP": KafkaNode.HEAP} | os.environ,
    )
    if done.returncode:
        raise NodeFailed(f"Apache Kafka cannot be set up: {done.stderr.strip()}")
    ports = {node_id: base + KAFKA_PORT_STEP * (node_id - 1) for node_id in range(1, count + 1)}
    secured_ports = _secured_ports(ports, security)
    for node_id, port in ports.items():
        own = (
            ()
            if security is None
            else security.node_options("kafka", node_id, CLUSTER_ID, port, secured_ports[node_id])
        )
        if racks:
            own += (f"broker.rack={racks[node_id]}",)
        with (directory / str(node_id) / "server.properties").open("a") as file:
            file.write("".join(f"{each}\n" for each in own))
    java_options = "" if security is None else security.java_options
    nodes = {
        node_id: KafkaNode(directory, node_id, port, java_options)
        for node_id, port in ports.items()
    }
    return Ensemble("kafka", nodes, session_ms or 9000, security, secured_ports)


def ensemble(kind: str, directory: Path, count: int = 3, **options: Any) -> Ensemble:
    """A cluster of that kind ("mqd" or "kafka")."""
    return {"mqd": mqd_ensemble, "kafka": kafka_ensemble}[kind](directory, count, **options)


def _secured_ports(node_ids: Iterable[int], security: ClusterSecurity | None) -> dict[int, int]:
    """node id -> the port of its listener with that security. Empty without one."""
    if security is None:
        return {}
    ids = list(node_ids)
    return dict(zip(ids, free_ports(len(ids)), strict=True))


def _replication(count: int) -> tuple[str, ...]:
    replicas = min(count, 3)
    return (
        f"default.replication.factor={replicas}",
        f"min.insync.replicas={2 if replicas > 2 else 1}",
    )


def _session(session_ms: int | None) -> tuple[str, ...]:
    """Options for the same session timeout on both kinds of broker, with six heartbeats in it.
    None: the defaults of each.
    """
    if session_ms is None:
        return ()
    return (
        f"broker.session.timeout.ms={session_ms}",
        f"broker.heartbeat.interval.ms={max(20, session_ms // 6)}",
    )
