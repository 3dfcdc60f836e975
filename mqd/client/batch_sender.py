"""Sends the batches of a producer: to the leaders of their partitions, again after a retriable
error, and in the order of each partition.

One task (`run`) decides what to send; one short task for each request sends it. Invariant: every
batch gets exactly one outcome, or is split in two that do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from mqd import limits
from mqd.client.accumulator import Accumulator, Batch, Outcome, Sequences
from mqd.client.arguments import as_codec, milliseconds
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    DeadlineExceeded,
    PeerUnreachable,
    ProducerClosed,
    as_client_error,
    error_from_wire,
)
from mqd.client.peer import PeerConnection
from mqd.client.produce_errors import NO_RESPONSE, NOT_APPENDED, SEQUENCE_LOST
from mqd.client.producer_options import ProducerOptions, SendingOptions
from mqd.errors import ErrorCode, MqError
from mqd.protocol.compression import Codec
from mqd.types import NO_OFFSET, ZERO_UUID, TopicPartition

PRODUCE = 0
INIT_PRODUCER_ID = 22
_PRODUCE_ZSTD_FROM = 7
_PRODUCE_TOPIC_IDS_FROM = 13
_PAUSE_ATTEMPTS = 3
"""A pause before the next request for a producer id or a leader is that of a fourth attempt: 0.16
s."""
_ATTEMPT_SECONDS_MIN = 0.1
"""The shortest timeout of a request, however soon its batches expire."""


class BatchSender:
    """The part of a producer that sends what was enqueued."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        options: SendingOptions,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._options = options
        self._acks = -1
        self._idempotent = False
        if isinstance(options, ProducerOptions):
            self._acks = -1 if options.acks_all else int(options.acks)
            self._idempotent = (
                options.acks_all if options.idempotent is None else options.idempotent
            )
        self._codec = as_codec(options.codec)
        self._queue = Accumulator(
            batch_bytes=options.batch_bytes,
            request_bytes=max(limits.PRODUCER_REQUEST_BYTES, options.batch_bytes),
            buffer_bytes_max=options.buffer_bytes,
            linger_s=options.linger_ms / 1000,
            delivery_timeout_s=options.delivery_timeout_s,
        )
        self._sequences = Sequences()
        self._transactional_id: str | None = None
        self._needs_producer_id = self._idempotent
        self._events: dict[Batch, trio.Event] = {}
        self._changed = trio.Event()
        self._flushing = 0
        self._refreshing: set[str] = set()
        self._closed = False
        self._is_idle = False
        """Whether `_run` waits, and must be woken for a record."""

    # -- waiting

    def _wake(self) -> None:
        self._is_idle = False
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_for(self, batch: Batch) -> None:
        if self._closed:
            raise ProducerClosed("the producer was closed")
        await self._events.setdefault(batch, trio.Event()).wait()

    def _set_outcome(self, batch: Batch, outcome: Outcome | None) -> None:
        """Set the outcome of a batch; None if it was split in two."""
        batch.outcome = outcome
        batch.free()
        if (event := self._events.pop(batch, None)) is not None:
            event.set()
        self._wake()

    async def _flush_until(self, done: Callable[[], bool]) -> None:
        self._flushing += 1
        self._wake()
        try:
            while not done():
                await self._changed.wait()
        finally:
            self._flushing -= 1

    # -- what to send

    def _may_send(self, tp: TopicPartition) -> bool:
        """Whether records of `tp` may be sent now."""
        return True

    async def _run(self) -> None:
        """Decide what to send, until cancelled."""
        while True:
            now = trio.current_time()
            changed = self._changed
            for batch in self._queue.expire(now):
                self._expire(batch)
            if self._needs_producer_id and len(self._queue) and self._queue.all_outcomes_known():
                await self._renew_producer_id()
                continue
            ready, leaderless = self._queue.drain(
                now,
                self._leader,
                flush=self._flushing > 0,
                maybe_appended_only=self._needs_producer_id,
                may_send=self._may_send,
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

    def _expire(self, batch: Batch) -> None:
        last = batch.last_error
        why = f"; last: {last.message}" if last is not None else ""
        within = f"within {self._options.delivery_timeout_s:g} s"
        what = f"{batch.tp}: {batch.count} records were not acknowledged {within}"
        error = DeadlineExceeded(what + why, last)
        self._on_batch_failed(batch, error)
        self._set_outcome(batch, Outcome(error=error))

    async def _renew_producer_id(self) -> None:
        """Get a new producer id. No batch is in flight or in doubt, so every partition begins again
        at sequence 0."""
        try:
            response = await self._client.request_any(
                INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000}
            )
            if response.error_code:
                raise error_from_wire(response.error_code, "getting a producer id")
        except MqError as error:
            if error.code.retriable:
                await self._pause()
                return
            failure = as_client_error(error)
            for batch in self._queue.abandon():
                self._set_outcome(batch, Outcome(error=failure))
            return
        for batch in self._queue.heads():
            self._sequences.release(batch)
        self._sequences.restart(response.producer_id, response.producer_epoch)
        self._needs_producer_id = False

    async def _pause(self) -> None:
        await trio.sleep(backoff_s(_PAUSE_ATTEMPTS, self._client.entropy.random()))

    async def _find_leaders(self, topic: str) -> None:
        await self._refresh([topic], seen=None)
        await self._pause()
        self._refreshing.discard(topic)
        self._wake()

    async def _refresh(self, topics: list[str], *, seen: int | None) -> None:
        try:
            await self._client.refresh(topics, seen=seen)
        except MqError:
            pass  # the next attempt refreshes again, until the batches expire

    # -- requests and responses

    async def _send_batches(self, node_id: int, batches: list[Batch]) -> None:
        seen = self._client.view.generation
        try:
            response = await self._request(node_id, batches)
        except MqError as error:
            if self._closed:  # every batch has its outcome already
                return
            failure = as_client_error(error)
            outcome_uncertain = not isinstance(failure, PeerUnreachable) and not (
                isinstance(failure, ConnectionBroken) and not failure.sent
            )
            for batch in batches:
                batch.maybe_appended |= outcome_uncertain and failure.code in NO_RESPONSE
                self._on_batch_error(batch, failure)
        else:
            if self._closed or not self._on_response(batches, response):
                return
        await self._refresh(sorted({batch.tp.topic for batch in batches}), seen=seen)
        self._wake()

    async def _request(self, node_id: int, batches: list[Batch]) -> Any:
        """The response to one Produce; None with acks=0. The timeout is that of the batches, at
        most."""
        view = self._client.view
        connection = await self._client.connection_to_leader(node_id)
        declaration = api(PRODUCE)
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            rows = topics.setdefault(batch.tp.topic, [])
            rows.append(
                {"index": batch.tp.partition, "records": self._sequences.encode(batch, self._codec)}
            )
        ids = {name: view.topics[name].topic_id for name in topics if name in view.topics}
        named_only = any(ids.get(name, ZERO_UUID) == ZERO_UUID for name in topics)
        version = self._version(
            connection, at_most=_PRODUCE_TOPIC_IDS_FROM - 1 if named_only else None
        )
        if self._codec is Codec.ZSTD and version < _PRODUCE_ZSTD_FROM:
            raise ClientError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{connection.peer} is too old for zstd"
            )
        time_left = max(batch.expires for batch in batches) - trio.current_time()
        timeout_s = max(_ATTEMPT_SECONDS_MIN, min(self._client.request_timeout_s, time_left))
        body = {
            "transactional_id": self._transactional_id,
            "acks": self._acks,
            "timeout_ms": milliseconds(timeout_s),
            "topic_data": [
                {"name": name, "topic_id": ids.get(name, ZERO_UUID), "partition_data": rows}
                for name, rows in topics.items()
            ],
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

    def _on_response(self, batches: list[Batch], response: Any) -> bool:
        """Complete or retry every batch. True if the view of the cluster may be stale."""
        if response is None:
            for batch in batches:
                self._queue.complete(batch)
                self._set_outcome(batch, Outcome())
            return False
        names = {topic.topic_id: name for name, topic in self._client.view.topics.items()}
        rows = {}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            rows.update({TopicPartition(name, row.index): row for row in topic.partition_responses})
        stale = False
        for batch in batches:
            row = rows.get(batch.tp)
            if row is None:
                batch.maybe_appended = True
                self._on_batch_error(
                    batch,
                    ClientError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"{batch.tp}: the broker's response leaves it out",
                    ),
                )
            elif row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                offset = row.base_offset if row.error_code == ErrorCode.NONE else NO_OFFSET
                self._queue.complete(batch)
                self._set_outcome(batch, Outcome(offset, row.log_append_time_ms))
            else:
                error = error_from_wire(row.error_code, str(batch.tp), row.error_message)
                batch.maybe_appended |= error.code not in NOT_APPENDED
                stale |= error.retriable
                self._on_batch_error(batch, error)
        return stale

    def _on_batch_error(self, batch: Batch, error: ClientError) -> None:
        """A batch was not acknowledged: retry it, split it, or fail it."""
        if (
            error.code is ErrorCode.MESSAGE_TOO_LARGE
            and batch.count > 1
            and not batch.maybe_appended
        ):
            self._sequences.release(batch)
            self._queue.split(batch)
            self._set_outcome(batch, None)
            return
        if self._should_retry(batch, error):
            delay = backoff_s(batch.attempts, self._client.entropy.random())
            self._queue.retry(batch, at=trio.current_time() + delay, error=error)
            self._wake()
            return
        self._queue.complete(batch)
        self._on_batch_failed(batch, error)
        self._set_outcome(batch, Outcome(error=error))

    def _should_retry(self, batch: Batch, error: ClientError) -> bool:
        """Whether a batch that was not acknowledged is sent again."""
        again = error.retriable
        if self._idempotent and error.code in SEQUENCE_LOST:
            self._needs_producer_id = True
            # A refused batch is not stored, so it is sent again under the new producer id.
            again = not batch.maybe_appended
        return again and (self._acks != 0 or not batch.maybe_appended)

    def _on_batch_failed(self, batch: Batch, error: ClientError) -> None:
        """A batch fails for good. If it may be stored, its sequence numbers are in doubt, and the
        producer needs a new id; otherwise the next batch uses them."""
        if batch.maybe_appended:
            self._needs_producer_id = self._idempotent
        else:
            self._sequences.release(batch)

    def close(self, reason: str) -> None:
        """Fail every record without an outcome. A second call does nothing."""
        self._closed = True
        for batch in self._queue.abandon():
            self._set_outcome(
                batch,
                Outcome(error=ProducerClosed(f"{batch.tp}: {reason}; the record may be stored")),
            )
        self._wake()
