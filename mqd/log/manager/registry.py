"""The logs of a node and their directories: loads, opens, creates and deletes logs.

A log is in `logs` if it is served, and in `offline` if it is on disk but damaged or misplaced. A
directory that fails goes offline, with all its logs, until the process restarts.

Logs of topics with `mqd.storage=memory` are in a directory of their own, which is in memory
(memory_logs.py). Nothing of it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import trio

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.memory_files import MEMORY
from mqd.log.disk.checkpoints import checkpointed
from mqd.log.disk.directory_loading import LoadProgress, load_directory
from mqd.log.disk.fsync_failure import set_mark
from mqd.log.disk.partition_directory import (
    create_log,
    free_name,
    retire_directory,
    retire_log,
)
from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.log_dir_placement import LogDirPlacement
from mqd.log.log_directory import LogDirectory, why_missing
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import storage_error
from mqd.log.manager.syncer import Syncer
from mqd.log.memory_logs import LOST, MemoryLogs
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.log.record_inspection import RecordInspection
from mqd.log.recovery_report import RecoveryReport
from mqd.protocol.files import MetaProperties
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0


class LogRegistry:
    """See the head of this file. All methods but `load` are synchronous."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directories: Mapping[Path, LogDirectory],
        memory_logs: MemoryLogs,
        descriptors: Descriptors,
        syncer: Syncer,
        deletes: DelayedDeletes,
        *,
        new_meta_properties: Callable[[], MetaProperties] | None,
        unsynced_survived: bool,
        survival_proven: bool,
        on_created: Callable[[PartitionLog], None],
        on_forgotten: Callable[[PartitionLog], None],
        on_directory_failed: Callable[[Path, StorageError], None],
    ) -> None:
        """`new_meta_properties`, `unsynced_survived`, `survival_proven`: see `LogService`.
        `on_forgotten` is called for a deleted log, before its directory is renamed."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions on disk that are not served, and why."""
        self.reports: list[RecoveryReport] = []
        """Findings of `load`, for the operator."""
        self.memory_logs = memory_logs
        self.directories = directories
        self.disk_directories = {
            path: directory for path, directory in directories.items() if path != MEMORY
        }
        disk.make_directory(MEMORY)
        self.clean_start = False
        """Whether every directory had a clean shutdown."""
        self.may_lack_records = False
        """Whether `load` found that acknowledged records are missing, or that a write or sync had
        failed. Then this node cannot vouch for its records."""
        self.inspection = RecordInspection()
        self.stale_recovery_points: dict[TopicPartition, Offset] = {}
        """The largest offset that the checkpoint may still have for a deleted log."""
        self.on_directory_failed = on_directory_failed
        self._disk = disk
        self._clock = clock
        self._descriptors = descriptors
        self._syncer = syncer
        self._deletes = deletes
        self._on_created = on_created
        self._on_forgotten = on_forgotten
        self._new_meta_properties = new_meta_properties
        self._unsynced_survived, self._survival_proven = unsynced_survived, survival_proven
        self._placement = LogDirPlacement()
        self._missing_offsets: dict[TopicPartition, str] = {}
        """Logs with missing offsets. `open` fences them, unless their topic is compacted."""

    # -- loading ---------------------------------------------------------------------------------

    async def load(self) -> LoadProgress:
        """Lock the directories and recover every log in them. Raises StorageError if no directory
        can be used, or if one belongs to another node."""
        progress = LoadProgress()
        refusals: list[StorageError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_log_progress, progress)
            async with trio.open_nursery() as loading:
                for directory in self.disk_directories.values():
                    loading.start_soon(self._load_directory, directory, progress, refusals)
            nursery.cancel_scope.cancel()
        if refusals:
            self.release_locks()
            raise refusals[0]
        online = self.online()
        if not online:
            reasons = (str(directory.failed) for directory in self.disk_directories.values())
            raise StorageError("; ".join(reasons))
        self._descriptors.hold_spares(online[0].path)
        self.may_lack_records = any(
            report.truncated_below_high_watermark is not None for report in self.reports
        ) or any(directory.fsync_failed or directory.lost_logs for directory in online)
        self.clean_start = all(directory.broker_epoch is not None for directory in online)
        return progress

    async def _load_directory(
        self, directory: LogDirectory, progress: LoadProgress, refusals: list[StorageError]
    ) -> None:
        now_ms = self._clock.wall_ms()
        try:
            loaded = await self._disk.offload(
                load_directory,
                self._disk,
                directory,
                self._new_meta_properties,
                now_ms,
                progress,
                self._unsynced_survived,
                self._survival_proven,
            )
        except StorageError as error:
            refusals.append(error)
            return
        except BlockingIOError:
            # One process at a time (I16).
            refusals.append(StorageError(f"{directory.path} is in use by another process"))
            return
        except OSError as error:
            path = directory.path
            directory.failed = f"{path}: {error}"
            logger.error("log directory is offline directory=%s reason=%s", path, error)
            return
        for partition, reason in loaded.offline:
            self.fence(partition, reason)
        for path in loaded.deleted:
            logger.info("removing the files of a deleted partition path=%s", path)
            self._deletes.add(path, 0)
        for log, report in loaded.logs:
            self._add_loaded(log, report)

    def _add_loaded(self, log: PartitionLog, report: RecoveryReport) -> None:
        partition = log.topic_partition
        other = self.logs.get(partition)
        if other is not None:
            self.fence(
                partition,
                f"{partition} is in two directories: {other.directory} and {log.directory}",
            )
            del self.logs[partition]
            self._keep_checkpoint_lines(log)
            self._keep_checkpoint_lines(other)
        elif partition not in self.offline:
            self.logs[partition] = log
            if report.missing_offsets is not None:
                self._missing_offsets[partition] = report.missing_offsets
        if report.findings or report.truncated_below_high_watermark is not None:
            self.reports.append(report)

    def online(self) -> list[LogDirectory]:
        """The directories on disk that are online."""
        directories = self.disk_directories.values()
        return [directory for directory in directories if directory.failed is None]

    def found_serial(self, directory_ids: Collection[UUID]) -> int:
        """The lowest disk serial that `load` found in these directories. One of them may be an
        older copy of itself."""
        found = self.found_serials().items()
        return min((serial for one, serial in found if one in directory_ids), default=0)

    def found_serials(self) -> dict[UUID, int]:
        """Directory id -> the disk serial that `load` found, before it wrote anything."""
        return {one.id: one.found_serial for one in self.online() if one.id is not None}

    def fence(self, partition: TopicPartition, reason: str) -> None:
        self.offline[partition] = reason
        logger.error(
            "log is offline, it serves no requests partition=%s reason=%s", partition, reason
        )

    def fence_lost_in_memory(self, assigned: Collection[TopicPartition]) -> None:
        """Fence the partitions in memory that the metadata had assigned to this node before this
        start: the last process may have had their records (I59). Called once.
        """
        for partition in assigned:
            self.offline[partition] = LOST
        if assigned:
            logger.info(
                "partitions in memory begin without records count=%d for_example=%s",
                len(assigned),
                next(iter(assigned)),
            )

    def fence_missing(self, assigned: Collection[TopicPartition]) -> None:
        """Fence the partitions whose logs are missing. `assigned`: those that the metadata had
        assigned to this node before this start. Called once.

        Otherwise such a partition would start empty, and the loss would remain unnoticed.
        """
        for partition in assigned:
            if partition in self.logs or partition in self.offline:
                continue
            # A partition that had records never restarts empty (I18).
            reason = why_missing(self.disk_directories.values(), partition)
            if reason is not None:
                self.fence(partition, reason)
            else:
                logger.warning(
                    "partition starts empty: this node was a replica before,"
                    " but has no files of it partition=%s",
                    partition,
                )
        for directory in self.directories.values():
            directory.drop_unserved(
                directory.unserved_partitions - set(assigned) - set(self.offline)
            )

    def _keep_checkpoint_lines(self, log: PartitionLog) -> None:
        """The log is no longer served. The checkpoints keep its lines."""
        for name, offsets in self.directories[log.directory].unserved_offsets.items():
            offsets |= checkpointed(name, [log], log.directory, {})

    def _drop_checkpoint_lines(self, partition: TopicPartition) -> None:
        """The checkpoints drop the lines of an earlier log with this name."""
        for directory in self.directories.values():
            directory.drop_unserved((partition,))

    # -- opening and creating --------------------------------------------------------------------

    def open(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        directory: Path | None = None,
        begin_again_at: Offset | None = None,
    ) -> PartitionLog:
        """The log of a partition. If there is none, it is created in `directory`, or in the one
        with the fewest logs, or in memory.

        `begin_again_at`: where an empty log begins if the one in memory is lost.

        Raises MqError KAFKA_STORAGE_ERROR for an offline log, INCONSISTENT_TOPIC_ID if the log on
        disk is of another topic with the same name. Raises StorageError if the disk is full or no
        directory is online.
        """
        if begin_again_at is not None and self.offline.get(partition) == LOST:
            del self.offline[partition]
        if partition in self.offline:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline[partition])
        log = self.logs.get(partition)
        if log is None:
            log = self._create(partition, topic_id, config, directory, begin_again_at or 0)
            self.logs[partition] = log
        elif log.topic_id != topic_id:
            raise MqError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.path} holds topic id {log.topic_id}, not {topic_id}",
            )
        else:
            self._check_missing_offsets(log, config)
        log.opened = True
        log.inspection = self.inspection
        self.configure(log, config)
        return log

    def configure(self, log: PartitionLog, config: LogConfig) -> None:
        """Apply the configuration of a topic to a log."""
        if config.memory_bytes:
            self.memory_logs.configure(log, config)
        else:
            log.update_config(config)

    def _check_missing_offsets(self, log: PartitionLog, config: LogConfig) -> None:
        partition = log.topic_partition
        missing = self._missing_offsets.pop(partition, None)
        if missing is None or log.cleaned_to is not None or "compact" in config.cleanup_policy:
            return
        self._keep_checkpoint_lines(log)
        del self.logs[partition]
        self.fence(partition, missing)
        raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, missing)

    def _create(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        chosen: Path | None,
        first_offset: Offset,
    ) -> PartitionLog:
        directory = (
            MEMORY
            if config.memory_bytes
            else self._placement.choose(self.online(), self.logs.values(), chosen)
        )
        self._descriptors.check_partitions(len(self.logs))
        fresh = free_name(self._disk, directory, partition, topic_id)
        try:
            log = create_log(
                self._disk,
                directory,
                partition,
                topic_id,
                config,
                self._clock.wall_ms(),
                fresh,
                first_offset=first_offset,
                void_end=partition in self.stale_recovery_points,
            )
        except OSError as error:
            with self._descriptors.spares_released(directory), suppress(OSError):
                self._disk.remove_tree(fresh)
            raise storage_error(f"cannot create {directory / str(partition)}", error) from error
        if directory != MEMORY:
            self._placement.on_created(directory)
        self._drop_checkpoint_lines(partition)
        log.durability.recovery_point = self.stale_recovery_points.pop(partition, 0)
        self._on_created(log)
        return log

    # -- deleting --------------------------------------------------------------------------------

    def delete(self, partition: TopicPartition, *, unidentified: bool = False) -> None:
        """Forget a log. Its directory is renamed now and removed later. Does nothing if there is
        none.

        `unidentified`: also move away directories of that name whose topic id cannot be read.
        """
        self._drop_checkpoint_lines(partition)
        self._missing_offsets.pop(partition, None)
        log = self.logs.pop(partition, None)
        self.stale_recovery_points[partition] = (
            log.durability.recovery_point if log is not None else FOREVER_MS
        )
        if self.offline.pop(partition, None) is not None and log is None:
            self._delete_offline(partition, unidentified)
        if log is None:
            return
        self._placement.recount()
        log.failure = LogFailure(f"{partition} was deleted")
        log.durability.on_deleted()
        log.forget_queue()
        self.memory_logs.forget(log)
        self._on_forgotten(log)
        try:
            target = retire_log(self._disk, log)
        except OSError as error:
            failure = storage_error(f"cannot rename {log.path}", error)
            self.fail_directory(log.directory, failure)
            return
        self._deletes.add(target, log.config.file_delete_delay_ms)

    def _delete_offline(self, partition: TopicPartition, unidentified: bool) -> None:
        """Its files are not open, so only its directories are renamed."""
        for directory in self.online():
            path = directory.path
            try:
                target = retire_directory(self._disk, path, partition, unidentified=unidentified)
            except OSError as error:
                failure = storage_error(f"cannot rename {path / str(partition)}", error)
                self.fail_directory(path, failure)
                continue
            if target is not None:
                self._deletes.add(target, LogConfig().file_delete_delay_ms)

    def discard_corrupt(self, partition: TopicPartition) -> bool:
        """Move an offline or failed log away, so that `open` begins an empty one. Returns whether
        that was done.

        Only for a replica that can be copied again: another replica leads, and this one is neither
        in the ISR nor eligible to lead. False if the log is healthy or cannot be moved. Files in an
        offline directory stay there.
        """
        log = self.logs.get(partition)
        if partition not in self.offline and (log is None or log.is_readable):
            return False
        reason = self.offline.get(partition)
        if not reason and log is not None and log.failure is not None:
            reason = log.failure.reason
        logger.log(
            logging.INFO if reason == LOST else logging.ERROR,
            "discarding a log, fetching it again from the leader partition=%s reason=%s",
            partition,
            reason,
        )
        if log is not None and self.directories[log.directory].failed is not None:
            del self.logs[partition]
        self.offline.setdefault(partition, "it is discarded")
        self.delete(partition, unidentified=True)
        return partition not in self.offline

    # -- failing directories ---------------------------------------------------------------------

    def fail_unless_retriable(self, path: Path, error: StorageError) -> None:
        """Handle an error of regular background work: lack of space does not take the directory
        offline.
        """
        if error.out_of_space:
            logger.warning("background work failed, will retry reason=%s", error)
        else:
            self.fail_directory(path, error)

    def fail_directory(self, path: Path, error: StorageError) -> None:
        """Take a directory offline for good: every log in it refuses reads and writes."""
        directory = self.directories[path]
        if directory.failed is not None:
            return
        directory.failed = str(error)
        with self._descriptors.spares_released(path):
            set_mark(self._disk, path)
        self._placement.recount()
        directory.to_sync.clear()
        self._syncer.wake_waiters()
        failure = LogFailure(str(error))
        for log in self.logs.values():
            if log.directory == path:
                log.failure = failure
        logger.critical("log directory is offline directory=%s reason=%s", path, error)
        self.on_directory_failed(path, error)

    def release_locks(self) -> None:
        for directory in self.directories.values():
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None


async def _log_progress(progress: LoadProgress) -> None:
    """Log the progress of the load until cancelled."""
    while True:
        await trio.sleep(PROGRESS_SECONDS)
        progress.log_progress()
