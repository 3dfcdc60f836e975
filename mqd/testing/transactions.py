"""Transactional clients of the simulated cluster, which note down what they did and were told
(`ledger.Ledger`).

Writers: transactions over several partitions, some of which are aborted, left open until they time
out, or abandoned by a process that dies in the middle. Copiers: members of one group that consume,
transform and produce, offsets and records in one transaction; they come, go and crash. Zombies:
either of them, going on with its transaction when another process has its transactional id and
works. Each life of a producer speaks version 2 of the protocol, or version 1, in which it says
beforehand where it writes (KIP-890). Readers of committed records: mqd's own, and a raw one that
compares each answer's last stable offset.

All of it goes to one topic. What copiers read is what the other workload produces (workload.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError, DeadlineExceeded
from mqd.client.group_admin import GroupAdmin
from mqd.client.group_consumer import GroupConsumer, open_group_consumer
from mqd.client.transactional import TransactionalProducer, open_transactional_producer
from mqd.client.txn import Phase
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.batch import iterate_batches
from mqd.testing.checker import Outcome
from mqd.testing.clients import (
    CALL_SECONDS,
    DRAIN_LOOK_SECONDS,
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    PAUSE_SECONDS,
    SESSION_MS,
    fetch,
    lives,
    pause,
    refresh,
)
from mqd.testing.ledger import Ledger, Log, Transaction, copy_of
from mqd.types import TopicPartition

TOPIC = "t"
COPIERS = "copiers"
WRITE_SECONDS = 0.3
COPY_SECONDS = 0.1
READ_SECONDS = 0.1
"""Mean pauses between the deeds of one client."""
VERSION_1_SHARE = 0.4
"""How many lives of producers tell the coordinator themselves where they write."""
TIMEOUT_MS = 3000
"""Of transactions; now and then one takes longer."""


class Transactional:
    """The transactional clients of one run."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        end_of: Callable[[TopicPartition], int],
    ) -> None:
        """`end_of(partition)`: the end of what is committed there.

        `source(purpose)`: where chance comes from.
        """
        self.ledger = ledger
        self.draining = trio.Event()
        """Copiers go on until all is copied, without ado."""
        self.stopping = trio.Event()
        self.copied: dict[TopicPartition, int] = {}
        """What the copiers' group has committed, as it was told last."""
        self.refused: Counter[str] = Counter()
        self.members: dict[GroupConsumer, None] = {}
        """Of the copiers' group, as long as they live."""
        self.counts: Counter[str] = Counter()
        self._new_client = new_client
        self._source = source
        self._end_of = end_of
        self._heirs: dict[str, ClusterClient] = {}
        """Transactional id -> where another process begins that gets the id while the one
        before lives.
        """
        self._left = 0
        self._finished = trio.Event()

    # -- what the runner calls

    def start(
        self,
        nursery: trio.Nursery,
        partitions: list[TopicPartition],
        copied: list[TopicPartition],
        *,
        writers: int,
        copiers: int,
    ) -> None:
        """Writers and copiers into `partitions` of TOPIC; the copiers' source is `copied`,
        the partitions of one topic.
        """
        self.partitions = partitions
        self.copied = dict.fromkeys(copied, 0)
        for number in range(writers):
            self._go(nursery, self._writer, f"writer{number}")
        for number in range(copiers):
            self._go(nursery, self._copier, f"copier{number}")
        nursery.start_soon(self._reader, "committed")
        nursery.start_soon(self._raw_reader, "stable", self._source("stable").choice(partitions))

    def _go(self, nursery: trio.Nursery, run: Callable[[str], Awaitable[None]], name: str) -> None:
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
        """Wait until everything in the source is copied, and the committed offsets prove it.

        `on_progress()` is called after each look that found more copies than any look before it.
        """
        copied = 0
        self.draining.set()
        admin = GroupAdmin(client, timeout_s=CALL_SECONDS)
        while self.missing() is not None:
            try:
                found = (await admin.list_group_offsets([COPIERS], stable=True))[COPIERS]
            except MqError as error:
                self.refused[error.code.name] += 1
                found = {}
            if isinstance(found, Mapping):
                for partition, committed in found.items():
                    self.copied[partition] = committed.offset
            if copied < (copied := max(copied, sum(self.copied.values()))):
                on_progress()
            await trio.sleep(DRAIN_LOOK_SECONDS)

    def missing(self) -> str | None:
        """What is not copied, or not said to be."""
        for partition, offset in self.copied.items():
            if offset != self._end_of(partition):
                return f"copies of {partition} from {offset} to {self._end_of(partition)}"
        return None

    async def stop(self) -> None:
        """No new transactions; returns when writers and copiers have ended theirs."""
        self.stopping.set()
        await self._finished.wait()

    def unread(self, committed: Mapping[TopicPartition, Log]) -> str | None:
        """Of what is there in the end, what the reader of committed records has not got."""
        for partition, log in committed.items():
            if unread := self.ledger.unread("committed", partition, log):
                return (
                    f"{len(unread)} of {len(log)} committed records of {partition}, for "
                    f"their reader, the first at {unread[0][0]}"
                )
        return None

    async def read_everything(
        self, client: ClusterClient, *, committed: bool
    ) -> dict[TopicPartition, Log]:
        """Both views of the partitions, whole."""
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {
            partition: [] for partition in self.partitions
        }
        start = dict.fromkeys(self.partitions, 0)
        async with open_consumer(
            client, start, end="end", read_committed=committed, max_wait_ms=100
        ) as consumer:
            while (batch := await consumer.next()) is not None:
                found[TopicPartition(batch.topic, batch.partition)] += [
                    (record.offset, record.value or b"") for record in batch.records
                ]
        return dict(found)

    # -- producers

    @asynccontextmanager
    async def _producer(
        self, client: ClusterClient, name: str, *, leave: bool
    ) -> AsyncIterator[TransactionalProducer]:
        """One life of the producer with this transactional id."""
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

    async def _begin(self, producer: TransactionalProducer, *, version_1: bool) -> None:
        await producer.begin()
        if version_1:
            producer._transactions.version_2 = False
            self.counts["version_1_transactions"] += 1

    async def _outlive(
        self,
        zombie: TransactionalProducer,
        transaction: Transaction,
        consumer: GroupConsumer | None = None,
    ) -> None:
        """Another process gets the transactional id, and works; the old one, which does not
        hear of it, goes on as well.
        """
        name = transaction.name.partition(".")[0]
        chance = self._source(f"{transaction.name}+")
        if name not in self._heirs:
            self._heirs[name] = await self._new_client(f"{name}-heir")
        try:
            async with self._producer(self._heirs[name], name, leave=chance.random() < 0.5) as heir:
                transaction.replaced = True
                self.counts["zombies"] += 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._inherit, heir, f"{transaction.name}+", chance)
                    await self._go_on(zombie, transaction, consumer)
        except MqError as error:
            self.refused[error.code.name] += 1

    async def _inherit(self, heir: TransactionalProducer, name: str, chance: random.Random) -> None:
        try:
            await self._write(
                heir, name, chance, "commit", version_1=chance.random() < VERSION_1_SHARE
            )
        except MqError as error:
            self.refused[error.code.name] += 1

    async def _go_on(
        self,
        zombie: TransactionalProducer,
        transaction: Transaction,
        consumer: GroupConsumer | None,
    ) -> None:
        chance = self._source(f"{transaction.name}-")
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
            await self._end(zombie, transaction, commit=True)
        except MqError as error:
            self.refused[error.code.name] += 1

    # -- writers

    async def _writer(self, name: str) -> None:
        chance = self._source(name)
        client = await self._new_client(name)
        number = 0
        while not self.stopping.is_set():
            version_1 = chance.random() < VERSION_1_SHARE
            try:
                async with self._producer(client, name, leave=chance.random() < 0.5) as producer:
                    for _ in range(chance.choice([1, 5, 20])):
                        if self.stopping.is_set():
                            break
                        number += 1
                        fate = chance.choice(
                            ["commit", "commit", "commit", "abort", "dawdle", "crash", "outlive"]
                        )
                        if not await self._write(
                            producer, f"{name}.{number}", chance, fate, version_1=version_1
                        ):
                            break
                        await pause(chance, WRITE_SECONDS)
            except MqError as error:
                self.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def _write(
        self,
        producer: TransactionalProducer,
        name: str,
        chance: random.Random,
        fate: str,
        *,
        version_1: bool,
    ) -> bool:
        """One transaction. False when its producer is to be opened anew."""
        with self._transaction(name) as transaction:
            await self._begin(producer, version_1=version_1)
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
                await self._outlive(producer, transaction)
            if fate in ("crash", "outlive"):
                return False
            return await self._end(producer, transaction, commit=fate != "abort")

    @contextmanager
    def _transaction(self, name: str) -> Iterator[Transaction]:
        transaction = self.ledger.begin(name)
        try:
            yield transaction
        finally:
            if transaction.outcome is Outcome.PENDING:
                transaction.given_up()

    async def _end(
        self, producer: TransactionalProducer, transaction: Transaction, *, commit: bool
    ) -> bool:
        """Commit or abort. False when the producer is to be opened anew."""
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
        transaction.commit_asked()
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

    # -- copiers

    async def _copier(self, name: str) -> None:
        chance = self._source(name)
        protocol: Literal["classic", "consumer"] = self._source("copiers").choice(
            ["classic", "consumer"]
        )
        client = await self._new_client(name)
        topic = min(self.copied).topic
        number = 0
        while not self.stopping.is_set():
            leave = chance.random() < 0.6
            version_1 = chance.random() < VERSION_1_SHARE
            rounds = chance.choice([1, 5, 20, 100])
            try:
                async with (
                    self._producer(client, name, leave=leave) as producer,
                    open_group_consumer(
                        client,
                        COPIERS,
                        [topic],
                        group_protocol=protocol,
                        assignors=("cooperative-sticky",) if protocol == "classic" else (),
                        session_timeout_ms=SESSION_MS,
                        heartbeat_interval_ms=HEARTBEAT_MS,
                        max_poll_interval_ms=2 * TIMEOUT_MS,
                        auto_commit=False,
                        reset="beginning",
                        read_committed=True,
                        max_wait_ms=FETCH_WAIT_MS,
                        timeout_s=CALL_SECONDS,
                        leave=leave,
                        close_timeout_s=1.0,
                    ) as consumer,
                ):
                    with lives(self.members, consumer):
                        while rounds > 0 or self.draining.is_set():
                            rounds -= 1
                            number += 1
                            if not await self._copy(
                                producer, consumer, f"{name}.{number}", chance, version_1=version_1
                            ):
                                break
                            if not self.draining.is_set():
                                await pause(chance, COPY_SECONDS)
            except MqError as error:
                self.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def _copy(
        self,
        producer: TransactionalProducer,
        consumer: GroupConsumer,
        name: str,
        chance: random.Random,
        *,
        version_1: bool,
    ) -> bool:
        """One transaction: what one batch holds. False when all is to be opened anew."""
        batch = None
        while batch is None:
            if self.stopping.is_set():
                return False
            with trio.move_on_after(DRAIN_LOOK_SECONDS):
                batch = await consumer.next()
        source = TopicPartition(batch.topic, batch.partition)
        target = self.partitions[source.partition % len(self.partitions)]
        with self._transaction(name) as transaction:
            await self._begin(producer, version_1=version_1)
            for record in batch.records:
                value = copy_of(source, record.offset, record.value or b"")
                self.ledger.write(transaction, target, value)
                await producer.enqueue(target.topic, value, partition=target.partition)
            try:
                await producer.send_offsets(dict(consumer.positions()), consumer.group_metadata())
            except MqError as error:
                self.refused[error.code.name] += 1
            fate = chance.random() if not self.draining.is_set() else 0.5
            if fate < 0.03:
                return False  # dies here
            if fate < 0.08:
                await self._outlive(producer, transaction, consumer)
                return False
            if not await self._end(producer, transaction, commit=fate < 0.9):
                return False
            if transaction.outcome is not Outcome.OK:
                if chance.random() < 0.5:
                    return False
                await consumer.rewind()
        return True

    # -- readers of committed records

    async def _reader(self, name: str) -> None:
        """mqd's own; begun anew now and then, where it was."""
        chance = self._source(name)
        places = dict.fromkeys(self.partitions, 0)
        client = await self._new_client(name)
        while True:
            rounds = chance.randrange(20, 200)
            try:
                async with open_consumer(
                    client,
                    dict(places),
                    read_committed=True,
                    max_wait_ms=FETCH_WAIT_MS,
                    timeout_s=CALL_SECONDS,
                ) as consumer:
                    while rounds:
                        rounds -= 1
                        with trio.move_on_after(0.5):
                            batch = await consumer.next()
                            assert batch is not None
                            partition = TopicPartition(batch.topic, batch.partition)
                            self.ledger.read(
                                name,
                                partition,
                                [(record.offset, record.value or b"") for record in batch.records],
                            )
                            places[partition] = batch.next_offset
                        if not self.stopping.is_set():
                            await pause(chance, READ_SECONDS)
            except MqError as error:
                self.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def _raw_reader(self, name: str, partition: TopicPartition) -> None:
        """One partition, from the leader or a follower, a fetch at a time: what the answers
        say of their log.
        """
        chance = self._source(name)
        offset, epoch = 0, -1
        client = await self._new_client(name)
        while True:
            await pause(chance, READ_SECONDS)
            info = client.view.partition(partition)
            if info is None or info.leader < 0 or info.leader_epoch < epoch:
                await refresh(client, partition)
                continue
            epoch = info.leader_epoch
            node = info.leader if chance.random() < 0.6 else chance.choice(info.replicas)
            try:
                row = await fetch(client, name, node, partition, offset, epoch, read_committed=True)
                if row.error_code:
                    raise ClientError(ErrorCode(row.error_code), "fetch")
            except (MqError, ProtocolError):
                await refresh(client, partition)
                continue
            headers = (
                [header for _, _, header in iterate_batches(memoryview(row.records))]
                if row.records
                else []
            )
            newest = max((header.last_offset for header in headers), default=-1)
            self.ledger.told(
                name,
                partition,
                node=node,
                leader_epoch=epoch,
                log_start=row.log_start_offset,
                last_stable=row.last_stable_offset,
                high_watermark=row.high_watermark,
                newest=newest,
            )
            offset = max(offset, newest + 1)


def _phase(producer: TransactionalProducer) -> Phase:
    """Which may have changed."""
    return producer.phase
