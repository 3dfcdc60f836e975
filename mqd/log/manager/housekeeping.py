"""Regular work on the logs of a node: due flushes, retention, checkpoints, removals of old files.

One task does it all, and sleeps until the next deadline or a call of `wake`. High watermarks have
their own task, because they are written more often. So have logs in memory, because their bound
must not wait for a disk.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import trio

from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import PRODUCER_SNAPSHOTS_PENDING_MAX, SEGMENTS_RETIRED_AT_ONCE
from mqd.log.disk.file_truncation import retire_oldest
from mqd.log.disk.first_offset_file import mark_first_offset
from mqd.log.disk.segment_files import append_indexes, new_segment
from mqd.log.manager.checkpointing import store_checkpoint, store_log_ends
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import storage_error
from mqd.log.manager.registry import LogRegistry
from mqd.log.manager.syncer import Syncer
from mqd.log.memory_logs import has_offsets_for_a_segment
from mqd.log.partition_log import PartitionLog
from mqd.log.producer_expiry import expire
from mqd.log.producer_state import ProducerSnapshot
from mqd.log.retention import plan_retention
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0
"""Kafka's `log.flush.offset.checkpoint.interval.ms`, for recovery points and log starts."""
CHECKPOINT_SECONDS_MIN = 0.1
HIGH_WATERMARK_SECONDS = 5.0
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`."""
NEW_LOG_SYNC_SECONDS = 1.0
"""The maximum time that a checkpoint of high watermarks waits for the first sync of new logs. It
does not include logs that are not synced by then."""


class Housekeeping:
    """See the head of this file."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        registry: LogRegistry,
        descriptors: Descriptors,
        syncer: Syncer,
        removals: DelayedDeletes,
        *,
        on_log_start_moved: Callable[[PartitionLog], None],
        high_watermark_of: Callable[[PartitionLog], Offset],
        retention_check_interval_ms: int,
        producer_id_expiration_ms: int,
        checkpoint_seconds: float,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._descriptors = descriptors
        self._syncer = syncer
        self._deletes = removals
        self._on_log_start_moved = on_log_start_moved
        self._high_watermark_of = high_watermark_of
        self._retention_seconds = retention_check_interval_ms / 1000
        self._producer_expiry_ms = producer_id_expiration_ms
        self.checkpoint_seconds = max(CHECKPOINT_SECONDS_MIN, checkpoint_seconds)
        self.flush_due: dict[PartitionLog, float] = {}
        """Log -> when to sync it (monotonic seconds)."""
        self.disk_serial = 0
        """The serial that the log end checkpoints of all directories have (log_end_checkpoint.py).
        The heartbeat reports it to the controller."""
        self.on_log_ends_stored: Callable[[Mapping[UUID, int]], None] = lambda serials: None
        """Called with the disk serial of each directory, by id, in a worker thread. Set after
        `start`."""
        self.retired_segments = 0
        """The number of segments that retention or DeleteRecords removed."""
        self._grown_in_memory: dict[PartitionLog, None] = {}
        """Logs in memory that have begun a segment since they were last trimmed."""
        self._grown = trio.Event()
        self._woken = trio.Event()
        self._storing = trio.Lock()
        """Two tasks must not write the same file at the same time."""
        self._log_starts_moved = False
        self._log_starts_unstored: set[Path] = set()
        """The directories whose log start checkpoint could not be written the last time."""
        self._recovery_points_moved = False

    def wake(self) -> None:
        """Something is due earlier than the sleeping task expects."""
        self._woken.set()

    def flush_later(self, log: PartitionLog, seconds: float) -> None:
        """Sync the log after this time."""
        self.flush_due[log] = self._clock.monotonic() + seconds
        self.wake()

    def forget(self, log: PartitionLog) -> bool:
        """Cancel the flush of a log. Returns whether one was due."""
        return self.flush_due.pop(log, None) is not None

    def store_log_starts_soon(self) -> None:
        """Write the log starts and remove the segments below them, soon."""
        self._log_starts_moved = True
        self.wake()

    def check_recovery_point(self, log: PartitionLog) -> None:
        """Write the recovery points soon if the one on disk may be too high. Until then the log
        begins no segment. A log in memory has none."""
        if log.config.memory_bytes:
            log.durability.recovery_point = 0
        elif log.durability.recovery_point_is_too_high:
            self._recovery_points_moved = True
            self.wake()

    async def run_high_watermarks(self) -> None:
        """Write high watermark checkpoints until cancelled."""
        while True:
            await trio.sleep(HIGH_WATERMARK_SECONDS)
            await self.store(HIGH_WATERMARK_CHECKPOINT)

    async def run(self) -> None:
        """Do all other work until cancelled."""
        checkpoint_at = self._clock.monotonic() + self.checkpoint_seconds
        retention_at = self._clock.monotonic() + self._retention_seconds
        while True:
            self._woken = trio.Event()
            now = self._clock.monotonic()
            for log in [log for log, due in self.flush_due.items() if due <= now]:
                del self.flush_due[log]
                self._syncer.request(log)
            if retention_at <= now:
                retention_at = now + self._retention_seconds
                await self.retain()
            if self._log_starts_moved:
                self._log_starts_moved = False
                await self.store(LOG_START_CHECKPOINT)
                await self.retain()
            if checkpoint_at <= now:
                checkpoint_at = now + self.checkpoint_seconds
                await self.store(LOG_START_CHECKPOINT)
                self._recovery_points_moved = True
            if self._recovery_points_moved:
                await self.checkpoint_recovery_points()
            await self._deletes.remove_due(now)
            deadlines = [*self.flush_due.values(), *self._deletes.deadlines()]
            wake_at = min([checkpoint_at, retention_at, *deadlines])
            with trio.move_on_after(max(0.0, wake_at - self._clock.monotonic())):
                await self._woken.wait()

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint_high_watermark(self, partition: TopicPartition, high_watermark: Offset) -> None:
        """Set the high watermark of a partition for the next checkpoint. It is written within
        seconds, or by a clean shutdown."""
        log = self._registry.logs.get(partition)
        if log is not None:
            log.checkpointed_high_watermark = min(high_watermark, log.written_end_offset)

    def checkpointed_high_watermark(self, partition: TopicPartition) -> Offset:
        """The last checkpointed high watermark, within the log. 0 if there is no log."""
        log = self._registry.logs.get(partition)
        return log.checkpointed_high_watermark if log is not None else 0

    async def checkpoint_recovery_points(self) -> None:
        """Write the durable end of each log as its recovery point. A log that was truncated below
        its old recovery point begins no segment until this is done."""
        self._recovery_points_moved = False
        registry = self._registry
        logs = [log for log in registry.logs.values() if not log.config.memory_bytes]
        stale = list(registry.stale_recovery_points)
        if any(log.cleaned_to is not None for log in logs):
            # A start does not look for gaps below the recovery point.
            await self.store(CLEANER_CHECKPOINT)
        await self.store(RECOVERY_POINT_CHECKPOINT)
        self.disk_serial = await store_log_ends(
            self._disk, registry.disk_directories.values(), logs, self.disk_serial, self._not_stored
        )
        await self.report_serials()
        for partition in stale:
            registry.stale_recovery_points.pop(partition, None)

    async def report_serials(self) -> None:
        """The log end checkpoints are on disk."""
        directories = self._registry.disk_directories.values()
        serials = {one.id: one.serial for one in directories if one.id is not None}
        await self._disk.offload(self.on_log_ends_stored, serials)

    async def _sync_new_logs(self) -> None:
        """Sync the logs that were never synced and have a high watermark, so that its checkpoint
        may include them."""

        def unsynced() -> list[PartitionLog]:
            return [
                log
                for log in self._registry.logs.values()
                if log.checkpointed_high_watermark
                and not log.durability.directory_is_durable
                and log.failure is None
            ]

        for log in unsynced():
            self._syncer.request(log)
        with trio.move_on_after(NEW_LOG_SYNC_SECONDS):
            while unsynced():
                await self._syncer.wait()

    async def store(self, name: str) -> None:
        """Write one kind of checkpoint in every directory that is online."""
        registry = self._registry
        if name == HIGH_WATERMARK_CHECKPOINT:
            await self._sync_new_logs()
        async with self._storing:
            if name == LOG_START_CHECKPOINT:
                self._log_starts_unstored.clear()
            await store_checkpoint(
                self._disk,
                name,
                registry.disk_directories.values(),
                registry.logs.values(),
                self._not_stored,
            )

    def _not_stored(self, path: Path, error: OSError) -> None:
        if path.name == LOG_START_CHECKPOINT:
            self._log_starts_unstored.add(path.parent)
        failure = storage_error(f"cannot write {path}", error)
        self._registry.fail_unless_retriable(path.parent, failure)

    # -- segments -------------------------------------------------------------------------------

    def roll(self, log: PartitionLog, base_offset: Offset, snapshot: ProducerSnapshot) -> None:
        """Begin a segment. `snapshot`: the producers as of `base_offset`."""
        old = log.active
        self._descriptors.check_room()
        if log.config.memory_bytes:
            if not has_offsets_for_a_segment(log, base_offset):
                raise OSError(errno.ENOSPC, "no offsets are left in this leader epoch")
            self._grown_in_memory[log] = None
            self._grown.set()
        log.on_rolled(new_segment(self._disk, log.path, base_offset, self._clock.wall_ms()))
        append_indexes(self._disk, log.path, old)
        durability = log.durability
        durability.unwritten_snapshots.append((base_offset, snapshot))
        del durability.unwritten_snapshots[:-PRODUCER_SNAPSHOTS_PENDING_MAX]
        durability.has_new_files = True
        self._syncer.request(log, whole=False)
        self._descriptors.close_older(log)
        self._descriptors.opened(log, old)

    async def run_memory(self) -> None:
        """Remove the oldest segments of logs in memory that have become too large, until cancelled.

        It happens in the pass of the event loop after a new segment, and not in `roll`: a log start
        that moves wakes fetches, and the writes of a turn must end before that.
        """
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            self._trim_memory()

    def _trim_memory(self) -> None:
        now_ms = self._clock.wall_ms()
        grown, self._grown_in_memory = self._grown_in_memory, {}
        for log in grown:
            if log.failure is not None or self._registry.logs.get(log.topic_partition) is not log:
                continue
            assert not log.queue, log
            high_watermark = min(self._high_watermark_of(log), log.written_end_offset)
            log.checkpointed_high_watermark = max(log.checkpointed_high_watermark, high_watermark)
            count, _reason = plan_retention(log, now_ms)
            count = min(count, len(log.segments) - 1)
            if count:
                self._move_log_start(log, log.segments[count - 1].next_offset)
                self.retired_segments += count
                for path in retire_oldest(self._disk, log, count):
                    self._disk.remove(path)

    async def retain(self) -> None:
        """Remove segments by retention and log start, roll segments that are old enough, and expire
        idle producers.

        Log starts are written before any file is renamed. After a power cut, a renamed file may
        have its old name again. Then a start must not take the gap between two segments for lost
        records. If the disk is too full for the checkpoint, an empty file notes the log start.
        """
        now_ms = self._clock.wall_ms()
        plans: dict[PartitionLog, tuple[Offset, str]] = {}
        for log in self._idle_logs():
            for _ in expire(log.producers, now_ms, self._producer_expiry_ms):
                await trio.lowlevel.checkpoint()
            count, reason = plan_retention(log, now_ms)
            if not log.durability.may_roll:
                count = min(count, len(log.segments) - 1)
            if count:
                end = log.segments[count - 1].next_offset
                plans[log] = (end, reason)
                self._move_log_start(log, end)
            await trio.lowlevel.checkpoint()
        if self._log_starts_moved:
            self._log_starts_moved = False
            await self.store(LOG_START_CHECKPOINT)
        for log in self._idle_logs():
            end, reason = plans.get(log, (0, ""))
            if end and log.directory in self._log_starts_unstored:
                await self._note_log_start(log, end)
                if log.failure is not None or log.queue:
                    continue
            while self._remove_segments(log, end, reason, now_ms):
                await trio.lowlevel.checkpoint()
                was_reset = log.log_start_offset < end
                if log.failure is not None or log.queue or was_reset:
                    break
            await trio.lowlevel.checkpoint()

    def _idle_logs(self) -> Iterator[PartitionLog]:
        """Logs that are open and have no queue at the moment of the iteration. A log that was
        deleted meanwhile has a failure. Another one may have its name."""
        for log in list(self._registry.logs.values()):
            if log.opened and log.failure is None and not log.queue:
                yield log

    def _move_log_start(self, log: PartitionLog, offset: Offset) -> None:
        if offset > log.log_start_offset:
            log.advance_log_start(offset)
            self._log_starts_moved = True
            self._on_log_start_moved(log)

    async def _note_log_start(self, log: PartitionLog, offset: Offset) -> None:
        """Note the log start beside the segments. If even this fails, the segments are removed all
        the same, because nothing else frees the disk.
        """
        try:
            await self._disk.offload(mark_first_offset, self._disk, log.path, offset)
        except OSError as error:
            logger.warning(
                "removing segments without a durable log start partition=%s reason=%s",
                log.topic_partition,
                error,
            )

    def _remove_segments(self, log: PartitionLog, end: Offset, reason: str, now_ms: int) -> bool:
        """Take segments below `end` out of the log, and roll the active one if it is due. Returns
        whether more are left: their files are renamed on the event loop, a few in one step.
        """
        active = log.active
        try:
            if log.durability.may_roll and (
                (active.size and active.next_offset <= end)
                or log.roll.is_too_old(active, log.config, now_ms)
            ):
                self.roll(log, log.log_end_offset, log.producers.freeze())
            oldest = log.segments[: min(SEGMENTS_RETIRED_AT_ONCE, len(log.segments) - 1)]
            count = sum(segment.next_offset <= end for segment in oldest)
            if count:
                self.retire(log, count, reason)
            return count == SEGMENTS_RETIRED_AT_ONCE
        except OSError as error:
            failure = storage_error(f"cannot clean {log.path}", error)
            self._registry.fail_unless_retriable(log.directory, failure)
            return False

    def retire(self, log: PartitionLog, count: int, reason: str) -> None:
        """Take the oldest segments out of the log. Their files are removed after
        `file.delete.delay.ms`."""
        end = log.segments[count - 1].next_offset
        logger.info(
            "removing segments partition=%s count=%d up_to=%d reason=%s",
            log.topic_partition,
            count,
            end,
            reason,
        )
        self.retired_segments += count
        retired = retire_oldest(self._disk, log, count)
        self._deletes.add_all(retired, log.config.file_delete_delay_ms)
