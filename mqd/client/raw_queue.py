"""The queue of prebuilt record batches: which wait, which are in flight, and what a response means.
Pure.

Per partition the unacknowledged batches are a queue in the order of `append`. The first of them are
in flight, at most five. When one must be retried, nothing more is sent to its partition until every
batch in flight has its response. Then all unacknowledged batches are sent again in order, with the
same sequence numbers (KIP-98). So batches stay in order, and the broker drops duplicates.

Invariants: `buffered_bytes` is the sum over all queued batches. Batches in flight are the head of
their queue while nothing failed. Sequences of a partition are dense. The first batch under a
producer id and epoch is sent alone, because a broker that does not know the producer accepts any
sequence. A batch may fail although the log contains it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol

from mqd import limits
from mqd.client.errors import ClientError, DeadlineExceeded
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

__all__ = [
    "NOT_APPENDED",
    "SMALLER_BATCHES",
    "BatchOutcome",
    "PrebuiltBatch",
    "QueuedBatch",
    "RawQueue",
]

_SEQUENCE_MASK = 0x7FFFFFFF
SMALLER_BATCHES = (
    "send smaller batches: lower 'batch_bytes', or 'kafka.batch.size' of the Spark sink"
)
"""A remedy."""

NOT_APPENDED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""Errors that a broker returns before it appends. After any other one the batch may be in the log.
For example, a leader that is deposed while the batch waits for replicas returns
NOT_LEADER_OR_FOLLOWER, and the next leader may have it (KAFKA-13574).
"""

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_LOST_TRACK = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class PrebuiltBatch(Protocol):
    """A prebuilt record batch, such as `columns.EncodedBatch`."""

    @property
    def partition(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def data(self) -> bytearray | memoryview: ...
    def finish(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
    ) -> None: ...


class BatchOutcome(Enum):
    """The state of a batch after its response."""

    ACKNOWLEDGED = "in the log"
    RETRY = "to send again, in its order"
    FAILED = "the producer fails"


class QueuedBatch:
    """One batch until it is acknowledged."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "batch",
        "expires",
        "in_flight",
        "maybe_appended",
        "size",
        "tp",
    )

    def __init__(self, tp: TopicPartition, batch: PrebuiltBatch, expires: float) -> None:
        self.tp = tp
        self.batch = batch
        self.size = len(batch.data)
        self.expires = expires
        self.attempts = 0
        self.base_sequence = -1
        self.in_flight = False
        self.maybe_appended = False
        """An attempt had no response, or an error that does not rule out an append."""


class _Partition:
    """The queue of one partition."""

    __slots__ = (
        *("entries", "failures", "in_flight", "last_error", "next_sequence"),
        *("node_id", "proven", "resending", "retry_at"),
    )

    def __init__(self) -> None:
        self.entries: deque[QueuedBatch] = deque()
        self.in_flight = 0
        self.node_id = -1
        """The broker that has the batches in flight."""
        self.resending = False
        """A batch failed: nothing is sent until the others in flight have their responses."""
        self.retry_at = 0.0
        self.failures = 0
        """Attempts in a row without an acknowledgement."""
        self.last_error: ClientError | None = None
        self.next_sequence = 0
        self.proven = False
        """A batch under the present producer id and epoch was acknowledged."""

    def next_entry(self) -> QueuedBatch | None:
        if self.resending or self.in_flight >= len(self.entries):
            return None
        found = self.entries[self.in_flight]
        assert not found.in_flight
        return found


class RawQueue:
    """The queues of one producer. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        in_flight_max: int,
        request_bytes: int,
        buffer_bytes_max: int,
        delivery_timeout_s: float,
        transactional: bool = False,
    ) -> None:
        assert 1 <= in_flight_max <= limits.PRODUCER_BATCHES_CACHED, in_flight_max
        assert min(request_bytes, buffer_bytes_max, delivery_timeout_s) > 0
        self.buffered_bytes = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self.acknowledged = 0
        """The number of acknowledged batches."""
        self._in_flight_max = in_flight_max
        self._request_bytes = request_bytes
        self._buffer_bytes_max = buffer_bytes_max
        self._delivery_timeout_s = delivery_timeout_s
        self._transactional = transactional
        self._partitions: dict[TopicPartition, _Partition] = {}

    def __len__(self) -> int:
        """Batches that are not acknowledged."""
        return sum(len(each.entries) for each in self._partitions.values())

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self._partitions.values())

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new id, or a higher epoch: every partition starts at 0 again. The queues must be
        empty."""
        assert not len(self), "batches of the epoch before are not acknowledged"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._partitions.clear()

    # -- in

    def has_room(self, size: int) -> bool:
        """Whether a batch of `size` bytes may be appended. A batch larger than the buffer may be
        appended to an empty one."""
        return not self.buffered_bytes or self.buffered_bytes + size <= self._buffer_bytes_max

    def append(self, tp: TopicPartition, batch: PrebuiltBatch, now: float) -> QueuedBatch:
        """Queue a batch after the others of its partition."""
        entry = QueuedBatch(tp, batch, now + self._delivery_timeout_s)
        self._partitions.setdefault(tp, _Partition()).entries.append(entry)
        self.buffered_bytes += entry.size
        return entry

    # -- out

    def sendable(self, now: float, node_id: int | None = None) -> Iterator[TopicPartition]:
        """Partitions that have a batch to send now, wherever their leaders are.

        With `node_id`, those that may be sent to that broker: while batches are in flight, later
        ones must follow them to the same broker.
        """
        for tp, each in self._partitions.items():
            if self._next(each, now) is None:
                continue
            if node_id is None or not each.in_flight or each.node_id == node_id:
                yield tp

    def _next(self, each: _Partition, now: float) -> QueuedBatch | None:
        limit = self._in_flight_max if each.proven else 1
        return None if each.in_flight >= limit or now < each.retry_at else each.next_entry()

    def take(
        self, now: float, node_id: int, goes_there: Callable[[TopicPartition], bool]
    ) -> list[QueuedBatch]:
        """The batches of one request to a broker: one for each partition that it leads. They are
        complete, and in flight from now on.

        Their partitions move to the end of the order, so that all get their turn.
        """
        taken: list[QueuedBatch] = []
        size = 0
        for tp, each in self._partitions.items():
            entry = self._next(each, now)
            if entry is None or (each.in_flight and each.node_id != node_id):
                continue
            if (taken and size + entry.size > self._request_bytes) or not goes_there(tp):
                continue
            size += entry.size
            taken.append(entry)
        for entry in taken:
            each = self._partitions.pop(entry.tp)
            self._partitions[entry.tp] = each
            self._finish(each, entry)
            entry.in_flight = True
            entry.attempts += 1
            each.in_flight += 1
            each.node_id = node_id
        return taken

    def _finish(self, each: _Partition, entry: QueuedBatch) -> None:
        if entry.base_sequence >= 0:
            return  # finished before: the same bytes again
        assert self.producer_id != NO_PRODUCER_ID
        entry.base_sequence = each.next_sequence
        each.next_sequence = (each.next_sequence + entry.batch.records) & _SEQUENCE_MASK
        entry.batch.finish(
            self.producer_id,
            self.producer_epoch,
            entry.base_sequence,
            transactional=self._transactional,
        )

    def next_deadline(self, now: float) -> float:
        """When something may be sent or expires without an event before; infinity for never."""
        soonest = float("inf")
        for each in self._partitions.values():
            if each.entries and not each.in_flight:
                soonest = min(soonest, each.entries[0].expires)
            if each.next_entry() is not None and each.retry_at > now:
                soonest = min(soonest, each.retry_at)
        return soonest

    # -- responses

    def judge(
        self, entry: QueuedBatch, error: ClientError | None
    ) -> tuple[BatchOutcome, ClientError | None]:
        """The meaning of a response to a batch in flight; no error if the broker stored it.

        `acknowledge` or `put_back` follows."""
        assert entry.in_flight
        each = self._partitions[entry.tp]
        is_first = each.entries[0] is entry
        if error is None or (
            error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and entry.maybe_appended
        ):
            overtaken = self._overtaken(each, entry)
            return (
                (BatchOutcome.ACKNOWLEDGED, None)
                if overtaken is None
                else (BatchOutcome.FAILED, overtaken)
            )
        if error.code in _LOST_TRACK:
            if not is_first:
                return BatchOutcome.RETRY, error  # it waits for the one before, which failed
            return BatchOutcome.FAILED, self._lost_track(entry, error)
        if error.code in _TOO_LARGE:
            return BatchOutcome.FAILED, _too_large(entry, error)
        return (BatchOutcome.RETRY if error.retriable else BatchOutcome.FAILED), error

    def _overtaken(self, each: _Partition, entry: QueuedBatch) -> ClientError | None:
        """The error if a batch before `entry` was refused for certain and `entry` is in the log."""
        for before in each.entries:
            if before is entry:
                return None
            if before.attempts and not before.in_flight and not before.maybe_appended:
                return ClientError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{entry.tp}: the broker stored sequence {entry.base_sequence} of producer id"
                    f" {self.producer_id} although it had refused {before.base_sequence} before it",
                    remedy="abort, or write the data again under a new producer",
                )
        raise AssertionError("an entry outside of its queue")

    def _lost_track(self, entry: QueuedBatch, error: ClientError) -> ClientError:
        return ClientError(
            error.code,
            f"{error.message}: the broker does not continue producer id {self.producer_id} at"
            f" sequence {entry.base_sequence}: it lost acknowledged records, or the producer",
            remedy="look for an unclean election or deleted records, then write the data again",
        )

    def acknowledge(self, entry: QueuedBatch) -> None:
        """The batch is in the log."""
        each = self._leave_flight(entry)
        each.entries.remove(entry)
        self.buffered_bytes -= entry.size
        assert self.buffered_bytes >= 0
        self.acknowledged += 1
        each.proven = True
        if not each.resending:
            each.failures, each.last_error = 0, None
        each.resending = each.resending and each.in_flight > 0

    def put_back(
        self, entry: QueuedBatch, error: ClientError, *, maybe_appended: bool, retry_at: float
    ) -> None:
        """The batch was not acknowledged; it keeps its place. `maybe_appended`: the log may contain
        it.
        """
        each = self._leave_flight(entry)
        entry.maybe_appended |= maybe_appended
        if not each.resending:  # of batches that fail together, the first one's error
            each.failures += 1
            each.last_error = error
        each.retry_at = max(each.retry_at, retry_at)
        each.resending = each.in_flight > 0

    def _leave_flight(self, entry: QueuedBatch) -> _Partition:
        each = self._partitions[entry.tp]
        assert entry.in_flight and each.in_flight > 0
        entry.in_flight = False
        each.in_flight -= 1
        return each

    def failures(self, tp: TopicPartition) -> int:
        """Attempts in a row of a partition that were not acknowledged."""
        return self._partitions[tp].failures

    def note(self, tp: TopicPartition, error: ClientError) -> None:
        """Record why nothing can be sent to a partition now. It is used in the error when the
        delivery timeout expires."""
        self._partitions[tp].last_error = error

    def put_off(self, tp: TopicPartition, until: float, error: ClientError) -> None:
        """Nothing was sent: its leader cannot be reached."""
        each = self._partitions.get(tp)
        if each is not None:
            each.failures += 1
            each.last_error = error
            each.retry_at = max(each.retry_at, until)

    # -- giving up

    def expired(self, now: float) -> DeadlineExceeded | None:
        """The error of the first expired batch that is not in flight."""
        for tp, each in self._partitions.items():
            if each.entries and not each.in_flight and now >= each.entries[0].expires:
                last = f"; last: {each.last_error.message}" if each.last_error is not None else ""
                limit_s = self._delivery_timeout_s
                text = f"{tp}: a batch was not acknowledged within {limit_s:g} s{last}"
                return DeadlineExceeded(text, each.last_error)
        return None

    def drop(self) -> bool:
        """Forget every batch that is not in flight. True if one of them was sent before."""
        doubt = False
        for each in self._partitions.values():
            kept = deque(entry for entry in each.entries if entry.in_flight)
            dropped = [entry for entry in each.entries if not entry.in_flight]
            doubt |= any(entry.base_sequence >= 0 for entry in dropped)
            self.buffered_bytes -= sum(entry.size for entry in dropped)
            each.entries = kept
        return doubt


def _too_large(entry: QueuedBatch, error: ClientError) -> ClientError:
    return ClientError(
        error.code,
        f"topic {entry.tp.topic!r} refused a batch of {entry.size} bytes for partition"
        f" {entry.tp.partition}: it is larger than max.message.bytes ({error.message})",
        remedy=f"raise the topic's max.message.bytes, or {SMALLER_BATCHES}",
    )
