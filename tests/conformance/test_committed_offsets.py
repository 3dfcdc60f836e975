"""Stock clients commit, fetch and delete the offsets of a group, and find them again after a
restart of the broker.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from chaos.node import Node

from .clients import CLIENTS, TIMEOUT_S, Message, confluent_consumer, kcat
from .conftest import Broker
from .wire import Wire, create_topic, until

Offsets = dict[int, int]
"""By partition."""


class Keeper(ABC):
    """The functions of one client library for a group's offsets."""

    name: str

    @abstractmethod
    def commit(
        self, address: str, group: str, topic: str, offsets: Offsets, metadata: str = ""
    ) -> None:
        """Like a consumer that assigns its partitions itself."""

    @abstractmethod
    def committed(
        self, address: str, group: str, topic: str, partitions: int
    ) -> dict[int, tuple[int, str]]:
        """Offset and metadata of those partitions that have one."""

    def __repr__(self) -> str:
        return self.name


class Confluent(Keeper):
    name = "confluent"

    def commit(
        self, address: str, group: str, topic: str, offsets: Offsets, metadata: str = ""
    ) -> None:
        consumer = confluent_consumer(address, group_id=group)
        try:
            rows = [
                confluent_kafka.TopicPartition(topic, partition, offset, metadata)
                for partition, offset in offsets.items()
            ]
            done = consumer.commit(offsets=rows, asynchronous=False)
            assert done is not None and all(row.error is None for row in done), done
        finally:
            consumer.close()

    def committed(
        self, address: str, group: str, topic: str, partitions: int
    ) -> dict[int, tuple[int, str]]:
        """It writes metadata with a byte 0 at the end, and reads other clients' beyond
        their end.
        """
        consumer = confluent_consumer(address, group_id=group)
        try:
            rows = consumer.committed(
                [
                    confluent_kafka.TopicPartition(topic, partition)
                    for partition in range(partitions)
                ],
                TIMEOUT_S,
            )
            return {row.partition: (row.offset, "") for row in rows if row.offset >= 0}
        finally:
            consumer.close()


class KafkaPython(Keeper):
    name = "kafka-python"

    def commit(
        self, address: str, group: str, topic: str, offsets: Offsets, metadata: str = ""
    ) -> None:
        consumer = self._consumer(address, group)
        try:
            consumer.assign([kafka.TopicPartition(topic, partition) for partition in offsets])
            rows = {
                kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(
                    offset, metadata, -1
                )
                for partition, offset in offsets.items()
            }
            consumer.commit(rows)
        finally:
            consumer.close(autocommit=False)

    def committed(
        self, address: str, group: str, topic: str, partitions: int
    ) -> dict[int, tuple[int, str]]:
        consumer = self._consumer(address, group)
        try:
            found = {}
            for partition in range(partitions):
                row = consumer.committed(kafka.TopicPartition(topic, partition), metadata=True)
                if row is not None and row.offset >= 0:
                    found[partition] = row.offset, row.metadata.rstrip("\0")
            return found
        finally:
            consumer.close(autocommit=False)

    @staticmethod
    def _consumer(address: str, group: str) -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=group, enable_auto_commit=False
        )


