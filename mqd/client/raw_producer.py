"""Sending prebuilt record batches: `async with open_raw_producer(client) as producer: await
producer.send(topic, batch)`.

The calls of a program; `raw_sender.py` sends in the background. Always acks=all and idempotent: a
batch is stored once, in the order of `send`, or the producer fails as a whole. Then `flush` and
every later `send` raise the first failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from mqd import limits
from mqd.client.arguments import (
    check_above_zero,
    check_flag,
    check_id,
    check_number,
    check_topic,
    check_whole,
    shown,
)
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.errors import (
    ClientError,
    error_from_wire,
    invalid_type,
    invalid_value,
    no_such_partition,
)
from mqd.client.group_member import GroupMetadata
from mqd.client.keyword_options import checks_options
from mqd.client.nurseries import lasting_nursery
from mqd.client.offsets import Offsets, check_group, check_offsets
from mqd.client.raw_queue import SMALLER_BATCHES, PrebuiltBatch, RawQueue
from mqd.client.raw_sender import RawSender
from mqd.client.resource_arguments import check_topic_partition
from mqd.client.txn import INIT_PRODUCER_ID, Phase, PreparedTransaction
from mqd.client.txn_calls import EndedTransaction, TransactionCalls, end_transaction
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

__all__ = [
    "EndedTransaction",
    "PrebuiltBatch",
    "PreparedTransaction",
    "RawProducer",
    "end_transaction",
    "open_raw_producer",
]

_UNKNOWN_TOPIC_GRACE_S = 5.0


class RawProducer:
    """Made by `open_raw_producer`. Any number of tasks may send; one begins and ends
    transactions."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        queue: RawQueue,
        calls: TransactionCalls | None,
        *,
        in_flight_max: int,
        delivery_timeout_s: float,
    ) -> None:
        self._client = client
        self._queue = queue
        self._calls = calls
        self._delivery_timeout_s = delivery_timeout_s
        self._sender = RawSender(client, nursery, queue, calls, in_flight_max=in_flight_max)

    # -- for users

    async def send(self, topic: str, batch: PrebuiltBatch) -> None:
        """Queue a batch for `batch.partition`; waits for room only. The producer completes it and
        owns it from here on.

        Raises ClientError: the first failure of the producer, or an unknown topic or partition.
        """
        await trio.lowlevel.checkpoint()
        self._sender.check_open()
        tp = _destination(topic, batch)
        await self._check_partition(tp)
        size = len(batch.data)
        if size > limits.REQUEST_BYTES_MAX // 2:
            most = limits.REQUEST_BYTES_MAX // 2
            text = f"a batch of {size} bytes for {tp}; this client sends at most {most}"
            raise ClientError(ErrorCode.MESSAGE_TOO_LARGE, text, remedy=SMALLER_BATCHES)
        while not self._queue.has_room(size):
            await self._sender.wait_for_change()
            self._sender.check_open()
        self._sender.check_open()
        if self._calls is not None:
            self._calls.state.add_partition(tp)
        self._queue.append(tp, batch, trio.current_time())
        self._sender.wake()

    async def send_all(self, batches: Iterable[tuple[str, PrebuiltBatch]]) -> None:
        """`send` each (topic, batch), in order: for callers in other threads, at the cost of one
        call."""
        if not isinstance(batches, Iterable):
            raise invalid_type(f"batches is {shown(batches)}", "give pairs of (topic, batch)")
        for each in batches:
            if not isinstance(each, tuple) or len(each) != 2:
                raise invalid_type(f"one of batches is {shown(each)}", "give (topic, batch)")
            await self.send(*each)

    async def flush(self) -> None:
        """Wait until every batch is acknowledged. Raises the first failure of the producer."""
        await trio.lowlevel.checkpoint()
        while len(self._queue):
            self._sender.check()
            await self._sender.wait_for_change()
        self._sender.check()

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._queue.producer_id, self._queue.producer_epoch

    @property
    def phase(self) -> Phase | None:
        """The phase of the transaction; None without a transactional id."""
        return None if self._calls is None else self._calls.state.phase

    # -- transactions

    async def begin(self) -> None:
        """Begin a transaction; batches and offsets belong to it from here on."""
        self._sender.check_closed()
        await self._transactional().begin()
        self._sender.forget_topics()

    async def commit(self) -> None:
        """Flush, then commit. Raises TransactionBroken when something was refused (then abort);
        DeadlineExceeded leaves the outcome open: call again."""
        self._sender.check_closed()
        calls = self._transactional()
        if calls.state.phase is not Phase.COMMITTING:
            calls.state.check_open()
            await self.flush()
            calls.state.end(commit=True)
        await self._end("committing")

    async def abort(self) -> None:
        """End the transaction without its batches and offsets. May be called again after
        DeadlineExceeded."""
        calls = self._transactional()
        calls.state.end(commit=False)
        self._sender.drop()
        while self._sender.busy:
            await self._sender.wait_for_change()
        self._sender.drop()
        await self._end("aborting")

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit these offsets of the group with the transaction (KIP-447)."""
        self._sender.check_closed()
        check_offsets("offsets", offsets)
        check_group(group)
        try:
            await self._transactional().send_offsets(offsets, group)
        finally:
            self._sender.drop_if_broken()

    async def prepare(self) -> PreparedTransaction:
        """Flush, and prepare the transaction for an external coordinator (KIP-939):
        `end_transaction` ends it from any connection. Here only `abort` is possible afterwards.
        `prepared` is False if the broker cannot remove the timeout of a transaction (Apache Kafka
        4.3.1): its two-phase transactions never have one.
        """
        self._sender.check_closed()
        calls = self._transactional()
        if calls.state.phase is Phase.OPEN:
            await self.flush()
        return await calls.prepare()

    # -- inside

    async def _init(self) -> None:
        """Get the producer id."""
        if self._calls is not None:
            await self._calls.init()
            state = self._calls.state
            self._queue.restart(state.producer_id, state.producer_epoch)
            return

        async def attempt() -> Any:
            body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
            response = await self._client.request_any(INIT_PRODUCER_ID, body)
            if response.error_code:
                raise error_from_wire(response.error_code, "getting a producer id")
            return response

        deadline = trio.current_time() + self._delivery_timeout_s
        response = await self._client.retry("getting a producer id", attempt, deadline=deadline)
        self._queue.restart(response.producer_id, response.producer_epoch)

    async def _finish(self, timeout_s: float) -> None:
        """A transaction that is still open is not to be committed. One that is prepared stays."""
        if self._calls is None or self.phase not in (Phase.OPEN, Phase.BROKEN, Phase.ABORTING):
            return
        with trio.move_on_after(timeout_s, shield=True):
            try:
                await self.abort()
            except MqError:
                pass  # the coordinator ends it at its timeout, or our successor does

    def close(self) -> None:
        self._sender.close()

    async def _run(self) -> None:
        """Send until cancelled."""
        await self._sender.run()

    def _transactional(self) -> TransactionCalls:
        if self._calls is None:
            remedy = "open the producer with transactional_id=..."
            raise invalid_value("this producer has no transactional id", remedy)
        return self._calls

    async def _end(self, doing: str) -> None:
        calls = self._transactional()
        await calls.end(doing)
        identity = calls.state.producer_id, calls.state.producer_epoch
        if identity != self.producer:
            self._queue.restart(*identity)

    async def _check_partition(self, tp: TopicPartition) -> None:
        deadline = trio.current_time() + self._delivery_timeout_s
        info = await self._client.topic(
            tp.topic, deadline=deadline, create=True, unknown_grace_s=_UNKNOWN_TOPIC_GRACE_S
        )
        if not 0 <= tp.partition < len(info.partitions):
            view = await self._client.refresh([tp.topic], seen=None)
            count = sum(1 for _ in view.partitions_of(tp.topic))
            if not 0 <= tp.partition < count:
                raise no_such_partition(tp.partition, tp.topic, count)


def _destination(topic: object, batch: Any) -> TopicPartition:
    """The partition of a batch. Raises InvalidType or InvalidValue."""
    check_topic(topic)
    if not hasattr(batch, "data") or not hasattr(batch, "finish"):
        raise invalid_type(f"batch is {shown(batch)}", "give an EncodedBatch of columns.encode")
    tp = TopicPartition(str(topic), batch.partition)
    check_topic_partition("the destination", tp)
    return tp


@checks_options()
@asynccontextmanager
async def open_raw_producer(
    client: ClusterClient,
    *,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = 60_000,
    two_phase: bool = False,
    in_flight_per_partition: int = limits.PRODUCER_BATCHES_CACHED,
    request_bytes_max: int = limits.PRODUCER_REQUEST_BYTES,
    buffer_bytes_max: int = limits.PRODUCER_BUFFER_BYTES_MAX,
    delivery_timeout_s: float = 120.0,
    timeout_s: float = 60.0,
    close_timeout_s: float = 5.0,
) -> AsyncIterator[RawProducer]:
    """A RawProducer for the length of a block.

    The end of the block flushes; an exception drops what is not acknowledged. With
    `transactional_id`, the previous producer with this id is fenced. A transaction that is open at
    the end of the block is aborted; a prepared one stays. `two_phase` needs a broker that serves
    InitProducerId version 6 (KIP-939). `timeout_s` bounds each call to a coordinator.
    """
    check_client(client)
    most = limits.PRODUCER_BATCHES_CACHED
    check_whole("in_flight_per_partition", in_flight_per_partition, 1, most)
    if transactional_id is not None:
        check_id("transactional_id", transactional_id, "writer-1")
    check_flag("two_phase", two_phase)
    if two_phase and transactional_id is None:
        raise invalid_value("two_phase has no transactional id", "give transactional_id=...")
    check_whole("transaction_timeout_ms", transaction_timeout_ms, 1)
    check_whole("request_bytes_max", request_bytes_max, 1, limits.REQUEST_BYTES_MAX)
    check_whole("buffer_bytes_max", buffer_bytes_max, 1)
    check_above_zero("delivery_timeout_s", delivery_timeout_s)
    check_above_zero("timeout_s", timeout_s)
    check_number("close_timeout_s", close_timeout_s, 0)
    queue = RawQueue(
        in_flight_max=in_flight_per_partition,
        request_bytes=request_bytes_max,
        buffer_bytes_max=buffer_bytes_max,
        delivery_timeout_s=delivery_timeout_s,
        transactional=transactional_id is not None,
    )
    calls = None
    if transactional_id is not None:
        calls = TransactionCalls(
            client,
            transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            timeout_s=timeout_s,
            two_phase=two_phase,
        )
    async with lasting_nursery() as nursery:
        producer = RawProducer(
            client,
            nursery,
            queue,
            calls,
            in_flight_max=in_flight_per_partition,
            delivery_timeout_s=delivery_timeout_s,
        )
        await producer._init()
        nursery.start_soon(producer._run)
        try:
            yield producer
            if calls is None:
                await producer.flush()
        finally:
            await producer._finish(close_timeout_s)
            producer.close()
