"""The records that a producer has not delivered yet: batches by partition, their sequence numbers,
and their outcomes. Pure.

Order: the batches of a partition are a queue, and only its head is ever in flight. So a retried
batch overtakes no other. Invariants: `buffered_bytes` is the sum over all queued batches. A batch
in flight is the head of its queue. The batches of a partition that the broker did not refuse have
sequence numbers without gaps (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mqd.client.errors import ClientError
from mqd.protocol.batch_writer import BatchWriter
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

RECORD_OVERHEAD_BYTES = 20
"""Lengths, deltas and attributes of one record: an upper bound for records below 1 MiB."""
BATCH_OVERHEAD_BYTES = 61
_SEQUENCE_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch: the offset of its first record, or an error.

    `base_offset` is -1 if the broker returns none (acks=0).
    """

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    error: ClientError | None = None


class Batch:
    """Records of one partition that are sent together. Each record is encoded when it is added."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "created",
        "encoded",
        "expires",
        "last_error",
        "maybe_appended",
        "outcome",
        "producer_epoch",
        "producer_id",
        "retry_at",
        "size_estimate",
        "split_into",
        "tp",
        "writer",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, *, created: float, expires: float) -> None:
        self.tp = tp
        self.created = created
        self.expires = expires
        self.writer = BatchWriter()
        self.size_estimate = BATCH_OVERHEAD_BYTES
        self.attempts = 0
        self.retry_at = 0.0
        self.maybe_appended = False
        """An attempt ended without a response: the broker may have appended the records."""
        self.encoded: bytearray | None = None
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self.base_sequence = -1
        self.last_error: ClientError | None = None
        self.outcome: Outcome | None = None
        self.split_into: tuple[Batch, Batch] | None = None
        """The two batches that replaced this one, if the broker refused it as too large."""

    @property
    def count(self) -> int:
        """The number of records, also after `free`."""
        return self.writer.count

    @property
    def records(self) -> list[Record]:
        """Its records, decoded. Empty after `free`."""
        return self.writer.records()

    @records.setter
    def records(self, records: Iterable[Record]) -> None:
        self.writer = BatchWriter()
        for _, timestamp, key, value, headers in records:
            self.writer.append(timestamp, key, value, headers)

    def free(self) -> None:
        """The batch has its outcome: free its bytes, because the user may keep a Delivery, which
        refers to the batch.
        """
        self.writer.free()
        self.encoded = None

    def locate(self, index: int) -> tuple[Batch, int]:
        """The batch that contains record `index` now, after splits, and its index there."""
        batch = self
        while batch.split_into is not None:
            left, right = batch.split_into
            batch, index = (left, index) if index < left.count else (right, index - left.count)
        return batch, index


def record_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """The size of a record in a batch before compression; at least its real size."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + 4 * len(name) + len(content or b"")
    return size


class Sequences:
    """The producer id and the next sequence number of each partition. Without an id, batches have
    no sequence numbers.
    """

    def __init__(self, *, transactional: bool = False) -> None:
        self._transactional = transactional
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self._next: dict[TopicPartition, int] = {}

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new id, or the same id with a higher epoch: every partition starts at 0 again."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next.clear()

    def encode(self, batch: Batch, codec: Codec) -> bytearray:
        """The bytes of the batch. The first call takes its sequence numbers; later calls return the
        same bytes.
        """
        if batch.encoded is None:
            if self.producer_id != NO_PRODUCER_ID:
                batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
                batch.base_sequence = self._next.get(batch.tp, 0)
                self._next[batch.tp] = (batch.base_sequence + batch.count) & _SEQUENCE_MASK
            batch.encoded = batch.writer.finish(
                codec=codec,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=self._transactional,
            )
        return batch.encoded

    def release(self, batch: Batch) -> None:
        """The broker has no record of the batch: reuse its sequence numbers. A retry encodes the
        batch again.
        """
        assert not batch.maybe_appended
        same = (batch.producer_id, batch.producer_epoch) == (self.producer_id, self.producer_epoch)
        if batch.base_sequence >= 0 and same:
            self._next[batch.tp] = batch.base_sequence
        batch.encoded = None
        batch.base_sequence = -1


