"""Sending records: `async with open_producer(client) as producer: await producer.send(topic, value)`.

A face over `accumulator.py` (which records wait where) and `partitioner.py` (where they go). One task decides what to
send, one short task a request sends it. Retries keep the order of a partition, and with idempotence (the default) a
record is stored once however often it was sent (KIP-98; after a doubtful failure the producer takes a new id and begins its
sequences again). A record is either acknowledged, or its `send` raises within `delivery_timeout_s`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, Literal, NamedTuple

import trio

from mqd import limits
from mqd.client.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, Batch, Outcome, Sequences, record_bytes
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    DeadlineExceeded,
    PeerUnreachable,
    ProducerClosed,
    error_from_wire,
    invalid_type,
)
from mqd.client.metadata import ClusterView, TopicInfo
from mqd.client.nurseries import owned_nursery
from mqd.client.partitioner import StickyPartitioner, partition_for_key
from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.protocol.batch import Codec
from mqd.types import NO_OFFSET, ZERO_UUID, TopicPartition

PRODUCE = 0
INIT_PRODUCER_ID = 22
_PRODUCE_ZSTD_FROM = 7
_PAUSE_STEPS = 3
"""Pauses of the producer's own errands (an id, a leader) are as long as a fourth attempt's: 0.16 s."""
_PRODUCE_TOPIC_IDS_FROM = 13
_ATTEMPT_SECONDS_MIN = 0.1
"""Less makes a last attempt hopeless."""

_LOST_STATE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""The partition does not go on from where we think we are."""
_DOUBTFUL = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})
"""Not answered, with the records possibly in the log."""
_NOT_STORED = _LOST_STATE | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTION_ABORTABLE,
}
"""Answers that come before anything is appended. After any other the records may be in the log: a leader that is deposed while they
wait for the other replicas answers NOT_LEADER_OR_FOLLOWER, and the next one may have them (KAFKA-13574)."""

_TURN_MASK = 0xFF
"""Other tasks have their turn when so many records more are in a batch: 10 us in 400."""
_KEYS_KNOWN = 10_000
_KEY_BYTES_KNOWN = 64
"""Of so many keys of a topic, not longer than that, the partitions are remembered: murmur2 of 16 bytes takes 1.5 us."""

Headers = Sequence[tuple[str, bytes | None]]
_BYTES = (bytes, bytearray, memoryview, NoneType)
_TIMESTAMP_MAX = 2**63 - 1
Acks = Literal[0, 1, -1, "all"]


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 with acks=0; `timestamp_ms` is the broker's where the topic says LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """One enqueued record on its way."""

    __slots__ = ("_batch", "_index", "_producer", "_timestamp_ms")

    def __init__(self, producer: Producer, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def is_done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._batch.locate(self._index)[0].outcome is not None

    async def wait(self) -> RecordMetadata:
        """Wait for the acknowledgement. Raises ClientError if there will be none. Cancelling the wait does not cancel the record."""
        while True:
            batch, index = self._batch.locate(self._index)
            if batch.outcome is not None:
                break
            await self._producer._wait_for(batch)
        outcome = batch.outcome
        if outcome.error is not None:
            raise outcome.error.copy()
        offset = outcome.base_offset if outcome.base_offset == NO_OFFSET else outcome.base_offset + index
        timestamp = self._timestamp_ms if outcome.log_append_time_ms < 0 else outcome.log_append_time_ms
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)


class _Route:
    """Where records of one topic go, as one view of the cluster says."""

    __slots__ = ("_available", "_chosen", "_count", "is_led", "sticky", "view")

    def __init__(self, view: ClusterView, info: TopicInfo, sticky: StickyPartitioner) -> None:
        self.view = view
        self.sticky = sticky
        self._count = len(info.partitions)
        led = [each.partition for each in info.partitions if each.leader in view.brokers]
        self.is_led = bool(led)
        self._available = led or list(range(self._count))
        self._chosen: dict[bytes, int] = {}

    def choose(self, key: bytes | None, size: int) -> int:
        if key is None:
            return self.sticky.partition(size, self._available)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = partition_for_key(key, self._count)
            if len(key) <= _KEY_BYTES_KNOWN:
                if len(self._chosen) >= _KEYS_KNOWN:
                    self._chosen.clear()
                self._chosen[key] = chosen
        return chosen


