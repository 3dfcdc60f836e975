"""Compaction: the newest record of each key stays. Decides what to clean, which segments to clean
together, and which records of a batch stay. A core.

A log is clean below `PartitionLog.cleaned_to` and dirty from there on. A pass reads the dirty part
and stores the newest offset of each key (offset_map.py), until the map is full. Then it rewrites
the log from its start to the end of the map, without the older records. Records keep their offsets,
so a compacted log has gaps. The rules are Apache Kafka's, so both keep the same records:

- Only whole segments below the last stable offset are cleaned. Not the active segment, nor one with
  a record younger than `min.compaction.lag.ms`.
- A log is due if more than `min.cleanable.dirty.ratio` of its bytes are dirty, or if a dirty
  segment began more than `max.compaction.lag.ms` ago.
- A tombstone (a record without a value) stays for `delete.retention.ms` after the pass that found
  no older record of its key. That pass writes the end of this time, the delete horizon, into the
  batch (KIP-534). The same holds for a marker, after the pass that found no batch of its
  transaction.
- Records of aborted transactions are removed. Their markers are removed after them.
- The last batch of each known producer stays, if necessary without records, because it has the
  sequence. So does the last batch of each new segment: it defines the end of the segment.
- If the last batch of a producer is a marker, it stays whole. Kafka removes its record. A replica
  that reads its producers from such a log lacks the epoch that fences a zombie.
- Records without a key are removed. They are from a time when the topic was not compacted.
- A batch that is too large when decompressed stays whole, and its keys are not in the map. It is
  from such a time too, or a client lowered `max.message.bytes`. Kafka reads it piece by piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import INSPECTED_BYTES_LARGEST, SEGMENTS_RETIRED_AT_ONCE
from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.offset_map import OffsetMap
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, BatchHeader
from mqd.protocol.files import (
    INDEX_ENTRY,
    RELATIVE_OFFSET_MAX,
    TIME_INDEX_ENTRY,
    AbortedTransaction,
)
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import record_bytes
from mqd.protocol.records import (
    PlacedRecord,
    batch_with,
    delete_horizon,
    empty_batch,
    placed_records,
)
from mqd.types import NO_OFFSET, Offset

# -- the cleanable part


class Cleanable(NamedTuple):
    """The part of a log that may be cleaned now."""

    first_dirty_offset: Offset
    end_offset: Offset
    """The base offset of the first segment that may not be cleaned yet."""
    clean_bytes: int
    dirty_bytes: int
    """Bytes of whole segments, as in Kafka."""
    overdue: bool
    """Whether something dirty is older than `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)


def plan_compaction(
    log: PartitionLog, now_ms: int, first_timestamp: Callable[[Segment], int]
) -> Cleanable | None:
    """None: nothing is dirty.

    `first_timestamp` returns that of a segment, in ms. It is called only if
    `max.compaction.lag.ms` is set.
    """
    config = log.config
    first_dirty = log.log_start_offset
    if log.cleaned_to is not None and first_dirty <= log.cleaned_to <= log.log_end_offset:
        first_dirty = log.cleaned_to
    stable = min(log.last_stable_offset(log.checkpointed_high_watermark), log.durability.end_offset)
    youngest = (
        now_ms - config.min_compaction_lag_ms if config.min_compaction_lag_ms > 0 else FOREVER_MS
    )
    oldest = (
        now_ms - config.max_compaction_lag_ms if config.max_compaction_lag_ms < FOREVER_MS else None
    )
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    overdue = False
    for segment in log.segments[:-1]:
        if segment.next_offset > stable:
            break
        if segment.next_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        if segment.max_timestamp > youngest:
            break
        dirty_bytes += segment.size
        end_offset = segment.next_offset
        if oldest is not None and segment.size and not overdue:
            overdue = 0 < first_timestamp(segment) < oldest
    return (
        Cleanable(first_dirty, end_offset, clean_bytes, dirty_bytes, overdue)
        if dirty_bytes
        else None
    )


def is_due(cleanable: Cleanable, config: LogConfig) -> bool:
    """Whether the log should be cleaned now."""
    return cleanable.overdue or cleanable.ratio > config.min_cleanable_dirty_ratio


def group_segments(segments: Sequence[Segment], config: LogConfig) -> list[list[Segment]]:
    """Adjacent segments that become one. Otherwise the number of small segments would only grow.

    A group has a bounded number of them: one step renames their files.
    """
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        size += segment.size
        if (
            groups
            and len(groups[-1]) < SEGMENTS_RETIRED_AT_ONCE
            and size <= config.segment_bytes
            and _index_bytes(size, config) <= config.segment_index_bytes
            and (segment.next_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = segment.size
    return groups


def _index_bytes(size: int, config: LogConfig) -> int:
    """The maximum size of either index of a segment of `size` bytes: there is at most one entry for
    each interval.
    """
    return (size // max(config.index_interval_bytes, HEADER_BYTES) + 1) * max(
        INDEX_ENTRY.size, TIME_INDEX_ENTRY.size
    )


# -- transactions


class CleanedTransactions:
    """The outcomes of transactions, while the batches of a log are read in order. No transaction is
    open. Kafka: CleanedTransactionMetadata.

    `aborted`: all aborted transactions with a marker at or after `start_offset`, in any order.
    """

    __slots__ = ("_aborted", "_committed", "_pending", "aborted_with_batches")

    def __init__(self, aborted: Iterable[AbortedTransaction], start_offset: Offset) -> None:
        entries = [entry for entry in aborted if entry.last_offset >= start_offset]
        self._pending = deque(sorted(entries, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer id -> its aborted transaction that has begun, and whether a batch of it was
        read.
        """
        self._committed: set[int] = set()
        """Producers with a batch of a committed transaction."""
        self.aborted_with_batches: list[AbortedTransaction] = []
        """Aborted transactions with a batch and a marker. The new transaction index includes them.
        """

    def is_aborted(self, header: BatchHeader) -> bool:
        """Process a batch of records. Returns whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        self._begin_until(header.last_offset)
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        transaction, _has_batches = found
        self._aborted[header.producer_id] = transaction, True
        return True

    def is_gone(self, header: BatchHeader, view: memoryview) -> bool:
        """Process a control batch. Returns whether it is a marker (or an emptied one) without any
        batch of its transaction before it.
        """
        if not header.records_count:
            return True
        self._begin_until(header.last_offset)
        marker = parse_end_marker(view)
        if marker is None:
            return False
        if marker.committed:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        found = self._aborted.pop(header.producer_id, None)
        if found is None:
            return True
        transaction, has_batches = found
        if has_batches:
            self.aborted_with_batches.append(transaction)
        return not has_batches

    def _begin_until(self, offset: Offset) -> None:
        while self._pending and self._pending[0].first_offset <= offset:
            entry = self._pending.popleft()
            self._aborted.setdefault(entry.producer_id, (entry, False))


# -- the two halves of a pass


class OffsetMapBuilder:
    """Fills the offset map from the dirty part of a log, batch by batch."""

    __slots__ = ("_keys", "_start_offset", "_transactions", "end_offset", "is_full")

    def __init__(
        self, keys: OffsetMap, transactions: CleanedTransactions, start_offset: Offset
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._start_offset = start_offset
        self.end_offset: Offset = start_offset
        """All records below it are in the map."""
        self.is_full = False

    def add(self, header: BatchHeader, view: memoryview) -> bool:
        """Process the next batch. False: the map is full. It may have some keys of this batch,
        which does no harm. Raises MqError for a damaged batch.
        """
        if header.is_control:
            self._transactions.is_gone(header, view)
        elif not self._transactions.is_aborted(header) and header.records_count:
            put, base_offset, start_offset = self._keys.put, header.base_offset, self._start_offset
            records = _records_of(view, header)
            for record in placed_records(records, header) if records is not None else ():
                offset = base_offset + record.offset_delta
                if (
                    record.key is not None
                    and offset >= start_offset
                    and not put(record.key, offset)
                ):
                    self.is_full = True
                    return False
        self.end_offset = max(self.end_offset, header.next_offset)
        return True


class BatchRewriter:
    """Decides for each batch, from the log start on, which records stay.

    `end_offset`: the end of the records in `keys`. `last_batches`: producer id -> (last offset of
    its last batch, or NO_OFFSET after a marker; its epoch). Times in ms.
    """

    __slots__ = (
        "_delete_retention_ms",
        "_end_offset",
        "_has_unread_batches",
        "_keys",
        "_last_batches",
        "_now_ms",
        "records_kept",
        "records_seen",
        "transactions",
    )

    def __init__(
        self,
        keys: OffsetMap,
        end_offset: Offset,
        transactions: CleanedTransactions,
        last_batches: Mapping[int, tuple[Offset, int]],
        *,
        delete_retention_ms: int,
        now_ms: int,
    ) -> None:
        self._keys = keys
        self._end_offset = end_offset
        self.transactions = transactions
        self._last_batches = last_batches
        self._delete_retention_ms = delete_retention_ms
        self._now_ms = now_ms
        self.records_seen = self.records_kept = 0
        self._has_unread_batches = False
        """Whether a batch stayed unread: it may have records that a later tombstone deletes."""

    def rewrite(
        self, header: BatchHeader, view: memoryview, *, keep: bool
    ) -> memoryview | bytearray | None:
        """The remaining part of the next batch: `view` itself if all records stay, None if nothing
        stays. `keep`: at least the header stays. Raises MqError for a damaged batch.
        """
        self.records_seen += header.records_count
        left = (
            self._control_batch(header, view) if header.is_control else self._records(header, view)
        )
        if left is None and self._is_last_of_producer(header) and header.is_control:
            return view
        if left is None and (keep or self._is_last_of_producer(header)):
            return empty_batch(header) if header.records_count else view
        return left

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_batches.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset != NO_OFFSET:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch

    def _control_batch(
        self, header: BatchHeader, view: memoryview
    ) -> memoryview | bytearray | None:
        horizon = delete_horizon(header)
        if self.transactions.is_gone(header, view):
            if not header.records_count or (horizon is not None and horizon <= self._now_ms):
                return None
            if horizon is None:
                self.records_kept += header.records_count
                return self._with_horizon(header, view)
        self.records_kept += header.records_count
        return view

    def _with_horizon(self, header: BatchHeader, view: memoryview) -> bytearray:
        records = record_bytes(view, header, INSPECTED_BYTES_LARGEST)
        return batch_with(
            header,
            records,
            list(placed_records(records, header)),
            self._now_ms + self._delete_retention_ms,
        )

    def _records(self, header: BatchHeader, view: memoryview) -> memoryview | bytearray | None:
        if self.transactions.is_aborted(header) or not header.records_count:
            return None
        horizon = delete_horizon(header)
        tombstones_go = (
            horizon is not None and horizon <= self._now_ms and not self._has_unread_batches
        )
        records = _records_of(view, header)
        if records is None:
            self._has_unread_batches = True
            self.records_kept += header.records_count
            return view
        newest_of, base_offset, end_offset = self._keys.get, header.base_offset, self._end_offset
        kept: list[PlacedRecord] = []
        has_tombstones = False
        for record in placed_records(records, header):
            offset = base_offset + record.offset_delta
            if offset < end_offset and (
                record.key is None
                or offset < newest_of(record.key)
                or (tombstones_go and record.is_tombstone)
            ):
                continue
            has_tombstones = has_tombstones or record.is_tombstone
            kept.append(record)
        self.records_kept += len(kept)
        if not kept:
            return None
        new_horizon = (
            self._now_ms + self._delete_retention_ms if has_tombstones and horizon is None else None
        )
        if len(kept) == header.records_count and new_horizon is None:
            return view
        return batch_with(header, records, kept, new_horizon)


def _records_of(view: memoryview, header: BatchHeader) -> bytes | None:
    """The records of a batch. None: decompressed, they would be too large to read."""
    try:
        return record_bytes(view, header, INSPECTED_BYTES_LARGEST)
    except MqError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


def keys_max(cleanable: Cleanable) -> int:
    """The dirty part has at most as many keys as offsets."""
    return cleanable.end_offset - cleanable.first_dirty_offset