class Accumulator:
    """The queues of one producer. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        request_bytes: int,
        buffer_bytes_max: int,
        linger_s: float,
        delivery_timeout_s: float,
    ) -> None:
        assert 0 < batch_bytes <= request_bytes <= buffer_bytes_max
        self.buffered_bytes = 0
        self.in_flight: set[TopicPartition] = set()
        self._batch_bytes = batch_bytes
        self._request_bytes = request_bytes
        self._buffer_bytes_max = buffer_bytes_max
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self.growing: dict[tuple[str, int], Batch] = {}
        """The last batch of each queue, if it was never retried or split. It takes further records
        until it is encoded.
        """

    def __len__(self) -> int:
        """Batches that have no outcome yet."""
        return sum(map(len, self._queues.values()))

    def last_records(self) -> list[tuple[Batch, int]]:
        """The latest record of each partition, as its batch and its index there. Earlier records of
        the partition get their outcomes first.
        """
        return [(queue[-1], queue[-1].count - 1) for queue in self._queues.values() if queue]

    def has_room(self, size: int) -> bool:
        """Whether a record of `size` bytes may be appended. A record larger than the whole buffer
        may be appended to an empty one.
        """
        return not self.buffered_bytes or self.buffered_bytes + size <= self._buffer_bytes_max

    def reserve(self, topic: str, partition: int, size: int) -> Batch | None:
        """The growing batch of a partition, if it and the buffer have room for `size` bytes. Counts
        these bytes; the caller adds the record. None if the partition needs a new batch
        (`reserve_batch`), or the buffer is full.
        """
        batch = self.growing.get((topic, partition))
        if batch is None or batch.encoded is not None:
            return None
        if (
            batch.size_estimate + size > self._batch_bytes
            or self.buffered_bytes + size > self._buffer_bytes_max
        ):
            return None
        batch.size_estimate += size
        self.buffered_bytes += size
        return batch

    def append(
        self, tp: TopicPartition, record: Record, size: int, now: float
    ) -> tuple[Batch, int]:
        """Queue a record. Returns its batch and its index there."""
        batch = self.reserve_batch(tp, size, now)
        _, timestamp, key, value, headers = record
        return batch, batch.writer.append(timestamp, key, value, headers)

    def reserve_batch(self, tp: TopicPartition, size: int, now: float) -> Batch:
        """The batch for a record of `size` bytes: the growing batch or a new one. Counts these
        bytes; the caller adds the record.
        """
        batch = self.growing.get(tp)
        if (
            batch is None
            or batch.encoded is not None
            or batch.size_estimate + size > self._batch_bytes
        ):
            batch = self.growing[tp] = Batch(
                tp, created=now, expires=now + self._delivery_timeout_s
            )
            self._queues.setdefault(tp, deque()).append(batch)
            self.buffered_bytes += batch.size_estimate
        batch.size_estimate += size
        self.buffered_bytes += size
        return batch

    def drain(
        self,
        now: float,
        leader_of: Callable[[TopicPartition], int | None],
        *,
        flush: bool = False,
        maybe_appended_only: bool = False,
        may_send: Callable[[TopicPartition], bool] | None = None,
    ) -> tuple[dict[int, list[Batch]], set[str]]:
        """What to send now: broker id -> batches, at most one request each; and the topics with a
        partition without a leader.

        The batches returned count as in flight until `complete`, `retry` or `split`. A batch waits
        for more records (linger) only while it is alone in its queue, not full, and the buffer is
        at most half full. `maybe_appended_only`: retry only batches that the broker may have
        appended. `may_send`: send only the partitions for which it returns True.
        """
        ready: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        leaderless: set[str] = set()
        send_now = flush or self.buffered_bytes * 2 > self._buffer_bytes_max
        for tp, queue in self._queues.items():
            if tp in self.in_flight or not queue or not self._is_due(queue, now, send_now):
                continue
            if maybe_appended_only and not queue[0].maybe_appended:
                continue
            if may_send is not None and not may_send(tp):
                continue
            node_id = leader_of(tp)
            if node_id is None:
                leaderless.add(tp.topic)
                continue
            batch = queue[0]
            size = sizes.get(node_id, 0) + batch.size_estimate
            if node_id in sizes and size > self._request_bytes:
                continue
            sizes[node_id] = size
            ready.setdefault(node_id, []).append(batch)
            self.in_flight.add(tp)
        return ready, leaderless

    def _is_due(self, queue: deque[Batch], now: float, send_now: bool) -> bool:
        head = queue[0]
        if head.attempts:
            return now >= head.retry_at
        return (
            send_now
            or len(queue) > 1
            or head.size_estimate >= self._batch_bytes
            or now >= head.created + self._linger_s
        )

    def all_outcomes_known(self) -> bool:
        """Whether no batch is in flight, and none may have been appended without a response."""
        return not self.in_flight and not any(
            queue[0].maybe_appended for queue in self._queues.values() if queue
        )

    def heads(self) -> list[Batch]:
        """The first batch of every queue. No other batch can be encoded."""
        return [queue[0] for queue in self._queues.values() if queue]

    def next_deadline(self, now: float) -> float:
        """When `drain` or `expire` may return something new; infinity when only an event
        can change that.
        """
        soonest = float("inf")
        for tp, queue in self._queues.items():
            if tp in self.in_flight or not queue:
                continue
            head = queue[0]
            due = head.retry_at if head.attempts else head.created + self._linger_s
            soonest = min(soonest, head.expires, due if due > now else float("inf"))
        return soonest

    def expire(self, now: float) -> list[Batch]:
        """Expired batches that are not in flight.

        This removes them from the queues. They have no outcome yet.
        """
        gone: list[Batch] = []
        for tp, queue in self._queues.items():
            while queue and tp not in self.in_flight and now >= queue[0].expires:
                gone.append(queue.popleft())
                self.buffered_bytes -= gone[-1].size_estimate
            if not queue:
                self.growing.pop(tp, None)
        return gone

    def complete(self, batch: Batch) -> None:
        """Remove the head of a queue, which has its outcome."""
        queue = self._queues[batch.tp]
        assert queue[0] is batch and batch.tp in self.in_flight
        queue.popleft()
        self.in_flight.discard(batch.tp)
        self.buffered_bytes -= batch.size_estimate
        assert self.buffered_bytes >= 0
        if not queue:
            del self._queues[batch.tp]
            self.growing.pop(batch.tp, None)

    def retry(self, batch: Batch, *, at: float, error: ClientError) -> None:
        """Retry the first batch, not before `at`."""
        assert self._queues[batch.tp][0] is batch and batch.tp in self.in_flight
        batch.attempts += 1
        batch.retry_at = at
        batch.last_error = error
        self.in_flight.discard(batch.tp)
        if self.growing.get(batch.tp) is batch:
            del self.growing[batch.tp]

    def split(self, batch: Batch) -> None:
        """The head was too large: replace it by two halves. It has no sequence numbers now."""
        assert batch.count > 1 and batch.encoded is None
        queue = self._queues[batch.tp]
        assert queue[0] is batch and batch.tp in self.in_flight
        whole = batch.records
        middle = len(whole) // 2
        halves = []
        for records in (whole[:middle], whole[middle:]):
            half = Batch(batch.tp, created=batch.created, expires=batch.expires)
            half.records = records
            half.size_estimate += sum(
                record_bytes(each.key, each.value, each.headers) for each in records
            )
            half.attempts = 1  # it does not linger
            halves.append(half)
        queue.popleft()
        queue.extendleft(reversed(halves))
        self.buffered_bytes += sum(half.size_estimate for half in halves) - batch.size_estimate
        self.in_flight.discard(batch.tp)
        batch.split_into = (halves[0], halves[1])
        if self.growing.get(batch.tp) is batch:
            del self.growing[batch.tp]

    def drop_waiting(self) -> list[Batch]:
        """Remove every batch that is not in flight from its queue. Returns them in order; they have
        no outcome yet.
        """
        dropped: list[Batch] = []
        for tp, queue in self._queues.items():
            kept = [queue.popleft()] if tp in self.in_flight else []
            dropped += queue
            queue.clear()
            queue.extend(kept)
            if dropped and self.growing.get(tp) in dropped:
                del self.growing[tp]
        self.buffered_bytes -= sum(batch.size_estimate for batch in dropped)
        return dropped

    def abandon(self) -> Iterable[Batch]:
        """Empty all queues. Returns their batches, which have no outcome yet."""
        left = [batch for queue in self._queues.values() for batch in queue]
        self._queues.clear()
        self.growing.clear()
        self.in_flight.clear()
        self.buffered_bytes = 0
        return left
