"""From a partition's directory to a `PartitionLog`: trust after a clean stop, proof after any
other.

After an orderly stop only the tail behind the last index entry is looked at. Otherwise every batch
from the segment of the recovery point on is read: shape, CRC, offsets. The first bad batch ends the
log, in one of two ways:

    torn tail     nothing valid follows it: a write that never finished. The file is cut to the last
                  whole batch.
    corruption    a valid batch with a higher offset follows (torn_tail.py): what is between was
                  once there. The log is refused as it is, `LogDamaged`, nothing on disk is changed,
                  and the others start. After a power
                  cut this says nothing of what was never synced, whose blocks come to the disk in
                  any order: there the log ends at the first bad batch as if it were torn, and such
                  a node has no claim to anything until it has caught up.

Cutting below the checkpointed high watermark removes records that were acknowledged; it is done
(there is nothing to keep) and said, in the report and as an error in the log. Indexes are rebuilt
where they are missing, insane or behind the recovery point. Memory is bounded by one chunk or one
batch. Runs in a worker thread, one directory at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.limits import SCAN_BYTES
from mqd.log.disk.first_offset_file import beginning_of, is_beginning
from mqd.log.disk.fsync_failure import write_again
from mqd.log.disk.log_end_checkpoint import NAME as ENDS, VOID, LogEnd, batch_below, why_lost
from mqd.log.disk.producer_snapshots import (
    batches_from,
    have_aborted,
    load_snapshot,
    note_unreplicated,
    remove_snapshots,
    replay_batch,
    snapshot_offsets,
)
from mqd.log.disk.segment_files import (
    load_indexes,
    new_segment,
    rebuild,
    remove_segment,
    store_aborted,
    store_indexes,
)
from mqd.log.disk.segment_swap import finish_replacements
from mqd.log.disk.torn_tail import batch_after, find_batch
from mqd.log.epochs import LeaderEpochs
from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.producers import Producers
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, BatchHeader, crc_of, parse_header
from mqd.protocol.files import (
    DELETED_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_ENTRY,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    PARTITION_METADATA_BYTES,
    RELATIVE_OFFSET_MAX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_ENTRY,
    TIME_INDEX_SUFFIX,
    AbortedTransaction,
    BadBatch,
    FileFormatError,
    decode_leader_epochs,
    decode_partition_metadata,
    parse_segment_file_name,
    scan_batches,
    segment_file_name,
)
from mqd.types import NO_TIMESTAMP, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

Progress = Callable[[int], None]
"""Told how many more bytes were read."""


class LogDamaged(StorageError):
    """A log that cannot be opened as it is. Its files are left alone."""


class LogLost(LogDamaged):
    """A log that lacks what its checkpoint names, though the machine ran on: its disk was
    detached, or is an older copy.
    """


class LogUnfinished(StorageError):
    """The directory of a partition whose creation was interrupted: nothing in it but a
    partition's files, and no record to be missed.
    """


@dataclass(slots=True)
class RecoveryReport:
    """What was found and done in one partition's directory."""

    topic_partition: TopicPartition
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    rebuilt_indexes: int = 0
    truncated_below_high_watermark: Offset | None = None
    """The high watermark that was promised, where the log now ends before it: acknowledged
    records are gone.
    """
    findings: list[str] = field(default_factory=list)
    ignored_log_start: Offset | None = None
    """A checkpointed log start that cannot be true."""
    hole: str | None = None
    """Which offsets are missing between segments: right after a compaction, damage in any
    other log.
    """

    def note(self, finding: str) -> None:
        self.findings.append(finding)
        logger.warning("recovery partition=%s %s", self.topic_partition, finding)


