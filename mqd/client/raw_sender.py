"""What a raw producer does in the background: requests with batches, their responses and retries.

The network side of `raw_queue.py`, which decides the order of sending and what a response means. It
is designed as the sender of Kafka's Java client. For each broker, one task sends, which keeps the
order of requests; for each request, one short task waits for the response.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import trio

from mqd.client.arguments import milliseconds
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    PeerUnreachable,
    ProducerClosed,
    as_client_error,
    error_from_wire,
)
from mqd.client.peer import PeerConnection, Posted
from mqd.client.raw_queue import NOT_APPENDED, BatchOutcome, QueuedBatch, RawQueue
from mqd.client.txn import PRODUCE_V2_FROM, Phase
from mqd.client.txn_calls import TransactionCalls
from mqd.errors import ErrorCode, MqError
from mqd.protocol.request_parts import RequestParts, encode_request_parts
from mqd.types import ZERO_UUID, TopicPartition

PRODUCE = 0
_TOPIC_IDS_FROM = 13
_PURPOSE = "raw-produce"
_LEADER_PAUSE_STEPS = 3


class RawSender:
    """Sends the batches of `queue` until it is closed.

    `calls`: those of the transaction; None without a transactional id.
    """

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        queue: RawQueue,
        calls: TransactionCalls | None,
        *,
        in_flight_max: int,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._queue = queue
        self._calls = calls
        self._in_flight_max = in_flight_max
        self._topic_ids: dict[str, UUID] = {}
        """The topic ids at the first batch: a topic that is created again has another id."""
        self._sending_to: set[int] = set()
        self._in_flight: Counter[int] = Counter()
        self._finding: set[str] = set()
        self._adding = False
        self._failure: ClientError | None = None
        self._closed = False
        self._changed = trio.Event()

    # -- for the producer

    def check_closed(self) -> None:
        if self._closed:
            remedy = "send inside of the block that opened it, or open another"
            raise ProducerClosed("the producer is closed", remedy=remedy)

    def check(self) -> None:
        self.check_closed()
        if self._failure is not None:
            raise self._failure.copy()
        if self._calls is not None and self._phase() in (Phase.BROKEN, Phase.DEAD):
            self._calls.state.check_open()

    def check_open(self) -> None:
        self.check()
        if self._calls is not None:
            self._calls.state.check_open()

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _fail(self, error: ClientError) -> None:
        """The first failure is final for the producer, or for its transaction. Drop what waits."""
        if self._calls is not None:
            self._calls.state.fail(error)
            self.drop_if_broken()
        else:
            self._failure = self._failure or error
            self._queue.drop()
        self.wake()

    def drop_if_broken(self) -> None:
        if self._phase() in (Phase.BROKEN, Phase.DEAD):
            self.drop()

    def drop(self) -> None:
        maybe_appended = self._queue.drop()
        if self._calls is not None:
            self._calls.state.outcome_uncertain |= maybe_appended
        self.wake()

    def forget_topics(self) -> None:
        """A new transaction may write to topics that were created again."""
        self._topic_ids.clear()

    async def wait_for_change(self) -> None:
        """Returns when batches, the transaction or the failure may have changed."""
        await self._changed.wait()

    @property
    def busy(self) -> bool:
        """Whether requests with batches, or for partitions of the transaction, are in flight."""
        return self._adding or self._queue.in_flight > 0

    def close(self) -> None:
        """Drop batches that are not in flight; every later check raises ProducerClosed."""
        self._closed = True
        self._queue.drop()
        self.wake()

    def _phase(self) -> Phase | None:
        return None if self._calls is None else self._calls.state.phase

    # -- partitions and their leaders

    async def run(self) -> None:
        """Start a sending task for each leader, find missing leaders, and expire batches; until
        cancelled.
        """
        while True:
            now = trio.current_time()
            changed = self._changed
            late = self._queue.expired(now)
            if late is not None:
                self._fail(late)
                continue
            if self._calls is not None and self._calls.state.partitions_to_add and not self._adding:
                self._adding = True
                self._nursery.start_soon(self._add_partitions)
            for tp in self._queue.sendable(now):
                node_id = self._leader(tp)
                if node_id is None:
                    self._queue.note(tp, self._leaderless(tp))
                    self._find_leader_soon(tp.topic)
                elif node_id not in self._sending_to:
                    self._sending_to.add(node_id)
                    self._nursery.start_soon(self._send_to, node_id)
            with trio.move_on_at(self._queue.next_deadline(now)):
                await changed.wait()

    def _leader(self, tp: TopicPartition) -> int | None:
        broker = self._client.view.leader_of(tp)
        return None if broker is None else broker.node_id

    def _may_send(self, tp: TopicPartition) -> bool:
        return self._calls is None or self._calls.state.may_send(tp)

    def _leaderless(self, tp: TopicPartition) -> ClientError:
        topic = self._client.view.topics.get(tp.topic)
        if topic is not None and topic.error_code:
            return error_from_wire(topic.error_code, f"topic {tp.topic!r}")
        text = f"{tp}: the partition has no leader"
        return ClientError(ErrorCode.LEADER_NOT_AVAILABLE, text)

    def _find_leader_soon(self, topic: str) -> None:
        if topic not in self._finding:
            self._finding.add(topic)
            self._nursery.start_soon(self._find_leader, topic)

    async def _find_leader(self, topic: str) -> None:
        await self._refresh([topic], seen=None)
        await trio.sleep(backoff_s(_LEADER_PAUSE_STEPS, self._client.entropy.random()))
        self._finding.discard(topic)
        self.wake()

    async def _refresh(self, topics: list[str], *, seen: int | None) -> None:
        try:
            await self._client.refresh(topics, seen=seen)
        except MqError:
            pass  # The next attempt refreshes again; the deadlines of the batches bound this.

    async def _add_partitions(self) -> None:
        assert self._calls is not None
        try:
            while await self._calls.add_partitions():
                self.wake()
        except MqError as error:
            self._calls.state.fail(as_client_error(error), by_coordinator=True)
            self.drop_if_broken()
        finally:
            self._adding = False
            self.wake()

    # -- requests

    async def _send_to(self, node_id: int) -> None:
        """Send requests to one broker, one after the other, with several in flight."""
        while True:
            changed = self._changed
            now = trio.current_time()
            ready = self._queue.sendable(now, node_id)
            wanted = [tp for tp in ready if self._goes_to(node_id, tp)]
            if not wanted or self._in_flight[node_id] >= self._in_flight_max:
                with trio.move_on_at(self._queue.next_deadline(now)):
                    await changed.wait()
                continue
            seen = self._client.view.generation
            try:
                connection = await self._client.connection_to_broker(node_id, purpose=_PURPOSE)
            except MqError as error:
                await self._on_unreachable(wanted, as_client_error(error), seen)
                continue
            await self._send(node_id, connection)

    def _goes_to(self, node_id: int, tp: TopicPartition) -> bool:
        return self._leader(tp) == node_id and self._may_send(tp)

    async def _on_unreachable(
        self, wanted: list[TopicPartition], error: ClientError, seen: int
    ) -> None:
        now, draw = trio.current_time(), self._client.entropy.random()
        for tp in wanted:
            if not error.retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                self._fail(error)
                return
            self._queue.put_off(tp, now + backoff_s(self._queue.failures(tp), draw), error)
        await self._refresh(sorted({tp.topic for tp in wanted}), seen=seen)
        self.wake()

    async def _send(self, node_id: int, connection: PeerConnection) -> None:
        """Send one request. No await between the choice of its batches and their place in the
        connection, except for a free slot there.
        """
        now = trio.current_time()
        entries = self._queue.take(now, node_id, lambda tp: self._goes_to(node_id, tp))
        if not entries:  # the leader moved while the connection opened
            await trio.lowlevel.checkpoint()
            return
        seen = self._client.view.generation
        try:
            ids = self._check_topic_ids(entries)
            version, body = self._request(connection, entries, ids)
            posted = await connection.post(api(PRODUCE), version, body)
        except MqError as error:
            self._on_failed(entries, as_client_error(error))
            await self._refresh(sorted({entry.tp.topic for entry in entries}), seen=seen)
            self.wake()
            return
        self._in_flight[node_id] += 1
        self._nursery.start_soon(
            self._await_response, node_id, connection, posted, entries, ids, seen
        )

    def _check_topic_ids(self, entries: list[QueuedBatch]) -> dict[str, UUID]:
        """Topic ids by name. Raises ClientError if a topic was created again meanwhile."""
        ids = {}
        for name in dict.fromkeys(entry.tp.topic for entry in entries):
            topic = self._client.view.topics.get(name)
            found = ZERO_UUID if topic is None else topic.topic_id
            pinned = self._topic_ids.setdefault(name, found)
            if pinned != found and ZERO_UUID not in (pinned, found):
                raise ClientError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"topic {name!r} was deleted and created again while batches were sent to it",
                    remedy="write the data again under a new producer",
                )
            ids[name] = found
        return ids

    def _request(
        self, connection: PeerConnection, entries: list[QueuedBatch], ids: dict[str, UUID]
    ) -> tuple[int, RequestParts]:
        """The version of Produce, and its body."""
        at_most = _TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None
        transactional_id = None
        if self._calls is not None:
            state = self._calls.state
            transactional_id = state.transactional_id
            if not state.version_2:
                at_most = PRODUCE_V2_FROM - 1
        version = connection.version_of(api(PRODUCE), at_most=at_most)
        if self._calls is not None and self._calls.state.version_2 and version < PRODUCE_V2_FROM:
            text = f"{connection.peer} is too old for transactions of version 2"
            raise ClientError(ErrorCode.UNSUPPORTED_VERSION, text)
        topics: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            row = {"index": entry.tp.partition, "records": entry.batch.data}
            topics.setdefault(entry.tp.topic, []).append(row)
        body = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout_ms": milliseconds(self._client.request_timeout_s),
            "topic_data": [
                {"name": name, "topic_id": ids[name], "partition_data": rows}
                for name, rows in topics.items()
            ],
        }
        return version, encode_request_parts(api(PRODUCE), version, body)

    async def _await_response(
        self,
        node_id: int,
        connection: PeerConnection,
        posted: Posted,
        entries: list[QueuedBatch],
        ids: dict[str, UUID],
        seen: int,
    ) -> None:
        try:
            timeout_s = self._client.request_timeout_s + 1.0
            response = await connection.decoded_response_to(posted, timeout_s=timeout_s)
        except MqError as error:
            stale = self._on_failed(entries, as_client_error(error))
        else:
            stale = self._on_response(entries, response, ids)
        finally:
            self._in_flight[node_id] -= 1
        self.wake()
        if stale:
            await self._refresh(sorted({entry.tp.topic for entry in entries}), seen=seen)
            self.wake()

    # -- responses

    def _on_response(self, entries: list[QueuedBatch], response: Any, ids: dict[str, UUID]) -> bool:
        """Complete or retry every batch. Returns whether the view may be stale."""
        names = {topic_id: name for name, topic_id in ids.items()}
        rows = {}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                rows[TopicPartition(name, row.index)] = row
        stale = False
        for entry in entries:
            found = rows.get(entry.tp)
            if found is None:
                text = f"{entry.tp}: the broker's response does not contain it"
                error: ClientError | None = ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            elif found.error_code:
                error = error_from_wire(found.error_code, str(entry.tp), found.error_message)
            else:
                error = None
            maybe_appended = error is not None and error.code not in NOT_APPENDED
            stale |= self._on_result(entry, error, maybe_appended=maybe_appended)
        return stale

    def _on_failed(self, entries: list[QueuedBatch], error: ClientError) -> bool:
        """The request has no response."""
        unsent = isinstance(error, PeerUnreachable) or (
            isinstance(error, ConnectionBroken) and not error.sent
        )
        for entry in entries:
            self._on_result(entry, error, maybe_appended=not unsent)
        return True

    def _on_result(
        self, entry: QueuedBatch, error: ClientError | None, *, maybe_appended: bool
    ) -> bool:
        """Returns whether the batch is retried; the view may be stale then."""
        outcome, why = self._queue.judge(entry, error)
        if outcome is BatchOutcome.ACKNOWLEDGED:
            self._queue.acknowledge(entry)
            return False
        assert why is not None
        draw = self._client.entropy.random()
        retry_at = trio.current_time() + backoff_s(self._queue.failures(entry.tp), draw)
        self._queue.put_back(entry, why, maybe_appended=maybe_appended, retry_at=retry_at)
        if outcome is BatchOutcome.FAILED:
            self._fail(why)
        elif self._failure is not None or self._closed:
            self._queue.drop()
        elif self._calls is not None and self._phase() is not Phase.OPEN:
            self.drop()
        return outcome is BatchOutcome.RETRY
