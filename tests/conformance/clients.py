"""Stock clients behind one small interface, so that one test covers all of them: produce these,
consume those.

Every call opens a client, uses it and closes it. Errors rise as the client's own exceptions.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka
import confluent_kafka
import kafka

TIMEOUT_S = 20.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH_WAIT_MS = 50
"""How long a client lets the broker park a fetch: closing a client waits for its end."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record as an application sees it.

    `timestamp_ms` None lets the client choose; `offset` -1 is "not stored yet".
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    offset: int = -1

    def at(self, offset: int) -> Message:
        """The same message, stored there."""
        return Message(self.value, self.key, self.headers, self.timestamp_ms, offset)


class Client(ABC):
    """One client library."""

    name: str

    def missing_for(self, codec: str) -> str | None:
        """The Python module that this client lacks for a codec, if any."""
        return None

    @abstractmethod
    def produce(
        self,
        address: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        """Produce in order to one partition; returns the acknowledged offsets (with acks=0:
        something negative each).
        """

    @abstractmethod
    def consume(
        self, address: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        """Assign, seek, and read exactly `count` messages, with CRCs checked."""

    def __repr__(self) -> str:
        return self.name


class Confluent(Client):
    """confluent-kafka, on librdkafka."""

    name = "confluent"

    def produce(
        self,
        address: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            errors.append(error) if error is not None else offsets.append(message.offset())

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.max.bytes": 10_000_000,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )
        for message in messages:
            stamp: dict[str, Any] = (
                {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            )
            producer.produce(
                topic,
                message.value,
                message.key,
                partition=partition,
                headers=list(message.headers),
                on_delivery=delivered,
                **stamp,
            )
        assert producer.flush(TIMEOUT_S) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return offsets

    def consume(
        self, address: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        consumer = confluent_consumer(address)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            messages: list[Message] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(messages) < count:
                assert time.monotonic() < deadline, f"{len(messages)} of {count} messages"
                for message in consumer.consume(count - len(messages), 0.5):
                    if message.error() is not None:
                        raise confluent_kafka.KafkaException(message.error())
                    headers: Any = message.headers() or ()
                    stored = message.offset()
                    assert stored is not None
                    timestamp_ms = message.timestamp()[1]
                    messages.append(
                        Message(
                            message.value(), message.key(), tuple(headers), timestamp_ms, stored
                        )
                    )
            return messages
        finally:
            consumer.close()


def confluent_consumer(address: str, **options: Any) -> confluent_kafka.Consumer:
    """A consumer for assignment by hand: never joins its group, never commits, checks CRCs."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "assigned-by-hand",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.max.bytes": 50_000_000,
        "max.partition.fetch.bytes": 5_000_000,
    }
    return confluent_kafka.Consumer(
        settings | {key.replace("_", "."): value for key, value in options.items()}
    )


class KafkaPython(Client):
    """kafka-python 3."""

    name = "kafka-python"

    def missing_for(self, codec: str) -> str | None:
        module = {"snappy": "snappy", "lz4": "lz4", "zstd": "zstandard"}.get(codec)
        return module if module and importlib.util.find_spec(module) is None else None

    def produce(
        self,
        address: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=10_000_000,
            delivery_timeout_ms=int(TIMEOUT_S * 1000),
            request_timeout_ms=10_000,
            max_block_ms=int(TIMEOUT_S * 1000),
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            return [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close(TIMEOUT_S)

    def consume(
        self, address: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            auto_offset_reset="none",
            check_crcs=True,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_partition_fetch_bytes=5_000_000,
        )
        try:
            assigned = kafka.TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            messages: list[Message] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(messages) < count:
                assert time.monotonic() < deadline, f"{len(messages)} of {count} messages"
                for record in consumer.poll(500, max_records=count - len(messages)).get(
                    assigned, []
                ):
                    messages.append(
                        Message(
                            record.value,
                            record.key,
                            tuple(record.headers),
                            record.timestamp,
                            record.offset,
                        )
                    )
            return messages
        finally:
            consumer.close()


class Aiokafka(Client):
    """aiokafka: the client that uses only old versions."""

    name = "aiokafka"

    def produce(
        self,
        address: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == -1 else acks,
                enable_idempotence=idempotent,
                linger_ms=5,
                max_request_size=10_000_000,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                stored = await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)
                return [-1 if row is None else row.offset for row in stored]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(
        self, address: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[Message]:
        async def run() -> list[Message]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address,
                group_id=None,
                auto_offset_reset="none",
                check_crcs=True,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                max_partition_fetch_bytes=5_000_000,
            )
            assigned = aiokafka.TopicPartition(topic, partition)
            await consumer.start()
            try:
                consumer.assign([assigned])
                consumer.seek(assigned, offset)
                messages: list[Message] = []
                while len(messages) < count:
                    row = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                    messages.append(
                        Message(row.value, row.key, tuple(row.headers), row.timestamp, row.offset)
                    )
                return messages
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka())


def kcat(address: str, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run kcat with the broker; returns its standard output, raises CalledProcessError with its
    standard error.
    """
    done = subprocess.run(
        ["kcat", "-b", address, *arguments],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"kcat {' '.join(arguments)} ended with {done.returncode}: "
            f"{done.stderr.decode(errors='replace')}"
        )
    return done.stdout


def kcat_knows_scram() -> bool:
    """Whether the librdkafka of kcat sends the nonce that RFC 5802 demands. Before 2.6.1 it does
    not, and Apache Kafka 4 refuses it (librdkafka#4895).
    """
    shown = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", shown)
    assert found is not None, shown
    return tuple(map(int, found.groups())) >= (2, 6, 1)


def kcat_json(address: str, *arguments: str) -> list[dict[str, Any]]:
    """kcat's JSON lines (-J)."""
    return [json.loads(line) for line in kcat(address, *arguments, "-J").splitlines()]
