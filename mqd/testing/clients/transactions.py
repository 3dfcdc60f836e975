"""The transactional clients of one run (`ledger.Ledger` has their results).

Writers write transactions with several partitions. Some transactions are aborted or time out, or
their producer crashes. Copiers copy the records of the other workload (workload.py). All write to
one topic, from which readers of committed records read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.group_consumer import GroupConsumer
from mqd.client.group_offset_admin import GroupOffsetAdmin
from mqd.errors import MqError
from mqd.testing.clients.committed_readers import CommittedReaders
from mqd.testing.clients.common import CALL_SECONDS, DRAIN_LOOK_SECONDS, PAUSE_SECONDS, pause
from mqd.testing.clients.copiers import COPIERS, Copiers
from mqd.testing.clients.transaction_steps import VERSION_1_SHARE, WRITE_SECONDS, TransactionSteps
from mqd.testing.ledger import Log
from mqd.types import TopicPartition

TOPIC = "t"
"""The topic to which transactions write."""


class Transactional:
    """Writers, copiers and readers of committed records."""

    def __init__(
        self,
        steps: TransactionSteps,
        copied: list[TopicPartition],
        end_of: Callable[[TopicPartition], int],
    ) -> None:
        """`copied`: the partitions of one topic that copiers copy.

        `end_of(partition)`: the end of its committed records.
        """
        self.copied: dict[TopicPartition, int] = dict.fromkeys(copied, 0)
        """The latest known committed offsets of the copiers' group."""
        self.members: dict[GroupConsumer, None] = {}
        """The live members of the copiers' group."""
        self._steps = steps
        self._end_of = end_of
        self._left = 0
        self._finished = trio.Event()

    def start(self, nursery: trio.Nursery, *, writers: int, copiers: int) -> None:
        """Start this many writers and copiers, and the readers."""
        for number in range(writers):
            self._start(nursery, self._writer, f"writer{number}")
        if copiers:
            copying = Copiers(self._steps, min(self.copied).topic)
            self.members = copying.members
            for number in range(copiers):
                self._start(nursery, copying.run, f"copier{number}")
        readers = CommittedReaders(self._steps)
        nursery.start_soon(readers.own, "committed")
        stable = self._steps.source("stable").choice(self._steps.partitions)
        nursery.start_soon(readers.raw, "stable", stable)

    def _start(
        self, nursery: trio.Nursery, run: Callable[[str], Awaitable[None]], name: str
    ) -> None:
        async def life() -> None:
            try:
                await run(name)
            finally:
                self._left -= 1
                if not self._left:
                    self._finished.set()

        self._left += 1
        nursery.start_soon(life)

    async def drain(self, client: ClusterClient, on_progress: Callable[[], None]) -> None:
        """Wait until all records of the source are copied, by the committed offsets. Calls
        `on_progress()` after each poll that finds more copies than all earlier ones.
        """
        copied = 0
        self._steps.draining.set()
        admin = GroupOffsetAdmin(client, timeout_s=CALL_SECONDS)
        while self.missing() is not None:
            try:
                found = (await admin.list_group_offsets([COPIERS], stable=True))[COPIERS]
            except MqError as error:
                self._steps.refused[error.code.name] += 1
                found = {}
            if isinstance(found, Mapping):
                for partition, committed in found.items():
                    self.copied[partition] = committed.offset
            if copied < (copied := max(copied, sum(self.copied.values()))):
                on_progress()
            await trio.sleep(DRAIN_LOOK_SECONDS)

    def missing(self) -> str | None:
        """The records that are not copied, or not known to be copied."""
        for partition, offset in self.copied.items():
            if offset != self._end_of(partition):
                return f"copies of {partition} from {offset} to {self._end_of(partition)}"
        return None

    async def stop(self) -> None:
        """Begin no new transactions, and wait until writers and copiers have ended theirs."""
        self._steps.stopping.set()
        await self._finished.wait()

    def unread(self, committed: Mapping[TopicPartition, Log]) -> str | None:
        """The committed records in the final log that their reader has not received, if any."""
        for partition, log in committed.items():
            if unread := self._steps.ledger.unread("committed", partition, log):
                return (
                    f"{len(unread)} of {len(log)} committed records of {partition}, for "
                    f"their reader, the first at {unread[0][0]}"
                )
        return None

    async def read_everything(
        self, client: ClusterClient, *, committed: bool
    ) -> dict[TopicPartition, Log]:
        """All records of the partitions, in both isolation levels."""
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {
            partition: [] for partition in self._steps.partitions
        }
        start = dict.fromkeys(self._steps.partitions, 0)
        async with open_consumer(
            client, start, end="end", read_committed=committed, max_wait_ms=100
        ) as consumer:
            while (batch := await consumer.next()) is not None:
                found[TopicPartition(batch.topic, batch.partition)] += [
                    (record.offset, record.value or b"") for record in batch.records
                ]
        return dict(found)

    async def _writer(self, name: str) -> None:
        chance = self._steps.source(name)
        client = await self._steps.new_client(name)
        number = 0
        while not self._steps.stopping.is_set():
            version_1 = chance.random() < VERSION_1_SHARE
            try:
                async with self._steps.producer(
                    client, name, leave=chance.random() < 0.5
                ) as producer:
                    for _ in range(chance.choice([1, 5, 20])):
                        if self._steps.stopping.is_set():
                            break
                        number += 1
                        fate = chance.choice(
                            ["commit", "commit", "commit", "abort", "dawdle", "crash", "outlive"]
                        )
                        if not await self._steps.write(
                            producer, f"{name}.{number}", chance, fate, version_1=version_1
                        ):
                            break
                        await pause(chance, WRITE_SECONDS)
            except MqError as error:
                self._steps.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)