class Producer:
    """Made by `open_producer`. Any number of tasks may send at once."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        *,
        acks: Acks,
        codec: Codec,
        idempotent: bool,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes_max: int,
        delivery_timeout_s: float,
        unknown_topic_grace_s: float,
        clock: Clock,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._acks = -1 if acks == "all" else int(acks)
        self._codec = codec
        self._idempotent = idempotent
        self._batch_bytes = batch_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._unknown_topic_grace_s = unknown_topic_grace_s
        self._clock = clock
        self._queue = Accumulator(
            batch_bytes=batch_bytes,
            request_bytes=max(limits.PRODUCER_REQUEST_BYTES, batch_bytes),
            buffer_bytes_max=buffer_bytes_max,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
        )
        self._sequences = Sequences()
        self._transactional_id: str | None = None
        self._restart_wanted = idempotent
        self._routes: dict[str, _Route] = {}
        self._events: dict[Batch, trio.Event] = {}
        self._changed = trio.Event()
        self._flushing = 0
        self._refreshing: set[str] = set()
        self._closed = False
        self._is_idle = False
        """Whether `run` waits for something to do, and must be woken for a record."""

    # -- for users

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged; returns where it is. `timestamp` is in milliseconds, default now.

        Raises ClientError: the broker's refusal, or DeadlineExceeded (the record may be stored all the same).
        """
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
        """Queue a record; waits only for the topic's metadata and for room. The Delivery tells how it went.

        Records enqueued one after another to one partition are stored in that order. Other tasks get their turn once in 256 records of
        a batch, and a record that is queued is not taken back by a cancellation.
        """
        self._admit()
        if headers or timestamp is not None or type(value) is not bytes or (key is not None and type(key) is not bytes):
            headers = tuple(headers)
            _check_record(value, key, headers, timestamp, partition)
            key = None if key is None else bytes(key)
            value = None if value is None else bytes(value)
            size = record_bytes(key, value, headers)
        else:
            size = RECORD_OVERHEAD_BYTES + len(value) + (0 if key is None else len(key))
        if partition is None:
            partition = self._choose_nowait(topic, key, size)
        batch = self._queue.take_room(topic, partition, size) if type(partition) is int else None
        if batch is None:
            batch = await self._make_room(topic, key, size, partition)
        if timestamp is None:
            timestamp = self._clock.wall_ms()
        index = batch.writer.append(timestamp, key, value, headers)
        if self._is_idle:
            self._wake()
        if index & _TURN_MASK == _TURN_MASK:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return Delivery(self, batch, index, timestamp)

    async def _make_room(self, topic: str, key: bytes | None, size: int, partition: int | None) -> Batch:
        """The batch for a record, which must be added before anything else happens. Waits for the topic's metadata and for room."""
        _check_record(None, None, (), None, partition)
        deadline = trio.current_time() + self._delivery_timeout_s
        info = await self._client.topic(topic, deadline=deadline, create=True, unknown_grace_s=self._unknown_topic_grace_s)
        if size > limits.REQUEST_BYTES_MAX // 2:
            message = f"a record of {size} bytes; this client sends at most {limits.REQUEST_BYTES_MAX // 2}"
            raise ClientError(ErrorCode.MESSAGE_TOO_LARGE, message)
        while not self._queue.has_room(size):
            with trio.move_on_at(deadline) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                waiting = self._queue.buffered_bytes
                raise DeadlineExceeded(f"no room for a record to {topic!r}: {waiting} bytes wait for their acknowledgements")
            self._admit()
        self._admit()
        tp = TopicPartition(topic, self._choose(info, key, size, partition))
        self._announce(tp)
        return self._queue.batch_for(tp, size, trio.current_time())

    async def flush(self) -> None:
        """Send everything without lingering; returns when every record enqueued so far has its outcome, whatever is enqueued meanwhile."""
        last = self._queue.last_records()
        await self._hurry(lambda: all(batch.locate(index)[0].outcome is not None for batch, index in last))

    async def _hurry(self, done: Callable[[], bool]) -> None:
        self._flushing += 1
        self._wake()
        try:
            while not done():
                await self._changed.wait()
        finally:
            self._flushing -= 1

    # -- inside

    def _admit(self) -> None:
        """Raises ClientError when no records are taken."""
        if self._closed:
            raise ProducerClosed("the producer is closed", remedy="send inside of the block that opened it, or open another")

    def _announce(self, tp: TopicPartition) -> None:
        """A record for `tp` is about to be queued."""

    def _may_send(self, tp: TopicPartition) -> bool:
        """Whether records of `tp` may go out now."""
        return True

    def _choose(self, info: TopicInfo, key: bytes | None, size: int, partition: int | None) -> int:
        count = len(info.partitions)
        if partition is not None:
            if not 0 <= partition < count:
                detail = f"the topic has partitions 0 to {count - 1}"
                raise error_from_wire(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} of {info.name!r}", detail)
            return partition
        return self._route(info).choose(key, size)

    def _choose_nowait(self, topic: str, key: bytes | None, size: int) -> int | None:
        """The partition of a record, if the topic is known and led."""
        route = self._routes.get(topic)
        if route is None or route.view is not self._client.view:
            info = self._client.view.topics.get(topic)
            if info is None or info.error_code or not info.partitions:
                return None
            route = self._route(info)
        return route.choose(key, size) if route.is_led else None

    def _route(self, info: TopicInfo) -> _Route:
        """Of the current view."""
        route = self._routes.get(info.name)
        view = self._client.view
        if route is None or route.view is not view:
            sticky = StickyPartitioner(self._batch_bytes, self._client.entropy.below) if route is None else route.sticky
            route = self._routes[info.name] = _Route(view, info, sticky)
        return route

    def _wake(self) -> None:
        self._is_idle = False
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_for(self, batch: Batch) -> None:
        if self._closed:
            raise ProducerClosed("the producer was closed")
        await self._events.setdefault(batch, trio.Event()).wait()

    def _finish(self, batch: Batch, outcome: Outcome | None) -> None:
        """Give a batch its end; None when it was split and its halves go on."""
        batch.outcome = outcome
        batch.free()
        if (event := self._events.pop(batch, None)) is not None:
            event.set()
        self._wake()

    async def run(self) -> None:
        """Decide what to send, until cancelled."""
        while True:
            now = trio.current_time()
            changed = self._changed
            for batch in self._queue.expire(now):
                self._give_up(batch)
            if self._restart_wanted and len(self._queue) and self._queue.is_settled():
                await self._restart()
                continue
            ready, leaderless = self._queue.drain(
                now, self._leader, flush=self._flushing > 0, doubtful_only=self._restart_wanted, may_send=self._may_send
            )
            for node_id, batches in ready.items():
                self._nursery.start_soon(self._send_batches, node_id, batches)
            for topic in sorted(leaderless - self._refreshing):
                self._refreshing.add(topic)
                self._nursery.start_soon(self._find_leaders, topic)
            self._is_idle = changed is self._changed
            with trio.move_on_at(self._queue.next_deadline(now)):
                await changed.wait()

    def _leader(self, tp: TopicPartition) -> int | None:
        broker = self._client.view.leader_of(tp)
        return None if broker is None else broker.node_id

    def _give_up(self, batch: Batch) -> None:
        last = batch.last_error
        why = f"; last: {last.message}" if last is not None else ""
        what = f"{batch.tp}: {batch.count} records were not acknowledged within {self._delivery_timeout_s:g} s"
        error = DeadlineExceeded(what + why, last)
        self._lose(batch, error)
        self._finish(batch, Outcome(error=error))

    async def _restart(self) -> None:
        """Get a new producer id. Nothing is in flight or in doubt, so every partition may begin at sequence 0 again."""
        try:
            answer = await self._client.request_any(INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000})
            if answer.error_code:
                raise error_from_wire(answer.error_code, "getting a producer id")
        except MqError as error:
            if error.code.retriable:
                await self._pause()
                return
            failure = error if isinstance(error, ClientError) else ClientError(error.code, error.message)
            for batch in self._queue.abandon():
                self._finish(batch, Outcome(error=failure))
            return
        for batch in self._queue.heads():
            self._sequences.give_back(batch)
        self._sequences.restart(answer.producer_id, answer.producer_epoch)
        self._restart_wanted = False

    async def _pause(self) -> None:
        await trio.sleep(backoff_s(_PAUSE_STEPS, self._client.entropy.random()))

    async def _find_leaders(self, topic: str) -> None:
        await self._refresh([topic], seen=None)
        await self._pause()
        self._refreshing.discard(topic)
        self._wake()

    async def _refresh(self, topics: list[str], *, seen: int | None) -> None:
        try:
            await self._client.refresh(topics, seen=seen)
        except MqError:
            pass  # asked again at the next attempt; the batches' own deadlines bound this

    async def _send_batches(self, node_id: int, batches: list[Batch]) -> None:
        seen = self._client.view.generation
        try:
            answer = await self._request(node_id, batches)
        except MqError as error:
            if self._closed:  # every batch has its outcome already
                return
            failure = error if isinstance(error, ClientError) else ClientError(error.code, error.message)
            doubtful = not isinstance(failure, PeerUnreachable) and not (isinstance(failure, ConnectionBroken) and not failure.sent)
            for batch in batches:
                batch.maybe_appended |= doubtful and failure.code in _DOUBTFUL
                self._on_refusal(batch, failure)
        else:
            if self._closed or not self._on_answer(batches, answer):
                return
        await self._refresh(sorted({batch.tp.topic for batch in batches}), seen=seen)
        self._wake()

    async def _request(self, node_id: int, batches: list[Batch]) -> Any:
        """The answer to one Produce; None with acks=0. Asked for no longer than the batches have."""
        view = self._client.view
        connection = await self._client.connection_to_leader(node_id)
        declaration = api(PRODUCE)
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            rows = topics.setdefault(batch.tp.topic, [])
            rows.append({"index": batch.tp.partition, "records": self._sequences.seal(batch, self._codec)})
        ids = {name: view.topics[name].topic_id for name in topics if name in view.topics}
        named_only = any(ids.get(name, ZERO_UUID) == ZERO_UUID for name in topics)
        version = self._version(connection, at_most=_PRODUCE_TOPIC_IDS_FROM - 1 if named_only else None)
        if self._codec is Codec.ZSTD and version < _PRODUCE_ZSTD_FROM:
            raise ClientError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{connection.peer} is too old for zstd")
        time_left = max(batch.expires for batch in batches) - trio.current_time()
        timeout_s = max(_ATTEMPT_SECONDS_MIN, min(self._client.request_timeout_s, time_left))
        body = {
            "transactional_id": self._transactional_id,
            "acks": self._acks,
            "timeout_ms": int(timeout_s * 1000),
            "topic_data": [{"name": name, "topic_id": ids.get(name, ZERO_UUID), "partition_data": rows} for name, rows in topics.items()],
        }
        if self._acks == 0:
            with trio.move_on_after(timeout_s):
                await connection.send(declaration, body, version)
                return None
            message = f"{connection.peer} did not take {declaration.name} within {timeout_s:g} s"
            connection.close(message)
            raise DeadlineExceeded(message)
        return await connection.request(declaration, body, version, timeout_s=timeout_s + 1.0)

    def _version(self, connection: PeerConnection, *, at_most: int | None) -> int:
        """The version of Produce to send with."""
        return connection.version_of(api(PRODUCE), at_most=at_most)

    def _on_answer(self, batches: list[Batch], answer: Any) -> bool:
        """Give every batch its end or its next attempt; True when the view may be stale."""
        if answer is None:
            for batch in batches:
                self._queue.complete(batch)
                self._finish(batch, Outcome())
            return False
        names = {topic.topic_id: name for name, topic in self._client.view.topics.items()}
        rows = {}
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            rows.update({TopicPartition(name, row.index): row for row in topic.partition_responses})
        stale = False
        for batch in batches:
            row = rows.get(batch.tp)
            if row is None:
                batch.maybe_appended = True
                self._on_refusal(batch, ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{batch.tp}: the broker's answer leaves it out"))
            elif row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                offset = row.base_offset if row.error_code == ErrorCode.NONE else NO_OFFSET
                self._queue.complete(batch)
                self._finish(batch, Outcome(offset, row.log_append_time_ms))
            else:
                error = error_from_wire(row.error_code, str(batch.tp), row.error_message)
                batch.maybe_appended |= error.code not in _NOT_STORED
                stale |= error.retriable
                self._on_refusal(batch, error)
        return stale

    def _on_refusal(self, batch: Batch, error: ClientError) -> None:
        """A batch was not acknowledged: again, in two, or the end."""
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.maybe_appended:
            self._sequences.give_back(batch)
            self._queue.split(batch)
            self._finish(batch, None)
            return
        if self._goes_again(batch, error):
            delay = backoff_s(batch.attempts, self._client.entropy.random())
            self._queue.retry(batch, at=trio.current_time() + delay, error=error)
            self._wake()
            return
        self._queue.complete(batch)
        self._lose(batch, error)
        self._finish(batch, Outcome(error=error))

    def _goes_again(self, batch: Batch, error: ClientError) -> bool:
        """Whether a batch that was not acknowledged is sent again."""
        again = error.retriable
        if self._idempotent and error.code in _LOST_STATE:
            self._restart_wanted = True
            again = not batch.maybe_appended  # refused, so surely not stored: it goes again under the new id
        return again and (self._acks != 0 or not batch.maybe_appended)

    def _lose(self, batch: Batch, error: ClientError) -> None:
        """A batch fails for good: its sequences are free, or nobody knows, and then others begin anew."""
        if batch.maybe_appended:
            self._restart_wanted = self._idempotent
        else:
            self._sequences.give_back(batch)

    def close(self, reason: str) -> None:
        """Every record without an outcome fails; quiet when closed already."""
        self._closed = True
        for batch in self._queue.abandon():
            self._finish(batch, Outcome(error=ProducerClosed(f"{batch.tp}: {reason}; the record may be stored")))
        self._wake()


def _check_record(value: object, key: object, headers: tuple[tuple[object, object], ...], timestamp: object, partition: object) -> None:
    """Before a record is queued: in a batch with others it would spoil them. Raises ClientError."""
    for what, data in (("value", value), ("key", key)):
        if not isinstance(data, _BYTES):
            raise invalid_type(f"the {what} of a record is {type(data).__name__}, not bytes", "encode it: text with .encode()")
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str) and isinstance(header[1], _BYTES)):
            raise invalid_type(f"{header!r:.60} is no header of a record", "give pairs of a name (str) and a content (bytes or None)")
        try:
            header[0].encode()
        except UnicodeEncodeError:
            raise invalid_type(f"{header[0]!a:.60} is no name of a header: it has no UTF-8", "name it in whole characters") from None
    if timestamp is not None and not (isinstance(timestamp, int) and 0 <= timestamp <= _TIMESTAMP_MAX):
        raise invalid_type(f"{timestamp!r:.60} is no timestamp of a record", "give milliseconds since 1970 as an int, or leave it out")
    if partition is not None and not isinstance(partition, int):
        raise invalid_type(f"{partition!r:.60} is not the number of a partition", "give an int, or leave it out")


