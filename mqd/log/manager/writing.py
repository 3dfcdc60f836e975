"""One turn of appends: `append_nowait` queues any number of batches, `flush` writes them.

There is no await from the first `append_nowait` of a turn to its `flush`. `flush` makes one
vectored write for each log, and only then can the records be read. The hot path.

If the disk is full, the write is undone. The log refuses appends (KAFKA_STORAGE_ERROR, retriable)
and still serves reads. The next append is a retry if there is space. Lack of descriptors or memory
is the same. Any other failed write takes the directory offline.
"""

from __future__ import annotations

import logging

from mqd.errors import ErrorCode, MqError, StorageError
from mqd.io.disk import Disk
from mqd.limits import DISK_RESERVE_BYTES, FOLLOWER_BATCHES_MAX, INDEX_ENTRIES_BUFFERED
from mqd.log.appending import Appended, plan_append, plan_append_as_follower
from mqd.log.disk.file_truncation import undo_write
from mqd.log.disk.segment_files import append_indexes
from mqd.log.log_config import FOREVER_MS
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.housekeeping import Housekeeping
from mqd.log.manager.reading import storage_error
from mqd.log.manager.registry import LogRegistry
from mqd.log.manager.syncer import Syncer
from mqd.log.manager.truncation import Truncation
from mqd.log.partition_log import LogFailure, PartitionLog, Queued
from mqd.protocol.batch import HEADER_BYTES, crc_of, parse_header
from mqd.protocol.files import BadBatch
from mqd.types import Offset

logger = logging.getLogger(__name__)


class Writer:
    """See the head of this file. All methods belong to the event loop."""

    def __init__(
        self,
        disk: Disk,
        registry: LogRegistry,
        housekeeping: Housekeeping,
        truncation: Truncation,
        descriptors: Descriptors,
        syncer: Syncer,
    ) -> None:
        self._disk = disk
        self._registry = registry
        self._housekeeping = housekeeping
        self._truncation = truncation
        self._descriptors = descriptors
        self._syncer = syncer
        self._touched: list[PartitionLog] = []
        """Logs with queued batches, in the order of their first append in this turn."""

    def forget(self, log: PartitionLog) -> None:
        """The log was deleted or reset."""
        if log in self._touched:
            self._touched.remove(log)

    def append_nowait(
        self,
        log: PartitionLog,
        view: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        client: bool = True,
    ) -> Appended:
        """Plan one batch and queue it. `view` must not change until `flush`. Raises MqError if it
        is refused."""
        if log.failure is not None:
            self._check_space(log, log.failure, len(view))
        appended = plan_append(log, view, leader_epoch=leader_epoch, now_ms=now_ms, client=client)
        if log.queue and not log.touched:
            log.touched = True
            self._touched.append(log)
        return appended

    def append_as_follower(
        self,
        log: PartitionLog,
        view: memoryview,
        *,
        leader_epoch: int,
        batches_max: int = FOLLOWER_BATCHES_MAX,
    ) -> int:
        """Queue the leader's batches, as `plan_append_as_follower` does. Returns how many bytes of
        `view` were taken.

        An empty log whose start lies within the first batch begins with that batch: the leader's
        log start lies within it.
        """
        if log.failure is not None:
            self._check_space(log, log.failure, len(view))
        if log.log_start_offset == log.log_end_offset and len(view) >= HEADER_BYTES:
            header = parse_header(view)
            if (
                header.base_offset < log.log_end_offset <= header.last_offset
                and crc_of(view, 0, min(header.size, len(view))) == header.crc
            ):
                self._truncation.reset(log, header.base_offset)
        taken = plan_append_as_follower(
            log, view, leader_epoch=leader_epoch, batches_max=batches_max
        )
        if log.queue and not log.touched:
            log.touched = True
            self._touched.append(log)
        return taken

    def _check_space(self, log: PartitionLog, failure: LogFailure, size: int) -> None:
        """Append again if there is space, and descriptors. Raises MqError otherwise."""
        if (
            not failure.is_retriable
            or self._disk.free_bytes(log.directory) < size + DISK_RESERVE_BYTES
            or not self._descriptors.hold_spares(log.directory)
        ):
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, failure.reason)
        logger.info("appends resume partition=%s", log.topic_partition)
        log.failure = None

    def flush(self) -> list[tuple[PartitionLog, StorageError]]:
        """Write everything that was queued. Returns the logs whose write failed. They are as they
        were before."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, []
        failures: list[tuple[PartitionLog, StorageError]] = []
        for log in touched:
            log.touched = False
            if log.failure is not None:
                # It failed after it was queued: with its directory, or by corrupt records.
                log.forget_queue()
                failures.append((log, StorageError(log.failure.reason)))
                continue
            segments, active = len(log.segments), log.active
            size, next_offset = active.size, active.next_offset
            try:
                for queued in log.queue:
                    self._write(log, queued)
            except OSError as error:
                failures.append((log, self._undo_write(log, segments, size, next_offset, error)))
                continue
            log.on_queue_written()
            config = log.config
            unsynced = log.written_end_offset - log.durability.end_offset
            if config.flush_before_ack or unsynced >= config.flush_messages:
                self._syncer.request(log)
            elif config.flush_ms < FOREVER_MS and log not in self._housekeeping.flush_due:
                self._housekeeping.flush_later(log, config.flush_ms / 1000)
        return failures

    def _write(self, log: PartitionLog, queued: Queued) -> None:
        if queued.new_segment is not None:
            self._housekeeping.roll(log, queued.base_offset, queued.new_segment)
        active = log.active
        assert active.file is not None and active.index is not None
        active.file.append(queued.views)
        log.on_written(queued)
        if active.index.unwritten >= INDEX_ENTRIES_BUFFERED:
            append_indexes(self._disk, log.path, active)

    def _undo_write(
        self, log: PartitionLog, segments: int, size: int, next_offset: Offset, error: OSError
    ) -> StorageError:
        """A write failed: restore the log as it was before this turn."""
        failure = storage_error(f"cannot write to {log.path}", error)
        if not failure.out_of_space:
            log.forget_queue()
            # Never retried (I15).
            self._registry.fail_directory(log.directory, failure)
            return failure
        try:
            with self._descriptors.spares_released(log.directory):
                undo_write(self._disk, log, segments, size, next_offset)
        except (OSError, BadBatch) as second:
            log.forget_queue()
            reason = f"{log.path}: cannot undo a failed write ({failure}): {second}"
            self._registry.fail_directory(log.directory, StorageError(reason))
            return failure
        log.failure = LogFailure(str(failure), is_retriable=True)
        logger.error(
            "appends are rejected for now partition=%s reason=%s", log.topic_partition, failure
        )
        return failure
