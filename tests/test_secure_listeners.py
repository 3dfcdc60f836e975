"""A whole node with two listeners, and the client over TLS."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from chaos.node import free_port
from mqd.client import (
    InvalidValue,
    NewTopic,
    PeerUnreachable,
    Security,
    TlsHandshakeFailed,
    TopicPartition,
    connect,
    open_consumer,
    open_producer,
)
from mqd.client.admin import Admin
from mqd.client.errors import ConnectionBroken
from mqd.limits import TLS_CONNECTION_BYTES
from mqd.server.context import CLIENT
from mqd.server.memory import RequestPool
from tests.nodes import RunningNode, node, one_node_peers
from tests.tls_files import texts, write_texts

SECURE = Security(protocol="SSL", ca=texts().ca)


async def test_a_listener_without_a_host_listens_on_all_addresses(tmp_path: Path) -> None:
    """`PLAINTEXT://:9092`, as in the server.properties of Apache Kafka."""
    peers = one_node_peers()
    port = peers.nodes[1].port
    options = {"listeners": f"PLAINTEXT://:{port}"}
    async with (
        node(tmp_path / "data", peers=peers, options=options),
        connect(f"127.0.0.1:{port}") as client,
    ):
        assert [one.address for one in client.view.brokers.values()] == [("127.0.0.1", port)]


async def test_each_listener_answers_with_its_own_address(tmp_path: Path) -> None:
    files = write_texts(tmp_path)
    peers = one_node_peers()
    plain, secure = peers.nodes[1].port, free_port()
    options = {
        "listeners": f"IN://127.0.0.1:{plain},OUT://127.0.0.1:{secure}",
        "advertised.listeners": f"OUT://localhost:{secure}",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files["node"]),
        "auto.create.topics.enable": "false",
    }
    async with node(tmp_path / "data", peers=peers, options=options) as running:
        async with connect(f"127.0.0.1:{secure}", security=SECURE) as client:
            assert [one.address for one in client.view.brokers.values()] == [("localhost", secure)]
            await Admin(client).create_topics([NewTopic("t", 1)])
            values = [bytes([n]) * 400_000 for n in range(8)]
            async with open_producer(client) as producer:
                for value in values:
                    await producer.send("t", value, partition=0)
            found: list[bytes | None] = []
            async with open_consumer(client, {TopicPartition("t", 0): "beginning"}) as consumer:
                async for batch in consumer:
                    found += [record.value for record in batch.records]
                    if len(found) >= len(values):
                        break
            assert found == values
        async with connect(f"127.0.0.1:{plain}") as client:
            assert [one.address for one in client.view.brokers.values()] == [("127.0.0.1", plain)]
        with pytest.raises(ConnectionBroken, match="requires TLS"):
            async with connect(f"127.0.0.1:{secure}"):
                pass
        with pytest.raises(TlsHandshakeFailed, match="closed the connection during the TLS"):
            async with connect(f"127.0.0.1:{plain}", security=SECURE):
                pass
        with pytest.raises(PeerUnreachable, match="is not trusted") as untrusted:
            security = Security(protocol="SSL", ca=files["other_ca"])
            async with connect(f"127.0.0.1:{secure}", security=security):
                pass
        assert "ssl.truststore.location" in untrusted.value.remedy
        with pytest.raises(InvalidValue, match="cannot be read"):
            async with connect(f"127.0.0.1:{secure}", security=Security(protocol="SSL", ca="no")):
                pass
        with socket.create_connection(("127.0.0.1", secure)) as silent:
            silent.sendall(b"\x16\x03\x01")  # the handshake counts from the accept on
            await until(lambda: pool_of(running).bytes == TLS_CONNECTION_BYTES)
        for sent in hostile():
            with socket.create_connection(("127.0.0.1", secure)) as attacker:
                attacker.sendall(sent)
        await until(lambda: pool_of(running).bytes == 0)
        assert running.daemon is not None
        assert running.daemon.server is not None
        assert running.daemon.server.statistics().bugs == 0


def hostile() -> Iterator[bytes]:
    """What is no handshake: random records, too long ones, and a broken hello of a client."""
    rng = random.Random(1)
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="h").do_handshake()
    hello = outgoing.read()
    for _ in range(15):
        yield b"\x16" + rng.randbytes(rng.randrange(1, 3000))
        yield b"\x16\x03\x01\xff\xff" + rng.randbytes(30_000)
        broken = bytearray(hello)
        broken[rng.randrange(len(hello))] ^= 1 << rng.randrange(8)
        yield bytes(broken)
        yield hello[: rng.randrange(1, len(hello))]


def pool_of(running: RunningNode) -> RequestPool:
    assert running.daemon is not None
    assert running.daemon.server is not None
    return running.daemon.server.memory.request_pools[CLIENT]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)
