"""Sending records: `async with open_producer(client) as producer: await producer.send(topic,
value)`.

A record is queued in a batch of its partition (`accumulator.py`, `routes.py`); `batch_sender.py`
sends the batches. With idempotence (the default), a record is stored once, however often it is sent
(KIP-98). After a failure with an unknown outcome, the producer takes a new producer id and restarts
its sequence numbers at 0. Within `delivery_timeout_s`, a record is acknowledged or its `send`
raises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

import trio

from mqd import limits
from mqd.client.accumulator import RECORD_OVERHEAD_BYTES, Batch, record_bytes
from mqd.client.arguments import check_topic
from mqd.client.batch_sender import BatchSender
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.delay import check_delay_topic, delay_header
from mqd.client.delivery import Delivery, RecordMetadata
from mqd.client.errors import ClientError, DeadlineExceeded, ProducerClosed, no_such_partition
from mqd.client.keyword_options import takes_options
from mqd.client.metadata import TopicInfo
from mqd.client.nurseries import owned_nursery
from mqd.client.partitioner import StickyPartitioner
from mqd.client.producer_options import ProducerOptions, SendingOptions
from mqd.client.record_checks import Headers, as_headers, check_destination, check_record
from mqd.client.retry import (
    check_acks,
    check_failed_record,
    check_retry_topic,
    origin_headers,
)
from mqd.client.routes import Route
from mqd.errors import ErrorCode
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

_RECORD_BYTES_MAX = limits.REQUEST_BYTES_MAX // 2
_CHECKPOINT_MASK = 0xFF
"""A checkpoint follows every 256 records of a batch, so that other tasks can run. Of the 400 us of
these records, it takes 10.
"""


class Producer(BatchSender):
    """Made by `open_producer`. Any number of tasks may send at once."""

    def __init__(
        self, client: ClusterClient, nursery: trio.Nursery, options: SendingOptions
    ) -> None:
        super().__init__(client, nursery, options)
        self._clock = client.clock
        self._routes: dict[str, Route] = {}
        self._retry_topics: set[str] = set()
        """Topics that `retry` has checked."""
        self._delay_topics: set[str] = set()
        """Topics that `send` has checked for a delayed record."""
        self._wait_for_outcome = self._wait_for
        """One bound method for all deliveries."""

    # -- for users

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        *,
        deliver_at: datetime | int | None = None,
        delay: float | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged; returns where it is. `timestamp` is in
        milliseconds, default now.

        In a delay topic of mqd, the record waits until `deliver_at`, a datetime with a time zone or
        milliseconds since 1970, or for `delay` seconds after its timestamp. Another topic is
        refused: INVALID_CONFIG. Each topic is checked once.

        Raises ClientError if the broker rejects the record, and DeadlineExceeded after
        `delivery_timeout_s`: the record may be stored nevertheless.
        """
        if deliver_at is not None or delay is not None:
            headers = (*as_headers(headers), delay_header(deliver_at, delay))
            await self._check_delay_topic(topic)
        delivery = await self.enqueue(topic, value, key, headers, timestamp, partition)
        return await delivery.wait()

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Queue a record; waits only for the topic's metadata and for room in the buffer. The
        Delivery has the outcome.

        Records that are enqueued one after another for one partition are stored in that order.
        There is a checkpoint after every 256 records of a batch. A cancellation does not remove a
        record from the queue.
        """
        self._check_accepts_records()
        if type(topic) is not str or not topic:
            check_topic(topic)
        if (
            headers
            or timestamp is not None
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
        ):
            headers = as_headers(headers)
            check_record(value, key, headers, timestamp, partition)
            key = None if key is None else bytes(key)
            value = None if value is None else bytes(value)
            size = record_bytes(key, value, headers)
        else:
            size = RECORD_OVERHEAD_BYTES + len(value) + (0 if key is None else len(key))
        if partition is None:
            partition = self._choose_nowait(topic, key, size)
        batch = self._queue.reserve(topic, partition, size) if type(partition) is int else None
        if batch is None:
            batch = await self._make_room(topic, key, size, partition)
        if timestamp is None:
            timestamp = self._clock.wall_ms()
        index = batch.writer.append(timestamp, key, value, headers)
        if self._is_idle:
            self._wake()
        if index & _CHECKPOINT_MASK == _CHECKPOINT_MASK:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return Delivery(self._wait_for_outcome, batch, index, timestamp)

    async def _make_room(
        self, topic: str, key: bytes | None, size: int, partition: int | None
    ) -> Batch:
        """The batch for a record. The caller adds the record before its next checkpoint. Waits for
        the topic's metadata and for room."""
        check_destination(topic, partition)
        deadline = trio.current_time() + self._options.delivery_timeout_s
        info = await self._client.topic(
            topic,
            deadline=deadline,
            create=True,
            unknown_grace_s=self._options.unknown_topic_grace_s,
        )
        if size > _RECORD_BYTES_MAX:
            message = f"a record of {size} bytes; this client sends at most {_RECORD_BYTES_MAX}"
            raise ClientError(ErrorCode.MESSAGE_TOO_LARGE, message)
        while not self._queue.has_room(size):
            with trio.move_on_at(deadline) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                waiting = self._queue.buffered_bytes
                why = f"{waiting} bytes wait for their acknowledgements"
                raise DeadlineExceeded(f"no room for a record to {topic!r}: {why}")
            self._check_accepts_records()
        self._check_accepts_records()
        tp = TopicPartition(topic, self._choose(info, key, size, partition))
        self._on_queued(tp)
        return self._queue.reserve_batch(tp, size, trio.current_time())

    async def retry(
        self,
        topic: str,
        record: Record,
        *,
        source: TopicPartition | None = None,
        group: str | None = None,
    ) -> RecordMetadata:
        """Send a record that could not be processed to a retry topic of mqd, unchanged. The record
        returns after a delay, and is a dead letter in the end. See `attempts_of`.

        With `source`, the partition from which the record comes, and `group`, which has read it,
        the dead letter names the original record.

        Returns when the retry topic has it: only then may its offset be committed. Raises
        ClientError as `send`: do not commit then. INVALID_CONFIG or UNKNOWN_TOPIC_OR_PARTITION:
        there is no such retry topic.
        """
        check_topic(topic)
        check_failed_record(record)
        origin = origin_headers(record, source, group)
        check_acks(self._acks)
        self._check_accepts_records()
        if topic not in self._retry_topics:
            timeout_s = self._options.delivery_timeout_s
            await check_retry_topic(self._client, topic, timeout_s=timeout_s)
            self._retry_topics.add(topic)
        return await self.send(topic, record.value, record.key, [*record.headers, *origin])

    async def _check_delay_topic(self, topic: str) -> None:
        check_topic(topic)
        self._check_accepts_records()
        if topic not in self._delay_topics:
            timeout_s = self._options.delivery_timeout_s
            await check_delay_topic(self._client, topic, timeout_s=timeout_s)
            self._delay_topics.add(topic)

    async def flush(self) -> None:
        """Send everything without lingering. Returns when every record that was enqueued before the
        call has an outcome. The error of a record is raised by its Delivery, not here."""
        last = self._queue.last_records()
        await self._flush_until(
            lambda: all(batch.locate(index)[0].outcome is not None for batch, index in last)
        )

    # -- inside

    def _check_accepts_records(self) -> None:
        """Raises ClientError if the producer accepts no records."""
        if self._closed:
            raise ProducerClosed(
                "the producer is closed",
                remedy="send inside of the block that opened it, or open another",
            )

    def _on_queued(self, tp: TopicPartition) -> None:
        """A record for `tp` is about to be queued."""

    def _choose(self, info: TopicInfo, key: bytes | None, size: int, partition: int | None) -> int:
        count = len(info.partitions)
        if partition is not None:
            if not 0 <= partition < count:
                raise no_such_partition(partition, info.name, count)
            return partition
        return self._route(info).choose(key, size)

    def _choose_nowait(self, topic: str, key: bytes | None, size: int) -> int | None:
        """The partition of a record; None unless the topic is known and has leaders."""
        route = self._routes.get(topic)
        if route is None or route.view is not self._client.view:
            info = self._client.view.topics.get(topic)
            if info is None or info.error_code or not info.partitions:
                return None
            route = self._route(info)
        return route.choose(key, size) if route.is_led else None

    def _route(self, info: TopicInfo) -> Route:
        """The route of a topic in the current view of the metadata."""
        route = self._routes.get(info.name)
        view = self._client.view
        if route is None or route.view is not view:
            sticky = None if route is None else route.sticky
            if sticky is None:
                sticky = StickyPartitioner(self._options.batch_bytes, self._client.entropy.below)
            route = Route(view, info, sticky, self._options.partitioner)
            self._routes[info.name] = route
        return route


@takes_options(ProducerOptions)
async def open_producer(client: ClusterClient, options: ProducerOptions) -> AsyncIterator[Producer]:
    """A Producer for the length of a block: `open_producer(client, codec="zstd", linger_ms=5)`. Its
    arguments are the fields of ProducerOptions.

    The end of the block flushes; an exception in the block drops unsent records. Raises ValueError
    or TypeError for a wrong argument.
    """
    check_client(client)
    async with owned_nursery() as nursery:
        producer = Producer(client, nursery, options)
        nursery.start_soon(producer._run)
        try:
            yield producer
            await producer.flush()
        finally:
            producer.close("the producer was closed")
