"""The load of chaos/secure_rolling.py beside `workload.Producer`: a producer of mqd.client, and
members of consumer groups of mqd.client and confluent-kafka.

A group has one member at a time. When it moves to another listener, the old member commits and
leaves, and the next one continues in the same `GroupReads`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from mqd.client import sync
from mqd.client.errors import ClientError
from mqd.client.security import Security
from mqd.io.net import OsNetwork, OsStream

from .client_security import librdkafka_options
from .history import NOT_ACKED, Key, Reads, value_of
from .workload import VALUE, RecordingProducer, is_refusal

POLL_S = 0.2
TICK_S = 0.01
FINISH_S = 60.0
WAIT_S = 30.0


class CountingNetwork(OsNetwork):
    """The network of the operating system. `connections`: how many a client has opened."""

    def __init__(self) -> None:
        self.connections = 0

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> OsStream:
        self.connections += 1
        return await super().connect(host, port, timeout=timeout)


class MqdProducer(RecordingProducer):
    """An idempotent producer of mqd.client, acks=all, at `rate` records a second."""

    def __init__(
        self, number: int, bootstrap: str, keys: Sequence[Key], rate: float, security: Security
    ) -> None:
        super().__init__(number, keys)
        self.network = CountingNetwork()
        self._bootstrap = bootstrap
        self._rate = rate
        self._security = security

    def finish(self) -> None:
        """Stop sending, and wait until every sent record is acknowledged."""
        self._stop.set()
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            self.errors.append(f"records not acknowledged within {FINISH_S:.0f} s")

    def _run(self) -> None:
        try:
            with (
                sync.connect(
                    self._bootstrap, security=self._security, network=self.network, wait_s=WAIT_S
                ) as client,
                client.producer() as producer,
            ):
                self._produce(producer)
        except ClientError as error:
            self.errors.append(str(error))

    def _produce(self, producer: sync.BlockingProducer) -> None:
        waiting: deque[tuple[Key, int, sync.BlockingDelivery]] = deque()
        keys, sent, started_at = list(self.acked), 0, time.monotonic()
        while waiting or not self._stop.is_set():
            while not self._stop.is_set() and sent < (time.monotonic() - started_at) * self._rate:
                key = keys[sent % len(keys)]
                number = len(self.acked[key])
                self.acked[key].append(NOT_ACKED)
                value = VALUE.pack(value_of(self.number, number))
                delivery = producer.enqueue(key[0], value, partition=key[1])
                waiting.append((key, number, delivery))
                sent += 1
            while waiting and (waiting[0][2].is_done() or self._stop.is_set()):
                key, number, delivery = waiting.popleft()
                self.acked[key][number] = delivery.wait().offset
                self.acknowledged += 1
            time.sleep(TICK_S)


@dataclass
class GroupReads:
    """The records that the members of one group received, in their order."""

    keys: Sequence[Key]
    reads: dict[Key, Reads] = field(init=False)
    repeated: int = 0
    """Records that a later member received again, because the commit of the earlier one was lost.
    """

    def __post_init__(self) -> None:
        self.reads = {key: Reads() for key in self.keys}

    def add(self, key: Key, offset: int, value: bytes) -> None:
        """The next record."""
        reads = self.reads[key]
        if reads.offsets and offset <= reads.offsets[-1]:
            self.repeated += 1
        else:
            reads.add(offset, VALUE.unpack_from(value)[0])

    @property
    def count(self) -> int:
        """The number of records received."""
        return sum(len(reads.offsets) for reads in self.reads.values())

    def has(self, final: dict[Key, Reads]) -> bool:
        """Whether the group has received the last record of every partition."""
        return all(
            not rows.offsets or self.reads[key].offsets[-1:] == rows.offsets[-1:]
            for key, rows in final.items()
        )


class Member(ABC):
    """A member of a group that reads in a thread until `leaving` is set."""

    def __init__(self, found: GroupReads, bootstrap: str, group: str, security: Security) -> None:
        self.found = found
        self.bootstrap = bootstrap
        self.group = group
        self.security = security
        self.errors: list[str] = []
        self.refusals: list[str] = []
        self.leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member-{group}", daemon=True)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.found.keys})

    @abstractmethod
    def read(self) -> None:
        """Read until `leaving` is set, then commit and leave."""

    def start(self) -> None:
        """Join."""
        self._thread.start()

    def finish(self) -> None:
        """Commit and leave."""
        self.leaving.set()
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            self.errors.append(f"group {self.group}: no end within {FINISH_S:.0f} s")

    def _run(self) -> None:
        try:
            self.read()
        except Exception as error:  # the trial reports it: a run without records would pass
            self.errors.append(f"group {self.group}: {error!r}")


class MqdMember(Member):
    """mqd.client."""

    def read(self) -> None:
        with (
            sync.connect(self.bootstrap, security=self.security, wait_s=WAIT_S) as client,
            client.group_consumer(self.group, self.topics, reset="beginning") as consumer,
        ):
            while not self.leaving.is_set():
                batch = consumer.next(POLL_S)
                for record in () if batch is None else batch.records:
                    assert batch is not None
                    assert record.value is not None
                    self.found.add((batch.topic, batch.partition), record.offset, record.value)


class ConfluentMember(Member):
    """confluent-kafka."""

    def read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "error_cb": self._on_error,
                "log_level": 0,
            }
            | librdkafka_options(self.security)
        )
        try:
            consumer.subscribe(self.topics)
            while not self.leaving.is_set():
                for message in consumer.consume(1000, POLL_S):
                    self._take(message)
        finally:
            consumer.close()  # commits

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            self.errors.append(f"group {self.group}: {error}")
        else:
            key = message.topic(), message.partition()
            self.found.add(key, message.offset(), message.value())

    def _on_error(self, error: Any) -> None:
        if is_refusal(error):
            self.refusals.append(f"group {self.group}: {error}")


def problems(clients: Iterable[Any]) -> list[str]:
    """All errors and refusals of producers and members."""
    return [text for client in clients for text in (*client.errors, *client.refusals)]
