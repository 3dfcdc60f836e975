"""A rolling restart of every node under load: does a producer or consumer with default retries get
an error?

    python -m chaos.rolling [--nodes 3] [--rounds 2] [--kind mqd|kafka] [--session-ms 3000] \
        [--security sasl_ssl] [--sasl-mechanism SCRAM-SHA-256]

As in an upgrade, each node in turn gets SIGTERM and is started again. The next node follows when
every node reports a full ISR of every partition. Meanwhile confluent-kafka, kafka-python and
aiokafka produce (acks=all, otherwise defaults) and consume. A failed future and an exception of a
consumer count as errors, and so does a record that is lost, duplicated or out of order. Exit code
0: no error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from mqd.client.security import Security

from . import cluster_security
from .client_security import (
    PLAINTEXT,
    aiokafka_options,
    kafka_python_options,
    librdkafka_options,
)
from .ensemble import Ensemble, ensemble
from .node import NodeFailed, end_on_sigterm
from .program import directory_of, failed
from .received import Received, misplaced

INTERVAL_S = 0.002
CATCH_UP_S = 60.0
PARTITIONS = 3
DWELL_S = 1.0
"""The pause between two restarts."""


class Client(ABC):
    """One client library: a producer and a consumer of one topic, each in a thread. Record i has
    the value i and goes to partition i modulo 3.
    """

    name: str

    def __init__(self, bootstrap: str, security: Security = PLAINTEXT) -> None:
        self.bootstrap = bootstrap
        self.security = security
        self.topic = f"rolling-{self.name}"
        self.sent = 0
        self.acked = 0
        self.errors: list[str] = []
        self.got: dict[int, list[Received]] = {partition: [] for partition in range(PARTITIONS)}
        self._numbers: set[int] = set()
        self.producing = True
        self._threads = [
            threading.Thread(target=self._guard, args=(role,), daemon=True)
            for role in (self.produce, self.consume)
        ]

    @abstractmethod
    def produce(self) -> None:
        """Send until `producing` is false, then flush."""

    @abstractmethod
    def consume(self) -> None:
        """Consume until every sent record has arrived."""

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[str]:
        """Stop producing, and wait until the consumer has caught up. Returns the errors."""
        self.producing = False
        for thread in self._threads:
            thread.join(2 * CATCH_UP_S)
        for partition, received in self.got.items():
            wanted = list(range(partition, self.sent, PARTITIONS))
            if [each.number for each in received] != wanted:
                self.errors.append(
                    f"partition {partition}: {len(received)} records in the consumer's order "
                    f"are not the {len(wanted)} sent: {misplaced(received, wanted)}"
                )
        return [f"{self.name}: {error}" for error in self.errors]

    @property
    def behind(self) -> bool:
        """Whether the consumer has not yet received all records. A duplicate does not count."""
        return self.producing or len(self._numbers) < self.sent

    def _guard(self, role: Any) -> None:
        try:
            role()
        except Exception as error:
            self.errors.append(f"{role.__name__}: {error!r}")
            self.producing = False

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        number = int(value)
        self.got[partition].append(Received(offset, number))
        self._numbers.add(number)


class Confluent(Client):
    """librdkafka."""

    name = "confluent-kafka"
    in_flight = 5
    """Requests of the producer in flight: the most that idempotence permits."""

    def produce(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": self.in_flight,
                "log_level": 0,
                **librdkafka_options(self.security),
            }
        )

        def delivered(error: Any, _message: Any) -> None:
            if error is None:
                self.acked += 1
            else:
                self.errors.append(f"delivery: {error}")

        while self.producing:
            producer.produce(
                self.topic,
                b"%d" % self.sent,
                partition=self.sent % PARTITIONS,
                on_delivery=delivered,
            )
            self.sent += 1
            producer.poll(INTERVAL_S)
        if producer.flush(CATCH_UP_S):
            self.errors.append("flush: records are not acknowledged")

    def consume(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "rolling",
            "enable.auto.commit": False,
            # A truncation is then an error, and not a seek back to the end of the leader's epoch.
            "auto.offset.reset": "error",
            "log_level": 0,
            **librdkafka_options(self.security),
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.assign(
            [confluent_kafka.TopicPartition(self.topic, partition, 0) for partition in self.got]
        )
        deadline = time.monotonic() + CATCH_UP_S
        while self.behind and time.monotonic() < deadline:
            if self.producing:
                deadline = time.monotonic() + CATCH_UP_S
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(f"poll: {message.error()}")
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self._take(partition, offset, value)
        consumer.close()


class KafkaPython(Client):
    """kafka-python."""

    name = "kafka-python"

    def produce(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            acks="all",
            **kafka_python_options(self.security),
        )
        futures = []
        while self.producing:
            futures.append(
                producer.send(self.topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
            )
            self.sent += 1
            time.sleep(INTERVAL_S)
        producer.flush(CATCH_UP_S)
        for future in futures:
            try:
                future.get(CATCH_UP_S)
                self.acked += 1
            except kafka.errors.KafkaError as error:
                self.errors.append(f"future: {error!r}")
        producer.close()

    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=None,
            auto_offset_reset="earliest",
            **kafka_python_options(self.security),
        )
        consumer.assign([kafka.TopicPartition(self.topic, partition) for partition in self.got])
        deadline = time.monotonic() + CATCH_UP_S
        while self.behind and time.monotonic() < deadline:
            if self.producing:
                deadline = time.monotonic() + CATCH_UP_S
            for place, records in consumer.poll(200).items():
                for record in records:
                    self._take(place.partition, record.offset, record.value)
        consumer.close()


class Aiokafka(Client):
    """aiokafka."""

    name = "aiokafka"

    def produce(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            **aiokafka_options(self.security),
        ) as producer:
            futures = []
            while self.producing:
                futures.append(
                    await producer.send(
                        self.topic, b"%d" % self.sent, partition=self.sent % PARTITIONS
                    )
                )
                self.sent += 1
                await asyncio.sleep(INTERVAL_S)
            await asyncio.wait_for(producer.flush(), CATCH_UP_S)
            for outcome in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    self.errors.append(f"future: {outcome!r}")
                else:
                    self.acked += 1

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            **aiokafka_options(self.security),
        )
        await consumer.start()
        try:
            consumer.assign(
                [aiokafka.TopicPartition(self.topic, partition) for partition in self.got]
            )
            deadline = time.monotonic() + CATCH_UP_S
            while self.behind and time.monotonic() < deadline:
                if self.producing:
                    deadline = time.monotonic() + CATCH_UP_S
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    for record in records:
                        self._take(place.partition, record.offset, record.value)
        finally:
            await consumer.stop()


CLIENTS: tuple[type[Client], ...] = (Confluent, KafkaPython, Aiokafka)


def roll(
    cluster: Ensemble, rounds: int, clients: tuple[type[Client], ...] = CLIENTS
) -> tuple[list[Client], list[str]]:
    """Restart every node of a running cluster under load. Returns the clients and their errors.
    Raises NodeFailed.
    """
    loads = [client(cluster.bootstrap, cluster.client_security) for client in clients]
    topics = {load.topic: PARTITIONS for load in loads}
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS, configs={"retention.ms": "-1"})
    for load in loads:
        load.start()
    try:
        cluster.wait_until(lambda: all(load.sent > 100 for load in loads), "the load to begin")
        for _ in range(rounds):
            for node in cluster.nodes.values():
                time.sleep(DWELL_S)
                node.stop()
                node.start()
                cluster.wait_until(
                    lambda: cluster.is_whole(topics),
                    f"a full ISR after the restart of node {node.node_id}",
                )
        time.sleep(DWELL_S)
    finally:
        errors = [error for load in loads for error in load.finish()]
    return loads, errors


def main() -> int:
    """Parse the command line, restart the nodes, print the clients' errors."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.rolling", description="a rolling restart of every node under load"
    )
    parser.add_argument("--nodes", type=int, default=3, help="nodes (3)")
    parser.add_argument(
        "--rounds", type=int, default=2, help="times that every node is restarted (2)"
    )
    parser.add_argument("--kind", choices=("mqd", "kafka"), default="mqd", help="whose nodes (mqd)")
    parser.add_argument(
        "--session-ms", type=int, default=None, help="broker session timeout (the broker's default)"
    )
    cluster_security.add_arguments(parser)
    arguments = parser.parse_args()
    # the clients log every retry; only exceptions count
    logging.getLogger().addHandler(logging.NullHandler())
    end_on_sigterm()
    with directory_of(None, "rolling-") as directory:
        cluster: Ensemble | None = None
        try:
            cluster = ensemble(
                arguments.kind,
                directory,
                arguments.nodes,
                session_ms=arguments.session_ms,
                security=cluster_security.from_arguments(arguments, directory / "security"),
            )
            cluster.start()
            started_at = time.monotonic()
            loads, errors = roll(cluster, arguments.rounds)
            elapsed = time.monotonic() - started_at
            cluster.stop()
        except NodeFailed as failure:
            return failed(failure)
        finally:
            if cluster is not None:
                with suppress(NodeFailed):
                    cluster.kill()
    for error in errors:
        print(error, file=sys.stderr)
    shown = ", ".join(f"{load.name} {load.acked} of {load.sent}" for load in loads)
    print(
        f"rolling: {arguments.rounds * arguments.nodes} restarts in {elapsed:.0f} s, "
        f"acknowledged: {shown}; errors {len(errors)}"
    )
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
