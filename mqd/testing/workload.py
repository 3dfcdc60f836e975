"""Clients of the simulated cluster that note down what they did and were told (`checker.History`).

Producers: mqd's own (acks=all, idempotent), and raw ones that write requests to a stream
themselves: an idempotent one that keeps up to five batches under way and sends them again, in
order, until each is acknowledged, and a hasty one (acks=1 or 0) that sends everything once.
Consumers read along: mqd's own from the leaders, raw ones from any replica (KIP-392) and with the
leader epoch in each fetch (KIP-320), so that what an answer says of the log can be told to be one
leader's.

Every record's value is unique and names its producer. Everything random comes from one source per
client.
"""

from __future__ import annotations

import math
import random
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from mqd import limits
from mqd.client.cluster import ClusterClient, api
from mqd.client.consumer import open_consumer
from mqd.client.delivery import Delivery
from mqd.client.errors import ClientError
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.clock import Clock
from mqd.io.net import Stream
from mqd.protocol.batch import iterate_batches, validate
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.frame import FrameReader
from mqd.protocol.record_reader import iterate_records
from mqd.protocol.schema import Api, decode_response_header, encode_request_header
from mqd.testing.checker import History, Outcome, Promise, Send
from mqd.testing.clients import FETCH_WAIT_MS, PAUSE_SECONDS, fetch, pause, refresh
from mqd.types import NO_OFFSET, TopicPartition

PRODUCE, INIT_PRODUCER_ID = 0, 22
PRODUCE_VERSION = 9
"""The newest that names topics by name: what a topic id can do is tried by mqd's own clients."""
IN_FLIGHT_MAX = 5
"""Batches of one producer that a broker knows again (KIP-98)."""
ANSWER_SECONDS = 2.5
PRODUCE_SECONDS = 0.2
RAW_SECONDS = 0.1
READ_SECONDS = 0.05
"""Mean pauses between the deeds of one client: an acknowledged batch of three replicas costs some
thirty steps of tasks, and the run of a seed should cost a second or two.
"""
REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""What a broker says of a request of which it stored nothing, at any attempt.

