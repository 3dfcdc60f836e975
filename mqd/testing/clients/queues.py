"""The clients of the load `queues`: a producer and readers of a topic in memory, and the writers of
topics with one producer at a time (owners.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.delivery import Delivery
from mqd.client.errors import ClientError
from mqd.client.offset_specs import resolve_offsets
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.testing.checker import Anomaly
from mqd.testing.clients.common import (
    DELIVERY_SECONDS,
    DRAIN_LOOK_SECONDS,
    FETCH_WAIT_MS,
    PAUSE_SECONDS,
    fetch,
    pause,
    refresh,
)
from mqd.testing.clients.consumers import records_from
from mqd.testing.clients.owners import Owners
from mqd.testing.memory_ledger import FinalLog, MemoryLedger
from mqd.types import NO_OFFSET, TopicPartition

MEMORY_TOPIC = "memory"
MEMORY_PARTITIONS = 2
PLACES = [TopicPartition(MEMORY_TOPIC, number) for number in range(MEMORY_PARTITIONS)]
_SEND_SECONDS = 0.1
"""The mean pause between two sends of the producer, and between two single fetches."""


class Queues:
    """The clients of one run."""

    def __init__(
        self,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        committed_end: Callable[[TopicPartition, int], int],
    ) -> None:
        """`committed_end(partition, incarnation)`: see MemoryLedger."""
        self._new_client = new_client
        self._source = source
        self._owners = Owners(new_client, source)
        self._ledger = MemoryLedger(committed_end)
        self._positions = dict.fromkeys(PLACES, 0)
        """The offsets that the reader reads next."""
        self._ends: dict[TopicPartition, int] = {}
        """The end offsets of the partitions with records."""
        self._acknowledged = trio.Event()
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    @property
    def counts(self) -> Counter[str]:
        return self._owners.counts + Counter(
            {
                "memory_acknowledged": self._ledger.acknowledgements,
                "memory_read": self._ledger.reads,
            }
        )

    def start(self, nursery: trio.Nursery) -> None:
        self._owners.start(nursery)
        nursery.start_soon(self._produce, "memory-producer")
        nursery.start_soon(self._read, "memory-reader", self._positions)
        nursery.start_soon(self._tail, "memory-tail", PLACES[0])

    # -- the topic in memory

    async def _produce(self, name: str) -> None:
        chance, client = self._source(name), await self._new_client(name)
        number = 0
        async with trio.open_nursery() as nursery:
            while not self._stopping.is_set():
                async with open_producer(client, delivery_timeout_s=DELIVERY_SECONDS) as producer:
                    # Another producer id: its records have an order of their own.
                    session = f"{name}{number}"
                    for _ in range(chance.choice([20, 200])):
                        if self._stopping.is_set():
                            break
                        for _ in range(chance.choice([1, 1, 5])):
                            place, value = chance.choice(PLACES), b"%s.%d" % (name.encode(), number)
                            number += 1
                            self._ledger.sent(session, value)
                            try:
                                delivery = await producer.enqueue(
                                    place.topic, value, partition=place.partition
                                )
                            except MqError:
                                continue
                            nursery.start_soon(self._wait, delivery, place, value)
                        await pause(chance, _SEND_SECONDS)
        self._stopped.set()

    async def _wait(self, delivery: Delivery, place: TopicPartition, value: bytes) -> None:
        try:
            metadata = await delivery.wait()
        except MqError:
            return
        if metadata.offset == NO_OFFSET:
            return  # a duplicate of a batch whose offsets the broker has forgotten
        self._ledger.acknowledged(place, metadata.offset, value)
        self._acknowledged.set()

    async def _read(self, name: str, positions: dict[TopicPartition, int]) -> None:
        chance, client = self._source(name), await self._new_client(name)
        while True:
            try:
                async with open_consumer(
                    client, dict(positions), reset="beginning", max_wait_ms=FETCH_WAIT_MS
                ) as consumer:
                    async for batch in consumer:
                        place = TopicPartition(batch.topic, batch.partition)
                        for record in batch.records:
                            self._ledger.read(place, record.offset, record.value or b"")
                        positions[place] = batch.next_offset
            except MqError:
                await pause(chance, PAUSE_SECONDS)

    async def _tail(self, name: str, place: TopicPartition) -> None:
        """Read a partition with single fetches, which show the high watermark of each response."""
        chance, client = self._source(name), await self._new_client(name)
        offset = 0
        while True:
            if not self._stopping.is_set():
                await pause(chance, _SEND_SECONDS)
            info = client.view.partition(place)
            if info is None or info.leader < 0:
                await refresh(client, place)
                continue
            try:
                row = await fetch(client, name, info.leader, place, offset, info.leader_epoch)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    offset = max(0, row.log_start_offset)
                if row.error_code:
                    raise ClientError(ErrorCode(row.error_code), "fetch")
                for at, value in records_from(row.records, offset):
                    self._ledger.read(place, at, value, row.high_watermark)
                    offset = at + 1
            except (MqError, ProtocolError):
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, place)

    # -- after the faults

    async def drain(self, client: ClusterClient) -> None:
        """Wait for an acknowledgement, then until the readers have read everything."""
        self._acknowledged = trio.Event()
        await self._acknowledged.wait()
        await self._owners.drain()
        self._stopping.set()
        await self._stopped.wait()
        starts = await resolve_offsets(client, dict.fromkeys(PLACES, "beginning"))
        ends = await resolve_offsets(client, dict.fromkeys(PLACES, "end"))
        self._ends = {place: end for place, end in ends.items() if end > starts[place]}
        while self._unread():  # noqa: ASYNC110
            await trio.sleep(DRAIN_LOOK_SECONDS)

    def _unread(self) -> bool:
        return any(self._positions[place] < end for place, end in self._ends.items())

    def missing(self) -> str:
        return (
            f"an acknowledgement of {MEMORY_TOPIC}: {not self._acknowledged.is_set()}, "
            f"{self._owners.missing()}, reads of {self._ends}: {self._positions}"
        )

    async def check(self, client: ClusterClient) -> list[Anomaly]:
        starts = await resolve_offsets(client, dict.fromkeys(PLACES, "beginning"))
        records: dict[TopicPartition, dict[int, bytes]] = {place: {} for place in PLACES}
        async with open_consumer(client, starts, end="end", max_wait_ms=100) as consumer:
            async for batch in consumer:
                records[TopicPartition(batch.topic, batch.partition)].update(
                    (record.offset, record.value or b"") for record in batch.records
                )
        final = {place: FinalLog(starts[place], records[place]) for place in PLACES}
        return self._ledger.check(final) + await self._owners.check(client)
