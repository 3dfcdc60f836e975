"""Transactional clients of the simulated cluster, which note down what they did and were told (`ledger.Ledger`).

Writers: transactions over several partitions, some of which are aborted, left open until they time out, or abandoned by a process that
dies in the middle. Copiers: members of one group that consume, transform and produce, offsets and records in one transaction; they
come, go and crash. Readers of committed records: mqd's own, and a raw one that compares each answer's last stable offset.

All of it goes to one topic. What copiers read is what the other workload produces (workload.py).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import trio

from mqd import limits
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
from mqd.testing.ledger import Ledger, Log, Transaction, copy_of
from mqd.testing.workload import FETCH, FETCH_VERSION, FETCH_WAIT_MS, PAUSE_SECONDS
from mqd.types import TopicPartition

TOPIC = "t"
COPIERS = "copiers"
WRITE_SECONDS = 0.3
COPY_SECONDS = 0.1
READ_SECONDS = 0.1
"""Mean pauses between the deeds of one client."""
TIMEOUT_MS = 3000
"""Of transactions; now and then one takes longer."""
CALL_SECONDS = 6.0
SESSION_MS = 1500
HEARTBEAT_MS = 300
DRAIN_LOOK_SECONDS = 0.2


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
        """`end_of(partition)`: the end of what is committed there. `source(purpose)`: where chance comes from."""
        self.ledger = ledger
        self.draining = trio.Event()
        """Copiers go on until all is copied, without ado."""
        self.stopping = trio.Event()
        self.copied: dict[TopicPartition, int] = {}
        """What the copiers' group has committed, as it was told last."""
        self.refused: dict[str, int] = {}
        self.members: dict[GroupConsumer, None] = {}
        """Of the copiers' group, as long as they live."""
        self._new_client = new_client
        self._source = source
        self._end_of = end_of
        self._left = 0
        self._finished = trio.Event()

    # -- what the runner calls

    def start(
        self, nursery: trio.Nursery, partitions: list[TopicPartition], copied: list[TopicPartition], *, writers: int, copiers: int
    ) -> None:
        """Writers and copiers into `partitions` of TOPIC; the copiers' source is `copied`, the partitions of one topic."""
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

    async def drain(self, client: ClusterClient) -> None:
        """Returns when everything that is in the source is copied, and the offsets say so."""
        self.draining.set()
        admin = GroupAdmin(client, timeout_s=CALL_SECONDS)
        while self.missing() is not None:
            try:
                found = (await admin.list_group_offsets([COPIERS], stable=True))[COPIERS]
            except MqError as error:
                self._count(error)
                found = {}
            if isinstance(found, Mapping):
                for partition, committed in found.items():
                    self.copied[partition] = committed.offset
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
                return f"{len(unread)} of {len(log)} committed records of {partition}, for their reader, the first at {unread[0][0]}"
        return None

    async def read_everything(self, client: ClusterClient, *, committed: bool) -> dict[TopicPartition, Log]:
        """Both views of the partitions, whole."""
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {partition: [] for partition in self.partitions}
        start = dict.fromkeys(self.partitions, 0)
        async with open_consumer(client, start, end="end", read_committed=committed, max_wait_ms=100) as consumer:
            while (batch := await consumer.next()) is not None:
                found[TopicPartition(batch.topic, batch.partition)] += [(record.offset, record.value or b"") for record in batch.records]
        return dict(found)

    # -- writers

    async def _writer(self, name: str) -> None:
        chance = self._source(name)
        client = await self._new_client(name)
        number = 0
        while not self.stopping.is_set():
            try:
                async with open_transactional_producer(
                    client,
                    name,
                    transaction_timeout_ms=TIMEOUT_MS,
                    timeout_s=CALL_SECONDS,
                    close_timeout_s=1.0,
                    leave=chance.random() < 0.5,
                    delivery_timeout_s=CALL_SECONDS,
                ) as producer:
                    for _ in range(chance.choice([1, 5, 20])):
                        if self.stopping.is_set():
                            break
                        number += 1
                        fate = chance.choice(["commit", "commit", "commit", "abort", "dawdle", "crash"])
                        if not await self._write(producer, f"{name}.{number}", chance, fate):
                            break
                        await self._pause(chance, WRITE_SECONDS)
            except MqError as error:
                self._count(error)
                await self._pause(chance, PAUSE_SECONDS)

    async def _write(self, producer: TransactionalProducer, name: str, chance: random.Random, fate: str) -> bool:
        """One transaction. False when its producer is to be opened anew."""
        with self._transaction(name) as transaction:
            await producer.begin()
            for number in range(chance.choice([1, 2, 5, 20])):
                partition = chance.choice(self.partitions)
                value = b"%s.%d" % (name.encode(), number)
                self.ledger.write(transaction, partition, value)
                await producer.enqueue(partition.topic, value, partition=partition.partition)
                if chance.random() < 0.1:
                    await self._pause(chance, WRITE_SECONDS / 5)
            if fate == "dawdle" and not self.stopping.is_set():
                await trio.sleep(chance.choice([0.2, 1.0, 1.3 * TIMEOUT_MS / 1000]))
            if fate == "crash":
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

    async def _end(self, producer: TransactionalProducer, transaction: Transaction, *, commit: bool) -> bool:
        """Commit or abort. False when the producer is to be opened anew."""
        if commit:
            await producer.flush()
            if producer.phase is Phase.OPEN and await self._commit(producer, transaction):
                return True
        if _phase(producer) in (Phase.OPEN, Phase.BROKEN):
            try:
                await producer.abort()
            except MqError as error:
                self._count(error)
        return _phase(producer) is Phase.READY

    async def _commit(self, producer: TransactionalProducer, transaction: Transaction) -> bool:
        transaction.commit_asked()
        while True:
            try:
                await producer.commit()
            except MqError as error:
                self._count(error)
                if not isinstance(error, DeadlineExceeded) or producer.phase is not Phase.COMMITTING:
                    return False
            else:
                transaction.committed()
                self.ledger.commits += 1
                return True

    # -- copiers

    async def _copier(self, name: str) -> None:
        chance = self._source(name)
        protocol: Literal["classic", "consumer"] = self._source("copiers").choice(["classic", "consumer"])
        client = await self._new_client(name)
        topic = min(self.copied).topic
        number = 0
        while not self.stopping.is_set():
            leave = chance.random() < 0.6
            rounds = chance.choice([1, 5, 20, 100])
            try:
                async with (
                    open_transactional_producer(
                        client,
                        name,
                        transaction_timeout_ms=TIMEOUT_MS,
                        timeout_s=CALL_SECONDS,
                        close_timeout_s=1.0,
                        leave=leave,
                        delivery_timeout_s=CALL_SECONDS,
                    ) as producer,
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
                            if not await self._copy(producer, consumer, f"{name}.{number}", chance):
                                break
                            if not self.draining.is_set():
                                await self._pause(chance, COPY_SECONDS)
            except MqError as error:
                self._count(error)
                await self._pause(chance, PAUSE_SECONDS)

    async def _copy(self, producer: TransactionalProducer, consumer: GroupConsumer, name: str, chance: random.Random) -> bool:
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
            await producer.begin()
            for record in batch.records:
                value = copy_of(source, record.offset, record.value or b"")
                self.ledger.write(transaction, target, value)
                await producer.enqueue(target.topic, value, partition=target.partition)
            try:
                await producer.send_offsets(dict(consumer.positions()), consumer.group_metadata())
            except MqError as error:
                self._count(error)
            fate = chance.random() if not self.draining.is_set() else 0.5
            if fate < 0.03:
                return False  # dies here
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
                    client, dict(places), read_committed=True, max_wait_ms=FETCH_WAIT_MS, timeout_s=CALL_SECONDS
                ) as consumer:
                    while rounds:
                        rounds -= 1
                        with trio.move_on_after(0.5):
                            batch = await consumer.next()
                            assert batch is not None
                            partition = TopicPartition(batch.topic, batch.partition)
                            self.ledger.read(name, partition, [(record.offset, record.value or b"") for record in batch.records])
                            places[partition] = batch.next_offset
                        if not self.stopping.is_set():
                            await self._pause(chance, READ_SECONDS)
            except MqError as error:
                self._count(error)
                await self._pause(chance, PAUSE_SECONDS)

    async def _raw_reader(self, name: str, partition: TopicPartition) -> None:
        """One partition, from the leader or a follower, a fetch at a time: what the answers say of their log."""
        chance = self._source(name)
        offset, epoch = 0, -1
        client = await self._new_client(name)
        while True:
            await self._pause(chance, READ_SECONDS)
            info = client.view.partition(partition)
            if info is None or info.leader < 0 or info.leader_epoch < epoch:
                await self._refresh(client, partition)
                continue
            epoch = info.leader_epoch
            node = info.leader if chance.random() < 0.6 else chance.choice(info.replicas)
            try:
                row = await self._fetch(client, name, node, partition, offset, epoch)
            except (MqError, ProtocolError):
                await self._refresh(client, partition)
                continue
            headers = [header for _, _, header in iterate_batches(memoryview(row.records))] if row.records else []
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

    async def _fetch(self, client: ClusterClient, name: str, node: int, partition: TopicPartition, offset: int, epoch: int) -> Any:
        connection = await client.connection_to_node(node, purpose=name)
        row = {
            "partition": partition.partition,
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "partition_max_bytes": limits.CONSUMER_PARTITION_FETCH_BYTES,
        }
        body = {
            "max_wait_ms": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": limits.CONSUMER_FETCH_BYTES,
            "isolation_level": 1,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": partition.topic, "partitions": [row]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        answer = await client.request(connection, FETCH, body, at_most=FETCH_VERSION)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code:
            raise ClientError(ErrorCode(code), "fetch")
        return answer.responses[0].partitions[0]

    # -- common

    async def _pause(self, chance: random.Random, mean: float) -> None:
        await trio.sleep(min(chance.expovariate(1 / mean), 10 * mean))

    async def _refresh(self, client: ClusterClient, partition: TopicPartition) -> None:
        try:
            await client.refresh([partition.topic])
        except MqError:
            await trio.sleep(PAUSE_SECONDS)

    def _count(self, error: MqError) -> None:
        name = error.code.name
        self.refused[name] = self.refused.get(name, 0) + 1


@contextmanager
def lives(members: dict[GroupConsumer, None], consumer: GroupConsumer) -> Iterator[None]:
    """It is one of the members for the length of the block."""
    members[consumer] = None
    try:
        yield
    finally:
        del members[consumer]


def owned(members: Iterable[GroupConsumer]) -> dict[str, frozenset[TopicPartition]]:
    """Member id -> what each may read, of those that believe to be members."""
    return {one._member.member_id: one._member.owned for one in members if one._member.is_member}


def _phase(producer: TransactionalProducer) -> Phase:
    """Which may have changed."""
    return producer.phase
