"""Producers and consumers that use no coordinator (`checker.History` has their results).

Each client has its own random source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.testing.clients.consumers import Consumers
from mqd.testing.clients.producers import Producers
from mqd.testing.clients.workload_state import WorkloadState
from mqd.types import TopicPartition

PlaceT = TypeVar("PlaceT")
"""The target of a producer: one partition, or several."""


class Workload:
    """Producers and consumers over the topics that the runner created."""

    def __init__(self, state: WorkloadState) -> None:
        self.state = state
        self._producers_left = 0
        self._finished = trio.Event()

    def start(
        self,
        nursery: trio.Nursery,
        partitions: list[TopicPartition],
        *,
        own: int,
        raw: int,
        hasty: int,
    ) -> None:
        """Start producers of each kind, spread over the partitions, and consumers of all
        partitions. Producers run until `stop`, consumers until the nursery is cancelled.
        """
        choose = self.state.source("workload")
        producers, consumers = Producers(self.state), Consumers(self.state)
        for number in range(own):
            name = f"own{number}"
            self.state.expect_acknowledgements(name)
            self._start_producer(nursery, producers.own, name, partitions)
        for number in range(raw):
            name = f"raw{number}"
            self.state.expect_acknowledgements(name)
            self._start_producer(nursery, producers.raw, name, choose.choice(partitions))
        for number in range(hasty):
            name = f"hasty{number}"
            self._start_producer(nursery, producers.hasty, name, choose.choice(partitions))
        nursery.start_soon(consumers.own, "reader", partitions)
        for partition in choose.sample(partitions, min(2, len(partitions))):
            nursery.start_soon(consumers.raw, f"tail-{partition}", partition)

    def _start_producer(
        self,
        nursery: trio.Nursery,
        run: Callable[[str, PlaceT], Awaitable[None]],
        name: str,
        place: PlaceT,
    ) -> None:
        async def life() -> None:
            try:
                await run(name, place)
            finally:
                self._producers_left -= 1
                if not self._producers_left:
                    self._finished.set()

        self._producers_left += 1
        nursery.start_soon(life)

    async def stop(self) -> None:
        """Send no new records, and wait until every producer knows the outcome of each of its
        records.
        """
        self.state.stopping.set()
        await self._finished.wait()

    async def read_everything(
        self, client: ClusterClient, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """Read the final log of each partition from its leader, from offset 0 to the high
        watermark.
        """
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {
            partition: [] for partition in partitions
        }
        async with open_consumer(
            client, dict.fromkeys(partitions, 0), end="end", max_wait_ms=100
        ) as consumer:
            while (batch := await consumer.next()) is not None:
                found[TopicPartition(batch.topic, batch.partition)] += [
                    (record.offset, record.value or b"") for record in batch.records
                ]
        return found
