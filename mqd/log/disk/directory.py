"""One log directory: its state, how a worker thread loads it, and the directories of its logs.

Makes no decisions: the registry (manager/registry.py) holds the directories and decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import StorageError
from mqd.log.disk.checkpoints import CHECKPOINTS, claim_directory, load_offsets, take_clean_shutdown
from mqd.log.disk.first_offset_file import leave_beginning
from mqd.log.disk.fsync_failure import clear, is_marked, mark
from mqd.log.disk.log_end_checkpoint import VOID, LogEnd, keep_lines, leave_mark, load_ends
from mqd.log.disk.recovery import Known, LogLost, LogUnfinished, RecoveryReport, load_log
from mqd.log.disk.segment_files import new_segment
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    FileFormatError,
    MetaProperties,
    decode_partition_metadata,
    deleted_directory_name,
    encode_partition_metadata,
    is_deleted_directory,
    parse_partition_directory,
)
from mqd.types import ZERO_UUID, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.segment import Segment

logger = logging.getLogger(__name__)


class LogDirectory:
    """A directory of `log.dirs`: its lock, its state, and the logs that wait for a sync."""

    __slots__ = (
        "broker_epoch",
        "carried",
        "ends",
        "failed",
        "found_serial",
        "id",
        "lock",
        "lost",
        "pair",
        "partitions",
        "path",
        "serial",
        "suspect",
        "syncing",
        "to_sync",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: File | None = None
        self.id: UUID | None = None
        """`directory.id` of `meta.properties`."""
        self.failed: str | None = None
        """Why it is offline, where it is. For good: until the process is started again."""
        self.broker_epoch: int | None = None
        """What an orderly stop left; None after any other."""
        self.suspect = False
        """Whether a write or sync had failed here before it was loaded, or while: this node
        cannot vouch for what it wrote (disk/fsync_failure.py).
        """
        self.partitions = 0
        """How many partitions were found here, sound or not."""
        self.carried: dict[str, dict[TopicPartition, Offset]] = {
            LOG_START_CHECKPOINT: {},
            HIGH_WATERMARK_CHECKPOINT: {},
            CLEANER_CHECKPOINT: {},
        }
        """What the checkpoints say of partitions that have no log here: it outlives the
        next writing of these files.
        """
        self.ends: dict[TopicPartition, LogEnd] = {}
        """What the checkpoint of ends says of logs that are fenced; likewise."""
        self.pair = 0
        """CRC-32C of the recovery points that go with that checkpoint."""
        self.serial = 0
        """Disk serial of that checkpoint (disk/log_end_checkpoint.py); 0 where there is none."""
        self.found_serial = 0
        """The serial that the start found, before it wrote any checkpoint."""
        self.lost = 0
        """How many logs lack what that checkpoint names."""
        self.to_sync: dict[PartitionLog, bool] = {}
        """Log -> whole or only the full segments.

        One cycle of the syncer takes all of them: group commit.
        """
        self.syncing = False

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path} {self.failed or 'online'}>"

    @property
    def carries(self) -> set[TopicPartition]:
        return set().union(*self.carried.values())

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            for offsets in self.carried.values():
                offsets.pop(partition, None)
            self.ends.pop(partition, None)


def why_missing(directories: Collection[LogDirectory], partition: TopicPartition) -> str | None:
    """Why a partition without a directory must not begin empty; None where it may: nothing
    says that there ever was a record.
    """
    for directory in directories:
        high_watermark = directory.carried[HIGH_WATERMARK_CHECKPOINT].get(partition, 0)
        if high_watermark:
            return (
                f"{directory.path / str(partition)} is missing, and with it the records up to "
                f"offset {high_watermark}: restore it from a backup."
                " To start it empty, remove its line from "
                f"{directory.path / HIGH_WATERMARK_CHECKPOINT} (and lower the count in the second"
                " line) while the node is stopped"
            )
    offline = [str(directory.path) for directory in directories if directory.failed is not None]
    return (
        f"it may be in a log directory that is offline: {', '.join(offline)}" if offline else None
    )


class LoadProgress:
    """Counted up by the loading threads, read by whoever tells about it."""

    __slots__ = ("found", "loaded", "scanned_bytes")

    def __init__(self) -> None:
        self.found = self.loaded = self.scanned_bytes = 0

    def scanned(self, size: int) -> None:
        self.scanned_bytes += size

    def tell(self) -> None:
        logger.info(
            "recovery continues logs=%d/%d scanned_bytes=%d",
            self.loaded,
            self.found,
            self.scanned_bytes,
        )


@dataclass(frozen=True, slots=True)
class LogStatistics:
    logs: int
    segments: int
    size_bytes: int
    appended_batches: int
    appended_bytes: int
    failed_writes: int
    syncs: int
    fenced: int
    directories_online: int
    directories_offline: int
    truncated_below_high_watermark: int
    """How often records were cut off that were committed: after an unclean election or the
    loss of all in-sync replicas, else never.
    """
    retired_segments: int
    """Segments that retention or DeleteRecords removed."""

    @classmethod
    def of(
        cls,
        logs: Collection[PartitionLog],
        directories: Collection[LogDirectory],
        fenced: int,
        appended_batches: int,
        appended_bytes: int,
        failed_writes: int,
        syncs: int,
        truncated_below_high_watermark: int,
        retired_segments: int,
    ) -> LogStatistics:
        offline = sum(directory.failed is not None for directory in directories)
        return cls(
            logs=len(logs),
            segments=sum(len(log.segments) for log in logs),
            size_bytes=sum(log.size_bytes for log in logs),
            appended_batches=appended_batches,
            appended_bytes=appended_bytes,
            failed_writes=failed_writes,
            syncs=syncs,
            fenced=fenced,
            directories_online=len(directories) - offline,
            directories_offline=offline,
            truncated_below_high_watermark=truncated_below_high_watermark,
            retired_segments=retired_segments,
        )


@dataclass(slots=True)
class Loaded:
    """What is in a log directory."""

    logs: list[tuple[PartitionLog, RecoveryReport]] = field(default_factory=list)
    fenced: list[tuple[TopicPartition, str]] = field(default_factory=list)
    removals: list[Path] = field(default_factory=list)
    """Directories of deleted partitions."""


def load_directory(
    disk: Disk,
    directory: LogDirectory,
    claim: Callable[[], MetaProperties] | None,
    now_ms: int,
    progress: LoadProgress,
    kept: bool = True,
    ran_on: bool = False,
) -> Loaded:
    """Take the directory and recover every log in it. In a worker thread. `kept`: see `Known`.
    `ran_on`: whether it is proven that the machine was not restarted, so that logs must have what
    the checkpoint of ends names.

    StorageError when it belongs to another node; BlockingIOError when another process has it;
    OSError when it cannot be used.
    """
    path = directory.path
    disk.make_directory(path)
    directory.lock = disk.lock(path / LOCK)
    if claim is not None:
        directory.id = claim_directory(disk, path, claim()).directory_id
    directory.broker_epoch = take_clean_shutdown(disk, path)
    directory.suspect = suspect = is_marked(disk, path)
    if suspect:
        logger.warning(
            "a write or sync failed here before: rewriting all unsynced data directory=%s", path
        )
        directory.broker_epoch = None
    clean = directory.broker_epoch is not None
    points, starts, marks, cleaned = (
        load_offsets(disk, path / name) for name in (*CHECKPOINTS, CLEANER_CHECKPOINT)
    )
    ends = load_ends(disk, path)
    directory.serial, directory.pair = ends.serial, ends.pair
    directory.found_serial = ends.serial
    compared = clean or (ran_on and not suspect)
    loaded = Loaded()
    partitions: list[TopicPartition] = []
    for name in disk.list(path):
        partition = parse_partition_directory(name)
        if partition is not None:
            partitions.append(partition)
        elif is_deleted_directory(name):
            loaded.removals.append(path / name)
    progress.found += len(partitions)
    failed = False
    for partition in partitions:
        point, start, high_watermark = (
            points.get(partition, 0),
            starts.get(partition, -1),
            marks.get(partition, 0),
        )
        known = Known(
            clean and partition in points,
            point,
            start,
            high_watermark,
            kept and not suspect,
            suspect,
            cleaned.get(partition),
            ends.lines.get(partition) if compared else None,
        )
        try:
            loaded.logs.append(
                load_log(
                    disk,
                    path,
                    partition,
                    known,
                    config=LogConfig(),
                    now_ms=now_ms,
                    progress=progress.scanned,
                )
            )
        except LogUnfinished as unfinished:
            logger.warning(
                "removing a partition whose creation was interrupted partition=%s reason=%s",
                partition,
                unfinished,
            )
            disk.remove_tree(path / str(partition))
            continue
        except (StorageError, OSError) as error:
            loaded.fenced.append((partition, str(error)))
            directory.lost += isinstance(error, LogLost)
            failed = failed or isinstance(error, OSError)
        finally:
            progress.loaded += 1
    if partitions and not clean:
        disk.sync_directory(path)
    if failed:
        directory.suspect = True
        mark(disk, path)
    elif suspect:
        clear(disk, path)
    directory.partitions = len(loaded.logs) + len(loaded.fenced)
    sound = {log.topic_partition for log, _ in loaded.logs}
    for name, offsets in (
        (LOG_START_CHECKPOINT, starts),
        (HIGH_WATERMARK_CHECKPOINT, marks),
        (CLEANER_CHECKPOINT, cleaned),
    ):
        directory.carried[name] = {
            partition: offset for partition, offset in offsets.items() if partition not in sound
        }
    directory.ends = {
        partition: ends.lines[partition]
        for partition, _ in loaded.fenced
        if partition in ends.lines
    }
    noted = {log.topic_partition: log.noted for log, _ in loaded.logs if log.noted is not None}
    # of a log that was cut or is gone none may say too much
    if ends.lines != {**directory.ends, **noted}:
        keep_lines(disk, path, ends, {**directory.ends, **noted})
    for log, _ in loaded.logs:
        if log.end_is_void:
            disk.remove(log.path / VOID)
            log.end_is_void = False
    return loaded


def create_log(
    disk: Disk,
    home: Path,
    partition: TopicPartition,
    topic_id: UUID,
    config: LogConfig,
    now_ms: int,
    *,
    end_is_void: bool = False,
) -> PartitionLog:
    """An empty log in the directory `home`, not yet durable. `end_is_void`: the checkpoint of ends
    may know one of the same name.

    StorageError where something has its name; OSError, and nothing is left.
    """
    path = home / str(partition)
    if disk.exists(path):
        raise StorageError(
            f"{path} already exists, and is not an open log: move it away, or restart the node to "
            "recover it"
        )
    segment = _create_files(disk, path, topic_id, 0, now_ms, end_is_void=end_is_void)
    log = PartitionLog(partition, topic_id, home, config, [segment])
    log.new_files, log.end_is_void = True, end_is_void
    return log


def _create_files(
    disk: Disk, path: Path, topic_id: UUID, base_offset: Offset, now_ms: int, *, end_is_void: bool
) -> Segment:
    """The directory `path` with one empty segment. OSError, and nothing is left."""
    try:
        disk.make_directory(path, durable=False)
        if end_is_void:
            leave_mark(disk, path)
        if base_offset:
            leave_beginning(disk, path, base_offset)
        segment = new_segment(disk, path, base_offset, now_ms)
        file = disk.open(path / PARTITION_METADATA, create=True)
        file.truncate(0)
        file.append([encode_partition_metadata(topic_id)])
    except OSError:
        with suppress(OSError):  # that takes descriptors, too
            disk.remove_tree(path)
        raise
    return segment


def reset_log(disk: Disk, log: PartitionLog, offset: Offset, now_ms: int, fresh: Path) -> Path:
    """Begin anew at `offset`, empty; returns where the old files went. OSError with PASSING_ERRNOS:
    nothing has changed.

    The new log is made as `fresh` (`free_name`), where a start would remove it. Then two renames: a
    crash leaves the old log, the new one, or none.
    """
    log.cuts += 1  # as in `plan_truncation`
    segment = _create_files(disk, fresh, log.topic_id, offset, now_ms, end_is_void=True)
    target = retire_log(disk, log)
    try:
        disk.rename(fresh, log.path, durable=False)
    except OSError:
        disk.rename(target, log.path, durable=False)
        raise
    for old in log.segments:
        old.file = None
    assert segment.file is not None
    segment.file.path = log.path / segment.file.path.name
    log.end_is_void = True
    log.on_reset(segment)
    return target


def retire_directory(
    disk: Disk, home: Path, partition: TopicPartition, *, nameless: bool = False
) -> Path | None:
    """Rename the directory of a deleted partition that nobody could open; where it went, or None
    where it stays. OSError.

    What does not say of which topic it is stays for an operator to judge: it may not be ours;
    unless `nameless` goes too.
    """
    path = home / str(partition)
    if not disk.exists(path):
        return None
    try:
        topic_id = decode_partition_metadata(disk.read_bytes(path / PARTITION_METADATA))
    except (OSError, FileFormatError) as error:
        if nameless:
            return _retire(disk, home, partition, ZERO_UUID)
        logger.warning(
            "cannot remove a partition of a deleted topic: remove it manually path=%s reason=%s",
            path,
            error,
        )
        return None
    return _retire(disk, home, partition, topic_id)


def retire_log(disk: Disk, log: PartitionLog) -> Path:
    """Rename the directory of a log that is held open; where it went.

    OSError, and nothing has changed.
    """
    return _retire(disk, log.directory, log.topic_partition, log.topic_id)


def _retire(disk: Disk, home: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    target = free_name(disk, home, partition, topic_id)
    disk.rename(home / str(partition), target, durable=False)
    return target


def free_name(disk: Disk, home: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    """Of a deleted partition, and nothing has it: what was retired before may still wait for its
    removal, which is not for the event loop.
    """
    for number in count(topic_id.int):
        target = home / deleted_directory_name(partition, UUID(int=number % (1 << 128)))
        if not disk.exists(target):
            return target
    raise AssertionError("unreachable")
