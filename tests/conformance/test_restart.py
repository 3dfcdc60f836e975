"""A node has the same state after a restart, whether it stopped cleanly or by kill -9; clients
survive the restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from chaos.node import Node

from .batches import NOW_MS, batch
from .clients import CLIENTS, CODECS, TIMEOUT_S, Message, confluent_consumer
from .test_wire_configs import SET, alter, value
from .test_wire_offsets import delete_records
from .test_wire_produce import Producer
from .wire import (
    Wire,
    create_topic,
    fetch_one,
    list_offsets,
    metadata,
    new_producer_id,
    produce,
    topic_id,
    until,
)

pytestmark = pytest.mark.mqd_only  # only a node that the tests started can be restarted

ENDINGS = [pytest.param(Node.stop, id="stop"), pytest.param(Node.kill, id="kill")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.start()
    yield node
    if node.running:
        node.stop()


def connect(node: Node) -> Wire:
    return Wire("127.0.0.1", node.port)


@pytest.mark.parametrize("end", ENDINGS)
def test_all_state_survives_a_restart(node: Node, end: Any) -> None:
    messages = [Message(b"v%d" % i, b"k", (("h", b"1"),), NOW_MS + i) for i in range(100)]
    with connect(node) as wire:
        for codec in CODECS:
            create_topic(wire, f"kept-{codec}", partitions=2)
            assert CLIENTS[0].produce(
                node.address, f"kept-{codec}", messages, codec=codec, partition=1
            ) == list(range(100))
        create_topic(wire, "deleted")
        wire.ask("DeleteTopics", 6, timeout_ms=10_000, topics=[{"name": "deleted"}])
        create_topic(wire, "trimmed")
        # producers are removed a day after their last timestamp
        producer = Producer(wire, "trimmed", int(time.time() * 1000))
        for i in range(5):
            assert producer.send(i * 2, 2) == (0, i * 2)
        assert delete_records(wire, "trimmed", 3) == (0, 3)
        assert alter(wire, "trimmed", ("max.message.bytes", SET, "5555")) == 0
        before = {name: topic_id(wire, name) for name in ("kept-none", "trimmed")}
        cluster_id = metadata(wire, []).cluster_id
        given = {new_producer_id(wire)[0] for _ in range(5)} | {producer.id}
    for _ in range(2):
        end(node)
        node.start()
    with connect(node) as wire:
        assert metadata(wire, []).cluster_id == cluster_id
        assert {name: topic_id(wire, name) for name in before} == before
        assert metadata(wire, ["deleted"]).topics[0].error_code == 3
        assert value(wire, "trimmed", "max.message.bytes") == "5555"
        until(lambda: list_offsets(wire, "trimmed", -2).error_code == 0, "the leader")
        assert (
            list_offsets(wire, "trimmed", -2).offset,
            list_offsets(wire, "trimmed", -1).offset,
        ) == (3, 10)
        again = Producer(wire, "trimmed")
        assert again.id not in given, "producer ids are not reused"
        producer.wire = wire
        assert producer.send(8, 2) == (0, 8), "a retry from before the restart is still known"
        assert producer.send(12, 2)[0] == 45
        assert producer.send(10, 2) == (0, 10)
        for codec in CODECS:
            row = list_offsets(wire, f"kept-{codec}", NOW_MS + 57, partition=1)
            assert (row.timestamp, row.offset) == (NOW_MS + 57, 57)
    for codec in CODECS:
        got = CLIENTS[0].consume(node.address, f"kept-{codec}", 100, partition=1)
        assert got == [message.at(i) for i, message in enumerate(messages)]


@pytest.mark.parametrize("end", ENDINGS)
def test_clients_survive_a_restart(node: Node, end: Any) -> None:
    """The same producer and consumer before, during and after: each record once, in order."""
    with connect(node) as wire:
        create_topic(wire, "through")
    fast = {
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "log_level": 0,
    }
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.address, "enable.idempotence": True, "linger.ms": 1} | fast
    )
    consumer = confluent_consumer(
        node.address,
        **{key.replace(".", "_"): value for key, value in fast.items() if key != "log_level"},
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("through", 0, 0)])
        got: list[bytes | None] = []
        errors: list[Any] = []

        def delivered(error: Any, _: object) -> None:
            if error is not None:
                errors.append(error)

        for part in range(3):
            for i in range(500):
                producer.produce(
                    "through",
                    b"%d" % (part * 500 + i),
                    partition=0,
                    on_delivery=delivered,
                )
                producer.poll(0)
            if part < 2:
                end(node)
                node.start()
            assert producer.flush(TIMEOUT_S) == 0
        deadline = time.monotonic() + TIMEOUT_S
        while len(got) < 1500 and time.monotonic() < deadline:
            got += [
                message.value()
                for message in consumer.consume(1000, 0.2)
                if message.error() is None
            ]
        assert not errors
        assert got == [b"%d" % i for i in range(1500)]
    finally:
        consumer.close()


def test_a_torn_tail_is_truncated_and_reported(node: Node) -> None:
    """What remains after a crash during a write: half a batch, never acknowledged."""
    with connect(node) as wire:
        create_topic(wire, "torn")
        for i in range(3):
            produce_one(wire, batch(b"%d" % i), i)
    node.kill()
    (segment,) = node.data_directory.rglob("torn-0/00000000000000000000.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole + batch(b"never acknowledged")[:40])
    node.start()
    with connect(node) as wire:
        until(lambda: fetch_one(wire, "torn", 0, max_wait_ms=0).error_code == 0, "the leader")
        assert fetch_one(wire, "torn", 0).high_watermark == 3
        produce_one(wire, batch(b"next"), 3)


def produce_one(wire: Wire, data: bytes, offset: int) -> None:
    """Produce to the topic `torn` and check the offset."""
    row = until(lambda: (r := produce(wire, "torn", data)).error_code == 0 and r, "the record")
    assert row.base_offset == offset
