"""Loads one log directory at a start, in a worker thread: locks it and recovers its logs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import StorageError
from mqd.log.disk.checkpoints import (
    CHECKPOINTS,
    ensure_meta_properties,
    load_offsets,
    take_clean_shutdown,
)
from mqd.log.disk.fsync_failure import clear_mark, has_mark, set_mark
from mqd.log.disk.log_end_checkpoint import load_log_ends, rewrite_log_ends
from mqd.log.disk.recovery import load_log
from mqd.log.log_config import LogConfig
from mqd.log.log_directory import LogDirectory
from mqd.log.log_end import LOG_END_VOID, LogEndCheckpoint
from mqd.log.partition_log import PartitionLog
from mqd.log.recovery_report import CheckpointedState, LogLost, LogUnfinished, RecoveryReport
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    MetaProperties,
    is_deleted_directory,
    parse_partition_directory,
)
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)


class LoadProgress:
    """The loading threads update the counters, the event loop logs them."""

    __slots__ = ("found", "loaded", "scanned_bytes")

    def __init__(self) -> None:
        self.found = self.loaded = self.scanned_bytes = 0

    def scanned(self, size: int) -> None:
        self.scanned_bytes += size

    def log_progress(self) -> None:
        logger.info(
            "recovery continues logs=%d/%d scanned_bytes=%d",
            self.loaded,
            self.found,
            self.scanned_bytes,
        )


@dataclass(slots=True)
class Loaded:
    """The content of a log directory."""

    logs: list[tuple[PartitionLog, RecoveryReport]] = field(default_factory=list)
    offline: list[tuple[TopicPartition, str]] = field(default_factory=list)
    deleted: list[Path] = field(default_factory=list)
    """Directories of deleted partitions."""


def load_directory(
    disk: Disk,
    directory: LogDirectory,
    new_meta_properties: Callable[[], MetaProperties] | None,
    now_ms: int,
    progress: LoadProgress,
    unsynced_survived: bool = True,
    survival_proven: bool = False,
) -> Loaded:
    """Lock the directory and recover every log in it. See `LogService` for the last two arguments.

    Raises StorageError if it belongs to another node; BlockingIOError if another process has it;
    OSError if it cannot be used.
    """
    path = directory.path
    disk.make_directory(path)
    directory.lock = disk.lock(path / LOCK)
    if new_meta_properties is not None:
        directory.id = ensure_meta_properties(disk, path, new_meta_properties()).directory_id
    return _Loading(
        disk, directory, now_ms, progress, unsynced_survived, survival_proven
    ).load_logs()


class _Loading:
    """The steps of one `load_directory`."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        now_ms: int,
        progress: LoadProgress,
        unsynced_survived: bool,
        survival_proven: bool,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.path = path = directory.path
        self.now_ms = now_ms
        self.progress = progress
        self.loaded = Loaded()
        self.disk_error = False
        """Whether an OSError took a log offline."""
        directory.broker_epoch = take_clean_shutdown(disk, path)
        directory.fsync_failed = self.had_mark = has_mark(disk, path)
        if self.had_mark:
            logger.warning(
                "a write or sync failed here before: rewriting all unsynced data directory=%s", path
            )
            directory.broker_epoch = None
        self.is_clean = directory.broker_epoch is not None
        self.unsynced_survived = unsynced_survived and not self.had_mark
        self.recovery_points, self.log_starts, self.high_watermarks, self.cleaned = (
            load_offsets(disk, path / name) for name in (*CHECKPOINTS, CLEANER_CHECKPOINT)
        )
        self.log_ends: LogEndCheckpoint = load_log_ends(disk, path)
        self.log_ends_count = self.is_clean or (survival_proven and not self.had_mark)
        """Whether logs must have what the log end checkpoint names."""
        directory.serial = directory.found_serial = self.log_ends.serial
        directory.recovery_points_crc = self.log_ends.recovery_points_crc

    def load_logs(self) -> Loaded:
        partitions: list[TopicPartition] = []
        for name in self.disk.list(self.path):
            partition = parse_partition_directory(name)
            if partition is not None:
                partitions.append(partition)
            elif is_deleted_directory(name):
                self.loaded.deleted.append(self.path / name)
        self.progress.found += len(partitions)
        for partition in partitions:
            try:
                self._load_log(partition)
            finally:
                self.progress.loaded += 1
        if partitions and not self.is_clean:
            self.disk.sync_directory(self.path)
        if self.disk_error:
            self.directory.fsync_failed = True
            set_mark(self.disk, self.path)
        elif self.had_mark:
            clear_mark(self.disk, self.path)
        self.directory.partitions = len(self.loaded.logs) + len(self.loaded.offline)
        self._keep_lines_of_unserved()
        self._update_log_ends()
        return self.loaded

    def _load_log(self, partition: TopicPartition) -> None:
        checkpointed = CheckpointedState(
            self.is_clean and partition in self.recovery_points,
            self.recovery_points.get(partition, 0),
            self.log_starts.get(partition, -1),
            self.high_watermarks.get(partition, 0),
            self.unsynced_survived,
            self.had_mark,
            self.cleaned.get(partition),
            self.log_ends.lines.get(partition) if self.log_ends_count else None,
        )
        try:
            self.loaded.logs.append(
                load_log(
                    self.disk,
                    self.path,
                    partition,
                    checkpointed,
                    config=LogConfig(),
                    now_ms=self.now_ms,
                    progress=self.progress.scanned,
                )
            )
        except LogUnfinished as unfinished:
            logger.warning(
                "removing a partition whose creation was interrupted partition=%s reason=%s",
                partition,
                unfinished,
            )
            self.disk.remove_tree(self.path / str(partition))
        except (StorageError, OSError) as error:
            self.loaded.offline.append((partition, str(error)))
            self.directory.lost_logs += isinstance(error, LogLost)
            self.disk_error = self.disk_error or isinstance(error, OSError)

    def _keep_lines_of_unserved(self) -> None:
        """The next checkpoints keep the lines of partitions without a loaded log."""
        loaded = {log.topic_partition for log, _ in self.loaded.logs}

        def unserved(offsets: dict[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
            return {
                partition: offset
                for partition, offset in offsets.items()
                if partition not in loaded
            }

        self.directory.unserved_offsets = {
            LOG_START_CHECKPOINT: unserved(self.log_starts),
            HIGH_WATERMARK_CHECKPOINT: unserved(self.high_watermarks),
            CLEANER_CHECKPOINT: unserved(self.cleaned),
        }
        self.directory.unserved_ends = {
            partition: self.log_ends.lines[partition]
            for partition, _ in self.loaded.offline
            if partition in self.log_ends.lines
        }

    def _update_log_ends(self) -> None:
        """Remove the lines of logs that were truncated or removed."""
        lines = dict(self.directory.unserved_ends)
        for log, _ in self.loaded.logs:
            if log.end_claim.line is not None:
                lines[log.topic_partition] = log.end_claim.line
        if self.log_ends.lines != lines:
            rewrite_log_ends(self.disk, self.path, self.log_ends, lines)
        for log, _ in self.loaded.logs:
            if log.end_claim.is_void:
                self.disk.remove(log.path / LOG_END_VOID)
                log.end_claim.is_void = False
