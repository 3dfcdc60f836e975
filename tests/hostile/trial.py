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

from chaos.node import KafkaNode, Node, free_port
from mqd.peers import load_peers
from tests.hostile.attack import KNOWN_TOPIC, Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.good_client import TOPIC
from tests.hostile.wire import Wire

ROOT = Path(__file__).resolve().parent.parent.parent
READY_SECONDS = 60.0
PARTITIONS_A_REQUEST = 5_000
"""Apache Kafka's controller writes at most 10,000 metadata records for one request."""


class Ports(NamedTuple):
    """The ports of a broker. Brokers other than mqd have no peer port."""

    client: int
    peer: int | None = None

    def attacked_by(self, attack: type[Attack]) -> int | None:
        return self.peer if attack.on_peer_port else self.client


class Waits(NamedTuple):
    """Seconds for which the good client waited, and how many responses it got."""

    longest: float
    median: float
    answers: int


@contextmanager
def mqd(directory: Path, known: int) -> Iterator[Ports]:
    """A node in its own process. `known`: partitions of the attacked topic."""
    directory.mkdir(parents=True, exist_ok=True)
    node = Node(directory, ("max.connections.per.ip=1000",))
    node.start()
    try:
        create_topics(node.port, known)
        yield Ports(node.port, load_peers(node.peers).nodes[node.node_id].peer_port)
    finally:
        node.kill()


@contextmanager
def kafka(directory: Path, known: int) -> Iterator[Ports]:
    """Apache Kafka 4.3.1 in the same way."""
    port = free_port()
    script = str(KafkaNode.SCRIPT)
    subprocess.run(
        ["bash", script, "start", "1", str(port), str(directory)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        create_topics(port, known)
        yield Ports(port)
    finally:
        subprocess.run(
            ["bash", script, "stop", str(directory)], check=True, stdout=subprocess.DEVNULL
        )


def create_topics(port: int, known: int) -> None:
    """The good client's topic and the attacked one; returns when both have leaders."""
    wire = Wire(port)
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


def good_client(port: int, seconds: float, size: int = Attack.good_bytes) -> Waits:
    """Run the good client for that long, with records of this size."""
    command = [
        sys.executable,
        "-m",
        "tests.hostile.good_client",
        str(port),
        str(seconds),
        str(size),
    ]
    found = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=_environment()
    )
    return Waits(**json.loads(found.stdout))


def waits_under(ports: Ports, attack: str, connections: int, known: int, seconds: float) -> Waits:
    """The good client's waits while `connections` connections attack."""
    kind = ATTACKS[attack]
    port = ports.attacked_by(kind)
    assert port is not None
    with _attacker(port, attack, connections, known) as attacker:
        _wait_until_begun(attacker)
        return good_client(ports.client, seconds, kind.good_bytes)


@asynccontextmanager
async def attacking(port: int, attack: str, connections: int, known: int) -> AsyncIterator[None]:
    """During the block, a process attacks the node on this port, which may run in this process."""
    with _attacker(port, attack, connections, known) as attacker:
        await trio.to_thread.run_sync(_wait_until_begun, attacker)
        yield


@contextmanager
def _attacker(
    port: int, attack: str, connections: int, known: int
) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "tests.hostile.attacker",
        str(port),
        attack,
        str(connections),
        str(known),
    ]
    attacker = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment()
    )
    try:
        yield attacker
    finally:
        attacker.kill()
        attacker.wait()
        assert attacker.stdout is not None
        attacker.stdout.close()


def _wait_until_begun(attacker: subprocess.Popen[str]) -> None:
    assert attacker.stdout is not None
    line = attacker.stdout.readline()
    assert line == "begun\n", line


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