@dataclass(frozen=True, slots=True)
class Known:
    """What the checkpoints of the log directory say of one partition."""

    clean: bool
    recovery_point: Offset = 0
    log_start_offset: Offset = 0
    """-1: no checkpoint says."""
    high_watermark: Offset = 0
    kept: bool = True
    """Whether all that was written is there, synced or not: a killed process loses nothing
    as long as its machine runs.
    """
    suspect: bool = False
    """Whether a write or sync failed in this directory: what was never synced with success
    is written again (disk/fsync_failure.py).
    """
    cleaned_to: Offset | None = None
    """Up to where it was compacted, None for a log that never was."""
    claim: LogEnd | None = None
    """Where it ended by the checkpoint of ends; None where that proves nothing."""


def load_log(
    disk: Disk,
    directory: Path,
    topic_partition: TopicPartition,
    known: Known,
    *,
    config: LogConfig,
    now_ms: int,
    progress: Progress,
) -> tuple[PartitionLog, RecoveryReport]:
    """Open `directory`/`topic_partition`.

    LogDamaged when it must not be used; OSError when the disk fails.
    """
    return _Loader(disk, directory, topic_partition, known, config, now_ms, progress).load()


class _Loader:
    """The steps of loading one log; lives for one call."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic_partition: TopicPartition,
        known: Known,
        config: LogConfig,
        now_ms: int,
        progress: Progress,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.path = directory / str(topic_partition)
        self.topic_partition = topic_partition
        self.known = known
        self.config = config
        self.now_ms = now_ms
        self.progress = progress
        self.report = RecoveryReport(topic_partition)
        self.segments: list[Segment] = []
        self.producers = Producers()
        self.epochs = LeaderEpochs()
        self.replay_from: Offset = 0
        """Where the producer snapshot ends."""
        self.has_gaps = False
        """Whether offsets are missing between batches: the log was cleaned, here or where
        it was copied from.
        """
        self.brought_back: Offset = 0
        """Segments below this offset were removed by retention, and a power cut undid the
        renames of some.
        """
        self.floor: Offset = 0
        """The log starts here or above: by its checkpoint, or by the file of its beginning."""
        self.unstored: Offset = FOREVER_MS
        """From here on transaction indexes are not on disk: there was no space."""

    def load(self) -> tuple[PartitionLog, RecoveryReport]:
        topic_id = self._topic_id()
        bases = self._tidy()
        if bases and self._is_lost_before(self.floor, bases[0]):
            self.report.note(
                f"offsets {self.floor} to {bases[0] - 1} are missing at the beginning: unsynced "
                "files reach the disk in any order"
            )
            self._remove(bases)
            bases = []
        scan_from = len(bases) if self.known.clean else self._first_to_scan(bases)
        if self.known.suspect:
            for name in (
                PARTITION_METADATA,
                *(segment_file_name(base, LOG_SUFFIX) for base in bases[scan_from:]),
            ):
                write_again(self.disk, self.path / name)
        self._load_producers(
            bases[scan_from] if scan_from < len(bases) else None if bases else self.floor
        )
        self._load_epochs()
        self._load_segments(bases, scan_from)
        if not self.known.clean:  # the process that made these may not have come to sync them
            self.disk.open(self.path / PARTITION_METADATA).sync()
            self.disk.sync_directory(self.path)
        return self._finish(topic_id), self.report

    def _topic_id(self) -> UUID:
        path = self.path / PARTITION_METADATA
        found = b""
        try:
            found = self.disk.read_bytes(path)
            return decode_partition_metadata(found)
        except (FileNotFoundError, FileFormatError) as error:
            # Torn, so it was never synced, and with it nothing that is here: the first sync of a
            # log takes all of it.
            torn = len(found) < PARTITION_METADATA_BYTES or b"\0" in found
            if torn and self._is_unfinished():
                raise LogUnfinished(
                    f"{self.path} has no complete {PARTITION_METADATA}, and no acknowledged records"
                ) from None
            if isinstance(error, FileFormatError):
                raise LogDamaged(f"{path}: {error}. {_REMEDY}") from None
            raise LogDamaged(
                f"{self.path} has no {PARTITION_METADATA}: it is not a partition, or its topic is "
                "unknown. Nothing was changed; restore"
                " the file, or move the directory out of the log directory"
            ) from None

    def _is_unfinished(self) -> bool:
        """Whether all that is here is what creating a partition leaves when it is cut short, and no
        record is missed here.

        Records may be here where the machine lost what was never synced: then these are what chance
        has left of it.
        """
        names = self.disk.list(self.path)
        return (
            not self.known.high_watermark
            and all(_is_partition_file(name) or _is_leftover(name) for name in names)
            and not (
                self.known.kept
                and any(
                    self.disk.open(self.path / name).size()
                    for name in names
                    if name.endswith(LOG_SUFFIX)
                )
            )
        )

    def _tidy(self) -> list[Offset]:
        """Base offsets of the segments, ascending, after leftovers are removed."""
        try:
            for finding in finish_replacements(self.disk, self.path):
                self.report.note(finding)
        except StorageError as error:
            raise LogDamaged(str(error)) from None
        names = self.disk.list(self.path)
        self.floor = max(self.known.log_start_offset, beginning_of(names))
        bases: list[Offset] = []
        others: list[tuple[Offset, str, str]] = []
        for name in names:
            parsed = parse_segment_file_name(name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                bases.append(parsed[0])
            elif parsed is not None:
                others.append((*parsed, name))
            elif _is_leftover(name):
                self.disk.remove(self.path / name)
            elif name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)):
                self.report.note(f"file {name} is not part of the log and is ignored")
        known = set(bases)
        for base, suffix, name in others:
            if suffix != SNAPSHOT_SUFFIX and base not in known:
                self.report.note(f"index {name} has no segment and is removed")
                self.disk.remove(self.path / name)
        return sorted(bases)

    def _first_to_scan(self, bases: list[Offset]) -> int:
        """Index of the segment that holds the recovery point: everything before it was synced."""
        index = len(bases) - 1
        while index > 0 and bases[index] > self.known.recovery_point:
            index -= 1
        return max(0, index)

    def _load_producers(self, scan_base: Offset | None) -> None:
        """The newest good snapshot that does not reach into what is scanned anyway."""
        for offset in snapshot_offsets(self.disk, self.path):
            if scan_base is None or offset <= scan_base:
                snapshot = load_snapshot(self.disk, self.path, offset)
                if snapshot is not None:
                    self.producers, self.replay_from = snapshot, offset
                    return
                self.report.note(f"producer snapshot {offset} is damaged and ignored")

    def _load_epochs(self) -> None:
        try:
            self.epochs = LeaderEpochs(
                decode_leader_epochs(self.disk.read_bytes(self.path / LEADER_EPOCH_CHECKPOINT))
            )
        except (FileNotFoundError, FileFormatError) as error:
            if not isinstance(error, FileNotFoundError):
                self.report.note(f"{LEADER_EPOCH_CHECKPOINT} is rebuilt from the log: {error}")
            # every batch has its epoch: read them all
            self.producers, self.replay_from = Producers(), 0

    # -- segments ----------------------------------------------------------------------------------

    def _load_segments(self, bases: list[Offset], scan_from: int) -> None:
        for index, base in enumerate(bases):
            segment = Segment(
                base, self.now_ms, self.disk.open(self.path / segment_file_name(base, LOG_SUFFIX))
            )
            following = bases[index + 1] if index + 1 < len(bases) else None
            self.segments.append(segment)
            if index < scan_from:
                self._trust(segment, following)
                continue
            if index == scan_from:
                # the file may be older than a cut: batches that are read say it better
                self.epochs.truncate_from_end(base)
                self._replay_trusted(bases[index])
            bad = self._scan(segment, following)
            if bad is not None:
                self._end_at(bad, segment, bases[index + 1 :])
                break
            if following is not None and self._is_lost_before(segment.next_offset, following):
                self.report.note(
                    f"offsets {segment.next_offset} to {following - 1} are missing: unsynced files "
                    "reach the disk in any order"
                )
                self._remove(bases[index + 1 :])
                break
            if following is not None:
                self._join(segment, following)
        if scan_from >= len(bases) and self.segments:
            self._replay_trusted(self.segments[-1].next_offset)
        for segment in self.segments[scan_from:]:
            if segment is not self.segments[-1]:
                segment.seal()
            store_indexes(self.disk, self.path, segment)
            if not store_aborted(self.disk, self.path, segment):
                self.unstored = min(self.unstored, segment.base_offset)
            assert segment.file is not None
            segment.file.sync()

    def _is_lost_before(self, end: Offset, following: Offset) -> bool:
        """Whether offsets from `end` to the next segment are missing because a power cut
        took them: the log ends there.
        """
        if self.known.cleaned_to is not None and following <= self.known.cleaned_to:
            return False  # what is written of a compaction is durable before it counts
        return (
            not self.known.kept
            and max(self.known.recovery_point, self.known.log_start_offset) <= end < following
        )

    def _remove(self, later: list[Offset]) -> None:
        for base in later:
            self.report.note(f"segment {base} is removed")
            remove_segment(self.disk, self.path, base)

    def _join(self, segment: Segment, following: Offset) -> None:
        """The next segment begins at `following`: this one ends there."""
        if segment.next_offset > following:
            raise LogDamaged(
                f"{self.path}: segment {segment.base_offset} ends at {segment.next_offset}, "
                f"the next begins at {following}. {_REMEDY}"
            )
        if segment.next_offset < following:
            self._miss(segment.next_offset, following)
            segment.next_offset = following

    def _miss(self, end: Offset, following: Offset) -> None:
        if following <= self.known.log_start_offset:
            self.brought_back = following
            return
        hole = (
            f"{self.path}: offsets {end} to {following - 1} are missing between two "
            f"segments. {_REMEDY}"
        )
        self.report.hole = self.report.hole or hole

    def _end_of(self, segment: Segment, size: int) -> Offset | None:
        """Where a segment that is believed ends, from the batches behind its last index
        entry; None where that makes no sense.
        """
        assert segment.file is not None
        try:
            index, _ = load_indexes(self.disk, self.path, segment.base_offset, size)
            headers = [
                header
                for _, header, _ in scan_batches(segment.file.read_at, index.last_position(), size)
            ]
        except (FileFormatError, FileNotFoundError, BadBatch):
            return None
        return headers[-1].last_offset + 1 if headers else segment.base_offset

    def _trust(self, segment: Segment, following: Offset | None) -> None:
        """A segment that was synced, or left by an orderly stop: believe its indexes unless
        they cannot be true.
        """
        assert segment.file is not None
        size = segment.file.size()
        if (
            following is not None
            and self._seem_indexed(segment, size)
            and (end := self._end_of(segment, size)) is not None
            and end <= following
        ):
            if end < following:
                self._miss(end, following)
            segment.size, segment.next_offset = size, following
            segment.max_timestamp, segment.max_timestamp_offset = self._last_time(segment)
            # opened again when somebody reads there
            segment.index = segment.time_index = segment.file = segment.aborted = None
            return
        if following is not None or not self._restore(segment, size):
            fresh = Segment(segment.base_offset, self.now_ms, segment.file)
            try:
                rebuild(fresh, size, self.config.index_interval_bytes)
            except BadBatch as bad:
                raise LogDamaged(
                    f"{segment.file.path} {bad}, although it was synced. {_REMEDY}"
                ) from None
            self.report.scanned_bytes += size
            self.report.rebuilt_indexes += size > 0
            self.segments[-1] = segment = fresh
            if following is not None:
                self._join(segment, following)
                segment.seal()
            store_indexes(self.disk, self.path, segment)
        segment.aborted = None
        have_aborted(self.disk, self.path, self.segments, segment, self.config)

    def _seem_indexed(self, segment: Segment, size: int) -> bool:
        """Whether both index files of an older segment are there and not obviously wrong;
        contents are judged when read.
        """
        try:
            index = self.disk.open(
                self.path / segment_file_name(segment.base_offset, INDEX_SUFFIX)
            ).size()
            time_index = self.disk.open(
                self.path / segment_file_name(segment.base_offset, TIME_INDEX_SUFFIX)
            ).size()
        except FileNotFoundError:
            return False
        if (
            index % INDEX_ENTRY.size
            or time_index % TIME_INDEX_ENTRY.size
            or (size and not time_index)
        ):
            return False
        return index > 0 or size <= self.config.index_interval_bytes

    def _last_time(self, segment: Segment) -> tuple[int, Offset]:
        file = self.disk.open(self.path / segment_file_name(segment.base_offset, TIME_INDEX_SUFFIX))
        if not file.size():
            return NO_TIMESTAMP, segment.base_offset
        timestamp, relative = TIME_INDEX_ENTRY.unpack(
            file.read_at(file.size() - TIME_INDEX_ENTRY.size, TIME_INDEX_ENTRY.size)
        )
        return timestamp, segment.base_offset + relative

    def _restore(self, segment: Segment, size: int) -> bool:
        """The active segment after an orderly stop: its indexes, and the batches from the
        last index entry on.
        """
        file = segment.file
        assert file is not None
        try:
            index, time_index = load_indexes(self.disk, self.path, segment.base_offset, size)
            start = index.last_position()
            for position, header, view in scan_batches(file.read_at, start, size):
                if position == start:
                    if len(index) and header.last_offset != index.last_offset():
                        return False
                    first = parse_header(file.read_at(0, HEADER_BYTES)).max_timestamp
                    segment.restore(start, header.base_offset, index, time_index, first)
                if header.base_offset < segment.next_offset:
                    return False
                segment.add(
                    header.last_offset,
                    len(view),
                    header.max_timestamp,
                    self.config.index_interval_bytes,
                )
        except (FileFormatError, FileNotFoundError, BadBatch):
            return False
        return True

    def _scan(self, segment: Segment, following: Offset | None) -> BadBatch | None:
        """Read every batch; the segment's state and indexes are made anew.

        The first bad batch, or None.
        """
        file = segment.file
        assert file is not None
        bad: BadBatch | None = None
        reported = 0
        try:
            for position, header, view in scan_batches(file.read_at, 0, file.size()):
                if crc_of(view, 0, len(view)) != header.crc:
                    raise BadBatch(position, "the CRC-32C is wrong")
                if header.base_offset < segment.next_offset:
                    raise BadBatch(
                        position,
                        f"base offset {header.base_offset} where {segment.next_offset} was due",
                    )
                # a cut was not synced, or a removal
                if (
                    following is not None
                    and header.last_offset >= following
                    and not self.known.kept
                ):
                    raise BadBatch(
                        position, f"offset {header.last_offset} is in the next segment, too"
                    )
                due = segment.next_offset
                self.has_gaps |= header.base_offset > due
                if header.last_offset > segment.base_offset + RELATIVE_OFFSET_MAX:
                    raise BadBatch(
                        position, f"offset {header.last_offset} is too far from the segment's base"
                    )
                segment.add(
                    header.last_offset,
                    len(view),
                    header.max_timestamp,
                    self.config.index_interval_bytes,
                )
                aborted = self._replay(header, view, due)
                if aborted is not None:
                    segment.add_aborted((aborted,))
                if position - reported >= SCAN_BYTES:
                    self.progress(position - reported)
                    reported = position
        except BadBatch as error:
            bad = error
        self.progress(segment.size - reported)
        self.report.scanned_bytes += segment.size
        return bad

    def _end_at(self, bad: BadBatch, segment: Segment, later: list[Offset]) -> None:
        """The log ends before `bad`, or is refused because it goes on after it."""
        file = segment.file
        assert file is not None
        where = f"{file.path} {bad}"
        synced = segment.next_offset < self.known.recovery_point
        found = batch_after(file, bad.position, segment.next_offset, may_be_torn=not synced)
        places = [f"offset {found[1]} follows at byte {found[0]}"] if found is not None else []
        for base in later:
            path = self.path / segment_file_name(base, LOG_SUFFIX)
            found = find_batch(self.disk.open(path), 0, segment.next_offset)
            if found is not None:
                places.append(f"offset {found[1]} follows in {path.name}")
        if places and (self.known.kept or synced):
            raise LogDamaged(f"{where}; {places[0]}: corruption, not a torn tail. {_REMEDY}")
        for place in places:
            self.report.note(
                f"{where}; {place}, which was never synced either: after a power failure any "
                "unsynced block may be missing"
            )
        self.report.truncated_bytes = file.size() - segment.size
        name = segment_file_name(segment.base_offset, LOG_SUFFIX)
        self.report.note(
            f"torn tail: {self.report.truncated_bytes} B from offset {segment.next_offset} on "
            f"truncated in {name} ({bad.reason})"
        )
        file.truncate(segment.size)
        self._remove(later)

    # -- producers and epochs ----------------------------------------------------------------------

    def _replay(
        self, header: BatchHeader, view: memoryview, due: Offset
    ) -> AbortedTransaction | None:
        """`due`: where the batch before it ended.

        Behind a gap an epoch begins there, as at a follower that copies it.
        """
        if header.partition_leader_epoch > self.epochs.latest:
            self.epochs.assign(header.partition_leader_epoch, due)
        return (
            replay_batch(self.producers, header, view)
            if header.base_offset >= self.replay_from
            else None
        )

    def _replay_trusted(self, end_offset: Offset) -> None:
        """Batches of trusted segments that are younger than the snapshot."""
        due = max(self.replay_from, self.segments[0].base_offset)
        try:
            note_unreplicated(
                self.disk,
                self.path,
                self.segments,
                self.config,
                self.producers,
                self.replay_from,
                self.known.high_watermark,
            )
            for header, view in batches_from(
                self.disk, self.path, self.segments, self.replay_from, self.config
            ):
                if header.base_offset >= end_offset:
                    break
                self._replay(header, view, min(due, header.base_offset))
                due = header.next_offset
        except BadBatch as bad:
            raise LogDamaged(f"{self.path} {bad}, although it was synced. {_REMEDY}") from None

    def _finish(self, topic_id: UUID) -> PartitionLog:
        known = self.known
        end = self.segments[-1].next_offset if self.segments else self.floor
        claim = self._check_end(topic_id, end)
        first = self.segments[0].base_offset if self.segments else self.floor
        start = max(known.log_start_offset, first)
        if self.segments and 0 <= known.log_start_offset < first:
            logger.error(
                "a log starts after its log start offset, records are "
                "missing "
                "partition=%s "
                "first=%d last=%d",
                self.topic_partition,
                known.log_start_offset,
                first - 1,
            )
        # A gap below the checkpointed start proves that segments were removed up to it. Then the
        # records between the end and the start were lost in the power cut that undid a removal.
        if self.segments and start > max(end, known.high_watermark) and not self.brought_back:
            self.report.ignored_log_start = start
            logger.error(
                "ignoring a checkpointed log start beyond the "
                "log end "
                "partition=%s "
                "log_start=%d log_end=%d",
                self.topic_partition,
                start,
                end,
            )
            start = first
        # Nothing below the high watermark is lost silently (I8).
        if known.high_watermark > end:
            self.report.truncated_below_high_watermark = known.high_watermark
            logger.error(
                "a log ends below its high watermark, acknowledged "
                "records "
                "are lost "
                "partition=%s "
                "high_watermark=%d "
                "log_end=%d",
                self.topic_partition,
                known.high_watermark,
                end,
            )
        if start >= self.brought_back:
            self._remove(
                [
                    segment.base_offset
                    for segment in self.segments
                    if segment.base_offset < self.brought_back
                ]
            )
            self.segments = [
                segment for segment in self.segments if segment.base_offset >= self.brought_back
            ]
        anew = not self.segments or start > end
        if anew:
            if self.segments:
                self.report.note(
                    f"the log ends at {end}, before its start {start}: restarted there"
                )
            for segment in self.segments:
                remove_segment(self.disk, self.path, segment.base_offset)
            self.segments = [new_segment(self.disk, self.path, start, self.now_ms)]
        for segment in self.segments[:-1]:
            segment.file = segment.index = segment.time_index = None
            if segment.aborted and not segment.aborted.stale:
                segment.aborted = None
        self.epochs.truncate_from_end(self.segments[-1].next_offset)
        self.epochs.truncate_from_start(start)
        remove_snapshots(self.disk, self.path, self.segments)
        log = PartitionLog(
            self.topic_partition, topic_id, self.directory, self.config, self.segments,
            log_start_offset=start, epochs=self.epochs, producers=self.producers,
        )  # fmt: skip
        log.checkpointed_high_watermark = min(max(known.high_watermark, start), log.log_end_offset)
        # which forgets what is past
        log.producers.first_unstable_offset(log.checkpointed_high_watermark)
        # All is durable that is written, but not yet the transaction indexes from `unstored` on.
        log.durability.on_loaded(self.unstored, known.recovery_point)
        log.noted, log.noted_end = claim, claim.end_offset if claim is not None else 0
        log.end_is_void = self.disk.exists(self.path / VOID)
        if known.cleaned_to is not None:
            log.cleaned_to = min(known.cleaned_to, log.log_end_offset)
        elif self.has_gaps:
            # copied from a leader that had cleaned it, and killed before the checkpoint said so
            log.cleaned_to = start
        # An orderly stop does not sync a log that never held a record: the sync of its first
        # records does (I1).
        log.new_files = anew or (known.clean and not end)
        return log

    def _check_end(self, topic_id: UUID, end: Offset) -> LogEnd | None:
        """LogLost unless the log has what its checkpoint names.

        The line, where it is of this log and was compared.
        """
        claim = self.known.claim
        if claim is None or claim.topic_id != topic_id or self.disk.exists(self.path / VOID):
            return None
        last = batch_below(self.segments[-1], topic_id, claim.end_offset) if self.segments else None
        # A disk that lost records without a reboot proves nothing (I50).
        reason = why_lost(claim, end, last)
        if reason is not None:
            raise LogLost(
                f"{self.path}: {reason}. The machine ran on, so its disk was detached, or is "
                "an older copy. This log is not served, and is"
                " copied from the leader where another replica leads; this node vouches for "
                "none of its logs. To go on with what is here,"
                f" remove {self.directory / ENDS} while the node is stopped"
            )
        return claim


_REMEDY = (
    "Nothing was changed; restore the partition from a replica or a backup. To start it empty, "
    "move its directory away and remove its line"
    f" from {HIGH_WATERMARK_CHECKPOINT} (and lower the count in its second line) while the node is "
    "stopped"
)
_LEFTOVERS = (DELETED_SUFFIX, ".tmp")
"""Ends of the names that a partition's files take before they count, or when they count no more."""


def _is_leftover(name: str) -> bool:
    """Whether a crash left this file: not yet renamed to a file of the partition, or not yet
    removed.
    """
    return name.endswith(_LEFTOVERS) and _is_partition_file(name.rpartition(".")[0])


def _is_partition_file(name: str) -> bool:
    return (
        parse_segment_file_name(name) is not None
        or name in (PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT, VOID)
        or is_beginning(name)
    )
