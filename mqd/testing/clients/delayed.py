"""Clients of the simulated cluster that use a delay topic: a producer, and a reader of the target.

Each record has a number of its own as value. Some are cancelled by a tombstone of their key. The
check: a record that was acknowledged and not cancelled is in the target once, one that was
cancelled in time is not there, and none arrived before it was due.
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
from mqd.errors import MqError
from mqd.testing.checker import Anomaly
from mqd.testing.clients.common import DELIVERY_SECONDS, pause
from mqd.types import TopicPartition

TARGET, SOURCE = "due", "due.delay"
PARTITIONS = 2
_SEND_SECONDS = 0.1
"""The mean pause between two records."""
_DELAYS = (0.0, 0.05, 0.5, 3.0)
_CANCELLED = 0.25
"""The part of the records that is cancelled, with the longest delay."""
_MARGIN_MS = 100
"""A tombstone is in time if it is acknowledged so long before the record is due."""


@dataclass(slots=True)
class Delayed:
    """One record."""

    due_ms: int
    acknowledged: bool = False
    cancelling: bool = False
    """Whether a tombstone was sent: the record may be missing."""
    cancelled: bool = False
    """Whether it was acknowledged in time: the record must be missing."""


class DelayedRecords:
    """The clients of one run."""

    def __init__(
        self,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        wall_ms: Callable[[], int],
        ahead_ms: Callable[[], int],
    ) -> None:
        """`wall_ms()`: the true time. `ahead_ms()`: how much any node's clock has been ahead."""
        self.counts: Counter[str] = Counter()
        self._new_client = new_client
        self._source = source
        self._wall_ms = wall_ms
        self._ahead_ms = ahead_ms
        self._records: dict[bytes, Delayed] = {}
        self._early: list[bytes] = []
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._produce)
        nursery.start_soon(self._watch)

    async def _produce(self) -> None:
        chance, client = self._source("delayed"), await self._new_client("delayed")
        async with open_producer(client, delivery_timeout_s=DELIVERY_SECONDS) as producer:
            number = 0
            while not self._stopping.is_set():
                number += 1
                await self._send(producer, b"%d" % number, chance)
                await pause(chance, _SEND_SECONDS)
        self._stopped.set()

    async def _send(self, producer: Producer, value: bytes, chance: random.Random) -> None:
        is_cancelled = chance.random() < _CANCELLED
        delay_s = _DELAYS[-1] if is_cancelled else chance.choice(_DELAYS)
        due_ms = self._wall_ms() + round(1000 * delay_s)
        record = self._records[value] = Delayed(due_ms)
        try:
            await producer.send(SOURCE, value, key=value, deliver_at=due_ms)
            record.acknowledged = True
            self.counts["delayed"] += 1
            if is_cancelled:
                record.cancelling = True
                await producer.send(SOURCE, None, key=value)
                in_time = self._wall_ms() + self._ahead_ms() + _MARGIN_MS < due_ms
                record.cancelled = in_time
                self.counts["cancelled"] += in_time
        except MqError:
            self.counts["delayed_unknown"] += 1

    async def _watch(self) -> None:
        """Note records that arrive early."""
        client = await self._new_client("due-reader")
        places = {TopicPartition(TARGET, one): 0 for one in range(PARTITIONS)}
        while True:
            try:
                async with open_consumer(client, places, read_committed=True) as consumer:
                    async for batch in consumer:
                        now_ms = self._wall_ms() + self._ahead_ms()
                        for one in batch.records:
                            due_ms = self._records[one.value or b""].due_ms
                            if due_ms > now_ms:
                                self._early.append(one.value or b"")
                        places[TopicPartition(batch.topic, batch.partition)] = batch.next_offset
            except MqError:
                await trio.sleep(_SEND_SECONDS)

    # -- after the faults

    async def drain(self, client: ClusterClient) -> None:
        """Wait until everything that must arrive has arrived, and all else had the time."""
        self._stopping.set()
        await self._stopped.wait()
        while self._missing(await self._arrived(client)):  # noqa: ASYNC110
            await trio.sleep(1)
        await trio.sleep(1 + max(_DELAYS))

    def _missing(self, arrived: Counter[bytes]) -> list[bytes]:
        return [
            value
            for value, one in self._records.items()
            if one.acknowledged and not one.cancelling and not arrived[value]
        ]

    async def _arrived(self, client: ClusterClient) -> Counter[bytes]:
        arrived: Counter[bytes] = Counter()
        places = [TopicPartition(TARGET, one) for one in range(PARTITIONS)]
        async with open_consumer(
            client, dict.fromkeys(places, 0), end="end", read_committed=True, max_wait_ms=100
        ) as consumer:
            async for batch in consumer:
                arrived.update(one.value or b"" for one in batch.records)
        return arrived

    def missing(self) -> str:
        return "records of a delay topic in their target"

    async def check(self, client: ClusterClient) -> list[Anomaly]:
        arrived = await self._arrived(client)
        self.counts["relayed"] += arrived.total()
        found = {
            "is in the target twice": [value for value, count in arrived.items() if count > 1],
            "was cancelled and is in the target": [
                value for value, one in self._records.items() if one.cancelled and arrived[value]
            ],
            "is in the target and was not sent": [
                value for value in arrived if value not in self._records
            ],
            "is not in the target": self._missing(arrived),
            "arrived before it was due": self._early,
        }
        return [
            Anomaly(
                "delayed record",
                TopicPartition(TARGET, 0),
                len(values),
                tuple(value.decode() for value in values[:5]),
                f"a delayed record {what}",
            )
            for what, values in found.items()
            if values
        ]
