"""The logs of a node and their directories: loads, opens, creates and deletes logs.

A log is in `logs` if it is served, and in `fenced` if it is on disk but damaged or misplaced. A
directory that fails goes offline, with all its logs, until the process restarts.
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
from mqd.log.disk.checkpoints import checkpointed
from mqd.log.disk.directory import (
    LoadProgress,
    LogDirectory,
    create_log,
    load_directory,
    retire_directory,
    retire_log,
    why_missing,
)
from mqd.log.disk.fsync_failure import mark
from mqd.log.disk.recovery import RecoveryReport
from mqd.log.log_config import FOREVER_MS, LogConfig
from mqd.log.log_dir_placement import Homes
from mqd.log.manager.delayed_deletes import Removals
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import storage_error
from mqd.log.manager.syncer import Syncer, every
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.log.record_inspection import Looking
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
        descriptors: Descriptors,
        syncer: Syncer,
        removals: Removals,
        *,
        claim: Callable[[], MetaProperties] | None,
        kept: bool,
        ran_on: bool,
        on_created: Callable[[PartitionLog], None],
        on_forgotten: Callable[[PartitionLog], None],
        on_directory_failed: Callable[[Path, StorageError], None],
    ) -> None:
        """`claim`, `kept`, `ran_on`: see `LogService`. `on_forgotten`: a log was deleted, and its
        files are about to be moved away."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.fenced: dict[TopicPartition, str] = {}
        """Partitions on disk that are not served, and why."""
        self.reports: list[RecoveryReport] = []
        """Findings of `load` for the operator."""
        self.directories = directories
        self.clean_start = False
        """Whether every directory was left by an orderly stop."""
        self.suspect = False
        """Whether `load` found acknowledged records missing, or that a write or sync had failed.
        Then this node cannot vouch for its records."""
        self.looking = Looking()
        self.stale_recovery_points: dict[TopicPartition, Offset] = {}
        """The largest offset that the checkpoint may still have for a deleted log."""
        self.on_directory_failed = on_directory_failed
        self._disk = disk
        self._clock = clock
        self._descriptors = descriptors
        self._syncer = syncer
        self._removals = removals
        self._on_created = on_created
        self._on_forgotten = on_forgotten
        self._claim, self._kept, self._ran_on = claim, kept, ran_on
        self._homes = Homes()
        self._holes: dict[TopicPartition, str] = {}
        """Logs with missing offsets: fenced when opened, unless their topic is compacted."""

    # -- loading ---------------------------------------------------------------------------------

    async def load(self) -> LoadProgress:
        """Lock the directories and recover every log in them. StorageError if no directory can be
        used, or if one belongs to another node."""
        progress = LoadProgress()
        refusals: list[StorageError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(every, PROGRESS_SECONDS, progress.tell)
            async with trio.open_nursery() as loading:
                for directory in self.directories.values():
                    loading.start_soon(self._load_directory, directory, progress, refusals)
            nursery.cancel_scope.cancel()
        if refusals:
            self.release_locks()
            raise refusals[0]
        online = self.online()
        if not online:
            reasons = (str(directory.failed) for directory in self.directories.values())
            raise StorageError("; ".join(reasons))
        self._descriptors.hold_spares(online[0].path)
        cut = any(one.truncated_below_high_watermark is not None for one in self.reports)
        self.suspect = cut or any(one.suspect or one.lost for one in online)
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
                self._claim,
                now_ms,
                progress,
                self._kept,
                self._ran_on,
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
        for partition, reason in loaded.fenced:
            self.fence(partition, reason)
        for path in loaded.removals:
            logger.info("removing the files of a deleted partition path=%s", path)
            self._removals.add(path, 0)
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
            self._carry(log)
            self._carry(other)
        elif partition not in self.fenced:
            self.logs[partition] = log
            if report.hole is not None:
                self._holes[partition] = report.hole
        if report.findings or report.truncated_below_high_watermark is not None:
            self.reports.append(report)

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories.values() if directory.failed is None]

    def found_serial(self, directory_ids: Collection[UUID]) -> int:
        """The lowest disk serial that `load` found in these directories. One of them may be an
        older copy of itself."""
        found = self.found_serials().items()
        return min((serial for one, serial in found if one in directory_ids), default=0)

    def found_serials(self) -> dict[UUID, int]:
        """Directory id -> the disk serial that `load` found, before it wrote anything."""
        return {one.id: one.found_serial for one in self.online() if one.id is not None}

    def fence(self, partition: TopicPartition, reason: str) -> None:
        self.fenced[partition] = reason
        logger.error(
            "log is fenced, it serves no requests partition=%s reason=%s", partition, reason
        )

    def settle_missing(self, mine: Collection[TopicPartition]) -> None:
        """Fence the partitions whose logs are gone. `mine`: those that the metadata had assigned to
        this node before now. Called once.

        Otherwise they would begin again, empty, and nobody would notice the loss.
        """
        for partition in mine:
            if partition in self.logs or partition in self.fenced:
                continue
            # A partition that had records never restarts empty (I18).
            reason = why_missing(self.directories.values(), partition)
            if reason is not None:
                self.fence(partition, reason)
            else:
                logger.warning(
                    "partition starts empty: this node was a replica before,"
                    " but has no files of it partition=%s",
                    partition,
                )
        for directory in self.directories.values():
            directory.forget(directory.carries - set(mine) - set(self.fenced))

    def _carry(self, log: PartitionLog) -> None:
        """The log is not served. The checkpoints keep its lines."""
        for name, carried in self.directories[log.directory].carried.items():
            carried |= checkpointed(name, [log], log.directory, {})

    def _uncarry(self, partition: TopicPartition) -> None:
        """The checkpoints drop the lines of an earlier log with this name."""
        for directory in self.directories.values():
            directory.forget((partition,))

    # -- opening and creating --------------------------------------------------------------------

    def open(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        directory: Path | None = None,
    ) -> PartitionLog:
        """The log of a partition. If there is none, it is created in `directory`, or in the one
        with the fewest logs.

        MqError KAFKA_STORAGE_ERROR for a fenced log, INCONSISTENT_TOPIC_ID if the log on disk is of
        another topic with the same name. StorageError if the disk is full or no directory is
        online.
        """
        if partition in self.fenced:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, self.fenced[partition])
        log = self.logs.get(partition)
        if log is None:
            log = self.logs[partition] = self._create(partition, topic_id, config, directory)
        elif log.topic_id != topic_id:
            raise MqError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{log.path} holds topic id {log.topic_id}, not {topic_id}",
            )
        else:
            self._check_hole(log, config)
        log.opened = True
        log.looking = self.looking
        log.update_config(config)
        return log

    def _check_hole(self, log: PartitionLog, config: LogConfig) -> None:
        partition = log.topic_partition
        hole = self._holes.pop(partition, None)
        if hole is None or log.cleaned_to is not None or "compact" in config.cleanup_policy:
            return
        self._carry(log)
        del self.logs[partition]
        self.fence(partition, hole)
        raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, hole)

    def _create(
        self, partition: TopicPartition, topic_id: UUID, config: LogConfig, chosen: Path | None
    ) -> PartitionLog:
        home = self._homes.choose(self.directories.values(), self.logs.values(), chosen)
        self._descriptors.check_partitions(len(self.logs))
        try:
            log = create_log(
                self._disk,
                home,
                partition,
                topic_id,
                config,
                self._clock.wall_ms(),
                end_is_void=partition in self.stale_recovery_points,
            )
        except OSError as error:
            path = home / str(partition)
            with self._descriptors.lent(home), suppress(OSError):
                self._disk.remove_tree(path)
            raise storage_error(f"cannot create {path}", error) from error
        self._homes.added(home)
        self._uncarry(partition)
        log.durability.recovery_point = self.stale_recovery_points.pop(partition, 0)
        self._on_created(log)
        return log

    # -- deleting --------------------------------------------------------------------------------

    def delete(self, partition: TopicPartition, *, nameless: bool = False) -> None:
        """Forget a log. Its directory is renamed now and removed later. Does nothing if there is
        none.

        `nameless`: also move away directories of that name whose topic id cannot be read.
        """
        self._uncarry(partition)
        self._holes.pop(partition, None)
        log = self.logs.pop(partition, None)
        self.stale_recovery_points[partition] = (
            log.durability.recovery_point if log is not None else FOREVER_MS
        )
        if self.fenced.pop(partition, None) is not None and log is None:
            self._delete_fenced(partition, nameless)
        if log is None:
            return
        self._homes.changed()
        log.failure = LogFailure(f"{partition} was deleted")
        log.durability.on_deleted()
        log.forget_queue()
        self._on_forgotten(log)
        try:
            target = retire_log(self._disk, log)
        except OSError as error:
            failure = storage_error(f"cannot rename {log.path}", error)
            self.fail_directory(log.directory, failure)
            return
        self._removals.add(target, log.config.file_delete_delay_ms)

    def _delete_fenced(self, partition: TopicPartition, nameless: bool) -> None:
        """Nobody has its files open, so only its directories are moved away."""
        for directory in self.online():
            path = directory.path
            try:
                target = retire_directory(self._disk, path, partition, nameless=nameless)
            except OSError as error:
                failure = storage_error(f"cannot rename {path / str(partition)}", error)
                self.fail_directory(path, failure)
                continue
            if target is not None:
                self._removals.add(target, LogConfig().file_delete_delay_ms)

    def discard_corrupt(self, partition: TopicPartition) -> bool:
        """Move a fenced or failed log away, so that `open` begins an empty one. Returns whether
        that was done.

        Only for a replica that can be copied again: another replica leads, and this one is neither
        in the ISR nor eligible to lead. False if the log is healthy or cannot be moved. Files in an
        offline directory stay there.
        """
        log = self.logs.get(partition)
        if partition not in self.fenced and (log is None or log.is_readable):
            return False
        reason = self.fenced.get(partition)
        if not reason and log is not None and log.failure is not None:
            reason = log.failure.reason
        logger.error(
            "discarding a log, fetching it again from the leader partition=%s reason=%s",
            partition,
            reason,
        )
        if log is not None and self.directories[log.directory].failed is not None:
            del self.logs[partition]
        self.fenced.setdefault(partition, "it is given up")
        self.delete(partition, nameless=True)
        return partition not in self.fenced

    # -- failing directories ---------------------------------------------------------------------

    def fail_unless_retriable(self, path: Path, error: StorageError) -> None:
        """For work that is repeated from time to time: lack of space does not fail it for good."""
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
        with self._descriptors.lent(path):
            mark(self._disk, path)
        self._homes.changed()
        directory.to_sync.clear()
        self._syncer.tell()
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