Anything else is an unknown outcome.
"""
DELIVERY_SECONDS = 8.0

_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class Statistics:
    """What the clients of one run went through."""

    reconnects: int = 0
    lost_producer_state: int = 0
    """How often a broker did not know a raw producer's batches any more
    (OUT_OF_ORDER_SEQUENCE_NUMBER at the oldest unacknowledged).
    """
    refusals: int = 0
    refused: dict[str, int] | None = None


class Workload:
    """All clients of one run, over the topics that the runner made."""

    def __init__(
        self,
        *,
        history: History,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        is_committed: Callable[[TopicPartition, int], bool],
        clock: Clock,
    ) -> None:
        """`new_client(name)` makes a ClusterClient. `source(purpose)`: where chance comes from."""
        self.history = history
        self.statistics = Statistics(refused={})
        self.stopping = trio.Event()
        self.producers_left = 0
        self.acknowledged_at: dict[str, float] = {}
        """Producer -> when it had its last acknowledgement with acks=all; -inf before the first."""
        self.positions: dict[tuple[str, TopicPartition], int] = {}
        """(consumer, partition) -> what it reads next."""
        self._new_client = new_client
        self._clock = clock
        self._source = source
        self._is_committed = is_committed
        self._finished = trio.Event()
        self._acknowledgements: dict[TopicPartition | None, trio.Event] = {}

    # -- what the runner calls

    def start(
        self,
        nursery: trio.Nursery,
        partitions: list[TopicPartition],
        *,
        own: int,
        raw: int,
        hasty: int,
    ) -> None:
        """Producers of each kind, spread over the partitions, and consumers of all of them.

        They go on until `stop`.
        """
        choose = self._source("workload")
        for number in range(own):
            self._produce(nursery, self._own_producer, f"own{number}", partitions)
        for number in range(raw):
            self._produce(nursery, self._raw_producer, f"raw{number}", choose.choice(partitions))
        for number in range(hasty):
            self._produce(
                nursery, self._hasty_producer, f"hasty{number}", choose.choice(partitions)
            )
        nursery.start_soon(self._own_consumer, "reader", partitions)
        for partition in choose.sample(partitions, min(2, len(partitions))):
            nursery.start_soon(self._raw_consumer, f"tail-{partition}", partition)

    def _produce(
        self, nursery: trio.Nursery, run: Callable[..., Any], name: str, what: Any
    ) -> None:
        if run != self._hasty_producer:
            self.acknowledged_at[name] = -math.inf

        async def life() -> None:
            try:
                await run(name, what)
            finally:
                self.producers_left -= 1
                if not self.producers_left:
                    self._finished.set()

        self.producers_left += 1
        nursery.start_soon(life)

    async def stop(self) -> None:
        """No new records; returns when every producer has an outcome for each of its own."""
        self.stopping.set()
        await self._finished.wait()

    def acknowledged(self, send: Send, offset: int) -> None:
        send.ok(offset)
        self.history.acknowledged += 1
        if send.promise is Promise.ALL:
            self.acknowledged_at[send.session.partition("/")[0]] = trio.current_time()
            for place in (None, send.partition):
                if (event := self._acknowledgements.pop(place, None)) is not None:
                    event.set()
        if (
            send.promise is Promise.ALL
            and offset != NO_OFFSET
            and not self._is_committed(send.partition, offset)
        ):
            self.history.not_committed(send.partition, offset)

    async def next_acknowledgement(self, partition: TopicPartition | None = None) -> None:
        """Until a client is told of a record with acks=all that it is committed; in that
        partition, or anywhere.
        """
        await self._acknowledgements.setdefault(partition, trio.Event()).wait()

    async def _read_slowly(self, chance: random.Random) -> None:
        """So that answers hold more than one batch; at the end readers hurry."""
        if not self.stopping.is_set():
            await pause(chance, READ_SECONDS)

    # -- mqd's own producer

    async def _own_producer(self, name: str, partitions: list[TopicPartition]) -> None:
        chance = self._source(name)
        linger_ms = chance.choice([0.0, 0.0, 5.0])
        client = await self._new_client(name)
        async with (
            open_producer(
                client, acks="all", linger_ms=linger_ms, delivery_timeout_s=DELIVERY_SECONDS
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            number = 0
            while not self.stopping.is_set():
                for _ in range(chance.choice([1, 1, 2, 5, 20])):
                    partition = chance.choice(partitions)
                    send = self.history.send(
                        f"{name}/{partition}",
                        partition,
                        self._value(name, number, chance),
                        Promise.ALL,
                    )
                    number += 1
                    try:
                        delivery = await producer.enqueue(
                            partition.topic,
                            send.value,
                            partition=partition.partition,
                            timestamp=self._clock.wall_ms(),
                        )
                    except MqError as error:
                        self._count(error.code)
                        send.fail()
                    else:
                        nursery.start_soon(self._wait, delivery, send)
                await pause(chance, PRODUCE_SECONDS)

    async def _wait(self, delivery: Delivery, send: Send) -> None:
        try:
            metadata = await delivery.wait()
        except MqError as error:
            self._settle(send, error)
        else:
            self.acknowledged(send, metadata.offset)

    def _settle(self, send: Send, error: MqError) -> None:
        self._count(error.code)
        send.fail() if error.code in REFUSED_FOR_GOOD else send.info()

    def _count(self, code: int) -> None:
        self.statistics.refusals += 1
        assert self.statistics.refused is not None
        name = ErrorCode(code).name
        self.statistics.refused[name] = self.statistics.refused.get(name, 0) + 1

    def _value(self, name: str, number: int, chance: random.Random) -> bytes:
        return b"%s.%d%s" % (name.encode(), number, b"." * chance.choice([0, 0, 10, 300]))

    # -- raw producers

    async def _raw_producer(self, name: str, partition: TopicPartition) -> None:
        """Idempotent: up to five batches under way, all of them again after any failure,
        until each is acknowledged.
        """
        chance = self._source(name)
        client = await self._new_client(name)
        producer_id, epoch, sequence = await self._producer_id(client), 0, 0
        window: deque[tuple[bytearray, list[Send]]] = deque()
        number = 0
        while window or not self.stopping.is_set():
            fresh = True
            try:
                async with self._leader_stream(client, partition) as wire:
                    for batch, _ in window:
                        await wire.send(
                            api(PRODUCE), PRODUCE_VERSION, produce_body(partition, batch, acks=-1)
                        )
                    while True:
                        while (
                            len(window) < IN_FLIGHT_MAX
                            and not self.stopping.is_set()
                            and (not window or chance.random() < 0.7)
                        ):
                            sends = []
                            for _ in range(chance.choice([1, 1, 2, 5])):
                                value = self._value(name, number, chance)
                                sends.append(
                                    self.history.send(
                                        f"{name}/{partition}", partition, value, Promise.ALL
                                    )
                                )
                                number += 1
                            batch = build_batch(
                                [(None, send.value) for send in sends],
                                timestamp=self._clock.wall_ms(),
                                producer_id=producer_id,
                                producer_epoch=epoch,
                                base_sequence=sequence,
                            )
                            sequence += len(sends)
                            window.append((batch, sends))
                            await wire.send(
                                api(PRODUCE),
                                PRODUCE_VERSION,
                                produce_body(partition, batch, acks=-1),
                            )
                        if not window:
                            break
                        row = (await wire.receive()).responses[0].partition_responses[0]
                        if row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                            known = row.error_code == ErrorCode.NONE
                            for delta, send in enumerate(window.popleft()[1]):
                                self.acknowledged(
                                    send, row.base_offset + delta if known else NO_OFFSET
                                )
                            fresh = False
                            await pause(chance, RAW_SECONDS)
                            continue
                        self._count(row.error_code)
                        if row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and fresh:
                            self.statistics.lost_producer_state += 1
                            for _, sends in window:
                                for send in sends:
                                    send.info()
                            window.clear()
                            producer_id, sequence = await self._producer_id(client), 0
                        raise OSError(f"refused with {row.error_code}")
            except (OSError, MqError, ProtocolError, trio.TooSlowError):
                self.statistics.reconnects += 1
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)

    async def _producer_id(self, client: ClusterClient) -> int:
        while True:
            try:
                answer = await client.request_any(
                    INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000}
                )
                if not answer.error_code:
                    return int(answer.producer_id)
            except MqError:
                pass
            await trio.sleep(PAUSE_SECONDS)

    async def _hasty_producer(self, name: str, partition: TopicPartition) -> None:
        """acks=1 or acks=0, without idempotence: everything is sent once, over one
        connection as long as it lasts.
        """
        chance = self._source(name)
        acks = chance.choice([1, 1, 0])
        number = session = 0
        client = await self._new_client(name)
        while not self.stopping.is_set():
            session += 1
            waiting: deque[Send] = deque()
            try:
                async with self._leader_stream(client, partition) as wire:
                    for _ in range(chance.randrange(200)):
                        if self.stopping.is_set():
                            break
                        value = self._value(name, number, chance)
                        number += 1
                        send = self.history.send(
                            f"{name}/{partition}/{session}", partition, value, Promise.ORDER
                        )
                        waiting.append(send)
                        batch = build_batch([(None, value)], timestamp=self._clock.wall_ms())
                        await wire.send(
                            api(PRODUCE),
                            PRODUCE_VERSION,
                            produce_body(partition, batch, acks=acks),
                            answered=acks != 0,
                        )
                        if acks and (len(waiting) >= 3 or chance.random() < 0.5):
                            row = (await wire.receive()).responses[0].partition_responses[0]
                            if row.error_code:
                                self._count(row.error_code)
                                raise OSError(f"refused with {row.error_code}")
                            self.acknowledged(waiting.popleft(), row.base_offset)
                        await pause(chance, PRODUCE_SECONDS)
            except (OSError, MqError, ProtocolError, trio.TooSlowError):
                self.statistics.reconnects += 1
                await refresh(client, partition)
            for send in waiting:
                if send.outcome is Outcome.PENDING:
                    send.info()
            await pause(chance, PAUSE_SECONDS)

    # -- consumers

    async def _own_consumer(self, name: str, partitions: list[TopicPartition]) -> None:
        """mqd's consumer, from the beginning on; begun anew now and then, where it was."""
        chance = self._source(name)
        places: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        for partition in partitions:
            self.history.begin_reading(name, partition, 0)
            self.positions[name, partition] = 0
        client = await self._new_client(name)
        while True:
            rounds = chance.randrange(20, 400)
            try:
                async with open_consumer(
                    client, dict(places), max_wait_ms=FETCH_WAIT_MS, timeout_s=DELIVERY_SECONDS
                ) as consumer:
                    for _ in range(rounds):
                        batch = await consumer.next()
                        assert batch is not None
                        partition = TopicPartition(batch.topic, batch.partition)
                        rows = [(record.offset, record.value or b"") for record in batch.records]
                        self.history.polled(name, partition, rows, batch.high_watermark)
                        self.positions[name, partition] = places[partition] = batch.next_offset
                        await self._read_slowly(chance)
            except ClientError as error:
                self._count(error.code)
                if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE):
                    topic, _, number = error.message.split()[0].rpartition("-")
                    note = (
                        self.history.out_of_range
                        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE
                        else self.history.unreadable
                    )
                    note(name, TopicPartition(topic, int(number)), error.message)
                await pause(chance, PAUSE_SECONDS)

    async def _raw_consumer(self, name: str, partition: TopicPartition) -> None:
        """One partition, from the leader or a follower, a fetch at a time."""
        chance = self._source(name)
        offset, epoch = 0, -1
        self.history.begin_reading(name, partition, 0)
        client = await self._new_client(name)
        while True:
            info = client.view.partition(partition)
            if info is None or info.leader < 0 or info.leader_epoch < epoch:
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)
                continue
            epoch = info.leader_epoch
            node = info.leader if chance.random() < 0.6 else chance.choice(info.replicas)
            try:
                row = await fetch(client, name, node, partition, offset, epoch)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and node == info.leader:
                    self.history.out_of_range(
                        name, partition, f"{offset}, by leader {node} of epoch {epoch}"
                    )
                if row.error_code:
                    self._count(row.error_code)
                    raise ClientError(ErrorCode(row.error_code), "fetch")
                self.history.told(
                    name,
                    partition,
                    node=node,
                    leader_epoch=epoch,
                    log_start=row.log_start_offset,
                    last_stable=row.last_stable_offset,
                    high_watermark=row.high_watermark,
                )
                rows = list(_records(row.records, offset))
                if (newest := _newest_epoch(row.records)) > epoch:
                    self.history.beyond_epoch(
                        name,
                        partition,
                        f"{offset} by node {node}: epoch {newest}, asked in {epoch}",
                    )
                self.history.polled(name, partition, rows, row.high_watermark)
                offset += len(rows)
                self.positions[name, partition] = offset
                await self._read_slowly(chance)
            except ProtocolError as error:
                self.history.unreadable(name, partition, f"{offset}, by node {node}: {error}")
            except MqError as error:
                if error.code is ErrorCode.CORRUPT_MESSAGE:
                    self.history.unreadable(name, partition, f"{offset}, by node {node}: {error}")
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)

    async def read_everything(
        self, client: ClusterClient, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """The final log of each partition, from offset 0 to the high watermark, as its
        leader serves it.
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

    # -- common

    @asynccontextmanager
    async def _leader_stream(
        self, client: ClusterClient, partition: TopicPartition
    ) -> AsyncIterator[Wire]:
        leader = await client.leader(partition, deadline=trio.current_time() + ANSWER_SECONDS)
        stream = await client._network.connect(*leader.address, timeout=ANSWER_SECONDS)
        try:
            yield Wire(stream, client.client_id)
        finally:
            stream.close()


class Wire:
    """Requests on a bare stream, answers in their order: what a client in another language
    would do.
    """

    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._frames = FrameReader(bytes_max=limits.RESPONSE_BYTES_MAX)
        self._waiting: deque[tuple[Api, int, int]] = deque()
        self._next = 0
        self._buffer = memoryview(bytearray(65536))

    async def send(
        self, declaration: Api, version: int, body: dict[str, Any], *, answered: bool = True
    ) -> None:
        """Raises OSError when the connection is broken, TooSlowError when it takes nothing."""
        self._next += 1
        encoded = encode_request_header(declaration, version, self._next, self._client_id) + bytes(
            declaration.encode_request(version, body)
        )
        if answered:
            self._waiting.append((declaration, version, self._next))
        with trio.fail_after(ANSWER_SECONDS):
            await self._stream.send_all(_SIZE.pack(len(encoded)) + encoded)

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        declaration, version, correlation_id = self._waiting.popleft()
        with trio.fail_after(ANSWER_SECONDS):
            while (frame := self._frames.next_frame()) is None:
                received = await self._stream.receive_into(self._buffer)
                if not received:
                    raise OSError("the broker closed the connection")
                self._frames.receive_data(self._buffer[:received])
        found, position = decode_response_header(declaration, version, frame)
        assert found == correlation_id, (found, correlation_id)
        return declaration.decode_response(version, frame, position)


def produce_body(
    partition: TopicPartition, batch: bytes | bytearray, *, acks: int
) -> dict[str, Any]:
    rows = [{"index": partition.partition, "records": bytes(batch)}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 1500,
        "topic_data": [{"name": partition.topic, "partition_data": rows}],
    }


def _records(data: Any, offset: int) -> Any:
    """(offset, value) from `offset` on of what a fetch returned; batches are checked."""
    if not data:
        return
    view = memoryview(data)
    for position, size, header in iterate_batches(view):
        validate(view, position, end=position + size)
        for record in iterate_records(view, position, header=header):
            if record.offset >= offset:
                yield record.offset, record.value or b""


def _newest_epoch(data: Any) -> int:
    """The highest leader epoch of the batches that a fetch returned; -1 of none."""
    return (
        max(
            (header.partition_leader_epoch for _, _, header in iterate_batches(memoryview(data))),
            default=-1,
        )
        if data
        else -1
    )
