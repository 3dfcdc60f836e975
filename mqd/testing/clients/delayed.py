"""Clients of the simulated cluster that use a delay topic and a retry topic: a producer, a consumer
of the target that fails to process some records, and a check of when records arrive.

Each record has a number of its own as value. Some are cancelled by a tombstone of their key, some
expire, some repeat every minute. The consumer sends failed records to the retry topic. At the end,
`DelayCheck` compares the logs of all topics.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.producer import Producer, open_producer
from mqd.delay_names import (
    ATTEMPTS,
    BACKOFF_CONFIG,
    CRON,
    DEAD_LETTERS_CONFIG,
    DUE,
    REPLACE_CONFIG,
    TARGET_CONFIG,
    TTL,
)
from mqd.errors import MqError
from mqd.protocol.record_reader import Record
from mqd.testing.checker import Anomaly
from mqd.testing.clients.common import DELIVERY_SECONDS, pause
from mqd.testing.delay_check import (
    EVERY_MINUTE,
    Arrived,
    DelayCheck,
    DelayTopic,
    Outcome,
    Place,
    number_in,
    sent_twice_or_lost,
)
from mqd.testing.wall_times import WallTimes
from mqd.types import TopicPartition

TARGET, SOURCE, RETRY, DEAD = "due", "due.delay", "due.retry", "due.dlq"
PARTITIONS = 2
_SEND_SECONDS = 0.1
"""The mean pause between two records."""
_DELAYS = (0.0, 0.05, 0.5, 3.0)
_MARGIN_MS = 100
"""A tombstone is in time if it is acknowledged so long before the record is due."""
_KINDS = ("plain", "cancelled", "replaced", "expired", "lasting", "repeating")
_LIKELIHOODS = (50, 25, 5, 10, 7, 3)
_FAILED = 0.3
"""The part of the records of the target that its consumer sends to the retry topic."""
_BACK_OFF = "150ms,400ms"
_BACK_OFF_MS = (150, 400)
_MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DelayFeatures:
    """Drawn from the seed."""

    replaces: bool

    @classmethod
    def draw(cls, chance: random.Random) -> DelayFeatures:
        return cls(chance.random() < 0.3)

    def configs(self) -> dict[str, dict[str, str]]:
        """Topic -> its configs beside those of all topics. The target is the first one."""
        goes_to = {TARGET_CONFIG: TARGET, DEAD_LETTERS_CONFIG: DEAD}
        return {
            TARGET: {},
            DEAD: {},
            SOURCE: {**goes_to, REPLACE_CONFIG: str(self.replaces).lower()},
            RETRY: {
                **goes_to,
                BACKOFF_CONFIG: _BACK_OFF,
                "message.timestamp.type": "LogAppendTime",
            },
        }


class _Logs:
    """The committed records of some topics, as far as they were read."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, dict[int, Record]] = {
            TopicPartition(topic, number): {}
            for topic in (SOURCE, RETRY, TARGET, DEAD)
            for number in range(PARTITIONS)
        }
        self._places = dict.fromkeys(self.records, 0)

    async def read(self, client: ClusterClient) -> None:
        """Read what is new."""
        async with open_consumer(
            client, self._places, end="end", read_committed=True, max_wait_ms=100
        ) as consumer:
            async for batch in consumer:
                place = TopicPartition(batch.topic, batch.partition)
                self.records[place].update((record.offset, record) for record in batch.records)
                self._places[place] = batch.next_offset

    def of(self, *topics: str) -> dict[TopicPartition, dict[int, Record]]:
        return {place: rows for place, rows in self.records.items() if place.topic in topics}

    def arrived(self) -> Arrived:
        arrived = Arrived()
        for topic, outcome in ((TARGET, Outcome.TARGET), (DEAD, Outcome.DEAD)):
            for place, rows in self.of(topic).items():
                arrived.add(outcome, place, rows.values())
        return arrived


