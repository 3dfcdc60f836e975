"""Transaction steps that writers and copiers share: begin, write, commit, abort. A *zombie* is a
producer that continues its transaction after another process has initialized its transactional id.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.errors import DeadlineExceeded
from mqd.client.group_consumer import GroupConsumer
from mqd.client.transactional import TransactionalProducer, open_transactional_producer
from mqd.client.txn import Phase
from mqd.errors import MqError
from mqd.testing.checker import Outcome
from mqd.testing.clients.common import CALL_SECONDS, pause
from mqd.testing.ledger import Ledger, Transaction
from mqd.types import TopicPartition

WRITE_SECONDS = 0.3
"""Mean pause between two transactions of one writer."""
VERSION_1_SHARE = 0.4
"""The share of producers that use transaction protocol 1: they send AddPartitionsToTxn themselves.
"""
TIMEOUT_MS = 3000
"""The transaction timeout; at times a transaction takes longer."""


class TransactionSteps:
    """State and steps of all transactional clients of one run."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        partitions: list[TopicPartition],
    ) -> None:
        self.ledger = ledger
        self.new_client = new_client
        self.source = source
        self.partitions = partitions
        self.draining = trio.Event()
        """Set when copiers must copy the rest without pauses and crashes."""
        self.stopping = trio.Event()
        self.refused: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._heirs: dict[str, ClusterClient] = {}
        """Transactional id -> the client of the process that replaces a running producer."""

    @asynccontextmanager
    async def producer(
        self, client: ClusterClient, name: str, *, leave: bool
    ) -> AsyncIterator[TransactionalProducer]:
        """A producer with this transactional id, for the duration of a block."""
        async with open_transactional_producer(
            client,
            name,
            transaction_timeout_ms=TIMEOUT_MS,
            timeout_s=CALL_SECONDS,
            close_timeout_s=1.0,
            leave=leave,
            delivery_timeout_s=CALL_SECONDS,
        ) as producer:
            yield producer

    async def begin(self, producer: TransactionalProducer, *, version_1: bool) -> None:
        await producer.begin()
        if version_1:
            producer._transactions.version_2 = False
            self.counts["version_1_transactions"] += 1

    async def outlive(
        self,
        zombie: TransactionalProducer,
        transaction: Transaction,
        consumer: GroupConsumer | None = None,
    ) -> None:
        """Another process initializes the transactional id and writes, while the old one continues
        without noticing.
        """
        name = transaction.name.partition(".")[0]
        chance = self.source(f"{transaction.name}+")
        if name not in self._heirs:
            self._heirs[name] = await self.new_client(f"{name}-heir")
        try:
            async with self.producer(self._heirs[name], name, leave=chance.random() < 0.5) as heir:
                transaction.replaced = True
                self.counts["zombies"] += 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._inherit, heir, f"{transaction.name}+", chance)
                    await self._continue(zombie, transaction, consumer)
        except MqError as error:
            self.refused[error.code.name] += 1

    async def _inherit(self, heir: TransactionalProducer, name: str, chance: random.Random) -> None:
        try:
            await self.write(
                heir, name, chance, "commit", version_1=chance.random() < VERSION_1_SHARE
            )
        except MqError as error:
            self.refused[error.code.name] += 1

    async def _continue(
        self,
        zombie: TransactionalProducer,
        transaction: Transaction,
        consumer: GroupConsumer | None,
    ) -> None:
        chance = self.source(f"{transaction.name}-")
        try:
            await pause(chance, WRITE_SECONDS / 3)
            if chance.random() < 0.7:
                partition, value = (
                    chance.choice(self.partitions),
                    b"%s.late" % transaction.name.encode(),
                )
                self.ledger.write(transaction, partition, value)
                await zombie.enqueue(partition.topic, value, partition=partition.partition)
            if consumer is not None:
                await zombie.send_offsets(dict(consumer.positions()), consumer.group_metadata())
            await self.end(zombie, transaction, commit=True)
        except MqError as error:
            self.refused[error.code.name] += 1

    async def write(
        self,
        producer: TransactionalProducer,
        name: str,
        chance: random.Random,
        fate: str,
        *,
        version_1: bool,
    ) -> bool:
        """Run one transaction. Returns False if its producer must be opened again."""
        with self.transaction(name) as transaction:
            await self.begin(producer, version_1=version_1)
            for number in range(chance.choice([1, 2, 5, 20])):
                partition = chance.choice(self.partitions)
                value = b"%s.%d" % (name.encode(), number)
                self.ledger.write(transaction, partition, value)
                await producer.enqueue(partition.topic, value, partition=partition.partition)
                if chance.random() < 0.1:
                    await pause(chance, WRITE_SECONDS / 5)
            if self.stopping.is_set():
                fate = "commit"
            if fate == "dawdle":
                await trio.sleep(chance.choice([0.2, 1.0, 1.3 * TIMEOUT_MS / 1000]))
            elif fate == "outlive":
                await self.outlive(producer, transaction)
            if fate in ("crash", "outlive"):
                return False
            return await self.end(producer, transaction, commit=fate != "abort")

    @contextmanager
    def transaction(self, name: str) -> Iterator[Transaction]:
        transaction = self.ledger.begin(name)
        try:
            yield transaction
        finally:
            if transaction.outcome is Outcome.PENDING:
                transaction.given_up()

    async def end(
        self, producer: TransactionalProducer, transaction: Transaction, *, commit: bool
    ) -> bool:
        """Commit or abort. Returns False if the producer must be opened again."""
        if commit:
            await producer.flush()
            if producer.phase is Phase.OPEN and await self._commit(producer, transaction):
                return True
        if _phase(producer) in (Phase.OPEN, Phase.BROKEN):
            try:
                await producer.abort()
            except MqError as error:
                self.refused[error.code.name] += 1
        return _phase(producer) is Phase.READY

    async def _commit(self, producer: TransactionalProducer, transaction: Transaction) -> bool:
        transaction.commit_requested()
        while True:
            try:
                await producer.commit()
            except MqError as error:
                self.refused[error.code.name] += 1
                if (
                    not isinstance(error, DeadlineExceeded)
                    or producer.phase is not Phase.COMMITTING
                ):
                    return False
            else:
                self.ledger.committed(transaction)
                return True


def _phase(producer: TransactionalProducer) -> Phase:
    """Which may have changed."""
    return producer.phase
