"""The state of one partition's log: its segments, its offsets, its failure. A core.

The states of a record, in order:

    planned      `plan_append` (appending.py) gave it an offset and queued its bytes.
                 `log_end_offset` includes it. No consumer can read it.
    written      The service wrote the queue to the file. `written_end_offset` includes it. It can
                 be read.
    durable      After the write, an fdatasync began and returned. `durability.end_offset` includes
                 it.

A turn of the event loop plans any number of appends and ends with one write. Only the service
writes. It reports each write with `on_written`. If a write fails, the service drops everything that
was planned: `forget_queue`.

Invariants (docs/INVARIANTS.md):
- log_start <= durable_end <= written_end <= log_end. With an empty queue, written_end = log_end.
- Segments are in ascending order, without overlap. Only the last one is appended to.
- Offsets are dense: each batch begins at the offset after the previous one. After a compaction
  (compaction.py), here or at an earlier leader, offsets may be missing between batches, but never
  in uncommitted records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import POSITIONS_CACHED
from mqd.log.durability import Durability
from mqd.log.epochs import LeaderEpochs
from mqd.log.log_config import LogConfig
from mqd.log.log_end import EndClaim
from mqd.log.producer_state import ProducerSnapshot
from mqd.log.producers import Producers
from mqd.log.record_inspection import RecordInspection
from mqd.log.roll_policy import RollPolicy
from mqd.log.segment import Segment
from mqd.protocol.files import AbortedTransaction
from mqd.types import NO_EPOCH, Offset, TopicPartition


class LogFailure(NamedTuple):
    """Why a log accepts no appends."""

    reason: str
    is_retriable: bool = False
    """The disk was full, or no descriptor was free. The next append is a retry, and reads continue.
    Any other failure also ends reads.
    """


class Queued:
    """Batches that one vectored write appends to one segment."""

    __slots__ = ("aborted", "base_offset", "batches", "new_segment", "views")

    def __init__(self, base_offset: Offset, new_segment: ProducerSnapshot | None) -> None:
        self.base_offset = base_offset
        self.new_segment = new_segment
        """Not None: first begin a segment at `base_offset`, with this producer state."""
        self.views: list[memoryview] = []
        self.batches: list[tuple[Offset, int, int]] = []
        """(last offset, bytes, largest timestamp) of each view."""
        self.aborted: list[AbortedTransaction] = []
        """Transactions that markers among these batches abort."""


class SegmentSwap:
    """The swap of a cleaned segment for the segments that it was made of (disk/segment_swap.py).
    The files of the cleaned segment are complete."""

    __slots__ = ("cleaned", "is_in_place", "old")

    def __init__(self, old: list[Segment], cleaned: Segment) -> None:
        self.old = old
        self.cleaned = cleaned
        self.is_in_place = False
        """Whether the log reads from `cleaned` already."""


class PartitionLog:
    """See the head of this file. Compared and hashed by identity."""

    __slots__ = (
        "__weakref__",
        "checkpointed_high_watermark",
        "cleaned_to",
        "cleanings",
        "config",
        "directory",
        "durability",
        "end_claim",
        "epochs",
        "failure",
        "inspection",
        "kept_from",
        "log_end_offset",
        "log_start_offset",
        "opened",
        "path",
        "positions",
        "producers",
        "queue",
        "roll",
        "segments",
        "swap",
        "tail",
        "topic_id",
        "topic_partition",
        "touched",
        "truncations",
        "written_end_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        directory: Path,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: Offset = 0,
        epochs: LeaderEpochs | None = None,
        producers: Producers | None = None,
    ) -> None:
        assert segments
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        """The log directory. The log's own directory is `path`."""
        self.path = directory / str(topic_partition)
        self.config = config
        self.segments = segments
        self.epochs = epochs if epochs is not None else LeaderEpochs()
        self.producers = producers if producers is not None else Producers()
        end = segments[-1].next_offset
        assert log_start_offset <= end, (log_start_offset, end)
        self.log_start_offset: Offset = log_start_offset
        self.log_end_offset: Offset = end
        self.written_end_offset: Offset = end
        self.durability = Durability(end)
        self.end_claim = EndClaim()
        self.checkpointed_high_watermark: Offset = log_start_offset
        """A lower bound of the replica's high watermark. Retention stops there."""
        self.kept_from: Offset = 0
        """Retention of a delay topic removes no records from here on. Set by the relay on its
        leader."""
        self.cleaned_to: Offset | None = None
        """The end of the compacted part. None: the log was never compacted, neither here nor at the
        leader that it was copied from."""
        self.cleanings = 0
        """The number of cleaned segments that were swapped in, in this process."""
        self.swap: SegmentSwap | None = None
        """The swap of a cleaned segment that is under way."""
        self.opened = False
        """Whether the metadata has this partition. Until then its configuration is the default, and
        nothing is removed."""
        self.failure: LogFailure | None = None
        self.truncations = 0
        """The number of truncations of the end. Plans from before a truncation are invalid after
        it."""
        self.queue: list[Queued] = []
        self.touched = False
        """Whether it is on the writer's list for the flush of this turn."""
        self.positions: dict[Offset, tuple[Segment, int]] = {}
        """Offset at which a batch begins -> segment and position. A cache of positions that readers
        need next. Bounded."""
        self.inspection = RecordInspection()
        """Shared by all logs of a node, because the limit on one turn applies to their sum."""
        self.tail: Queued | None = None
        """The last of `queue`. The next batch is added to it, unless it begins a segment."""
        self.roll = RollPolicy(topic_partition)
        self.watch_active()

    def __repr__(self) -> str:
        return (
            f"<PartitionLog {self.topic_partition} {self.log_start_offset}..{self.log_end_offset}>"
        )

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, as written."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_readable(self) -> bool:
        """Whether records can be read: also if only appends are refused because the disk is
        full."""
        return self.failure is None or self.failure.is_retriable

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        if not self.queue:
            self.watch_active()

    def watch_active(self) -> None:
        """The next batch goes to the active segment. The queue is empty."""
        assert not self.queue
        self.tail = None
        self.roll.watch(self.active, self.config)

    # -- after file work -------------------------------------------------------------------------

    def on_written(self, queued: Queued) -> None:
        """The batches of `queued` are in the active segment's file."""
        active = self.active
        interval = self.config.index_interval_bytes
        entries = len(active.index) if active.index is not None else 0
        for last_offset, size, max_timestamp in queued.batches:
            active.add(last_offset, size, max_timestamp, interval)
        if queued.aborted:
            active.add_aborted(queued.aborted)
        assert active.index is not None
        if len(active.index) != entries and queued is self.queue[-1]:
            self.roll.watch_indexes(active, self.config)
        self.written_end_offset = active.next_offset

    def on_queue_written(self) -> None:
        """The whole queue is in its files."""
        self.queue.clear()
        self.tail = None
        assert self.written_end_offset == self.log_end_offset, self
        self.remember(self.written_end_offset, self.active, self.active.size)

    def on_rolled(self, segment: Segment) -> None:
        """A new segment is the active one."""
        assert segment.base_offset >= self.active.next_offset and not segment.size, (
            segment,
            self.active,
        )
        self.active.on_inactive()
        self.active.next_offset = segment.base_offset
        # The cached position is the end of the old segment. The batch begins in the new one.
        self.positions.pop(segment.base_offset, None)
        self.segments.append(segment)
        if not self.queue:
            self.watch_active()

    def on_synced(self, end_offset: Offset) -> bool:
        """An fdatasync that began at the written end `end_offset` has returned. Returns whether
        the durable end moved."""
        return self.durability.on_synced(end_offset, self.written_end_offset)

    def forget_queue(self) -> None:
        """Drop planned batches that were not written. The caller restores producers and epochs."""
        self.queue.clear()
        self.log_end_offset = self.written_end_offset
        self.watch_active()

    def on_truncated(self) -> None:
        """Segments were truncated or removed at the end, and the queue is empty."""
        assert not self.queue
        self.truncations += 1
        end = self.active.next_offset
        self.log_end_offset = self.written_end_offset = end
        self.durability.on_truncated(end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, end)
        self.epochs.truncate_from_end(end)
        self.positions.clear()
        self.watch_active()

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """All transactions below this offset have ended, and their markers are committed. It is at
        most the high watermark."""
        # Log start <= last stable offset <= high watermark (I37).
        first = self.producers.first_unstable_offset(high_watermark)
        return (
            high_watermark
            if first is None
            else min(high_watermark, max(first, self.log_start_offset))
        )

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record (KIP-595: the last fetched epoch). NO_EPOCH if there is
        none."""
        return (
            self.epochs.epoch_of(self.log_end_offset - 1)
            if self.log_end_offset > self.log_start_offset
            else NO_EPOCH
        )

    def on_reset(self, segment: Segment) -> None:
        """The old files were moved away. `segment` is empty."""
        self.segments = [segment]
        self.producers = Producers()
        self.swap = None
        self.log_start_offset = self.checkpointed_high_watermark = segment.base_offset
        self.on_truncated()
        self.durability.on_reset(segment.base_offset)
        self.epochs.clear()

    def on_cleaned(self, old: list[Segment], cleaned: Segment) -> None:
        """`cleaned` replaces the adjacent segments `old`."""
        at = self.segments.index(old[0])
        # Neighbours, and never the active segment (I38).
        assert self.segments[at : at + len(old)] == old and old[-1] is not self.active
        assert (cleaned.base_offset, cleaned.next_offset) == (
            old[0].base_offset,
            old[-1].next_offset,
        )
        self.segments[at : at + len(old)] = [cleaned]
        self.positions.clear()
        self.cleanings += 1

    def on_retired(self, count: int) -> None:
        """Remove the oldest `count` segments from `segments`."""
        assert 0 < count < len(self.segments)
        del self.segments[:count]
        self.positions.clear()
        if self.log_start_offset < self.segments[0].base_offset:
            self.advance_log_start(self.segments[0].base_offset)

    def advance_log_start(self, offset: Offset) -> None:
        """Records below `offset` are deleted, even if their segments still exist."""
        assert self.log_start_offset <= offset <= self.written_end_offset, (offset, self)
        self.log_start_offset = offset
        self.durability.on_log_start_moved(offset)
        self.checkpointed_high_watermark = max(self.checkpointed_high_watermark, offset)
        self.epochs.truncate_from_start(offset)

    # -- finding offsets -------------------------------------------------------------------------

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        """Cache that a batch begins, or will begin, at `position`. Then a reader of `offset` need
        not search for it."""
        positions = self.positions
        if len(positions) >= POSITIONS_CACHED:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def segment_index(self, offset: Offset) -> int:
        """Index in `segments` of the segment with `offset`, or of the first segment."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def segments_from(self, offset: Offset) -> Iterator[Segment]:
        """The segment with `offset`, and those after it."""
        yield from self.segments[self.segment_index(offset) :]

    def check_readable(self, offset: Offset) -> None:
        """Raises MqError OFFSET_OUT_OF_RANGE unless `offset` is in the log or at its end."""
        if not self.log_start_offset <= offset <= self.written_end_offset:
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is outside"
                f" {self.log_start_offset} to {self.written_end_offset}",
            )


def _base_offset(segment: Segment) -> Offset:
    return segment.base_offset
