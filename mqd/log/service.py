"""The logs of a node: connects the parts, starts and stops them, and reports what is durable.

The parts are in mqd/log/manager: registry.py (the logs), writing.py (appends), reading.py,
truncation.py, syncer.py, housekeeping.py (retention, checkpoints) and compactor.py.

All slow work is in worker threads: small files, recovery, removals, and fdatasync. One sync cycle
of a directory includes all logs that wait for it (group commit).

Failures of a disk:
- It is full, or there are no descriptors or no memory: appends are refused until that has passed.
- Any other failed write, and any failed sync: the directory goes offline, `on_directory_failed` is
  called, and nothing is retried.
- Recovery finds corrupt records: that log is offline, with the reason. The others are served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from mqd.errors import NO_DESCRIPTORS, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.memory_files import MEMORY, DiskWithMemory
from mqd.limits import PRODUCERS_PER_PARTITION_MAX
from mqd.log.disk.file_truncation import remove_outdated_files
from mqd.log.disk.log_end_checkpoint import log_ends_changed
from mqd.log.disk.sync_plan import SyncPlan
from mqd.log.log_config import LogConfig
from mqd.log.log_directory import LogDirectory
from mqd.log.manager.clean_shutdown import close_directory
from mqd.log.manager.compactor import Compactor
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.housekeeping import CHECKPOINT_SECONDS, Housekeeping
from mqd.log.manager.key_indexer import KeyIndexer
from mqd.log.manager.key_lookups import KeyLookups
from mqd.log.manager.producer_bound import ProducerBound
from mqd.log.manager.reading import Reader, storage_error
from mqd.log.manager.registry import LogRegistry
from mqd.log.manager.syncer import Syncer
from mqd.log.manager.truncation import Truncation
from mqd.log.manager.writing import Writer
from mqd.log.memory_logs import MemoryLogs, partitions_max
from mqd.log.partition_log import LogFailure, PartitionLog
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    MetaProperties,
)
from mqd.types import Offset

logger = logging.getLogger(__name__)

NO_SPACE_RETRY_SECONDS = 5.0


class LogService:
    """See the head of this file. All methods but `start`, `run` and `close` are synchronous and
    belong to the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directories: Sequence[Path],
        *,
        on_durable: Callable[[PartitionLog], None],
        on_directory_failed: Callable[[Path, StorageError], None],
        on_log_start_moved: Callable[[PartitionLog], None] = lambda log: None,
        high_watermark_of: Callable[[PartitionLog], Offset] = lambda log: log.log_start_offset,
        new_meta_properties: Callable[[], MetaProperties] | None = None,
        retention_check_interval_ms: int = 300_000,
        producer_id_expiration_ms: int = 86_400_000,
        producers_max: int = PRODUCERS_PER_PARTITION_MAX,
        descriptors: int = 1 << 20,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        memory_bytes_max: int = 0,
        unsynced_survived: bool = True,
        survival_proven: bool = False,
    ) -> None:
        """`new_meta_properties` returns the content for a missing `meta.properties`. None: none is
        written.
        `high_watermark_of`: of the replica, for logs in memory. All of them together have at most
        `memory_bytes_max`.
        `descriptors`: how many files the logs may keep open. `unsynced_survived`: whether all
        written data should still be there, because nothing shows that the machine was restarted.
        `survival_proven`: whether it is proven that it was not. Then a log without the records that
        the log end checkpoint names is lost (log_end.py).
        """
        assert directories
        disk = DiskWithMemory(disk, memory_bytes_max)
        self._disk = disk
        self._clock = clock
        self._on_durable = on_durable
        self.directories = {path: LogDirectory(path) for path in directories}
        everywhere = {**self.directories, MEMORY: LogDirectory(MEMORY)}
        self._descriptors = Descriptors(disk, descriptors)
        self._memory_partitions_max = partitions_max(memory_bytes_max)
        self._syncer = Syncer(disk, everywhere, self.after_sync, self._not_synced)
        self._deletes = DelayedDeletes(disk, clock, lambda: self.housekeeping.wake())
        self.registry = LogRegistry(
            disk,
            clock,
            everywhere,
            MemoryLogs(memory_bytes_max),
            self._descriptors,
            self._syncer,
            self._deletes,
            new_meta_properties=new_meta_properties,
            unsynced_survived=unsynced_survived,
            survival_proven=survival_proven,
            on_created=lambda log: self.housekeeping.check_recovery_point(log),
            on_forgotten=self._forget,
            on_directory_failed=on_directory_failed,
        )
        self.housekeeping = Housekeeping(
            disk,
            clock,
            self.registry,
            self._descriptors,
            self._syncer,
            self._deletes,
            on_log_start_moved=on_log_start_moved,
            high_watermark_of=high_watermark_of,
            retention_check_interval_ms=retention_check_interval_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
            checkpoint_seconds=checkpoint_seconds,
        )
        self.producer_bound = ProducerBound(clock, self.registry.logs, producers_max)
        self.reader = Reader(self._descriptors, self.registry.fence)
        self.truncation = Truncation(
            disk,
            clock,
            self.registry,
            self.housekeeping,
            self.reader,
            self._syncer,
            self._deletes,
            self._forget,
        )
        self._writer = Writer(
            disk,
            self.registry,
            self.housekeeping,
            self.truncation,
            self._descriptors,
            self._syncer,
        )
        self.compactor = Compactor(
            disk,
            clock,
            self.registry.logs,
            self._descriptors,
            self.reader,
            self._deletes,
            on_failed=self.registry.fail_directory,
            store_checkpoint=lambda: self.housekeeping.store(CLEANER_CHECKPOINT),
        )
        self.key_indexer = KeyIndexer(
            disk, clock, self.registry.logs, on_failed=self.registry.fail_directory
        )
        self.key_lookups = KeyLookups(disk, self._descriptors, self.reader, self.key_indexer)
        self._give_access()

    @property
    def partitions_max(self) -> int:
        """The number of partitions that the file descriptors of this process allow."""
        return self._descriptors.partitions_max

    @property
    def memory_partitions_max(self) -> int:
        """The number of partitions that this node may have in memory."""
        return self._memory_partitions_max

    @property
    def has_logs_in_memory(self) -> bool:
        """Whether a topic with `mqd.storage=memory` has a partition here."""
        return any(log.config.memory_bytes for log in self.logs.values())

    def _give_access(self) -> None:
        """Callers use the parts through the service."""
        registry = self.registry
        self.logs, self.offline, self.reports = registry.logs, registry.offline, registry.reports
        self.inspection = registry.inspection
        self.found_serial = registry.found_serial
        self.found_serials = registry.found_serials
        self.fence_missing = registry.fence_missing
        self.fence_lost_in_memory = registry.fence_lost_in_memory
        self.open = registry.open
        self.delete = registry.delete
        self.discard_corrupt = registry.discard_corrupt
        self.release_locks = registry.release_locks

        self.append_nowait = self._writer.append_nowait
        self.append_as_follower = self._writer.append_as_follower
        self.flush = self._writer.flush

        self.read = self.reader.read
        self.offset_for_timestamp = self.reader.offset_for_timestamp
        self.record_with_max_timestamp = self.reader.record_with_max_timestamp

        self.delete_records = self.truncation.delete_records
        self.truncate_to = self.truncation.truncate_to
        self.reset = self.truncation.reset

        housekeeping = self.housekeeping
        self.retain = housekeeping.retain
        self.checkpoint_recovery_points = housekeeping.checkpoint_recovery_points
        self.checkpoint_high_watermark = housekeeping.checkpoint_high_watermark
        self.checkpointed_high_watermark = housekeeping.checkpointed_high_watermark

    # -- starting and stopping -------------------------------------------------------------------

    async def start(self) -> None:
        """Lock the directories and recover every log. Raises StorageError if no directory can be
        used, or if one belongs to another node."""
        began = self._clock.monotonic()
        progress = await self.registry.load()
        online = self.registry.online()
        self.housekeeping.disk_serial = max(directory.serial for directory in online)
        if any(log.durability.recovery_point_is_too_high for log in self.logs.values()):
            await self.checkpoint_recovery_points()
        seconds = self._clock.monotonic() - began
        if not self.logs and not self.offline and not self.registry.clean_start:
            # `clean=False` of a first start would look as if the node had crashed
            logger.info("logs loaded count=0 seconds=%.3f", seconds)
            return
        logger.info(
            "logs loaded count=%d offline=%d scanned_bytes=%d clean=%s seconds=%.3f",
            len(self.logs),
            len(self.offline),
            progress.scanned_bytes,
            self.registry.clean_start,
            seconds,
        )

    async def run(self) -> None:
        """Sync, retain, roll by time, checkpoint, remove, compact, index keys, until cancelled.
        `close` comes after it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._syncer.run)
            nursery.start_soon(self.housekeeping.run)
            nursery.start_soon(self.producer_bound.run)
            nursery.start_soon(self.housekeeping.run_high_watermarks)
            nursery.start_soon(self.housekeeping.run_memory)
            nursery.start_soon(self.compactor.run)
            nursery.start_soon(self.key_indexer.run)

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Orderly stop, after `run` was cancelled: writes, syncs, snapshots, checkpoints, and the
        marker that all this was done.

        `broker_epoch` goes into the marker. A directory in which something fails gets no marker,
        and the next start recovers its logs.
        """
        self._descriptors.release_spares()
        for log, error in self.flush():
            logger.error(
                "records lost at shutdown partition=%s reason=%s", log.topic_partition, error
            )
        serial = self.housekeeping.disk_serial + log_ends_changed(self.logs.values())
        for directory in self.directories.values():
            logs = [log for log in self.logs.values() if log.directory == directory.path]
            try:
                if directory.failed is None:
                    await close_directory(self._disk, directory, logs, broker_epoch, serial)
            except StorageError as error:
                logger.warning(
                    "no clean marker, the next start scans directory=%s reason=%s",
                    directory.path,
                    error,
                )
            except OSError as error:
                failure = storage_error(f"cannot close {directory.path}", error)
                self.registry.fail_unless_retriable(directory.path, failure)
        await self.housekeeping.report_serials()
        self.release_locks()
        failure_at_stop = LogFailure("the node is shutting down")
        for log in self.logs.values():
            log.failure = failure_at_stop
            for segment in log.segments:
                segment.file = None

    def update_config(self, log: PartitionLog, config: LogConfig) -> None:
        self.registry.configure(log, config)
        self.key_indexer.sealed(log)
        was_due = self.housekeeping.forget(log)
        is_undurable = log.durability.end_offset < log.written_end_offset
        if was_due or (config.flush_before_ack and is_undurable):
            self.request_sync(log)  # no later append may request it

    def _forget(self, log: PartitionLog) -> None:
        """The log was deleted or reset."""
        self._descriptors.forget(log)
        self.housekeeping.forget(log)
        self._writer.forget(log)
        self.registry.directories[log.directory].to_sync.pop(log, None)
        self._syncer.wake_waiters()

    # -- durability ------------------------------------------------------------------------------

    def request_sync(self, log: PartitionLog, *, whole: bool = True) -> None:
        """Have a worker thread make durable what is written now. `on_durable` is called when that
        has moved the durable end."""
        self._syncer.request(log, whole=whole)

    async def wait_synced(self) -> None:
        """Wait until the next sync of any log has ended, successful or not."""
        await self._syncer.wait()

    def _not_synced(self, log: PartitionLog, error: StorageError | OSError) -> None:
        """Raises StorageError: there was no space for the small files. Without descriptors, nothing
        was tried. Any other failure is final."""
        if isinstance(error, OSError) and error.errno not in NO_DESCRIPTORS:
            failure = storage_error(f"cannot sync {log.path}", error)
            self.registry.fail_directory(log.directory, failure)
            return
        partition = log.topic_partition
        logger.warning("cannot sync, will retry partition=%s reason=%s", partition, error)
        if self.logs.get(partition) is log:
            self.housekeeping.flush_later(log, NO_SPACE_RETRY_SECONDS)

    def after_sync(self, plan: SyncPlan) -> None:
        """On the event loop: the records are durable, unless the log was truncated meanwhile."""
        log, now = plan.log, self.logs.get(plan.log.topic_partition)
        if (
            now is not None
            and now.path == log.path
            and (now is not log or plan.truncations != log.truncations)
        ):
            with suppress(OSError):  # the next start does it, too
                remove_outdated_files(self._disk, now, plan.indexed, plan.outdated())
            # The log that has this name now may have got small files of the old one.
            now.epochs.dirty |= now is not log
            if self.registry.directories[now.directory].failed is None:
                # A write that was undone is a truncation, too. Nothing else requests a sync of the
                # records before it.
                self.request_sync(now)
            return
        if now is not log:
            return
        if plan.includes_new_files:
            log.durability.on_directory_synced()
        if log.on_synced(plan.end_offset):
            self._descriptors.close_older(log)
            self._on_durable(log)
        if log.config.mqd_key_index:
            self.key_indexer.wake()
