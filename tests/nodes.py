"""A whole node inside a test: the real `daemon.main` on loopback, stopped cleanly or killed like a
crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from chaos.node import free_ports
from mqd import daemon
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import open_peer
from mqd.config import NodeConfig, StartOptions
from mqd.io.net import OsNetwork
from mqd.peers import Peers, parse_peers
from mqd.protocol import apis
from mqd.protocol.batch_builder import build_batch

READY_SECONDS = 20.0


def one_node_peers() -> Peers:
    port, peer_port = free_ports(2)
    text = (
        'cluster_id = "test-cluster"\n[[node]]\nid = 1\nhost = "127.0.0.1"\nport = '
        f"{port}\npeer_port = {peer_port}\n"
    )
    return parse_peers(text, Path("peers.toml"))


class RunningNode:
    """A node that serves requests."""

    def __init__(self, peers: Peers, node_id: int, running: daemon.Daemon | None = None) -> None:
        self.peers = peers
        self.daemon = running
        self.port = peers.nodes[node_id].port
        self.peer_port = peers.nodes[node_id].peer_port


@asynccontextmanager
async def node(
    directory: Path,
    *,
    peers: Peers | None = None,
    node_id: int = 1,
    options: Mapping[str, str] | None = None,
    wait: bool = True,
) -> AsyncIterator[RunningNode]:
    """A node on `directory` for the length of the block; it serves when the block begins, unless
    `wait` is false.
    """
    peers = peers if peers is not None else one_node_peers()
    config = NodeConfig.load(None, {}, dict(options or {}))
    ready = trio.Event()
    start = StartOptions(peers, node_id, directory, config)
    async with trio.open_nursery() as nursery:
        seams = daemon.Seams(announce=lambda _line: ready.set(), owns_process=False)
        started = await nursery.start(daemon.main, start, seams)
        if wait:
            with trio.fail_after(READY_SECONDS):
                await ready.wait()
        yield RunningNode(peers, node_id, started)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(running: RunningNode, *, peer: bool = False) -> AsyncIterator[PeerConnection]:
    async with open_peer(
        OsNetwork(), "127.0.0.1", running.peer_port if peer else running.port
    ) as connection:
        yield connection


async def ask(connection: PeerConnection, name: str, version: int, body: Mapping[str, Any]) -> Any:
    api = apis.by_name(name)
    assert api is not None
    return await connection.request(api, body, version, timeout_s=10)


async def create_topic(
    connection: PeerConnection, name: str, partitions: int = 1, **configs: str
) -> None:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ],
    }
    answer = await ask(connection, "create_topics", 7, {"topics": [topic], "timeout_ms": 10_000})
    assert [one.error_code for one in answer.topics] == [0], answer


def batch(*values: bytes, **options: Any) -> bytes:
    return bytes(
        build_batch([(None, value) for value in values], timestamp=1_700_000_000_000, **options)
    )


async def produce(
    connection: PeerConnection,
    topic: str,
    records: bytes | None,
    partition: int = 0,
    acks: int = -1,
) -> Any:
    """The one partition's row of the response."""
    body = {
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        ],
    }
    answer = await ask(connection, "produce", 9, body)
    return answer.responses[0].partition_responses[0]


async def fetch(
    connection: PeerConnection, topic: str, offset: int, partition: int = 0, **options: Any
) -> Any:
    """The one partition's row of the response."""
    wanted = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": options.pop("partition_max_bytes", 1 << 20),
    }
    wanted["current_leader_epoch"] = options.pop("current_leader_epoch", -1)
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        **options,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    answer = await ask(connection, "fetch", 12, body)
    return answer.responses[0].partitions[0]
