"""Makes logs shorter: DeleteRecords at the start, truncation at the end, a reset of the whole log.

disk/file_truncation.py changes files and state of one log. This file decides what a failure means,
and counts truncations of committed records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.log.disk.file_truncation import plan_truncation, run_truncation
from mqd.log.disk.partition_directory import free_name, reset_log
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.housekeeping import Housekeeping
from mqd.log.manager.reading import Reader, storage_error
from mqd.log.manager.registry import LogRegistry
from mqd.log.manager.syncer import Syncer
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import BadBatch
from mqd.types import Offset

logger = logging.getLogger(__name__)


class Truncation:
    """See the head of this file. `on_forgotten` is called for a log whose files were renamed."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        registry: LogRegistry,
        housekeeping: Housekeeping,
        reader: Reader,
        syncer: Syncer,
        deletes: DelayedDeletes,
        on_forgotten: Callable[[PartitionLog], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._housekeeping = housekeeping
        self._reader = reader
        self._syncer = syncer
        self._deletes = deletes
        self._on_forgotten = on_forgotten
        self.below_high_watermark = 0
        """The number of truncations of committed records."""

    def delete_records(self, log: PartitionLog, offset: Offset) -> Offset:
        """Let the log begin at `offset`, and return the log start. OFFSET_OUT_OF_RANGE above the
        written end."""
        if offset > log.written_end_offset or offset < 0:
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{log.topic_partition} ends at {log.written_end_offset}, before {offset}",
            )
        if offset > log.log_start_offset:
            log.advance_log_start(offset)
            self._housekeeping.store_log_starts_soon()
        return log.log_start_offset

    def truncate_to(self, log: PartitionLog, offset: Offset) -> None:
        """Remove the batch with `offset` and all later ones. If that is below the log start, the
        log is reset. Raises StorageError.

        Below the checkpointed high watermark, this is logged and counted.
        """
        assert not log.queue, log
        if offset >= log.log_end_offset:
            log.epochs.truncate_from_end(log.log_end_offset)
        elif offset < log.log_start_offset:
            self.reset(log, offset)
        else:
            self._truncate(log, offset)

    def _truncate(self, log: PartitionLog, offset: Offset) -> None:
        high_watermark = log.checkpointed_high_watermark
        try:
            try:
                plan = plan_truncation(self._disk, log, offset)
            except OSError as error:
                raise self._not_truncated(log, error) from error
            try:
                paths = run_truncation(self._disk, log, plan)
            except OSError as error:
                reason = f"{log.path} is truncated in part: {error.strerror or error}"
                failure = StorageError(reason)
                self._registry.fail_directory(log.directory, failure)
                raise failure from error
        except BadBatch as bad:
            reason = f"{log.path} {bad}"
            self._reader.unreadable(log, reason)
            raise StorageError(reason) from bad
        self._deletes.add_all(paths, log.config.file_delete_delay_ms)
        log.durability.unsynced_truncation = log.written_end_offset
        self._syncer.request(log)
        # Logs and counts what was below the high watermark (I8).
        self._after_truncation(log, high_watermark)

    def reset(self, log: PartitionLog, offset: Offset) -> None:
        """Begin again at `offset`, empty: where the leader's log begins, if this one ends before
        it. Raises StorageError."""
        assert not log.queue, log
        high_watermark = offset
        if log.log_start_offset < log.log_end_offset:
            high_watermark = max(offset, log.checkpointed_high_watermark)
        logger.info(
            "log restarts at a new offset partition=%s offset=%d log_end=%d",
            log.topic_partition,
            offset,
            log.log_end_offset,
        )
        fresh = free_name(self._disk, log.directory, log.topic_partition, log.topic_id)
        try:
            target = reset_log(self._disk, log, offset, self._clock.wall_ms(), fresh)
        except OSError as error:
            if self._disk.exists(fresh):
                self._deletes.add(fresh, 0)
            raise self._not_truncated(log, error) from error
        self._on_forgotten(log)
        self._housekeeping.store_log_starts_soon()
        self._deletes.add(target, log.config.file_delete_delay_ms)
        self._after_truncation(log, high_watermark)

    def _not_truncated(self, log: PartitionLog, error: OSError) -> StorageError:
        failure = storage_error(f"cannot truncate {log.path}", error)
        if not (failure.out_of_space and self._disk.exists(log.path)):
            self._registry.fail_directory(log.directory, failure)
        return failure

    def _after_truncation(self, log: PartitionLog, high_watermark: Offset) -> None:
        if log.log_end_offset < high_watermark:
            self.below_high_watermark += 1
            logger.error(
                "truncated below the high watermark: acknowledged records are removed"
                " partition=%s log_end=%d high_watermark=%d",
                log.topic_partition,
                log.log_end_offset,
                high_watermark,
            )
        self._housekeeping.check_recovery_point(log)