class DelayedRecords:
    """The clients of one run."""

    def __init__(
        self,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        wall_ms: Callable[[], int],
        walls: WallTimes,
        features: DelayFeatures,
    ) -> None:
        """`wall_ms()`: the true time."""
        self.counts: Counter[str] = Counter()
        self._new_client = new_client
        self._source = source
        self._wall_ms = wall_ms
        self._walls = walls
        self._topics = {
            SOURCE: DelayTopic(replaces=features.replaces),
            RETRY: DelayTopic(_BACK_OFF_MS),
        }
        self._acknowledged: list[tuple[bytes, int]] = []
        """(value, attempts) of records of the delay topic."""
        self._retried: list[tuple[bytes, int]] = []
        """The same of the retry topic."""
        self._cancelled: dict[bytes, int] = {}
        """Value of a record of the delay topic -> the wall time by which it was cancelled."""
        self._early: list[str] = []
        self._logs = _Logs()
        self._due_by_ms = 0
        """The wall time of `drain`: what was due by then has an outcome."""
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._produce)
        nursery.start_soon(self._consume)

    # -- the producer

    async def _produce(self) -> None:
        chance, client = self._source("delayed"), await self._new_client("delayed")
        async with open_producer(client, delivery_timeout_s=DELIVERY_SECONDS) as producer:
            number = 0
            while not self._stopping.is_set():
                number += 1
                try:
                    await self._send(producer, b"%d" % number, chance)
                except MqError:
                    self.counts["delayed_unknown"] += 1
                await pause(chance, _SEND_SECONDS)
        self._stopped.set()

    async def _send(self, producer: Producer, value: bytes, chance: random.Random) -> None:
        [kind] = chance.choices(_KINDS, _LIKELIHOODS)
        delay_s, now_ms = chance.choice(_DELAYS), self._wall_ms()
        headers: list[tuple[str, bytes]] = []
        if kind in ("cancelled", "replaced"):
            delay_s = _DELAYS[-1]
        due_ms = now_ms + round(1000 * delay_s)
        if kind == "expired":
            headers = [(TTL, b"%d" % (due_ms - now_ms))]
        elif kind == "lasting":
            headers = [(TTL, b"%d" % (due_ms - now_ms + 2000))]
        elif kind == "repeating":
            headers = [(CRON, EVERY_MINUTE)]
        await producer.send(
            SOURCE,
            value,
            key=value,
            headers=headers,
            timestamp=now_ms,
            deliver_at=None if kind == "repeating" else due_ms,
        )
        self._acknowledged.append((value, 0))
        self.counts["delayed"] += 1
        if kind == "repeating" and chance.random() < 0.5:
            await pause(chance, 1.0)
            await producer.send(SOURCE, None, key=value)
            self._note_cancelled(value)
        elif kind == "cancelled":
            await producer.send(SOURCE, None, key=value)
            self._note_cancelled(value)
        elif kind == "replaced":
            later = value + b"+"
            await producer.send(SOURCE, later, key=value, timestamp=now_ms, deliver_at=due_ms)
            self._acknowledged.append((later, 0))
            if self._topics[SOURCE].replaces:
                self._note_cancelled(value)

    def _note_cancelled(self, value: bytes) -> None:
        """What cancels a record was acknowledged."""
        self._cancelled[value] = self._walls.latest() + _MARGIN_MS
        self.counts["cancelled"] += 1

    # -- the consumer

    async def _consume(self) -> None:
        """Note records that arrive early. Send some records to the retry topic."""
        client, chance = await self._new_client("due-reader"), self._source("due-reader")
        places = {TopicPartition(TARGET, one): 0 for one in range(PARTITIONS)}
        async with open_producer(client, delivery_timeout_s=DELIVERY_SECONDS) as producer:
            while True:
                try:
                    async with open_consumer(client, places, read_committed=True) as consumer:
                        async for batch in consumer:
                            latest_ms = self._walls.latest()
                            place = TopicPartition(batch.topic, batch.partition)
                            for record in batch.records:
                                places[place] = record.offset + 1
                                due_ms = number_in(record, DUE) or 0
                                if latest_ms < due_ms:
                                    self._early.append(f"{record}: it was {latest_ms}")
                                if self._fails(record, chance):
                                    await self._retry(producer, record)
                            places[place] = batch.next_offset
                except MqError:
                    await trio.sleep(_SEND_SECONDS)

    def _fails(self, record: Record, chance: random.Random) -> bool:
        """Whether the consumer retries the record; not one that repeats, so that each (value,
        attempts) is once in the retry topic.
        """
        repeats = any(name == CRON for name, _ in record.headers)
        return not repeats and not self._stopping.is_set() and chance.random() < _FAILED

    async def _retry(self, producer: Producer, record: Record) -> None:
        await producer.retry(RETRY, record)
        self._retried.append((record.value or b"", number_in(record, ATTEMPTS) or 0))
        self.counts["retried"] += 1

    # -- after the faults

    async def drain(self, client: ClusterClient) -> None:
        """Wait until everything that must arrive has arrived, and all else had the time."""
        self._stopping.set()
        await self._stopped.wait()
        self._due_by_ms = self._walls.latest()
        await self._until_relayed(client)
        self._walls.jump(_MINUTE_SECONDS)  # each schedule has one more occurrence
        self._due_by_ms = self._walls.latest()
        await self._until_relayed(client)
        await trio.sleep(1)

    async def _until_relayed(self, client: ClusterClient) -> None:
        await self._logs.read(client)
        while self._missing():
            await trio.sleep(1)
            await self._logs.read(client)

    def _missing(self) -> list[Place]:
        check = DelayCheck(self._topics, self._walls.latest(), self._due_by_ms)
        return check.missing(self._logs.of(SOURCE, RETRY), self._logs.arrived())

    def missing(self) -> str:
        return f"outcomes of {self._missing()[:5]}"

    async def check(self, client: ClusterClient) -> list[Anomaly]:
        await self._logs.read(client)
        latest_ms = self._walls.latest()
        check = DelayCheck(self._topics, latest_ms, self._due_by_ms)
        arrived = self._logs.arrived()
        check.check(self._logs.of(SOURCE, RETRY), arrived, self._cancelled)
        for topic, sent in ((SOURCE, self._acknowledged), (RETRY, self._retried)):
            rows = self._logs.of(topic).values()
            for example in sent_twice_or_lost(
                (record for some in rows for record in some.values()), sent
            ):
                check.note("lost", f"{topic}: {example}")
        for example in self._early:
            check.note("early", example)
        outcomes = [outcome for rows in arrived.places.values() for outcome, _, _ in rows]
        self.counts["relayed"] += outcomes.count(Outcome.TARGET)
        self.counts["delay_letters"] += outcomes.count(Outcome.DEAD)
        return check.anomalies(TopicPartition(TARGET, 0))
