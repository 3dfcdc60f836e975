"""The position of a reader of an offset range: its next request, and the meaning of a response.
Pure; `ranges.py` is the shell.

A range is `[start, end)` of one partition. Batches stay bytes: the plan reads only their headers
(size, magic, offsets), so the next fetch can be sent at once. The decoder checks CRCs, hides
aborted records, and removes records outside of the range. Invariants: `start <= fetch_offset <=
end`; offsets of delivered batches ascend; reading stops with an error if the topic was deleted and
created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from mqd import limits
from mqd.client.arguments import check_whole
from mqd.client.errors import ClientError, error_from_wire, invalid_value
from mqd.client.metadata import ClusterView
from mqd.errors import ErrorCode
from mqd.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from mqd.types import NO_OFFSET, ZERO_UUID, TopicPartition

RANGE_BYTES = 8 * limits.MIB
"""The size of one response. Kafka's `max.partition.fetch.bytes` is 1 MiB, but a range reader reads
only one partition at a time.
"""
RANGE_BYTES_MAX = limits.FETCH_BYTES_MAX
_PLACE = Struct(">qi4xb6xi")
"""base_offset, batch_length, magic, last_offset_delta: of 49,000 batches of one record in 8 MiB it
takes 20 ms."""


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from `first_offset` to its next abort marker are not committed."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """One response: whole record batches, as in the log. The first may begin before `start`."""

    tp: TopicPartition
    data: memoryview
    """A view of the received frame."""
    start: int
    """The first offset that belongs to the range and was not in an earlier response."""
    next_offset: int
    """The start offset of the next response; the range's end after the last one."""
    aborted: tuple[AbortedTransaction, ...]
    """Ascending by `first_offset`; empty unless committed records are read."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class RangeFailed(ClientError):
    """The range cannot be read: another attempt would find the same."""


class Waiting(NamedTuple):
    """The broker has no records of the range yet: the end of its readable log, -1 if not
    returned.
    """

    high_watermark: int
    last_stable_offset: int


class Next(Enum):
    """What to do after a response that brought no batches."""

    AGAIN = "ask again at once"
    OUT_OF_RANGE = "learn where the log starts and ends"


class RangePlan:
    """One range. `on_response` is the only change."""

    def __init__(
        self, tp: TopicPartition, start: int, end: int, *, read_committed: bool, bytes_max: int
    ) -> None:
        if start < 0 or end < start:
            raise invalid_value(f"{tp} has no range [{start}, {end})", "give 0 <= start <= end")
        check_whole("bytes_max", bytes_max, 1, RANGE_BYTES_MAX)
        self.tp = tp
        self.end = end
        self.read_committed = read_committed
        self.fetch_offset = start
        self.waiting: Waiting | None = None
        """Set while the log is readable only up to an offset before the end."""
        self.topic_id = ZERO_UUID
        self._bytes_max = bytes_max
        self._empty_once = False
        self._readable = NO_OFFSET
        """The end of the readable log at the last response."""

    @property
    def is_done(self) -> bool:
        return self.fetch_offset >= self.end

    def check_topic(self, topic_id: UUID) -> None:
        """The topic as the metadata has it now. Raises ClientError when it is another topic of the
        same name."""
        if topic_id == ZERO_UUID:
            return
        if self.topic_id not in (ZERO_UUID, topic_id):
            raise RangeFailed(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"topic {self.tp.topic!r} was deleted and created again"
                f" while {self.tp} was read at offset {self.fetch_offset}",
                remedy="read the new topic from its own offsets",
            )
        self.topic_id = topic_id

    def body(self, view: ClusterView, *, max_wait_ms: int) -> Mapping[str, Any]:
        """The Fetch request, for any version. It opens no session.

        It waits for data only if the log may end before the range does.
        """
        row = {
            "partition": self.tp.partition,
            "current_leader_epoch": view.leader_epoch_of(self.tp),
            "fetch_offset": self.fetch_offset,
            "partition_max_bytes": self._bytes_max,
        }
        return {
            "max_wait_ms": max_wait_ms if self._readable < self.end else 0,
            "min_bytes": 1,
            "max_bytes": self._bytes_max,
            "isolation_level": int(self.read_committed),
            "topics": [{"topic": self.tp.topic, "topic_id": self.topic_id, "partitions": [row]}],
        }

    def on_response(self, response: Any) -> FetchedRange | Waiting | Next:
        """What the response brought. Raises ClientError: what the broker refused, or
        CORRUPT_MESSAGE."""
        if response.error_code:
            raise error_from_wire(response.error_code, self._subject())
        rows = [
            row
            for topic in response.responses
            for row in topic.partitions
            if row.partition_index == self.tp.partition
        ]
        if not rows:  # Kafka leaves partitions out while a quota throttles the client
            return Waiting(NO_OFFSET, NO_OFFSET)
        (row,) = rows
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Next.OUT_OF_RANGE
        if row.error_code:
            raise error_from_wire(row.error_code, self._subject())
        self._readable = row.last_stable_offset if self.read_committed else row.high_watermark
        if not row.records:
            return self._on_empty(row)
        self._empty_once = False
        return self._on_batches(row, memoryview(row.records))

    def _on_batches(self, row: Any, view: memoryview) -> FetchedRange | Next:
        first, stop, next_offset = self._scan(view)
        if first == stop:
            if next_offset < self.end:
                return self._grow(view, stop)
            # The next record is beyond the end: the tail of the range was compacted away.
            self.fetch_offset = self.end
            self.waiting = None
            return Next.AGAIN
        start, self.fetch_offset = self.fetch_offset, min(next_offset, self.end)
        assert start < self.fetch_offset
        self.waiting = None
        aborted = row.aborted_transactions or () if self.read_committed else ()
        return FetchedRange(
            self.tp,
            view[first:stop],
            start,
            self.fetch_offset,
            tuple(
                sorted(
                    (AbortedTransaction(one.producer_id, one.first_offset) for one in aborted),
                    key=lambda one: one[1],
                )
            ),
            row.high_watermark,
            row.last_stable_offset,
            row.log_start_offset,
        )

    def _scan(self, view: memoryview) -> tuple[int, int, int]:
        """(first byte, end, offset after it) of the whole batches that touch the range."""
        unpack = _PLACE.unpack_from
        position, stop = 0, len(view)
        first, next_offset = 0, self.fetch_offset
        previous = -1
        while position + HEADER_BYTES <= stop:
            base_offset, length, magic, delta = unpack(view, position)
            size = length + LOG_OVERHEAD_BYTES
            if magic != MAGIC or size < HEADER_BYTES or delta < 0 or base_offset <= previous:
                raise self._corrupt(
                    f"byte {position} of the response is no record batch: base offset {base_offset}"
                    f" after {previous}, length {length}, magic {magic}, last offset delta {delta}"
                )
            previous = base_offset + delta
            if base_offset >= self.end:
                return first, position, max(next_offset, self.end)
            if position + size > stop:
                break
            position += size
            if previous < self.fetch_offset:  # the broker began a little early
                first = position
            else:
                next_offset = previous + 1
        return first, position, next_offset

    def _grow(self, view: memoryview, position: int) -> Next:
        """The response contains no complete batch: only old brokers cut the first one."""
        size = 0
        if position + HEADER_BYTES <= len(view):
            size = _PLACE.unpack_from(view, position)[1] + LOG_OVERHEAD_BYTES
        if not self._bytes_max < size <= RANGE_BYTES_MAX:
            raise self._corrupt(f"the response of {len(view)} bytes contains no complete batch")
        self._bytes_max = size
        return Next.AGAIN

    def _on_empty(self, row: Any) -> Waiting | Next:
        """Nothing is readable here: the log ends, or compaction removed all batches up to where it
        ends."""
        if self._readable < self.end:
            self._empty_once = False
            self.waiting = Waiting(row.high_watermark, row.last_stable_offset)
            return self.waiting
        if not self._empty_once:  # fetch twice: one empty response is no proof
            self._empty_once = True
            return Next.AGAIN
        self.fetch_offset = self.end
        self.waiting = None
        return Next.AGAIN

    # -- words

    def _subject(self) -> str:
        return f"reading {self.tp} at offset {self.fetch_offset}"

    def _corrupt(self, why: str) -> RangeFailed:
        return RangeFailed(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.tp} is damaged at offset {self.fetch_offset}: {why}",
            remedy="check the log of the broker that leads it with `mqctl log verify`",
        )

    def out_of_range(self, log_start: int, log_end: int) -> RangeFailed | None:
        """The error for an offset outside of the log; None if it is inside by now."""
        if log_start <= self.fetch_offset <= log_end:
            return None
        lost = (
            f"offsets {self.fetch_offset} to {min(log_start, self.end) - 1} were deleted"
            if self.fetch_offset < log_start
            else "the log was truncated, or the topic was deleted and created again"
        )
        return RangeFailed(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {self.fetch_offset} of {self.tp} is out of range:"
            f" the log starts at {log_start} and ends at {log_end}; {lost}",
        )

    def why_waiting(self, timeout_s: float, opened_by: str = "") -> str:
        """For the error after `timeout_s` without progress. `opened_by` names the transaction."""
        text = f"{self.tp} at offset {self.fetch_offset} of a range that ends at {self.end}"
        text = f"no progress for {timeout_s:g} s: {text}"
        if self.waiting is None:
            return text
        high_watermark, last_stable = self.waiting
        if self.read_committed and high_watermark >= self.end:
            by = opened_by or "a transaction is open"
            return f"{text}: end is beyond the last stable offset {last_stable}; {by}"
        return f"{text}: end is beyond the high watermark {high_watermark}"