@asynccontextmanager
async def open_producer(
    client: ClusterClient,
    *,
    acks: Acks = "all",
    codec: Codec = Codec.NONE,
    idempotent: bool | None = None,
    linger_ms: float = 0.0,
    batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
    buffer_bytes_max: int = limits.PRODUCER_BUFFER_BYTES_MAX,
    delivery_timeout_s: float = 120.0,
    unknown_topic_grace_s: float = 5.0,
    clock: Clock | None = None,
) -> AsyncIterator[Producer]:
    """A Producer for the length of a block; the end of the block flushes, an exception in it drops what is unsent.

    Idempotence is on with acks=all and off otherwise, unless given (it needs acks=all). Records gather while a
    batch of their partition is on its way; `linger_ms` makes them wait for company when none is. A topic that does
    not exist is an error after `unknown_topic_grace_s`, the time that automatic creation may take.
    """
    everyone = acks in ("all", -1)
    if idempotent is None:
        idempotent = everyone
    elif idempotent and not everyone:
        raise ClientError(ErrorCode.INVALID_REQUIRED_ACKS, "idempotence needs acks=all", remedy="use acks=all, or idempotent=False")
    async with owned_nursery() as nursery:
        producer = Producer(
            client,
            nursery,
            acks=acks,
            codec=codec,
            idempotent=idempotent,
            linger_s=linger_ms / 1000,
            batch_bytes=batch_bytes,
            buffer_bytes_max=max(buffer_bytes_max, batch_bytes, limits.PRODUCER_REQUEST_BYTES),
            delivery_timeout_s=delivery_timeout_s,
            unknown_topic_grace_s=unknown_topic_grace_s,
            clock=clock if clock is not None else client.clock,
        )
        nursery.start_soon(producer.run)
        try:
            yield producer
            await producer.flush()
        finally:
            producer.close("the producer was closed")
