"""Writers of topics with one producer at a time (`mqd.producer.access`): each with a transactional
id of its own. They claim the topic or just write, commit, abort, crash, and pause for longer than
the lease, so that another one takes over and the former owner must be fenced.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.transactional import TransactionalProducer
from mqd.errors import MqError
from mqd.testing.checker import Anomaly
from mqd.testing.clients.common import CALL_SECONDS, PAUSE_SECONDS, pause, read_records
from mqd.testing.clients.transaction_steps import VERSION_1_SHARE, TransactionSteps
from mqd.testing.ledger import Ledger, Log
from mqd.testing.owner_check import Span, check_owners
from mqd.types import TopicPartition

LEASE_MS = 300
Access = Literal["exclusive", "wait"]
OWNED: Mapping[str, Access] = {"sole": "exclusive", "turns": "wait"}
"""The topics, with their access modes."""
OWNED_PARTITIONS = 2
_PAUSES = (0.05, 0.3, 0.8)
"""Mean pauses between two transactions, and between two records: shorter and longer than the
lease."""


class Owners:
    """The writers of one run."""

    def __init__(
        self,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._new_client = new_client
        self._source = source
        self._ledger = Ledger()
        self._spans: list[Span] = []
        self._partitions = [
            TopicPartition(topic, number) for topic in OWNED for number in range(OWNED_PARTITIONS)
        ]
        self._steps = TransactionSteps(
            ledger=self._ledger, new_client=new_client, source=source, partitions=self._partitions
        )
        self._waiting: dict[str, trio.Event] = {}
        """Topic -> set at the next commit there."""
        self._left = 0
        self._finished = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        for topic in OWNED:
            for number in range(self._source(topic).choice([2, 2, 3])):
                self._left += 1
                nursery.start_soon(self._writer, topic, f"{topic}-{number}")

    async def drain(self) -> None:
        """Wait for a commit in each topic, then for the end of all writers."""
        self._waiting = {topic: trio.Event() for topic in OWNED}
        for event in self._waiting.values():
            await event.wait()
        self._steps.stopping.set()
        await self._finished.wait()

    def missing(self) -> str:
        topics = [topic for topic, event in self._waiting.items() if not event.is_set()]
        return f"commits in {topics}, or the end of {self._left} writers"

    async def check(self, client: ClusterClient) -> list[Anomaly]:
        committed = await self._read(client, committed=True)
        everything = await self._read(client, committed=False)
        self.counts["owner_commits"] = self._ledger.commits
        found = self._ledger.check(committed, everything, {})
        return found + check_owners(self._spans, everything)

    async def _read(self, client: ClusterClient, *, committed: bool) -> dict[TopicPartition, Log]:
        read = await read_records(client, self._partitions, read_committed=committed)
        return {
            partition: [(offset, record.value or b"") for offset, record in rows.items()]
            for partition, rows in read.items()
        }

    # -- writers

    async def _writer(self, topic: str, name: str) -> None:
        chance, client = self._source(name), await self._new_client(name)
        number = 0
        while not self._steps.stopping.is_set():
            try:
                leaves = chance.random() < 0.5
                # One version for each producer: no client changes it within an epoch.
                is_old = chance.random() < VERSION_1_SHARE
                async with self._steps.producer(client, name, leave=leaves) as producer:
                    if chance.random() < 0.3:
                        await producer.claim(topic, OWNED[topic], timeout_s=CALL_SECONDS)
                        self.counts["claims"] += 1
                    for _ in range(chance.choice([1, 5, 20])):
                        number += 1
                        if self._steps.stopping.is_set() or not await self._write(
                            producer, Span(topic, name, f"{name}.{number}"), chance, is_old
                        ):
                            break
                        await pause(chance, chance.choice(_PAUSES))
            except MqError as error:
                self._steps.refused[error.code.name] += 1
                self.counts["owner_refusals"] += 1
                await pause(chance, PAUSE_SECONDS)
        self._left -= 1
        if not self._left:
            self._finished.set()

    async def _write(
        self, producer: TransactionalProducer, span: Span, chance: random.Random, is_old: bool
    ) -> bool:
        """Run one transaction. Returns False if its producer must be opened again."""
        self._spans.append(span)
        with self._steps.transaction(span.name) as transaction:
            await self._steps.begin(producer, version_1=is_old)
            for number in range(chance.choice([1, 2, 4])):
                partition = TopicPartition(span.topic, chance.randrange(OWNED_PARTITIONS))
                value = b"%s.%d" % (span.name.encode(), number)
                self._ledger.write(transaction, partition, value)
                sent = trio.current_time()
                await producer.send(span.topic, value, partition=partition.partition)
                span.wrote(sent, trio.current_time())
                if chance.random() < 0.2:
                    await pause(chance, chance.choice(_PAUSES))
            if chance.random() < 0.1 and not self._steps.stopping.is_set():
                return False  # a crash: nothing ends the transaction
            commits = chance.random() < 0.8
            if not await self._steps.end(producer, transaction, commit=commits):
                return False
            if commits and (event := self._waiting.get(span.topic)) is not None:
                event.set()
            return True
