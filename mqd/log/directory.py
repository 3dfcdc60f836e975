"""One log directory, and what a worker thread does to it: loading, syncs, closing. Held by the service; no decisions here.

A `SyncPlan` is made on the event loop, carried out in a thread, and its result told to the log on the loop again. It
holds references to the files it syncs, so a segment that is deleted meanwhile stays open until the thread is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.log.checkpoints import checkpointed, claim_directory, load_offsets, store_clean_shutdown, store_offsets, take_clean_shutdown
from mqd.log.partition_log import LogConfig, PartitionLog
from mqd.log.recovery import (
    Known,
    LogUnfinished,
    RecoveryReport,
    append_indexes,
    load_log,
    open_segment,
    remove_snapshots,
)
from mqd.protocol.files import (
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    MetaProperties,
    encode_leader_epochs,
    encode_producer_snapshot,
    is_deleted_directory,
    parse_partition_directory,
    segment_file_name,
)
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File

_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)


@dataclass(slots=True)
class SyncPlan:
    """What makes one log durable up to `end_offset`."""

    log: PartitionLog
    end_offset: Offset
    cuts: int
    files: list[File] = field(default_factory=list)
    indexes: list[Path] = field(default_factory=list)
    writes: list[tuple[Path, bytes]] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)

    def run(self, disk: Disk) -> None:
        """In a worker thread. OSError: what was to become durable is in an unknown state."""
        for file in self.files:
            file.sync()
        for path in self.indexes:
            if disk.exists(path):
                disk.open(path).sync()
        for path, data in self.writes:
            if disk.exists(path.parent):
                disk.write_atomic(path, data)
        for path in self.directories:
            if disk.exists(path):
                disk.sync_directory(path)


def plan_sync(disk: Disk, log: PartitionLog, *, whole: bool) -> SyncPlan:
    """Everything that is written (`whole`), or only the segments that are full: what a roll asks for.

    Epochs and snapshots go along, so that the recovery point never passes what only they say.
    """
    end = log.written_end_offset if whole else log.active.base_offset
    plan = SyncPlan(log, end, log.cuts)
    if end > log.durable_end_offset:
        for segment in log.segments_from(log.durable_end_offset):
            if segment.base_offset >= end:
                break
            open_segment(disk, log.path, segment, log.config)
            assert segment.file is not None
            plan.files.append(segment.file)
            if segment is not log.active:
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    plan.indexes.append(log.path / segment_file_name(segment.base_offset, suffix))
    if log.epochs.dirty:
        plan.writes.append((log.path / LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(log.epochs.entries())))
        log.epochs.dirty = False
    for offset, data in log.snapshots:
        plan.writes.append((log.path / segment_file_name(offset, SNAPSHOT_SUFFIX), data))
    log.snapshots = []
    if log.new_files:
        log.new_files = False
        plan.directories = [log.path, log.directory]
    return plan


class LogDirectory:
    """A directory of `log.dirs`: its lock, its state, and the logs that wait for a sync."""

    __slots__ = ("broker_epoch", "failed", "id", "lock", "path", "syncing", "to_sync")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: File | None = None
        self.id: UUID | None = None
        """`directory.id` of `meta.properties`."""
        self.failed: str | None = None
        """Why it is offline, where it is. For good: until the process is started again."""
        self.broker_epoch: int | None = None
        """What an orderly stop left; None after any other."""
        self.to_sync: dict[PartitionLog, bool] = {}
        """Log -> whole or only the full segments. One cycle of the syncer takes all of them: group commit."""
        self.syncing = False

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path} {self.failed or 'online'}>"


class LoadProgress:
    """Counted up by the loading threads, read by whoever tells about it."""

    __slots__ = ("found", "loaded", "scanned_bytes")

    def __init__(self) -> None:
        self.found = self.loaded = self.scanned_bytes = 0

    def scanned(self, size: int) -> None:
        self.scanned_bytes += size


@dataclass(slots=True)
class Loaded:
    """What is in a log directory."""

    logs: list[tuple[PartitionLog, RecoveryReport]] = field(default_factory=list)
    fenced: list[tuple[TopicPartition, str]] = field(default_factory=list)
    removals: list[Path] = field(default_factory=list)
    """Directories of deleted partitions."""


def load_directory(
    disk: Disk, directory: LogDirectory, claim: Callable[[], MetaProperties] | None, now_ms: int, progress: LoadProgress
) -> Loaded:
    """Take the directory and recover every log in it. In a worker thread.

    StorageError when it belongs to another node; BlockingIOError when another process has it; OSError when it cannot be used.
    """
    path = directory.path
    disk.make_directory(path)
    directory.lock = disk.lock(path / LOCK)
    if claim is not None:
        directory.id = claim_directory(disk, path, claim()).directory_id
    directory.broker_epoch = take_clean_shutdown(disk, path)
    clean = directory.broker_epoch is not None
    points, starts, marks = (load_offsets(disk, path / name) for name in _CHECKPOINTS)
    loaded = Loaded()
    partitions: list[TopicPartition] = []
    for name in disk.list(path):
        partition = parse_partition_directory(name)
        if partition is not None:
            partitions.append(partition)
        elif is_deleted_directory(name):
            loaded.removals.append(path / name)
    progress.found += len(partitions)
    for partition in partitions:
        known = Known(clean, points.get(partition, 0), starts.get(partition, 0), marks.get(partition, 0))
        try:
            loaded.logs.append(load_log(disk, path, partition, known, config=LogConfig(), now_ms=now_ms, progress=progress.scanned))
        except LogUnfinished:
            disk.remove_tree(path / str(partition))
        except (StorageError, OSError) as error:
            loaded.fenced.append((partition, str(error)))
        progress.loaded += 1
    return loaded


def close_directory(disk: Disk, directory: LogDirectory, logs: list[PartitionLog], broker_epoch: int) -> None:
    """Make everything durable and say so. In a worker thread, when nothing else happens to these logs any more."""
    for log in logs:
        active = log.active
        active.seal()
        append_indexes(disk, log.path, active)
        log.snapshots.append((log.written_end_offset, encode_producer_snapshot(log.producers.entries())))
        plan_sync(disk, log, whole=True).run(disk)
        log.durable_end_offset = log.written_end_offset
        remove_snapshots(disk, log.path, log.segments)
    for name in _CHECKPOINTS:
        store_offsets(disk, directory.path / name, checkpointed(name, logs, directory.path))
    store_clean_shutdown(disk, directory.path, broker_epoch)
