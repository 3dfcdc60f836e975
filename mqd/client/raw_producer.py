"""Sending prebuilt record batches: `async with open_raw_producer(client) as producer: await
producer.send(topic, batch)`.

A face over `raw_queue.py` (what goes when, and what an answer means) and `txn_calls.py`. One task a
node sends, so that requests go out in their order; one short task a request waits for its answer.
Always acks=all and idempotent: a batch is stored once, in the order of `send`, or the producer
fails as a whole: then `flush` and every later `send` raise the first failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from mqd import limits
from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    PeerUnreachable,
    ProducerClosed,
    error_from_wire,
    misuse,
)
from mqd.client.group import GroupMetadata
from mqd.client.offsets import Offsets
from mqd.client.peer import PeerConnection, Posted, lasting_nursery
from mqd.client.raw_queue import NOT_STORED, Entry, RawQueue, Sealable, Verdict
from mqd.client.txn import INIT_PRODUCER_ID, PRODUCE_V2_FROM, Phase, PreparedTransaction
from mqd.client.txn_calls import (
    EndedTransaction,
    TransactionCalls,
    as_client_error,
    end_transaction,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import ZERO_UUID, TopicPartition

__all__ = [
    "EndedTransaction",
    "PreparedTransaction",
    "RawProducer",
    "Sealable",
    "end_transaction",
    "open_raw_producer",
]

PRODUCE = 0
_TOPIC_IDS_FROM = 13
_PURPOSE = "raw-produce"
_UNKNOWN_TOPIC_GRACE_S = 5.0
_LEADER_PAUSE_STEPS = 3


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
        self._nursery = nursery
        self._queue = queue
        self._calls = calls
        self._in_flight_max = in_flight_max
        self._delivery_timeout_s = delivery_timeout_s
        self._topic_ids: dict[str, UUID] = {}
        """Topics as they were at the first batch: one that is created again is another topic."""
        self._lanes: set[int] = set()
        self._unanswered: Counter[int] = Counter()
        self._finding: set[str] = set()
        self._adding = False
        self._failure: ClientError | None = None
        self._closed = False
        self._changed = trio.Event()

    # -- for users

    async def send(self, topic: str, batch: Sealable) -> None:
        """Queue a batch for `batch.partition`; waits for room only. The producer seals it and owns
        it from here on.

        Raises ClientError: the first failure of the producer, or an unknown topic or partition.
        """
        await trio.lowlevel.checkpoint()
        self._admit()
        tp = TopicPartition(topic, batch.partition)
        await self._check_partition(tp)
        size = len(batch.data)
        if size > limits.REQUEST_BYTES_MAX // 2:
            most = limits.REQUEST_BYTES_MAX // 2
            text = f"a batch of {size} bytes for {tp}; this client sends at most {most}"
            raise ClientError(ErrorCode.MESSAGE_TOO_LARGE, text, remedy="lower batchSize")
        while not self._queue.has_room(size):
            await self._changed.wait()
            self._admit()
        self._admit()
        if self._calls is not None:
            self._calls.state.want(tp)
        self._queue.append(tp, batch, trio.current_time())
        self._wake()

    async def send_all(self, batches: Iterable[tuple[str, Sealable]]) -> None:
        """`send` each (topic, batch), in order: for callers in other threads, at the cost of one
        call."""
        for topic, batch in batches:
            await self.send(topic, batch)

    async def flush(self) -> None:
        """Wait until every batch is acknowledged. Raises the first failure of the producer."""
        await trio.lowlevel.checkpoint()
        while len(self._queue):
            self._check_failure()
            await self._changed.wait()
        self._check_failure()

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._queue.producer_id, self._queue.producer_epoch

    @property
    def phase(self) -> Phase | None:
        """Of the transaction; None without a transactional id."""
        return None if self._calls is None else self._calls.state.phase

    # -- transactions

    async def begin(self) -> None:
        """Begin a transaction; batches and offsets belong to it from here on."""
        self._check_closed()
        await self._transactional().begin()
        self._topic_ids.clear()

    async def commit(self) -> None:
        """Flush, then commit. Raises TransactionBroken when something was refused (then abort);
        DeadlineExceeded leaves the outcome open: call again."""
        self._check_closed()
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
        self._drop()
        while self._queue.in_flight or self._adding:
            await self._changed.wait()
        self._drop()
        await self._end("aborting")

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Let the group go on from these offsets if the transaction is committed (KIP-447)."""
        self._check_closed()
        try:
            await self._transactional().send_offsets(offsets, group)
        finally:
            self._drop_if_broken()

    async def prepare(self) -> PreparedTransaction:
        """Flush, and hand the transaction over to whoever decides (KIP-939): `end_transaction` ends
        it from any connection.

        After it only `abort` is left here. `prepared` is False where the broker cannot lift the
        time-out of a transaction (Apache Kafka 4.3.1): its two-phase transactions have none at all.
        """
        self._check_closed()
        calls = self._transactional()
        if calls.state.phase is Phase.OPEN:
            await self.flush()
        return await calls.prepare()

    # -- inside: life

    async def init(self) -> None:
        """Get the producer id."""
        if self._calls is not None:
            await self._calls.init()
            state = self._calls.state
            self._queue.restart(state.producer_id, state.producer_epoch)
            return

        async def attempt() -> Any:
            body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
            answer = await self._client.request_any(INIT_PRODUCER_ID, body)
            if answer.error_code:
                raise error_from_wire(answer.error_code, "getting a producer id")
            return answer

        deadline = trio.current_time() + self._delivery_timeout_s
        answer = await self._client.retry("getting a producer id", attempt, deadline=deadline)
        self._queue.restart(answer.producer_id, answer.producer_epoch)

    async def finish(self, timeout_s: float) -> None:
        """A transaction that is still open is not to be committed. One that is prepared stays."""
        if self._calls is None or self.phase not in (Phase.OPEN, Phase.BROKEN, Phase.ABORTING):
            return
        with trio.move_on_after(timeout_s, shield=True):
            try:
                await self.abort()
            except MqError:
                pass  # the coordinator ends it at its time-out, or our successor does

    def close(self) -> None:
        self._closed = True
        self._queue.drop()
        self._wake()

    def _transactional(self) -> TransactionCalls:
        if self._calls is None:
            remedy = "open the producer with transactional_id=..."
            raise misuse("this producer has no transactional id", remedy)
        return self._calls

    def _check_closed(self) -> None:
        if self._closed:
            remedy = "send inside of the block that opened it, or open another"
            raise ProducerClosed("the producer is closed", remedy=remedy)

    def _check_failure(self) -> None:
        self._check_closed()
        if self._failure is not None:
            raise self._failure.copy()
        if self._calls is not None and self.phase in (Phase.BROKEN, Phase.DEAD):
            self._calls.state.check_open()

    def _admit(self) -> None:
        self._check_failure()
        if self._calls is not None:
            self._calls.state.check_open()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _fail(self, error: ClientError) -> None:
        """The first failure is the producer's, or its transaction's. What waits is dropped."""
        if self._calls is not None:
            self._calls.state.fail(error)
            self._drop_if_broken()
        else:
            self._failure = self._failure or error
            self._queue.drop()
        self._wake()

    def _drop_if_broken(self) -> None:
        if self.phase in (Phase.BROKEN, Phase.DEAD):
            self._drop()

    def _drop(self) -> None:
        doubt = self._queue.drop()
        if self._calls is not None:
            self._calls.state.doubtful |= doubt
        self._wake()

    async def _end(self, doing: str) -> None:
        calls = self._transactional()
        await calls.end(doing)
        identity = calls.state.producer_id, calls.state.producer_epoch
        if identity != self.producer:
            self._queue.restart(*identity)

    # -- inside: what goes where

    async def _check_partition(self, tp: TopicPartition) -> None:
        deadline = trio.current_time() + self._delivery_timeout_s
        info = await self._client.topic(
            tp.topic, deadline=deadline, create=True, unknown_grace_s=_UNKNOWN_TOPIC_GRACE_S
        )
        if not 0 <= tp.partition < len(info.partitions):
            view = await self._client.refresh([tp.topic], seen=None)
            count = sum(1 for _ in view.partitions_of(tp.topic))
            if not 0 <= tp.partition < count:
                detail = f"the topic has partitions 0 to {count - 1}"
                raise error_from_wire(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}", detail
                )

    def _leader(self, tp: TopicPartition) -> int | None:
        broker = self._client.view.leader_of(tp)
        return None if broker is None else broker.node_id

    def _may_send(self, tp: TopicPartition) -> bool:
        return self._calls is None or self._calls.state.may_send(tp)

    async def run(self) -> None:
        """See to it that every batch has a lane, a leader, and its time; until cancelled."""
        while True:
            now = trio.current_time()
            changed = self._changed
            late = self._queue.expired(now)
            if late is not None:
                self._fail(late)
                continue
            if self._calls is not None and self._calls.state.wanted and not self._adding:
                self._adding = True
                self._nursery.start_soon(self._add_partitions)
            for tp in self._queue.sendable(now):
                node_id = self._leader(tp)
                if node_id is None:
                    self._queue.note(tp, self._leaderless(tp))
                    self._find_leader_soon(tp.topic)
                elif node_id not in self._lanes:
                    self._lanes.add(node_id)
                    self._nursery.start_soon(self._lane, node_id)
            with trio.move_on_at(self._queue.next_deadline(now)):
                await changed.wait()

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
        self._wake()

    async def _refresh(self, topics: list[str], *, seen: int | None) -> None:
        try:
            await self._client.refresh(topics, seen=seen)
        except MqError:
            pass  # asked again at the next attempt; the batches' own deadlines bound this

    async def _add_partitions(self) -> None:
        assert self._calls is not None
        try:
            while await self._calls.add_partitions():
                self._wake()
        except MqError as error:
            self._calls.state.fail(as_client_error(error), by_coordinator=True)
            self._drop_if_broken()
        finally:
            self._adding = False
            self._wake()

    # -- inside: sending

    async def _lane(self, node_id: int) -> None:
        """Requests to one node, one after the other, with some unanswered."""
        while True:
            changed = self._changed
            now = trio.current_time()
            ready = self._queue.sendable(now, node_id)
            wanted = [tp for tp in ready if self._goes_to(node_id, tp)]
            if not wanted or self._unanswered[node_id] >= self._in_flight_max:
                with trio.move_on_at(self._queue.next_deadline(now)):
                    await changed.wait()
                continue
            seen = self._client.view.generation
            try:
                connection = await self._client.connection_to_node(node_id, purpose=_PURPOSE)
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
        self._wake()

    async def _send(self, node_id: int, connection: PeerConnection) -> None:
        """One request. Nothing else runs between the choice of its batches and their place on the
        connection, but for a slot there."""
        now = trio.current_time()
        entries = self._queue.take(now, node_id, lambda tp: self._goes_to(node_id, tp))
        if not entries:  # the leader moved while the connection was made
            await trio.lowlevel.checkpoint()
            return
        seen = self._client.view.generation
        try:
            ids = self._pinned(entries)
            version, body = self._request(connection, entries, ids)
            posted = await connection.post(api(PRODUCE), version, body)
        except MqError as error:
            self._on_failed(entries, as_client_error(error))
            await self._refresh(sorted({entry.tp.topic for entry in entries}), seen=seen)
            self._wake()
            return
        self._unanswered[node_id] += 1
        self._nursery.start_soon(
            self._await_answer, node_id, connection, posted, entries, ids, seen
        )

    def _pinned(self, entries: list[Entry]) -> dict[str, UUID]:
        """Topic ids by name. Raises ClientError when a topic is not the one that the first batch
        went to."""
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
        self, connection: PeerConnection, entries: list[Entry], ids: dict[str, UUID]
    ) -> tuple[int, bytes | bytearray | memoryview]:
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
            "timeout_ms": int(self._client.request_timeout_s * 1000),
            "topic_data": [
                {"name": name, "topic_id": ids[name], "partition_data": rows}
                for name, rows in topics.items()
            ],
        }
        return version, api(PRODUCE).encode_request(version, body)

    async def _await_answer(
        self,
        node_id: int,
        connection: PeerConnection,
        posted: Posted,
        entries: list[Entry],
        ids: dict[str, UUID],
        seen: int,
    ) -> None:
        try:
            timeout_s = self._client.request_timeout_s + 1.0
            answer = await connection.decoded_answer_to(posted, timeout_s=timeout_s)
        except MqError as error:
            stale = self._on_failed(entries, as_client_error(error))
        else:
            stale = self._on_answer(entries, answer, ids)
        finally:
            self._unanswered[node_id] -= 1
        self._wake()
        if stale:
            await self._refresh(sorted({entry.tp.topic for entry in entries}), seen=seen)
            self._wake()

    # -- inside: answers

    def _on_answer(self, entries: list[Entry], answer: Any, ids: dict[str, UUID]) -> bool:
        """Give every batch its end or its next attempt; True when the view may be stale."""
        names = {topic_id: name for name, topic_id in ids.items()}
        rows = {}
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                rows[TopicPartition(name, row.index)] = row
        stale = False
        for entry in entries:
            found = rows.get(entry.tp)
            if found is None:
                text = f"{entry.tp}: the broker's answer leaves it out"
                error: ClientError | None = ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
            elif found.error_code:
                error = error_from_wire(found.error_code, str(entry.tp), found.error_message)
            else:
                error = None
            in_doubt = error is not None and error.code not in NOT_STORED
            stale |= self._settle(entry, error, in_doubt=in_doubt)
        return stale

    def _on_failed(self, entries: list[Entry], error: ClientError) -> bool:
        """The request has no answer."""
        unsent = isinstance(error, PeerUnreachable) or (
            isinstance(error, ConnectionBroken) and not error.sent
        )
        for entry in entries:
            self._settle(entry, error, in_doubt=not unsent)
        return True

    def _settle(self, entry: Entry, error: ClientError | None, *, in_doubt: bool) -> bool:
        """True when the batch goes again, and the view may be stale."""
        verdict, why = self._queue.judge(entry, error)
        if verdict is Verdict.ACKNOWLEDGED:
            self._queue.acknowledge(entry)
            return False
        assert why is not None
        draw = self._client.entropy.random()
        retry_at = trio.current_time() + backoff_s(self._queue.failures(entry.tp), draw)
        self._queue.put_back(entry, why, in_doubt=in_doubt, retry_at=retry_at)
        if verdict is Verdict.FAILED:
            self._fail(why)
        elif self._failure is not None or self._closed:
            self._queue.drop()
        elif self._calls is not None and self.phase is not Phase.OPEN:
            self._drop()
        return verdict is Verdict.AGAIN


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
    `transactional_id` whoever had it is fenced, and a transaction that is open at the end is
    aborted; one that is prepared stays. `two_phase` needs a broker that serves InitProducerId
    version 6 (KIP-939). `timeout_s` bounds each call to a coordinator.
    """
    if not 1 <= in_flight_per_partition <= limits.PRODUCER_BATCHES_CACHED:
        most = limits.PRODUCER_BATCHES_CACHED
        raise misuse(f"{in_flight_per_partition} batches in flight", f"give 1 to {most}")
    if transactional_id == "" or (two_phase and transactional_id is None):
        raise misuse("a transaction without a transactional id", "name it: one for each writer")
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
        await producer.init()
        nursery.start_soon(producer.run)
        try:
            yield producer
            if calls is None:
                await producer.flush()
        finally:
            await producer.finish(close_timeout_s)
            producer.close()
