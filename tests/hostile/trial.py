"""One attack on one broker, and how long the good client waits during it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from chaos.node import KafkaNode, Node, free_port, free_ports
from mqd.peers import load_peers
from tests.hostile.attack import KNOWN_TOPIC, Attack
from tests.hostile.attacker import END
from tests.hostile.attacks import EVERY_ATTACK
from tests.hostile.good_client import TOPIC
from tests.hostile.login import Login
from tests.hostile.secured import GOOD, create_acls, options as secured_options
from tests.hostile.wire import Wire
from tests.tls_files import write_texts

ROOT = Path(__file__).resolve().parent.parent.parent
READY_SECONDS = 60.0
PARTITIONS_A_REQUEST = 5_000
"""Apache Kafka's controller writes at most 10,000 metadata records for one request."""


class Ports(NamedTuple):
    """The ports of a broker. Brokers other than mqd have no peer port."""

    client: int
    peer: int | None = None
    ca: str = ""
    """The certificate authority of the client port, which has TLS and logins. Empty: PLAINTEXT."""

    def login(self, user: str) -> str:
        """The argument of `login.use`: empty without logins."""
        return Login(self.client, user, self.ca).as_json() if self.ca else ""

    def attacked_by(self, attack: type[Attack]) -> int | None:
        return self.peer if attack.on_peer_port else self.client


class Waits(NamedTuple):
    """Seconds for which the good client waited, and how many responses it got."""

    longest: float
    median: float
    answers: int


@contextmanager
def mqd(directory: Path, known: int, *, has_logins: bool = False) -> Iterator[Ports]:
    """A node in its own process. `known`: partitions of the attacked topic. `has_logins`: its
    clients use SASL_SSL.
    """
    directory.mkdir(parents=True, exist_ok=True)
    node = Node(directory, ("max.connections.per.ip=1000",))
    peer_port = load_peers(node.peers).nodes[node.node_id].peer_port
    ports = Ports(node.port, peer_port)
    if has_logins:
        files = write_texts(directory)
        ports = Ports(free_port(), peer_port, str(files["ca"]))
        secured = secured_options(files, node.port, ports.client)
        node.options += tuple(f"{key}={value}" for key, value in secured.items())
    node.start()
    try:
        create_topics(node.port, known, has_logins=has_logins)
        yield ports
    finally:
        node.kill()


@contextmanager
def kafka(directory: Path, known: int, *, has_logins: bool = False) -> Iterator[Ports]:
    """Apache Kafka 4.3.1 in the same way."""
    port, _controller_port = free_ports(2)
    ports, options = Ports(port), []
    if has_logins:
        directory.mkdir(parents=True, exist_ok=True)
        files = write_texts(directory)
        ports = Ports(free_port(), ca=str(files["ca"]))
        secured = secured_options(files, port, ports.client)
        secured["advertised.listeners"] = secured["listeners"]
        secured["listeners"] += f",CONTROLLER://127.0.0.1:{port + 1}"
        secured["inter.broker.listener.name"] = "PLAINTEXT"
        secured["listener.security.protocol.map"] = (
            ",".join(f"{name}:{name}" for name in ("PLAINTEXT", "SASL_SSL"))
            + ",CONTROLLER:PLAINTEXT"
        )
        options = [f"{key}={value}" for key, value in secured.items()]
    script = str(KafkaNode.SCRIPT)
    subprocess.run(
        ["bash", script, "start", "1", str(port), str(directory), *options],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        create_topics(port, known, has_logins=has_logins)
        yield ports
    finally:
        subprocess.run(
            ["bash", script, "stop", str(directory)], check=True, stdout=subprocess.DEVNULL
        )


def create_topics(port: int, known: int, *, has_logins: bool) -> None:
    """The good client's topic and the attacked one; returns when both have leaders. With logins
    also the ACLs.
    """
    wire = Wire(port)
    if has_logins:
        created = wire.ask("create_acls", 3, create_acls(TOPIC))
        assert not any(row.error_code for row in created.results), created
    for name, partitions in ((TOPIC, 1), (KNOWN_TOPIC, known)):
        topic = {
            "name": name,
            "num_partitions": min(partitions, PARTITIONS_A_REQUEST),
            "replication_factor": 1,
        }
        answer = wire.ask("create_topics", 7, {"topics": [topic], "timeout_ms": 60_000})
        assert answer.topics[0].error_code == 0, answer
        for count in range(PARTITIONS_A_REQUEST, partitions, PARTITIONS_A_REQUEST):
            more = {
                "name": name,
                "count": min(count + PARTITIONS_A_REQUEST, partitions),
                "assignments": None,
            }
            answer = wire.ask(
                "create_partitions",
                3,
                {"topics": [more], "timeout_ms": 60_000, "validate_only": False},
            )
            assert answer.results[0].error_code == 0, answer
        ends_at = time.monotonic() + READY_SECONDS
        rows = [{"partition_index": partitions - 1, "timestamp": -1}]
        while (
            wire.ask("list_offsets", 7, {"topics": [{"name": name, "partitions": rows}]})
            .topics[0]
            .partitions[0]
            .error_code
        ):
            assert time.monotonic() < ends_at, (
                f"Topic '{name}' has no leader after {READY_SECONDS} s."
            )
    wire.close()


def good_client(ports: Ports, seconds: float, size: int = Attack.good_bytes) -> Waits:
    """Run the good client for that long, with records of this size."""
    command = [
        sys.executable,
        "-m",
        "tests.hostile.good_client",
        str(ports.client),
        str(seconds),
        str(size),
        ports.login(GOOD),
    ]
    found = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=_environment()
    )
    return Waits(**json.loads(found.stdout))


class Attackers:
    """The process from which attacks are forked. It starts at once, and imports its modules while
    a node starts.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.attacker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )

    def close(self) -> None:
        """Also an attack ends that still runs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def begin(self, port: int, attack: str, connections: int, known: int, login: str = "") -> None:
        """Returns when the connections are open."""
        self._send(json.dumps([port, connections, known, attack, login]), "begun")

    def end(self) -> None:
        self._send(END, "ended")

    def _send(self, line: str, answer: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        received = self._process.stdout.readline()
        assert received == answer + "\n", received


def waits_under(
    attackers: Attackers,
    user: str,
    attack: str,
    connections: int,
    known: int,
    seconds: float,
    ports: Ports,
) -> Waits:
    """The good client's waits while `connections` connections of a user attack."""
    kind = EVERY_ATTACK[attack]
    port = ports.attacked_by(kind)
    assert port is not None
    attackers.begin(port, attack, connections, known, ports.login(user))
    try:
        return good_client(ports, seconds, kind.good_bytes)
    finally:
        attackers.end()


@asynccontextmanager
async def attacking(
    attackers: Attackers, port: int, attack: str, connections: int, known: int, login: str = ""
) -> AsyncIterator[None]:
    """Attack the node on this port, which may run in this process, during the block."""
    await trio.to_thread.run_sync(attackers.begin, port, attack, connections, known, login)
    try:
        yield
    finally:
        attackers.end()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
