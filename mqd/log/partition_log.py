"""One partition's log as state: what may be appended, where offsets are, what is written and what is durable. A core.

The states of a record, from left to right:

    planned      `plan_append` gave it an offset and queued its bytes: `log_end_offset` counts it, nobody can read it
    written      the service wrote the queue to the file: `written_end_offset` counts it, it can be read
    durable      an fdatasync began after that and returned: `durable_end_offset` counts it

A turn of the event loop plans any number of appends and ends with one write; only the service writes, and it tells the
log with `on_written`. When a write fails the service takes back everything that was planned: `forget_queue`.

Invariants (docs/INVARIANTS.md):
- synced_end <= durable_end and log_start <= durable_end <= written_end <= log_end; recovery begins at synced_end.
  With an empty queue written_end = log_end.
- Segments are in ascending order, without overlap; the last one, and only it, is appended to.
- Offsets are dense: each batch begins where the one before it ended. Behind a compaction (compaction.py), here or at a leader of which
  this log was copied, offsets are missing between batches, never within what is not committed.
- Records are not unpacked: a batch is judged by its 61 bytes and its CRC (exceptions: keys, for a compacted topic: looking.py; another
  codec than the topic's: recompression.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import BATCH_BYTES_MAX, POSITIONS_CACHED, RECORDS_COMPRESSED_MAX, SEGMENTS_UNSYNCED_MAX
from mqd.log.ends import LogEnd
from mqd.log.epochs import LeaderEpochs
from mqd.log.looking import Looking
from mqd.log.producers import Producers, replay_marker
from mqd.log.segment import Segment
from mqd.protocol.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_TIMESTAMP_POSITION,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Codec,
    Record,
    crc_of,
    seal,
    validate,
)
from mqd.protocol.files import INDEX_ENTRY, RELATIVE_OFFSET_MAX, TIME_INDEX_ENTRY, AbortedTransaction, ProducerSnapshotEntry
from mqd.types import NO_EPOCH, NO_TIMESTAMP, Offset, TopicPartition

_BASE_LENGTH_EPOCH = Struct(">qii")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__  # a NamedTuple's own constructor is a Python function: 0.2 us more a batch
RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers. More of them than fit were never sent, and their offsets would be holes."""
_COMPRESSED_ROOM = RECORDS_COMPRESSED_MAX * RECORD_BYTES_MIN
FOREVER_MS: Final = 2**63 - 1
"""Kafka's Long.MAX_VALUE: an interval that does not end."""
NO_CUT: Final = 2**63 - 1  # beyond every offset
_ODD_ATTRIBUTES = 0xFFFF & ~CODEC_MASK
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's options that the log obeys: Kafka's dotted names with underscores, units last. -1 means no limit for retention."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = BATCH_BYTES_MAX
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER_MS
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    """The levels below are for the codecs of their names, where `compression_type` is one of those (recompression.py)."""
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = FOREVER_MS
    flush_ms: int = FOREVER_MS
    flush_before_ack: bool = False
    """Not Kafka's: acknowledge only what an fdatasync has covered. `flush.messages=1` means the same."""
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    preallocate: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> LogConfig:
        """From dotted names and typed values; names that the log does not know are somebody else's."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name.replace("_", ".")
            if name in options:
                values[field.name] = options[name]
        policy = values.get("cleanup_policy")
        if policy is not None:
            names = policy.split(",") if isinstance(policy, str) else policy
            values["cleanup_policy"] = frozenset(name.strip() for name in names if name.strip())
        if values.get("flush_messages") == 1:
            values["flush_before_ack"] = True
        return cls(**values)


class Appended(NamedTuple):
    """What became of one batch. Of a duplicate: where the first copy lies."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    """-1 unless the topic stamps its records."""
    duplicate: bool


class Queued:
    """Batches that one vectored write brings to one segment."""

    __slots__ = ("aborted", "base_offset", "batches", "new_segment", "views")

    def __init__(self, base_offset: Offset, new_segment: list[ProducerSnapshotEntry] | None) -> None:
        self.base_offset = base_offset
        self.new_segment = new_segment
        """Not None: begin a segment at `base_offset` first; these are the producers as of there."""
        self.views: list[memoryview] = []
        self.batches: list[tuple[Offset, int, int]] = []
        """(last offset, bytes, largest timestamp) of each view."""
        self.aborted: list[AbortedTransaction] = []
        """Transactions that markers among these batches end so."""


class Replacement:
    """A cleaned segment takes the place of others: its files are whole, and under names that a start finishes with (replacing.py)."""

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
        "_jitter_permille",
        "_roll_at_bytes",
        "_roll_at_offset",
        "_roll_at_timestamp",
        "_tail",
        "_tail_bytes",
        "cleaned_to",
        "cleanings",
        "config",
        "cuts",
        "directory",
        "durable_end_offset",
        "end_is_void",
        "epochs",
        "failed",
        "heals",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "looking",
        "lowest_cut",
        "new_files",
        "noted",
        "noted_end",
        "opened",
        "path",
        "positions",
        "producers",
        "queue",
        "recovery_point",
        "replacement",
        "segments",
        "snapshots",
        "synced_end_offset",
        "taken_back",
        "topic_id",
        "topic_partition",
        "touched",
        "unsynced_cut",
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
        """The log directory that holds it; its own is `path`."""
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
        self.durable_end_offset: Offset = end
        self.synced_end_offset: Offset = end
        """What the recovery point may say. Below `durable_end_offset` where the log start has passed records that were never synced:
        their segments may be torn after a power cut, and recovery must not believe them."""
        self.unsynced_cut: Offset | None = None
        """Where its end was cut, as long as that is not durable. No segment begins then: a power cut could bring back what was cut off,
        and the new segment would begin within it."""
        self.lowest_cut: Offset = NO_CUT  # since the last plan of a sync was made: its snapshots beyond that are of what was
        self.taken_back = False
        """Whether a write was, right behind what is durable: the next sync takes that file along, or a power cut could bring it back."""
        self.recovery_point: Offset = 0
        """What the checkpoint on disk may say: recovery believes the segments before it. Above `synced_end_offset` after a cut, until
        the checkpoint is written again; no segment begins as long as it is."""
        self.noted: LogEnd | None = None
        """The line of the checkpoint of ends on disk (ends.py)."""
        self.noted_end: Offset = 0
        """The largest end which that checkpoint may name: a cut below it leaves the mark first."""
        self.end_is_void = False
        """Whether the mark is there."""
        self.high_watermark: Offset = log_start_offset
        """The last one that was checkpointed: a lower bound of the true one. Retention does not go beyond it."""
        self.cleaned_to: Offset | None = None
        """Up to where it was compacted: what the cleaner's checkpoint on disk says. None: never, here or where it was copied from."""
        self.cleanings = 0
        """How often a cleaned segment took the place of others, in this process."""
        self.replacement: Replacement | None = None
        """The cleaned segment that is taking the place of others, as long as that is not done."""
        self.opened = False
        """Whether the metadata has claimed it: until then its configuration is a guess, and nothing is removed."""
        self.failed: str | None = None
        """Why nothing can be appended, where that is so."""
        self.heals = False
        """Whether `failed` ends when the disk has space again; until then only appends are refused."""
        self.new_files = False
        """Whether the directory has entries that are not durable."""
        self.snapshots: list[tuple[Offset, bytes]] = []
        """Producer snapshots that wait to be written."""
        self.cuts = 0
        """How often the end was cut: what was planned before a cut does not count after it."""
        self.queue: list[Queued] = []
        self.touched = False
        """Whether the service has it on its list for this turn."""
        self.positions: dict[Offset, tuple[Segment, int]] = {}
        """Offsets at which a batch begins -> where: places that readers come to next. Bounded."""
        self.looking = Looking()
        """Shared by all logs of a service, which have one loop in common."""
        self._jitter_permille = sum(str(topic_partition).encode()) % 1000
        self._tail: Queued | None = None
        self._tail_bytes = self._roll_at_bytes = self._roll_at_offset = self._roll_at_timestamp = 0
        self._watch_tail()

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic_partition} {self.log_start_offset}..{self.log_end_offset}>"

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, as written."""
        return sum(segment.size for segment in self.segments)

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        if not self.queue:
            self._watch_tail()

    # -- appending -------------------------------------------------------------------------------------------------

    def plan_append(self, view: memoryview, *, leader_epoch: int, now_ms: int, client: bool = True) -> Appended:
        """Give the one batch in `view` its offsets, patch them and the epoch into it, and queue it; `view` must not change until written.

        MqError with Kafka's codes refuses it and changes nothing: see `_refuse_shape` and `_refuse_content`. A batch that was
        appended before (idempotence) is not appended again. `client` is false for what the broker writes itself.
        """
        size = len(view)
        if size < HEADER_BYTES:
            raise MqError(ErrorCode.INVALID_RECORD, f"{size} bytes are less than the header of a batch")
        (given_offset, length, _, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
         producer_id, producer_epoch, base_sequence, records_count) = _unpack_header(view, 0)  # fmt: skip
        config = self.config
        if (
            length + 12 != size
            or magic != 2
            or given_offset
            or records_count != last_offset_delta + 1
            or records_count < 1
            or records_count * RECORD_BYTES_MIN > (_COMPRESSED_ROOM if attributes & CODEC_MASK else size - HEADER_BYTES)
            or size > config.max_message_bytes
        ):
            self._refuse_shape(view, client)
        if crc_of(view, 0, size) != crc:
            raise MqError(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C of the batch is wrong")
        earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        if (
            attributes & _ODD_ATTRIBUTES
            or attributes & CODEC_MASK > 4
            or not earliest <= max_timestamp <= latest
            or not earliest <= base_timestamp <= latest
            or size > config.segment_bytes
            or "compact" in config.cleanup_policy
        ):
            self._refuse_content(view, now_ms, client)
        if producer_id >= 0:
            if not client:
                if not attributes & CONTROL_MASK:
                    self.producers.check_coordinator_batch(producer_id, producer_epoch)
            elif base_sequence < 0:
                raise MqError(ErrorCode.INVALID_RECORD, f"producer {producer_id} sent no sequence number")
            else:
                transactional = attributes & TRANSACTIONAL_MASK
                if transactional or self.producers.open:
                    seen = self.producers.check_with_transactions(
                        producer_id, producer_epoch, base_sequence, last_offset_delta, bool(transactional)
                    )
                else:
                    seen = self.producers.check(producer_id, producer_epoch, base_sequence, last_offset_delta)
                if seen is not None:
                    return Appended(seen[0], seen[1], seen[2] if config.message_timestamp_type == "LogAppendTime" else NO_TIMESTAMP, True)

        # accepted: from here on nothing fails, but for `_plan_roll` before it changes anything
        base_offset = self.log_end_offset
        last_offset = base_offset + last_offset_delta
        log_append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "LogAppendTime":
            log_append_time = max_timestamp = now_ms
            _ATTRIBUTES.pack_into(view, ATTRIBUTES_POSITION, attributes | TIMESTAMP_TYPE_MASK)
            _TIMESTAMP.pack_into(view, MAX_TIMESTAMP_POSITION, now_ms)
            seal(view)
        elif attributes & TIMESTAMP_TYPE_MASK:  # the producer's claim; the records keep their own timestamps
            attributes &= ~TIMESTAMP_TYPE_MASK
            _ATTRIBUTES.pack_into(view, ATTRIBUTES_POSITION, attributes)
            seal(view)
        _BASE_LENGTH_EPOCH.pack_into(view, 0, base_offset, length, leader_epoch)
        tail = self._tail
        if self._tail_bytes and (
            self._tail_bytes + size > self._roll_at_bytes or last_offset > self._roll_at_offset or max_timestamp > self._roll_at_timestamp
        ):
            tail = self._plan_roll(base_offset)
        elif tail is None:
            self._tail = tail = Queued(base_offset, None)
            self.queue.append(tail)
        if not self._tail_bytes:
            self._roll_at_timestamp = self._rolls_at(max_timestamp)
        self._tail_bytes += size
        tail.views.append(view)
        tail.batches.append((last_offset, size, max_timestamp))
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            if attributes & CONTROL_MASK:
                self._replay_marker(tail, view, last_offset)
            else:
                self.producers.replay(producer_id, producer_epoch, base_sequence, base_offset, last_offset_delta, max_timestamp, attributes)
        return _new_tuple(Appended, (base_offset, last_offset, log_append_time, False))

    def plan_append_as_follower(self, view: memoryview, *, leader_epoch: int, batches_max: int) -> int:
        """Queue the batches that `view` begins with, as they are; `view` must not change until written. Returns how many bytes that took.

        They are the leader's: nothing is rewritten, and offsets, epochs and producers come out as they are there, gaps included: the topic
        may be compacted, or may once have been. Left for the next call,
        or for good: what is beyond `batches_max` batches, a batch that is cut off, and any of an epoch above `leader_epoch`, which the
        asker does not know yet. MqError CORRUPT_MESSAGE when the first batch is damaged or does not continue this log, KAFKA_STORAGE_ERROR
        when it cannot be taken now; nothing is changed then.
        """
        position, end = 0, len(view)
        epochs, tail, begun = self.epochs, self._tail, 0
        for _ in range(batches_max):
            if position + HEADER_BYTES > end:
                break
            (base_offset, length, epoch, magic, crc, attributes, last_offset_delta, _, max_timestamp,
             producer_id, producer_epoch, base_sequence, _) = _unpack_header(view, position)  # fmt: skip
            size = length + LOG_OVERHEAD_BYTES
            stop = position + size
            if stop > end and magic == MAGIC and size >= HEADER_BYTES:
                break
            damage = (
                f"length {length}, magic {magic}, last offset delta {last_offset_delta}"
                if magic != MAGIC or size < HEADER_BYTES or last_offset_delta < 0
                else "its CRC-32C is wrong"
                if crc_of(view, position, stop) != crc
                else f"it begins at offset {base_offset}"
                if base_offset < self.log_end_offset
                else ""
            )
            if not damage and epoch > leader_epoch:
                break
            if not damage and epoch < epochs.latest:
                epochs.truncate_from_end(self.log_end_offset)  # epochs in which this node led and nobody wrote
                damage = f"its leader epoch is {epoch}, after {epochs.latest}" if epoch < epochs.latest else ""
            if damage:
                if position:
                    break  # what comes before it counts
                raise MqError(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition} ends at {self.log_end_offset}; the next batch: {damage}")
            last_offset = base_offset + last_offset_delta
            if last_offset > self._roll_at_offset or (
                self._tail_bytes and (self._tail_bytes + size > self._roll_at_bytes or max_timestamp > self._roll_at_timestamp)
            ):
                if tail is not None and position > begun:
                    tail.views.append(view[begun:position])
                    begun = position
                try:  # where the log ends, so that segments leave no gap between them, unless it is wider than a segment
                    tail = self._plan_roll(max(self.log_end_offset, last_offset - RELATIVE_OFFSET_MAX))
                except MqError:
                    if position:
                        break
                    raise
            elif tail is None:
                self._tail = tail = Queued(base_offset, None)
                self.queue.append(tail)
            if not self._tail_bytes:
                self._roll_at_timestamp = self._rolls_at(max_timestamp)
            self._tail_bytes += size
            tail.batches.append((last_offset, size, max_timestamp))
            if base_offset > self.log_end_offset and self.cleaned_to is None:
                self.cleaned_to = self.log_start_offset
            if epoch > epochs.latest:  # behind a gap it may have begun earlier: an older replica must not keep what it has there
                epochs.assign(epoch, self.log_end_offset)
            self.log_end_offset = last_offset + 1
            if producer_id >= 0:
                if attributes & CONTROL_MASK:
                    self._replay_marker(tail, view[position:stop], last_offset)
                else:
                    self.producers.replay(
                        producer_id, producer_epoch, base_sequence, base_offset, last_offset_delta, max_timestamp, attributes
                    )
            position = stop
        if tail is not None and position > begun:
            tail.views.append(view[begun:position])
        return position

    def _replay_marker(self, queued: Queued, view: memoryview, offset: Offset) -> None:
        aborted = replay_marker(self.producers, view, offset)
        self.producers.first_unstable_offset(self.high_watermark)  # which forgets what is past: perhaps nobody asks for long
        if aborted is not None:
            queued.aborted.append(aborted)

    def _refuse_shape(self, view: memoryview, client: bool) -> None:
        """Raises for a batch of the wrong shape: 87 INVALID_RECORD, 2 CORRUPT_MESSAGE, 10 MESSAGE_TOO_LARGE."""
        size = len(view)
        header = BatchHeader._make(_unpack_header(view, 0))
        if header.magic == 2 and HEADER_BYTES <= header.size < size:
            raise MqError(ErrorCode.INVALID_RECORD, "a produce request carries one batch a partition, not more")
        impossible = header.records_count < 1 or header.last_offset_delta < 0
        if header.magic == 2 and header.size == size and impossible and crc_of(view) == header.crc:
            raise MqError(
                ErrorCode.INVALID_RECORD,
                f"a batch of {header.records_count} records with a last offset delta of {header.last_offset_delta}",
            )
        validate(view)
        limit = self.config.max_message_bytes
        if size > limit and client:
            raise MqError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; max.message.bytes is {limit}")
        if header.base_offset:
            raise MqError(ErrorCode.INVALID_RECORD, f"the batch says base offset {header.base_offset}; producers send 0")
        if header.records_count != header.last_offset_delta + 1:
            raise MqError(
                ErrorCode.INVALID_RECORD, f"{header.records_count} records, but a last offset delta of {header.last_offset_delta}"
            )
        if header.attributes & CODEC_MASK and header.records_count > RECORDS_COMPRESSED_MAX:
            raise MqError(ErrorCode.MESSAGE_TOO_LARGE, f"{header.records_count} compressed records; {RECORDS_COMPRESSED_MAX} may be")
        room = size - HEADER_BYTES
        if not header.attributes & CODEC_MASK and header.records_count * RECORD_BYTES_MIN > room:
            raise MqError(ErrorCode.INVALID_RECORD, f"{header.records_count} records do not fit {room} bytes")

    def _refuse_content(self, view: memoryview, now_ms: int, client: bool) -> None:
        """Raises for what a batch may not be here: control, stamped, untimely, too large, without keys."""
        size = len(view)
        header = BatchHeader._make(_unpack_header(view, 0))
        config = self.config
        if header.attributes & CODEC_MASK > Codec.ZSTD:
            raise MqError(ErrorCode.CORRUPT_MESSAGE, f"unknown codec {header.attributes & CODEC_MASK}")
        if size > config.segment_bytes:
            raise MqError(ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes does not fit a segment of {config.segment_bytes}")
        if not client:
            return
        if header.attributes & CONTROL_MASK:
            raise MqError(ErrorCode.INVALID_RECORD, "clients do not write control batches")
        if header.attributes & TRANSACTIONAL_MASK and header.producer_id < 0:
            raise MqError(ErrorCode.INVALID_RECORD, "a transactional batch names its producer")
        if config.message_timestamp_type == "CreateTime":
            earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
            for timestamp in (header.base_timestamp, header.max_timestamp):
                if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                    self._refuse_untimely(view, header, earliest, latest, now_ms)
            if header.is_log_append_time and header.max_timestamp == NO_TIMESTAMP:
                self._refuse_stamped(view, header, now_ms)
        elif header.is_log_append_time:
            self._refuse_stamped(view, header, now_ms)
        if "compact" in config.cleanup_policy:
            self.looking.refuse_keyless(view, header, config.max_message_bytes, now_ms)

    def _refuse_untimely(self, view: memoryview, header: BatchHeader, earliest: int, latest: int, now_ms: int) -> None:
        """Raises INVALID_TIMESTAMP, with the sentences of Apache Kafka's LogValidator, for a header with timestamps out of range."""
        allowed = f"The timestamp should be within [{earliest}, {latest}]"

        def why(record: Record) -> str | None:
            if record.timestamp == NO_TIMESTAMP or earliest <= record.timestamp <= latest:
                return None
            return f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. {allowed}"

        whole = f"they go from {header.base_timestamp} to {header.max_timestamp}. {allowed}"
        self._refuse_timestamps(whole, view, header, now_ms, why)

    def _refuse_stamped(self, view: memoryview, header: BatchHeader, now_ms: int) -> None:
        """Raises INVALID_TIMESTAMP for a batch that claims that a broker stamped it, where that cannot be overlooked."""
        why = "Invalid timestamp type. Producer should not set timestamp type to LogAppendTime."
        self._refuse_timestamps(why, view, header, now_ms, lambda record: why)

    def _refuse_timestamps(
        self, why: str, view: memoryview, header: BatchHeader, now_ms: int, why_of: Callable[[Record], str | None]
    ) -> None:
        errors = self.looking.named_records(view, header, self.config.max_message_bytes, now_ms, why_of)
        message = "One or more records have been rejected due to invalid timestamp"
        raise MqError(ErrorCode.INVALID_TIMESTAMP, message if errors else f"{message}: {why}", record_errors=errors)

    @property
    def may_roll(self) -> bool:
        return self.unsynced_cut is None and self.recovery_point <= self.synced_end_offset

    def _plan_roll(self, base_offset: Offset) -> Queued:
        if not self.may_roll:
            waits = "recovery point" if self.recovery_point > self.synced_end_offset else "cut"
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, f"the {waits} of {self.topic_partition} waits to be on disk: try again")
        unsynced = len(self.segments) - self.segment_index(self.durable_end_offset) + len(self.queue)
        if unsynced > SEGMENTS_UNSYNCED_MAX:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, f"{unsynced} segments of {self.topic_partition} wait to be synced: try again")
        tail = self._tail = Queued(base_offset, self.producers.snapshot())
        self.queue.append(tail)
        self._tail_bytes = 0
        self._roll_at_bytes = self.config.segment_bytes
        self._roll_at_offset = base_offset + RELATIVE_OFFSET_MAX
        self._roll_at_timestamp = FOREVER_MS
        return tail

    def _rolls_at(self, first_timestamp: int) -> int:
        """The timestamp from which on a batch belongs into the next segment, given the first batch's."""
        if first_timestamp < 0:
            return FOREVER_MS
        return first_timestamp + self.segment_age_max_ms

    @property
    def segment_age_max_ms(self) -> int:
        """`segment.ms` less this partition's share of `segment.jitter.ms`; no more than `max.compaction.lag.ms` for a compacted topic."""
        config = self.config
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy and config.max_compaction_lag_ms > 0:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        return max(0, segment_ms - min(config.segment_jitter_ms, segment_ms) * self._jitter_permille // 1000)

    def _watch_tail(self) -> None:
        """With an empty queue: when the active segment will be full."""
        assert not self.queue
        active, config = self.active, self.config
        self._tail = None
        self._tail_bytes = active.size
        self._roll_at_bytes = config.segment_bytes
        self._roll_at_offset = active.base_offset + RELATIVE_OFFSET_MAX
        self._roll_at_timestamp = self._rolls_at(active.first_timestamp) if active.size else FOREVER_MS
        self._watch_indexes(active)

    def _watch_indexes(self, active: Segment) -> None:
        assert active.index is not None and active.time_index is not None
        entries = self.config.segment_index_bytes
        if len(active.index) >= entries // INDEX_ENTRY.size or len(active.time_index) >= entries // TIME_INDEX_ENTRY.size - 1:
            self._roll_at_bytes = 0

    # -- what the service did --------------------------------------------------------------------------------------

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
            self._watch_indexes(active)
        self.written_end_offset = active.next_offset

    def on_queue_written(self) -> None:
        """All that was queued is in its files."""
        self.queue.clear()
        self._tail = None
        assert self.written_end_offset == self.log_end_offset, self
        self.remember(self.written_end_offset, self.active, self.active.size)

    def on_rolled(self, segment: Segment) -> None:
        """A new segment is the active one."""
        assert segment.base_offset >= self.active.next_offset and not segment.size, (segment, self.active)
        self.active.seal()
        self.active.next_offset = segment.base_offset
        self.positions.pop(segment.base_offset, None)  # a border at the end of the old segment is the new one's start
        self.segments.append(segment)
        if not self.queue:
            self._watch_tail()

    def on_synced(self, end_offset: Offset) -> bool:
        """An fdatasync that began when `end_offset` was the written end has returned; tells whether that is news.

        The log may have been cut shorter since.
        """
        if self.unsynced_cut is not None and end_offset >= self.unsynced_cut:
            self.unsynced_cut = None
        end_offset = min(end_offset, self.written_end_offset)
        self.synced_end_offset = max(self.synced_end_offset, end_offset)
        if end_offset <= self.durable_end_offset:
            return False
        self.durable_end_offset = end_offset
        self.taken_back = False
        return True

    def forget_queue(self) -> None:
        """Take back what was planned and not written. The caller restores producers and epochs."""
        self.queue.clear()
        self.log_end_offset = self.written_end_offset
        self._watch_tail()

    def on_truncated(self) -> None:
        """Segments were cut or removed at the end, and the queue is empty."""
        assert not self.queue
        self.cuts += 1
        self.new_files = True  # files may be gone, which is to be durable too
        end = self.active.next_offset
        self.lowest_cut = min(self.lowest_cut, end)
        self.log_end_offset = self.written_end_offset = end
        self.durable_end_offset = min(self.durable_end_offset, end)
        self.synced_end_offset = min(self.synced_end_offset, end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.high_watermark = min(self.high_watermark, end)
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, end)
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot[0] <= end]
        self.epochs.truncate_from_end(end)
        self.positions.clear()
        self._watch_tail()

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Below it every transaction has ended, and its marker is below the high watermark, as this is."""
        first = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if first is None else min(high_watermark, max(first, self.log_start_offset))

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record (KIP-595: the last fetched epoch); NO_EPOCH when there is none."""
        return self.epochs.epoch_of(self.log_end_offset - 1) if self.log_end_offset > self.log_start_offset else NO_EPOCH

    def on_reset(self, segment: Segment) -> None:
        """All that was here is elsewhere; `segment` is empty."""
        self.segments = [segment]
        self.producers = Producers()
        self.replacement = None
        self.log_start_offset = self.high_watermark = segment.base_offset
        self.durable_end_offset = min(self.durable_end_offset, segment.base_offset)
        self.on_truncated()
        self.durable_end_offset = self.synced_end_offset = segment.base_offset
        self.unsynced_cut = None  # what was cut is not here any more
        self.lowest_cut = -1
        self.snapshots.clear()
        self.epochs.clear()

    def on_cleaned(self, old: list[Segment], cleaned: Segment) -> None:
        """`cleaned` holds what stays of the neighbours `old`."""
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == old and old[-1] is not self.active
        assert (cleaned.base_offset, cleaned.next_offset) == (old[0].base_offset, old[-1].next_offset)
        self.segments[at : at + len(old)] = [cleaned]
        self.positions.clear()
        self.cleanings += 1

    def on_retired(self, count: int) -> None:
        """The oldest `count` segments were taken out."""
        assert 0 < count < len(self.segments)
        del self.segments[:count]
        self.positions.clear()
        if self.log_start_offset < self.segments[0].base_offset:
            self.advance_log_start(self.segments[0].base_offset)

    def advance_log_start(self, offset: Offset) -> None:
        """Records below `offset` are gone, whether or not their segments are."""
        assert self.log_start_offset <= offset <= self.written_end_offset, (offset, self)
        self.log_start_offset = offset
        self.durable_end_offset = max(self.durable_end_offset, offset)
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.truncate_from_start(offset)

    # -- looking ---------------------------------------------------------------------------------------------------

    def remember(self, offset: Offset, segment: Segment, position: int) -> None:
        """A batch begins, or will begin, at `position`: the next reader of `offset` need not search."""
        positions = self.positions
        if len(positions) >= POSITIONS_CACHED:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def segment_index(self, offset: Offset) -> int:
        """Index in `segments` of the one that holds `offset`, or the first."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def segments_from(self, offset: Offset) -> Iterator[Segment]:
        """The segment that holds `offset`, and those behind it."""
        yield from self.segments[self.segment_index(offset) :]

    def check_readable(self, offset: Offset) -> None:
        """MqError OFFSET_OUT_OF_RANGE unless `offset` is in the log or at its end."""
        if not self.log_start_offset <= offset <= self.written_end_offset:
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is outside {self.log_start_offset} to {self.written_end_offset}",
            )


def _base_offset(segment: Segment) -> Offset:
    return segment.base_offset