class Aiokafka(Keeper):
    name = "aiokafka"

    def commit(
        self, address: str, group: str, topic: str, offsets: Offsets, metadata: str = ""
    ) -> None:
        async def run(consumer: Any) -> None:
            rows = {
                aiokafka.TopicPartition(topic, partition): (offset, metadata)
                for partition, offset in offsets.items()
            }
            consumer.assign(list(rows))
            await consumer.commit(rows)

        asyncio.run(self._with_consumer(address, group, run))

    def committed(
        self, address: str, group: str, topic: str, partitions: int
    ) -> dict[int, tuple[int, str]]:
        """It does not return the metadata."""

        async def run(consumer: Any) -> dict[int, tuple[int, str]]:
            wanted = [aiokafka.TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(wanted)
            found = {one.partition: await consumer.committed(one) for one in wanted}
            return {
                partition: (offset, "") for partition, offset in found.items() if offset is not None
            }

        found: dict[int, tuple[int, str]] = asyncio.run(self._with_consumer(address, group, run))
        return found

    @staticmethod
    async def _with_consumer(address: str, group: str, run: Callable[[Any], Any]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            return await asyncio.wait_for(run(consumer), TIMEOUT_S)
        finally:
            await consumer.stop()


KEEPERS = [Confluent(), KafkaPython(), Aiokafka()]


@pytest.fixture
def three(wire: Wire, new_name: Callable[[], str]) -> str:
    """A topic with three partitions and ten records in the first."""
    name = create_topic(wire, new_name(), partitions=3)
    CLIENTS[0].produce(wire_address(wire), name, [Message(b"%d" % i) for i in range(10)])
    return name


def wire_address(wire: Wire) -> str:
    host, port = wire.socket.getpeername()
    return f"{host}:{port}"


@pytest.mark.parametrize("reader", KEEPERS, ids=repr)
@pytest.mark.parametrize("writer", KEEPERS, ids=repr)
def test_offsets_of_one_client_are_read_by_another(
    broker: Broker, three: str, new_name: Callable[[], str], writer: Keeper, reader: Keeper
) -> None:
    group = new_name()
    writer.commit(broker.address, group, three, {0: 5, 2: 7}, "a note")
    writer.commit(broker.address, group, three, {0: 4}, "another")
    notes = {0: "another", 2: "a note"} if reader.name == "kafka-python" else {0: "", 2: ""}
    assert reader.committed(broker.address, group, three, 3) == {0: (4, notes[0]), 2: (7, notes[2])}
    assert reader.committed(broker.address, new_name(), three, 3) == {}


def test_administrators_see_and_change_offsets(
    broker: Broker, three: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    admin = AdminClient({"bootstrap.servers": broker.address})

    def wanted(offsets: Offsets) -> list[Any]:
        rows = [
            confluent_kafka.TopicPartition(three, partition, offset)
            for partition, offset in offsets.items()
        ]
        return [confluent_kafka.ConsumerGroupTopicPartitions(group, rows)]

    altered = admin.alter_consumer_group_offsets(wanted({0: 3, 1: 0}))[group].result(TIMEOUT_S)
    assert [(row.partition, row.offset, row.error) for row in altered.topic_partitions] == [
        (0, 3, None),
        (1, 0, None),
    ]
    everything = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    listed = admin.list_consumer_group_offsets(everything)[group].result(TIMEOUT_S)
    assert sorted((row.topic, row.partition, row.offset) for row in listed.topic_partitions) == [
        (three, 0, 3),
        (three, 1, 0),
    ]
    python = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        found = (
            python.list_group_offsets([group])[group]
            if hasattr(python, "list_group_offsets")
            else python.list_consumer_group_offsets(group)
        )
        assert sorted((key.partition, row.offset) for key, row in found.items()) == [(0, 3), (1, 0)]
    finally:
        python.close()
    assert admin.delete_consumer_groups([group])[group].result(TIMEOUT_S) is None
    assert Confluent().committed(broker.address, group, three, 3) == {}


@pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt install kcat)"
)
def test_kcat_resumes_at_its_committed_offset(
    broker: Broker, three: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    options = ("-q", "-X", "auto.offset.reset=earliest", "-c")
    first = kcat(broker.address, "-G", group, *options, "4", three).split()
    assert first == [b"%d" % i for i in range(4)]
    until(
        lambda: Confluent().committed(broker.address, group, three, 1) == {0: (4, "")},
        "kcat has committed",
    )
    assert kcat(broker.address, "-G", group, *options, "6", three).split() == [
        b"%d" % i for i in range(4, 10)
    ]


# -- through restarts of the broker

ENDINGS = [pytest.param(Node.stop, id="stop"), pytest.param(Node.kill, id="kill")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, ("offsets.topic.num.partitions=5",))
    node.start()
    yield node
    if node.running:
        node.stop()


@pytest.mark.mqd_only  # only a node that the tests started can be restarted
@pytest.mark.parametrize("end", ENDINGS)
def test_offsets_survive_a_restart_of_the_broker(node: Node, end: Any) -> None:
    groups = [f"group-{number}" for number in range(12)]
    with Wire("127.0.0.1", node.port) as wire:
        create_topic(wire, "t", partitions=3)
    for number, group in enumerate(groups):
        KEEPERS[number % 3].commit(node.address, group, "t", {0: number, 2: 100 + number}, "note")
    for number in range(0, 12, 4):
        Confluent().commit(node.address, groups[number], "t", {0: 1000})
    for round_number in range(2):
        end(node)
        began = time.monotonic()
        node.start()
        for number, group in enumerate(groups):
            expected = {
                0: (1000, "") if number % 4 == 0 else (number, "note"),
                2: (100 + number, "note"),
            }
            assert KafkaPython().committed(node.address, group, "t", 3) == expected, (
                round_number,
                group,
            )
        assert time.monotonic() - began < TIMEOUT_S
