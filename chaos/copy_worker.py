"""One worker process that copies exactly once: it consumes, transforms and produces, and commits
the offsets in the same transaction.

    python -m chaos.copy_worker --client confluent|consumer|aiokafka --bootstrap HOST:PORT,... \
        --group G --source T --target T
                                --name N [--seed 1] [--transaction-ms 10000]
                                [--command-config FILE]

It works until its standard input is closed, then leaves its group and ends. It may be killed at any
time. It reports events on standard output, one a line: `committed COUNT`, `aborted WHY` (a
transaction), `restarted WHY` (with new clients), `hung CALL`.

`confluent` and `consumer` (confluent-kafka, the classic protocol with cooperative assignment, and
KIP-848's) have one transactional id for each worker. The group coordinator fences them by member
and generation, and does not return offsets while a transaction is pending (KIP-447). The client
aiokafka supports neither, so it works as clients did before KIP-447, with a transactional id for
each source partition. The new owner of a partition ends the transaction of the previous owner, and
then fetches the offset.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import random
import signal
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError

from mqd.client.security import Security

from .client_security import PLAINTEXT, aiokafka_options, librdkafka_options, load
from .history import value_of
from .workload import VALUE

COPY = struct.Struct(">qq")
"""The start of a copied record: its source (partition and offset, `history.value_of`) and the value
of the source record.
"""
BATCH_MAX = 300
GATHER_S = 0.1
PATIENCE_S = 20.0
"""The timeout of one call of a client. After it, the worker restarts with new clients."""
HUNG_S = 3 * PATIENCE_S
"""A client hangs if a call does not return within this time."""
SEND_OFFSETS = "send_offsets_to_transaction"
KNOWN_HANGS_S = {SEND_OFFSETS: 1.5 * PATIENCE_S}
"""Calls that are known to hang (see chaos/exactly_once.py), and when the worker then ends. The
coordinator has aborted their transactions before that.
"""
HUNG_CODE = 3
"""The exit code of a worker whose client hangs. Its parent starts another worker."""
SESSION_MS = 6000
HEARTBEAT_MS = 1000
REBALANCE_MS = 25_000
"""The rebalance timeout: the group removes a worker that is blocked for longer. librdkafka can wait
for a dead coordinator inside one call.
"""
OWN_ABORTS = 0.05
"""The share of transactions that the worker itself aborts."""
DAWDLES = 0.2
"""The share of transactions that pause between their records and their end."""
DAWDLE_S_MAX = 0.4

T = TypeVar("T")


@dataclass
class Task:
    """The options of a worker, and its output."""

    client: str
    bootstrap: str
    group: str
    source: str
    target: str
    targets: int
    """The number of partitions of the target."""
    name: str
    transaction_ms: int
    random_source: random.Random
    security: Security = PLAINTEXT
    stopped: threading.Event = field(default_factory=threading.Event)
    called: tuple[str, float] = field(default_factory=lambda: ("start", monotonic()))
    """The current or last call of the client, and its start time."""

    def calls(self, what: str) -> None:
        """Record that the client starts this call now."""
        self.called = what, monotonic()

    def watch(self) -> None:
        """End this process when the client hangs."""
        while True:
            what, since = self.called
            if monotonic() - since > KNOWN_HANGS_S.get(what, HUNG_S):
                self.report("hung", what)
                os._exit(HUNG_CODE)
            sleep(1)

    def report(self, *values: object) -> None:
        """Write a line for the parent process. End this process if the parent has ended."""
        try:
            print(*values, flush=True)
        except BrokenPipeError:
            self.stopped.set()

    def copied(self, message: Any) -> bytes:
        """The transformed value of a confluent_kafka message or an aiokafka record."""
        if self.client == "aiokafka":
            raw, partition, offset = message.value, message.partition, message.offset
        else:
            raw, partition, offset = message.value(), message.partition(), message.offset()
        (found,) = VALUE.unpack_from(raw)
        copied: bytes = COPY.pack(value_of(partition, offset), found) + raw[VALUE.size :][::-1]
        return copied


# -- confluent-kafka


class Confluent:
    """A consumer and a transactional producer. Fatal errors replace both."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.batch: list[Any] = []
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": task.bootstrap,
                "transactional.id": task.name,
                "transaction.timeout.ms": task.transaction_ms,
                "linger.ms": 5,
                "log_level": 0,
            }
            | librdkafka_options(task.security)
        )
        protocol: dict[str, Any] = (
            {"group.protocol": "consumer"}
            if task.client == "consumer"
            else {
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        )
        self.consumer = confluent_kafka.Consumer(
            protocol
            | {
                "bootstrap.servers": task.bootstrap,
                "group.id": task.group,
                "client.id": task.name,
                "enable.auto.commit": False,
                "max.poll.interval.ms": REBALANCE_MS,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
            | librdkafka_options(task.security)
        )

    def run(self) -> None:
        """Copy until `stopped` is set. Raises KafkaException if new clients are needed."""
        self._while_retriable(
            "init_transactions", lambda: self.producer.init_transactions(PATIENCE_S)
        )
        self.consumer.subscribe([self.task.source], on_revoke=self._dropped, on_lost=self._dropped)
        while not self.task.stopped.is_set():
            self._gather()
            if self.batch:
                batch, self.batch = self.batch, []
                self._copy(batch)

    def close(self) -> None:
        """Leave the group. An open transaction ends by its timeout, or the next worker ends it."""
        self.task.calls("close")
        with suppress(confluent_kafka.KafkaException, RuntimeError):
            self.consumer.close()

    def _dropped(self, _consumer: Any, partitions: list[Any]) -> None:
        gone = {row.partition for row in partitions}
        self.batch = [message for message in self.batch if message.partition() not in gone]

    def _gather(self) -> None:
        self.task.calls("poll")
        until = monotonic() + GATHER_S
        while len(self.batch) < BATCH_MAX and (left := until - monotonic()) > 0:
            message = self.consumer.poll(left)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.batch.append(message)
            elif error.fatal():
                raise confluent_kafka.KafkaException(error)

    def _copy(self, batch: list[Any]) -> None:
        task = self.task
        self.producer.begin_transaction()
        try:
            for message in batch:
                self.producer.produce(
                    task.target, task.copied(message), partition=message.partition() % task.targets
                )
            if task.random_source.random() < DAWDLES:
                self.producer.flush(task.random_source.random() * DAWDLE_S_MAX)
            ends = {message.partition(): message.offset() + 1 for message in batch}
            rows = [
                confluent_kafka.TopicPartition(task.source, partition, offset)
                for partition, offset in ends.items()
            ]
            who = self.consumer.consumer_group_metadata()
            self._while_retriable(
                SEND_OFFSETS,
                lambda: self.producer.send_offsets_to_transaction(rows, who, PATIENCE_S),
            )
            if task.random_source.random() < OWN_ABORTS:
                self._abort("as planned")
                return
            self._while_retriable(
                "commit_transaction", lambda: self.producer.commit_transaction(PATIENCE_S)
            )
        except confluent_kafka.KafkaException as failure:
            error = failure.args[0]
            if not error.txn_requires_abort():
                raise
            self._abort(f"{error.name()} {error.str()}")
            return
        task.report("committed", len(batch))

    def _abort(self, why: str) -> None:
        """Abort, and seek to the committed offsets."""
        self._while_retriable(
            "abort_transaction", lambda: self.producer.abort_transaction(PATIENCE_S)
        )
        self.task.report("aborted", why)
        owned = self.consumer.assignment()
        if owned:
            self.task.calls("committed")
            for row in self.consumer.committed(owned, PATIENCE_S):
                if row.error is not None:
                    raise confluent_kafka.KafkaException(row.error)
                self.consumer.seek(
                    confluent_kafka.TopicPartition(row.topic, row.partition, max(row.offset, 0))
                )

    def _while_retriable(self, name: str, call: Callable[[], T]) -> T:
        """Repeat a transactional call while its error is retriable, as librdkafka requires."""
        deadline = monotonic() + PATIENCE_S
        while True:
            self.task.calls(name)
            try:
                return call()
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable() or monotonic() > deadline:
                    raise
                sleep(0.05)


def work_confluent(task: Task) -> None:
    """One incarnation after the other."""
    while not task.stopped.is_set():
        one = Confluent(task)
        try:
            one.run()
        except confluent_kafka.KafkaException as failure:
            task.report("restarted", failure.args[0].name(), failure.args[0].str())
            sleep(0.1)
        finally:
            one.close()


# -- aiokafka


class Ownership(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The partitions that the group has assigned to this member, and how often they have
    changed.
    """

    def __init__(self) -> None:
        self.partitions: set[Any] = set()
        self.changes = 0

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.changes += 1
        self.partitions = set()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.changes += 1
        self.partitions = set(assigned)


class Aiokafka:
    """A consumer, and a transactional producer for each partition that it owns."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.owned = Ownership()
        self.prepared_for = -1
        self.producers: dict[Any, Any] = {}
        self.consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=task.bootstrap,
            group_id=task.group,
            client_id=task.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            fetch_max_wait_ms=100,
            **aiokafka_options(task.security),
        )

    async def run(self) -> None:
        """Copy until `stopped` is set. Raises KafkaError and TimeoutError if new clients are
        needed.
        """
        await asyncio.wait_for(self.consumer.start(), PATIENCE_S)
        self.consumer.subscribe([self.task.source], listener=self.owned)
        while not self.task.stopped.is_set():
            self.task.calls("getmany")
            if self.prepared_for != self.owned.changes:
                await self._prepare()
                continue
            messages = await self.consumer.getmany(
                timeout_ms=int(GATHER_S * 1000), max_records=BATCH_MAX
            )
            for partition, batch in messages.items():
                self.task.calls("transaction")
                if self.prepared_for != self.owned.changes:
                    break  # the next preparation seeks to the committed offset
                await self._copy(partition, batch)

    async def close(self) -> None:
        """Leave the group."""
        for producer in self.producers.values():
            await _closed(producer)
        await _closed(self.consumer)

    async def _prepare(self) -> None:
        """For each partition of this assignment, end the transaction of its previous owner, then
        seek to the committed offset.
        """
        changes, partitions = self.owned.changes, sorted(self.owned.partitions)
        for partition in set(self.producers) - set(partitions):
            await _closed(self.producers.pop(partition))
        for partition in partitions:
            self.task.calls("take-over")
            if self.owned.changes != changes:
                return
            await self._take_over(partition)
        self.prepared_for = changes

    async def _take_over(self, partition: Any) -> None:
        if partition in self.producers:
            await _closed(self.producers.pop(partition))
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.task.bootstrap,
            transactional_id=f"{self.task.group}-{partition.topic}-{partition.partition}",
            transaction_timeout_ms=self.task.transaction_ms,
            **aiokafka_options(self.task.security),
        )
        self.producers[partition] = producer
        await asyncio.wait_for(producer.start(), PATIENCE_S)
        offset = await asyncio.wait_for(self.consumer.committed(partition), PATIENCE_S)
        if partition in self.owned.partitions:
            self.consumer.seek(partition, offset or 0)

    async def _copy(self, partition: Any, batch: list[Any]) -> None:
        task, producer = self.task, self.producers[partition]

        async def transaction() -> None:
            await producer.begin_transaction()
            targets = [
                (task.copied(message), message.partition % task.targets) for message in batch
            ]
            sent = [
                await producer.send(task.target, value, partition=target)
                for value, target in targets
            ]
            await asyncio.gather(*sent)  # its commit does not check their results
            if task.random_source.random() < DAWDLES:
                await asyncio.sleep(task.random_source.random() * DAWDLE_S_MAX)
            await producer.send_offsets_to_transaction(
                {partition: batch[-1].offset + 1}, task.group
            )
            if task.random_source.random() < OWN_ABORTS:
                await producer.abort_transaction()
                task.report("aborted", "as planned")
                if partition in self.owned.partitions:
                    self.consumer.seek(partition, batch[0].offset)
            else:
                await producer.commit_transaction()
                task.report("committed", len(batch))

        try:
            await asyncio.wait_for(transaction(), PATIENCE_S)
        except (KafkaError, TimeoutError) as error:
            # a new producer of the same id ends the transaction, whatever its state, before the
            # offset is read
            task.report("aborted", repr(error))
            if partition in self.owned.partitions:
                await self._take_over(partition)


async def _closed(client: Any) -> None:
    with suppress(KafkaError, TimeoutError):
        await asyncio.wait_for(client.stop(), 5)


def work_aiokafka(task: Task) -> None:
    """One incarnation after the other."""

    async def incarnations() -> None:
        while not task.stopped.is_set():
            one = Aiokafka(task)
            try:
                await one.run()
            except (KafkaError, TimeoutError) as error:
                task.report("restarted", repr(error))
                await asyncio.sleep(0.1)
            finally:
                await one.close()

    asyncio.run(incarnations())


WORK: dict[str, Callable[[Task], None]] = {
    "confluent": work_confluent,
    "consumer": work_confluent,
    "aiokafka": work_aiokafka,
}


def main() -> int:
    """Parse the command line and work."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.copy_worker", description="a worker that copies exactly once"
    )
    parser.add_argument("--client", choices=tuple(WORK), required=True)
    for name in ("bootstrap", "group", "source", "target", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--targets", type=int, required=True, help="partitions of the target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transaction-ms", type=int, default=10_000)
    parser.add_argument("--command-config", type=Path, help="client properties")
    options = vars(parser.parse_args())
    faulthandler.register(signal.SIGUSR1)  # show where the process waits
    logging.disable(logging.CRITICAL)
    security = load(options.pop("command_config"))
    task = Task(random_source=random.Random(options.pop("seed")), security=security, **options)

    def listen() -> None:
        sys.stdin.buffer.read()
        task.stopped.set()

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=task.watch, daemon=True).start()
    WORK[task.client](task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
