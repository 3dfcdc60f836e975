"""Producers of the simulated cluster: mqd's own, and raw ones that write requests to a stream.

One raw producer is idempotent: it has up to five batches in flight, and resends them in order until
each is acknowledged. The other one (acks=1 or 0) sends each record once. The value of each record
is unique and contains its producer.
"""

from __future__ import annotations

from collections import deque

import trio

from mqd.client.cluster import ClusterClient, api
from mqd.client.delivery import Delivery
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.batch_builder import build_batch
from mqd.testing.checker import Outcome, Promise, Send
from mqd.testing.clients.common import DELIVERY_SECONDS, PAUSE_SECONDS, pause, refresh
from mqd.testing.clients.wire import PRODUCE, PRODUCE_VERSION, open_leader_stream, produce_body
from mqd.testing.clients.workload_state import WorkloadState
from mqd.types import NO_OFFSET, TopicPartition

INIT_PRODUCER_ID = 22
IN_FLIGHT_MAX = 5
"""The number of batches of a producer whose retries a broker recognizes (KIP-98)."""
PRODUCE_SECONDS = 0.2
RAW_SECONDS = 0.1
"""Mean pauses of a producer. A batch with three replicas costs about thirty task steps, and the run
of a seed should take one or two seconds.
"""
FINAL_ERRORS = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors that prove that no attempt has stored the record. With any other error, the outcome is
unknown.
"""


class Producers:
    """Each method runs one producer until the workload stops."""

    def __init__(self, state: WorkloadState) -> None:
        self._state = state

    async def own(self, name: str, partitions: list[TopicPartition]) -> None:
        chance = self._state.source(name)
        linger_ms = chance.choice([0.0, 0.0, 5.0])
        client = await self._state.new_client(name)
        async with (
            open_producer(
                client, acks="all", linger_ms=linger_ms, delivery_timeout_s=DELIVERY_SECONDS
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            number = 0
            while not self._state.stopping.is_set():
                for _ in range(chance.choice([1, 1, 2, 5, 20])):
                    partition = chance.choice(partitions)
                    send = self._state.history.send(
                        f"{name}/{partition}",
                        partition,
                        self._state.value(name, number, chance),
                        Promise.ALL,
                    )
                    number += 1
                    try:
                        delivery = await producer.enqueue(
                            partition.topic,
                            send.value,
                            key=self._state.key(number),
                            headers=self._state.headers(chance),
                            partition=partition.partition,
                            timestamp=self._state.clock.wall_ms(),
                        )
                    except MqError as error:
                        self._state.count(error.code)
                        send.fail()
                    else:
                        nursery.start_soon(self._wait, delivery, send)
                await pause(chance, PRODUCE_SECONDS)

    async def _wait(self, delivery: Delivery, send: Send) -> None:
        try:
            metadata = await delivery.wait()
        except MqError as error:
            self._note_error(send, error)
        else:
            self._state.acknowledged(send, metadata.offset)

    def _note_error(self, send: Send, error: MqError) -> None:
        self._state.count(error.code)
        send.fail() if error.code in FINAL_ERRORS else send.info()

    async def raw(self, name: str, partition: TopicPartition) -> None:
        """An idempotent producer: up to five batches in flight, which it resends after any error
        until each is acknowledged.
        """
        chance = self._state.source(name)
        client = await self._state.new_client(name)
        producer_id, epoch, sequence = await self._producer_id(client), 0, 0
        window: deque[tuple[bytearray, list[Send]]] = deque()
        number = 0
        while window or not self._state.stopping.is_set():
            fresh = True
            try:
                async with open_leader_stream(client, partition) as wire:
                    for batch, _ in window:
                        await wire.send(
                            api(PRODUCE), PRODUCE_VERSION, produce_body(partition, batch, acks=-1)
                        )
                    while True:
                        while (
                            len(window) < IN_FLIGHT_MAX
                            and not self._state.stopping.is_set()
                            and (not window or chance.random() < 0.7)
                        ):
                            sends = []
                            for _ in range(chance.choice([1, 1, 2, 5])):
                                value = self._state.value(name, number, chance)
                                sends.append(
                                    self._state.history.send(
                                        f"{name}/{partition}", partition, value, Promise.ALL
                                    )
                                )
                                number += 1
                            batch = build_batch(
                                [
                                    (self._state.key(number + delta), send.value)
                                    for delta, send in enumerate(sends)
                                ],
                                timestamp=self._state.clock.wall_ms(),
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
                                self._state.acknowledged(
                                    send, row.base_offset + delta if known else NO_OFFSET
                                )
                            fresh = False
                            await pause(chance, RAW_SECONDS)
                            continue
                        self._state.count(row.error_code)
                        if row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and fresh:
                            self._state.statistics.lost_producer_state += 1
                            for _, sends in window:
                                for send in sends:
                                    send.info()
                            window.clear()
                            producer_id, sequence = await self._producer_id(client), 0
                        raise OSError(f"refused with {row.error_code}")
            except (OSError, MqError, ProtocolError, trio.TooSlowError):
                self._state.statistics.reconnects += 1
                await pause(chance, PAUSE_SECONDS)
                await refresh(client, partition)

    async def _producer_id(self, client: ClusterClient) -> int:
        while True:
            try:
                response = await client.request_any(
                    INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000}
                )
                if not response.error_code:
                    return int(response.producer_id)
            except MqError:
                pass
            await trio.sleep(PAUSE_SECONDS)

    async def hasty(self, name: str, partition: TopicPartition) -> None:
        """A producer without idempotence, with acks=1 or acks=0: it sends each record once, on one
        connection as long as that is open.
        """
        chance = self._state.source(name)
        acks = chance.choice([1, 1, 0])
        number = session = 0
        client = await self._state.new_client(name)
        while not self._state.stopping.is_set():
            session += 1
            waiting: deque[Send] = deque()
            try:
                async with open_leader_stream(client, partition) as wire:
                    for _ in range(chance.randrange(200)):
                        if self._state.stopping.is_set():
                            break
                        value = self._state.value(name, number, chance)
                        number += 1
                        send = self._state.history.send(
                            f"{name}/{partition}/{session}", partition, value, Promise.ORDER
                        )
                        waiting.append(send)
                        batch = build_batch(
                            [(self._state.key(number), value)],
                            timestamp=self._state.clock.wall_ms(),
                        )
                        await wire.send(
                            api(PRODUCE),
                            PRODUCE_VERSION,
                            produce_body(partition, batch, acks=acks),
                            has_response=acks != 0,
                        )
                        if acks and (len(waiting) >= 3 or chance.random() < 0.5):
                            row = (await wire.receive()).responses[0].partition_responses[0]
                            if row.error_code:
                                self._state.count(row.error_code)
                                raise OSError(f"refused with {row.error_code}")
                            self._state.acknowledged(waiting.popleft(), row.base_offset)
                        await pause(chance, PRODUCE_SECONDS)
            except (OSError, MqError, ProtocolError, trio.TooSlowError):
                self._state.statistics.reconnects += 1
                await refresh(client, partition)
            for send in waiting:
                if send.outcome is Outcome.PENDING:
                    send.info()
            await pause(chance, PAUSE_SECONDS)
