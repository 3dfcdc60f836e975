"""Recovery of one log: from the files in a partition's directory to a `PartitionLog`. It runs in a
worker thread, which recovers the logs of a log directory one after the other.

After a clean shutdown, recovery trusts the indexes and reads only the batches after the last index
entry. After any other stop it reads every batch from the segment with the recovery point on, and
checks shape, CRC and offsets. The log ends before the first bad batch, for one of two reasons:

    torn tail     no valid batch follows: a write did not finish. The file is truncated after the
                  last whole batch.
    corruption    a valid batch with a higher offset follows (torn_tail.py), so the bad batch was
                  complete once. Recovery raises `LogDamaged` and changes no file. The other logs
                  start.

A batch whose length exceeds its file is torn, whatever follows its header. The exception is a batch
below a checkpointed offset (recovery point, high watermark, log end): it was complete once.

After a power cut, a valid batch after a bad one proves nothing about unsynced data, because blocks
reach the disk in any order. Among unsynced data, the log ends before the first bad batch, as with a
torn tail. Such a node cannot vouch for its logs until it has caught up.

If the log ends below the checkpointed high watermark, acknowledged records are lost. The report
contains that, and an error is logged. Indexes are rebuilt if they are missing or damaged, or belong
to segments after the recovery point. Memory is bounded by one chunk or one batch.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.fsync_failure import rewrite_in_place
from mqd.log.disk.leftovers import read_topic_id, remove_leftovers
from mqd.log.disk.log_end_checkpoint import batch_below
from mqd.log.disk.log_replay import LogReplay
from mqd.log.disk.producer_snapshots import (
    open_transaction_index,
    remove_snapshots,
)
from mqd.log.disk.segment_files import (
    new_segment,
    rebuild,
    remove_segment,
    store_indexes,
    store_transaction_index,
)
from mqd.log.disk.segment_scan import Progress, scan_segment
from mqd.log.disk.torn_tail import batch_after, find_batch
from mqd.log.disk.trusted_segments import load_active, load_older
from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.log_end import LOG_END_CHECKPOINT, LOG_END_VOID, LogEnd, loss_reason
from mqd.log.partition_log import PartitionLog
from mqd.log.recovery_report import (
    REMEDY,
    CheckpointedState,
    LogDamaged,
    LogLost,
    RecoveryReport,
)
from mqd.log.segment import Segment
from mqd.protocol.files import (
    LOG_SUFFIX,
    PARTITION_METADATA,
    BadBatch,
    segment_file_name,
)
from mqd.types import ZERO_UUID, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)


def load_log(
    disk: Disk,
    directory: Path,
    topic_partition: TopicPartition,
    checkpointed: CheckpointedState,
    *,
    config: LogConfig,
    now_ms: int,
    progress: Progress,
) -> tuple[PartitionLog, RecoveryReport]:
    """Open `directory`/`topic_partition`.

    Raises LogDamaged, LogLost or LogUnfinished if the log must not be used; OSError if the disk
    fails.
    """
    return _Loader(disk, directory, topic_partition, checkpointed, config, now_ms, progress).load()


class _Loader:
    """The steps of loading one log; lives for one call."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic_partition: TopicPartition,
        checkpointed: CheckpointedState,
        config: LogConfig,
        now_ms: int,
        progress: Progress,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.path = directory / str(topic_partition)
        self.topic_partition = topic_partition
        self.topic_id = ZERO_UUID
        """The id in `partition.metadata`, after `load` has read it."""
        self.checkpointed = checkpointed
        self.config = config
        self.now_ms = now_ms
        self.progress = progress
        self.report = RecoveryReport(topic_partition)
        self.segments: list[Segment] = []
        self.replay = LogReplay(disk, self.path, config, self.report)
        self.undeleted_below: Offset = 0
        """Retention removed the segments below this offset, and a power cut undid some of the
        renames."""
        self.log_start_min: Offset = 0
        """The lowest possible log start, from the checkpoint or the first-offset file."""
        self.unstored_from: Offset = FOREVER_MS
        """From this segment on, transaction indexes are not on disk, for lack of space."""

    def load(self) -> tuple[PartitionLog, RecoveryReport]:
        self.topic_id = read_topic_id(self.disk, self.path, self.checkpointed)
        bases, first_offset = remove_leftovers(self.disk, self.path, self.report)
        if 0 <= self.checkpointed.log_start_offset < first_offset:
            self.checkpointed = replace(self.checkpointed, log_start_offset=first_offset)
        checkpointed = self.checkpointed
        self.log_start_min = max(checkpointed.log_start_offset, first_offset)
        if bases and self._is_lost_before(self.log_start_min, bases[0]):
            self.report.note(
                f"offsets {self.log_start_min} to {bases[0] - 1} are missing at the beginning: "
                "unsynced files reach the disk in any order"
            )
            self._remove(bases)
            bases = []
        scan_from = len(bases) if checkpointed.is_clean else self._first_to_scan(bases)
        if checkpointed.fsync_failed:
            for name in (
                PARTITION_METADATA,
                *(segment_file_name(base, LOG_SUFFIX) for base in bases[scan_from:]),
            ):
                rewrite_in_place(self.disk, self.path / name)
        if scan_from < len(bases):
            self.replay.load_producers(bases[scan_from])
        else:
            self.replay.load_producers(None if bases else self.log_start_min)
        self.replay.load_epochs()
        self._load_segments(bases, scan_from)
        if not checkpointed.is_clean:  # the process may have ended before it synced these
            self.disk.open(self.path / PARTITION_METADATA).sync()
            self.disk.sync_directory(self.path)
        return self._finish(), self.report

    def _first_to_scan(self, bases: list[Offset]) -> int:
        """Index of the segment with the recovery point. Everything before it was synced."""
        index = len(bases) - 1
        while index > 0 and bases[index] > self.checkpointed.recovery_point:
            index -= 1
        return max(0, index)

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
                # The epoch file may be older than a truncation. Scanned batches have the epochs.
                self.replay.epochs.truncate_from_end(base)
                self._replay_trusted(base)
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
                if segment.next_offset < self.checkpointed.log_start_offset:
                    self.undeleted_below = self.checkpointed.log_start_offset
                break
            if following is not None:
                self._join(segment, following)
        if scan_from >= len(bases) and self.segments:
            self.replay.complete_epochs(self.segments, self.log_start_min)
            self._replay_trusted(self.segments[-1].next_offset)
        for segment in self.segments[scan_from:]:
            if segment is not self.segments[-1]:
                segment.on_inactive()
            store_indexes(self.disk, self.path, segment)
            if not store_transaction_index(self.disk, self.path, segment):
                self.unstored_from = min(self.unstored_from, segment.base_offset)
            assert segment.file is not None
            segment.file.sync()

    def _replay_trusted(self, end_offset: Offset) -> None:
        self.replay.replay_trusted(self.segments, end_offset, self.checkpointed.high_watermark)

    def _scan(self, segment: Segment, following: Offset | None) -> BadBatch | None:
        # After a power cut, an unsynced truncation or removal may be undone. Then the batches of
        # this segment may reach beyond the start of the next one.
        bad = scan_segment(
            segment,
            self.replay,
            self.config.index_interval_bytes,
            self.progress,
            end_max=None if self.checkpointed.unsynced_survived else following,
        )
        self.report.scanned_bytes += segment.size
        return bad

    def _is_lost_before(self, end: Offset, following: Offset) -> bool:
        """Whether a power cut removed the offsets from `end`, or from the log start if that is
        later, to the next segment. Then the log ends there.
        """
        if self.checkpointed.cleaned_to is not None and following <= self.checkpointed.cleaned_to:
            return False  # a compaction makes its segments durable before it checkpoints its end
        return (
            not self.checkpointed.unsynced_survived
            and self.checkpointed.recovery_point
            <= max(end, self.checkpointed.log_start_offset)
            < following
        )

    def _remove(self, later: list[Offset]) -> None:
        for base in later:
            self.report.note(f"segment {base} is removed")
            remove_segment(self.disk, self.path, base)

    def _join(self, segment: Segment, following: Offset) -> None:
        """Let the segment end at `following`, where the next one begins."""
        if segment.next_offset > following:
            raise LogDamaged(
                f"{self.path}: segment {segment.base_offset} ends at {segment.next_offset}, "
                f"the next begins at {following}. {REMEDY}"
            )
        if segment.next_offset < following:
            self._note_missing(segment.next_offset, following)
            segment.next_offset = following

    def _note_missing(self, end: Offset, following: Offset) -> None:
        if following <= self.checkpointed.log_start_offset:
            self.undeleted_below = following
            return
        missing = (
            f"{self.path}: offsets {end} to {following - 1} are missing between two "
            f"segments. {REMEDY}"
        )
        self.report.missing_offsets = self.report.missing_offsets or missing

    def _trust(self, segment: Segment, following: Offset | None) -> None:
        """Load a segment from its indexes. If they are damaged, rebuild them from the headers of
        its batches.
        """
        assert segment.file is not None
        size = segment.file.size()
        interval = self.config.index_interval_bytes
        if following is not None:
            end = load_older(self.disk, self.path, segment, size, following, interval)
            if end is not None:
                if end < following:
                    self._note_missing(end, following)
                return
        if following is not None or not load_active(self.disk, self.path, segment, size, interval):
            rebuilt = Segment(segment.base_offset, self.now_ms, segment.file)
            try:
                rebuild(rebuilt, size, interval)
            except BadBatch as bad:
                raise LogDamaged(
                    f"{segment.file.path} {bad}, although it was synced. {REMEDY}"
                ) from None
            self.report.scanned_bytes += size
            self.report.rebuilt_indexes += size > 0
            self.segments[-1] = segment = rebuilt
            if following is not None:
                self._join(segment, following)
                segment.on_inactive()
            store_indexes(self.disk, self.path, segment)
        segment.transaction_index = None
        open_transaction_index(self.disk, self.path, self.segments, segment, self.config)

    def _end_at(self, bad: BadBatch, segment: Segment, later: list[Offset]) -> None:
        """End the log before `bad`, or raise LogDamaged because valid batches follow it."""
        file = segment.file
        assert file is not None
        bad_place = f"{file.path} {bad}"
        was_complete = segment.next_offset < self._complete_below()
        found = batch_after(file, bad.position, segment.next_offset, may_be_torn=not was_complete)
        later_batches = (
            [f"offset {found.base_offset} follows at byte {found.position}"] if found else []
        )
        for base in later:
            path = self.path / segment_file_name(base, LOG_SUFFIX)
            found = find_batch(self.disk.open(path), 0, segment.next_offset)
            if found is not None:
                later_batches.append(f"offset {found.base_offset} follows in {path.name}")
        if later_batches and (self.checkpointed.unsynced_survived or was_complete):
            raise LogDamaged(
                f"{bad_place}; {later_batches[0]}: corruption, not a torn tail. {REMEDY}"
            )
        for later_batch in later_batches:
            self.report.note(
                f"{bad_place}; {later_batch}, which was never synced either: after a power "
                "failure any unsynced block may be missing"
            )
        self.report.truncated_bytes = file.size() - segment.size
        name = segment_file_name(segment.base_offset, LOG_SUFFIX)
        self.report.note(
            f"torn tail: {self.report.truncated_bytes} B from offset {segment.next_offset} on "
            f"truncated in {name} ({bad.reason})"
        )
        file.truncate(segment.size)
        self._remove(later)

    def _complete_below(self) -> Offset:
        """All batches below this offset were complete when a checkpoint was written, and no power
        cut followed (I8)."""
        checkpointed, claim = self.checkpointed, self._end_claim()
        if not checkpointed.unsynced_survived:
            return checkpointed.recovery_point
        claimed = claim.end_offset if claim is not None else 0
        return max(checkpointed.recovery_point, checkpointed.high_watermark, claimed)

    # -- the log -----------------------------------------------------------------------------------

    def _finish(self) -> PartitionLog:
        checkpointed = self.checkpointed
        end = self.segments[-1].next_offset if self.segments else self.log_start_min
        claim = self._check_end(end)
        start = self._choose_log_start(end)
        # Nothing below the high watermark is lost silently (I8).
        if checkpointed.high_watermark > end:
            self.report.truncated_below_high_watermark = checkpointed.high_watermark
            logger.error(
                "a log ends below its high watermark, acknowledged records are lost partition=%s "
                "high_watermark=%d log_end=%d",
                self.topic_partition,
                checkpointed.high_watermark,
                end,
            )
        if start >= self.undeleted_below:
            self._remove_undeleted()
        is_new = not self.segments or start > end
        if is_new:
            self._restart_at(start, end)
        for segment in self.segments[:-1]:
            segment.file = segment.index = segment.time_index = None
            if segment.transaction_index and not segment.transaction_index.stale:
                segment.transaction_index = None
        self.replay.epochs.truncate_from_end(self.segments[-1].next_offset)
        self.replay.epochs.truncate_from_start(start)
        remove_snapshots(self.disk, self.path, self.segments)
        log = PartitionLog(
            self.topic_partition, self.topic_id, self.directory, self.config, self.segments,
            log_start_offset=start, epochs=self.replay.epochs, producers=self.replay.producers,
        )  # fmt: skip
        log.checkpointed_high_watermark = min(
            max(checkpointed.high_watermark, start), log.log_end_offset
        )
        # This removes the transactions that ended below the high watermark.
        log.producers.first_unstable_offset(log.checkpointed_high_watermark)
        # All written records are durable, but not the transaction indexes from `unstored_from` on.
        log.durability.on_loaded(self.unstored_from, checkpointed.recovery_point)
        log.end_claim.line = claim
        log.end_claim.offset_max = claim.end_offset if claim is not None else 0
        log.end_claim.is_void = self.disk.exists(self.path / LOG_END_VOID)
        if checkpointed.cleaned_to is not None:
            log.cleaned_to = min(checkpointed.cleaned_to, log.log_end_offset)
        elif self.replay.has_gaps:
            # The node was killed before it checkpointed that it copied gaps from a leader.
            log.cleaned_to = start
        # A clean shutdown does not sync a log that never held a record: the sync of its first
        # records does (I1).
        log.durability.has_new_files = is_new or (checkpointed.is_clean and not end)
        return log

    def _choose_log_start(self, end: Offset) -> Offset:
        """The log start offset of a log that ends at `end`."""
        checkpointed = self.checkpointed
        first = self.segments[0].base_offset if self.segments else self.log_start_min
        start = max(checkpointed.log_start_offset, first)
        if self.segments and 0 <= checkpointed.log_start_offset < first:
            logger.error(
                "a log starts after its log start offset, records are missing partition=%s "
                "first=%d last=%d",
                self.topic_partition,
                checkpointed.log_start_offset,
                first - 1,
            )
        # A gap below the checkpointed start shows that segments up to it were removed. Without a
        # gap, the checkpoint is wrong.
        if (
            self.segments
            and start > max(end, checkpointed.high_watermark)
            and not self.undeleted_below
        ):
            self.report.ignored_log_start = start
            logger.error(
                "ignoring a checkpointed log start beyond the log end partition=%s "
                "log_start=%d log_end=%d",
                self.topic_partition,
                start,
                end,
            )
            start = first
        return start

    def _remove_undeleted(self) -> None:
        """Remove the segments again that a power cut brought back."""
        undeleted = [one for one in self.segments if one.base_offset < self.undeleted_below]
        self._remove([segment.base_offset for segment in undeleted])
        self.segments = self.segments[len(undeleted) :]

    def _restart_at(self, start: Offset, end: Offset) -> None:
        """Replace all segments by an empty one."""
        if self.segments:
            self.report.note(f"the log ends at {end}, before its start {start}: restarted there")
        for segment in self.segments:
            remove_segment(self.disk, self.path, segment.base_offset)
        self.segments = [new_segment(self.disk, self.path, start, self.now_ms)]

    def _end_claim(self) -> LogEnd | None:
        """The line of the log end checkpoint, if it belongs to this log and counts."""
        claim = self.checkpointed.end_claim
        if claim is None or claim.topic_id != self.topic_id:
            return None
        return None if self.disk.exists(self.path / LOG_END_VOID) else claim

    def _check_end(self, end: Offset) -> LogEnd | None:
        """Raises LogLost if the log does not match its line of the log end checkpoint. Returns that
        line if it counts.
        """
        claim = self._end_claim()
        if claim is None:
            return None
        segment = self.segments[-1] if self.segments else None
        last = batch_below(segment, self.topic_id, claim.end_offset) if segment else None
        # A disk that lost records without a reboot proves nothing (I50).
        reason = loss_reason(claim, end, last)
        if reason is not None:
            raise LogLost(
                f"{self.path}: {reason}. The machine was not restarted, so its disk was detached, "
                "or is an older copy. This log is not served. If another replica leads, this node "
                "copies the log from it; this node vouches for none of its logs. To continue with "
                f"these records, remove {self.directory / LOG_END_CHECKPOINT} while the node is "
                "stopped"
            )
        return claim
