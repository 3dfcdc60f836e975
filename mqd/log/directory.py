"""One log directory, and what a worker thread does to it: loading, syncs, closing. Held by the service; no decisions here.

A `SyncPlan` is made on the event loop, carried out in a thread, and its result told to the log on the loop again. It
holds references to the files it syncs, so a segment that is deleted meanwhile stays open until the thread is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mqd.errors import PASSING_ERRNOS, StorageError
from mqd.log.checkpoints import checkpointed, claim_directory, load_offsets, store_clean_shutdown, store_offsets, take_clean_shutdown
from mqd.log.ends import VOID, LogEnd, keep_lines, leave_mark, load_ends, plan_ends
from mqd.log.partition_log import NO_CUT, LogConfig, PartitionLog
from mqd.log.recovery import Known, LogLost, LogUnfinished, RecoveryReport, load_log
from mqd.log.segment_files import append_indexes, new_segment, open_segment
from mqd.log.snapshots import remove_snapshots
from mqd.log.suspect import clear, is_marked, mark
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileFormatError,
    MetaProperties,
    decode_partition_metadata,
    deleted_directory_name,
    encode_leader_epochs,
    encode_partition_metadata,
    encode_producer_snapshot,
    is_deleted_directory,
    parse_partition_directory,
    segment_file_name,
)
from mqd.types import ZERO_UUID, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.segment import Segment

logger = logging.getLogger(__name__)

_CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)


@dataclass(slots=True)
class SyncPlan:
    """What makes one log durable up to `end_offset`."""

    log: PartitionLog
    end_offset: Offset
    cuts: int
    files: list[File] = field(default_factory=list)
    indexes: list[Path] = field(default_factory=list)
    """Small files beside the segments: synced where they are there."""
    writes: list[tuple[Path, bytes]] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    snapshots: list[tuple[Offset, bytes]] = field(default_factory=list)
    aborted: list[Segment] = field(default_factory=list)
    """Of which the transaction index is among the writes."""

    def add_aborted(self, segment: Segment) -> None:
        """Have the transaction index of a segment written, where that is due."""
        if segment.aborted is not None and segment.aborted.stale:
            self.aborted.append(segment)
            self.writes.append((self.log.path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX), segment.aborted.encode()))

    def run(self, disk: Disk) -> None:
        """In a worker thread. OSError: what was to become durable is in an unknown state. StorageError: there was no space for the small
        files, and nothing else is wrong."""
        for file in self.files:
            file.sync()
        for path in self.indexes:
            with suppress(FileNotFoundError):
                disk.open(path).sync()
        for path, data in chain(self.writes, self._snapshots()):
            try:
                disk.write_atomic(path, data)
            except FileNotFoundError:
                pass  # the log was deleted or began anew, at whatever step of this: the loop hears of that, too
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:
                    raise
                raise StorageError(f"{path}: {error.strerror or error}", out_of_space=True) from error
        for path in self.directories:
            with suppress(FileNotFoundError):
                disk.sync_directory(path)

    def _snapshots(self) -> Iterator[tuple[Path, bytes]]:
        """Those of a history that was cut off meanwhile are not written: a start would believe them."""
        for offset, data in self.snapshots:
            if offset <= self.log.lowest_cut:
                yield self.log.path / segment_file_name(offset, SNAPSHOT_SUFFIX), data

    def outdated(self) -> list[Offset]:
        """Snapshots that may have been written all the same, and are to go."""
        return [offset for offset, _ in self.snapshots if offset > self.log.lowest_cut]

    def give_back(self) -> None:
        """It found no space: what it took from the log is due again."""
        log = self.log
        log.epochs.dirty = True
        log.new_files = log.new_files or bool(self.directories)
        if self.cuts == log.cuts:
            log.snapshots[:0] = self.snapshots
        for segment in self.aborted:
            if segment.aborted is not None:
                segment.aborted.stale = True


def plan_sync(disk: Disk, log: PartitionLog, *, whole: bool) -> SyncPlan:
    """Everything that is written (`whole`), or only the segments that are full: what a roll asks for.

    Epochs and snapshots go along, so that the recovery point never passes what only they say.
    """
    end = log.written_end_offset if whole else log.active.base_offset
    plan = SyncPlan(log, end, log.cuts)
    log.lowest_cut = NO_CUT
    if end > log.synced_end_offset or (log.unsynced_cut is not None and end >= log.unsynced_cut):
        for segment in log.segments_from(log.synced_end_offset - (1 if log.taken_back else 0)):
            if segment.base_offset >= end:
                break
            open_segment(disk, log.path, segment, log.config)
            assert segment.file is not None
            plan.files.append(segment.file)
            if segment is not log.active:
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    plan.indexes.append(log.path / segment_file_name(segment.base_offset, suffix))
            plan.add_aborted(segment)  # of the active one, too: no later plan looks at it if nothing more comes before it is full
    if log.epochs.dirty:
        plan.writes.append((log.path / LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(log.epochs.entries())))
        log.epochs.dirty = False
    plan.snapshots, log.snapshots = log.snapshots, []
    if log.new_files:
        log.new_files = False
        plan.indexes.append(log.path / PARTITION_METADATA)
        plan.directories = [log.path, log.directory]
    return plan


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
        """Whether a write or sync had failed here before it was loaded, or while: this node cannot vouch for what it wrote (suspect.py)."""
        self.partitions = 0
        """How many partitions were found here, sound or not."""
        self.carried: dict[str, dict[TopicPartition, Offset]] = {
            LOG_START_CHECKPOINT: {},
            HIGH_WATERMARK_CHECKPOINT: {},
            CLEANER_CHECKPOINT: {},
        }
        """What the checkpoints say of partitions that have no log here: it outlives the next writing of these files."""
        self.ends: dict[TopicPartition, LogEnd] = {}
        """What the checkpoint of ends says of logs that are fenced; likewise."""
        self.pair = 0
        """CRC-32C of the recovery points that go with that checkpoint."""
        self.serial = 0
        """Disk serial of that checkpoint (ends.py); 0 where there is none."""
        self.found_serial = 0
        """The serial that the start found, before it wrote any checkpoint."""
        self.lost = 0
        """How many logs lack what that checkpoint names."""
        self.to_sync: dict[PartitionLog, bool] = {}
        """Log -> whole or only the full segments. One cycle of the syncer takes all of them: group commit."""
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
    """Why a partition without a directory must not begin empty; None where it may: nothing says that there ever was a record."""
    for directory in directories:
        high_watermark = directory.carried[HIGH_WATERMARK_CHECKPOINT].get(partition, 0)
        if high_watermark:
            return (
                f"{directory.path / str(partition)} is gone, and with it the records up to offset {high_watermark}: restore it from a copy."
                f" To start it empty, take its line out of {directory.path / HIGH_WATERMARK_CHECKPOINT} (and lower the count in the second"
                " line) while the node is stopped"
            )
    offline = [str(directory.path) for directory in directories if directory.failed is not None]
    return f"it may be in a log directory that is offline: {', '.join(offline)}" if offline else None


class LoadProgress:
    """Counted up by the loading threads, read by whoever tells about it."""

    __slots__ = ("found", "loaded", "scanned_bytes")

    def __init__(self) -> None:
        self.found = self.loaded = self.scanned_bytes = 0

    def scanned(self, size: int) -> None:
        self.scanned_bytes += size

    def tell(self) -> None:
        logger.info("recovery goes on logs=%d/%d scanned_bytes=%d", self.loaded, self.found, self.scanned_bytes)


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
    """How often records were cut off that were committed: after an unclean election or the loss of all in-sync replicas, else never."""
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
    """Take the directory and recover every log in it. In a worker thread. `kept`: see `Known`. `ran_on`: whether it is proven that the
    machine was not restarted, so that logs must have what the checkpoint of ends names.

    StorageError when it belongs to another node; BlockingIOError when another process has it; OSError when it cannot be used.
    """
    path = directory.path
    disk.make_directory(path)
    directory.lock = disk.lock(path / LOCK)
    if claim is not None:
        directory.id = claim_directory(disk, path, claim()).directory_id
    directory.broker_epoch = take_clean_shutdown(disk, path)
    directory.suspect = suspect = is_marked(disk, path)
    if suspect:
        logger.warning("a write or sync failed here before: what was never synced is written again directory=%s", path)
        directory.broker_epoch = None
    clean = directory.broker_epoch is not None
    points, starts, marks, cleaned = (load_offsets(disk, path / name) for name in (*_CHECKPOINTS, CLEANER_CHECKPOINT))
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
        point, start, high_watermark = points.get(partition, 0), starts.get(partition, -1), marks.get(partition, 0)
        known = Known(
            clean and partition in points, point, start, high_watermark, kept and not suspect, suspect, cleaned.get(partition),
            ends.lines.get(partition) if compared else None,
        )  # fmt: skip
        try:
            loaded.logs.append(load_log(disk, path, partition, known, config=LogConfig(), now_ms=now_ms, progress=progress.scanned))
        except LogUnfinished as unfinished:
            logger.warning("removing a partition whose creation was cut short partition=%s reason=%s", partition, unfinished)
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
    for name, offsets in ((LOG_START_CHECKPOINT, starts), (HIGH_WATERMARK_CHECKPOINT, marks), (CLEANER_CHECKPOINT, cleaned)):
        directory.carried[name] = {partition: offset for partition, offset in offsets.items() if partition not in sound}
    directory.ends = {partition: ends.lines[partition] for partition, _ in loaded.fenced if partition in ends.lines}
    noted = {log.topic_partition: log.noted for log, _ in loaded.logs if log.noted is not None}
    if ends.lines != {**directory.ends, **noted}:  # of a log that was cut or is gone none may say too much
        keep_lines(disk, path, ends, {**directory.ends, **noted})
    for log, _ in loaded.logs:
        if log.end_is_void:
            disk.remove(log.path / VOID)
            log.end_is_void = False
    return loaded


def create_log(
    disk: Disk, home: Path, partition: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int, *, end_is_void: bool = False
) -> PartitionLog:
    """An empty log in the directory `home`, not yet durable. `end_is_void`: the checkpoint of ends may know one of the same name.

    StorageError where something has its name; OSError, and nothing is left."""
    path = home / str(partition)
    if disk.exists(path):
        raise StorageError(f"{path} is there already, and is not an open log: move it away, or start the node anew to have it looked at")
    segment = _create_files(disk, path, topic_id, 0, now_ms, end_is_void=end_is_void)
    log = PartitionLog(partition, topic_id, home, config, [segment])
    log.new_files, log.end_is_void = True, end_is_void
    return log


def _create_files(disk: Disk, path: Path, topic_id: UUID, base_offset: Offset, now_ms: int, *, end_is_void: bool) -> Segment:
    """The directory `path` with one empty segment. OSError, and nothing is left."""
    try:
        disk.make_directory(path, durable=False)
        if end_is_void:
            leave_mark(disk, path)
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
    """Begin anew at `offset`, empty; returns where the old files went. OSError with PASSING_ERRNOS: nothing has changed.

    The new log is made as `fresh` (`free_name`), where a start would remove it. Then two renames: a crash leaves the old log, the
    new one, or none.
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


def retire_directory(disk: Disk, home: Path, partition: TopicPartition, *, nameless: bool = False) -> Path | None:
    """Rename the directory of a deleted partition that nobody could open; where it went, or None where it stays. OSError.

    What does not say of which topic it is stays for an operator to judge: it may not be ours; unless `nameless` goes too.
    """
    path = home / str(partition)
    if not disk.exists(path):
        return None
    try:
        topic_id = decode_partition_metadata(disk.read_bytes(path / PARTITION_METADATA))
    except (OSError, FileFormatError) as error:
        if nameless:
            return _retire(disk, home, partition, ZERO_UUID)
        logger.warning("left alone, though its topic was deleted: move it away by hand path=%s reason=%s", path, error)
        return None
    return _retire(disk, home, partition, topic_id)


def retire_log(disk: Disk, log: PartitionLog) -> Path:
    """Rename the directory of a log that is held open; where it went. OSError, and nothing has changed."""
    return _retire(disk, log.directory, log.topic_partition, log.topic_id)


def _retire(disk: Disk, home: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    target = free_name(disk, home, partition, topic_id)
    disk.rename(home / str(partition), target, durable=False)
    return target


def free_name(disk: Disk, home: Path, partition: TopicPartition, topic_id: UUID) -> Path:
    """Of a deleted partition, and nothing has it: what was retired before may still wait for its removal, which is not for the
    event loop."""
    for number in count(topic_id.int):
        target = home / deleted_directory_name(partition, UUID(int=number % (1 << 128)))
        if not disk.exists(target):
            return target
    raise AssertionError("unreachable")


def _is_sound(log: PartitionLog) -> bool:
    return log.failed is None or log.heals


def close_logs(disk: Disk, logs: Iterable[PartitionLog]) -> None:
    """Make them durable, as far as they are sound. In a worker thread."""
    full: StorageError | None = None
    for log in logs:
        if not _is_sound(log) or (not log.written_end_offset and not log.cuts):
            # Nothing was ever in it: thousands of these are not worth six syncs each. The next life syncs its files with the
            # first records (`_Loader._finish`).
            continue
        active = log.active
        active.seal()
        append_indexes(disk, log.path, active)
        log.snapshots.append((log.written_end_offset, encode_producer_snapshot(log.producers.snapshot())))
        plan = plan_sync(disk, log, whole=True)
        plan.add_aborted(active)
        plan.indexes += [log.path / segment_file_name(active.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        try:
            plan.run(disk)
        except StorageError as error:  # its recovery point stays; the others are to be durable too
            full = error
            continue
        log.durable_end_offset = log.synced_end_offset = log.written_end_offset
        remove_snapshots(disk, log.path, log.segments)
    if full is not None:
        raise full


def say_closed(disk: Disk, directory: LogDirectory, logs: list[PartitionLog], broker_epoch: int, serial: int) -> None:
    """After `close_logs`: the checkpoints, and the marker of an orderly stop. In a worker thread. `serial`: see `plan_ends`."""
    sound = list(filter(_is_sound, logs))
    for name in (*_CHECKPOINTS, *((CLEANER_CHECKPOINT,) if any(log.cleaned_to is not None for log in logs) else ())):
        counted = sound if name == RECOVERY_POINT_CHECKPOINT else logs
        store_offsets(disk, directory.path / name, checkpointed(name, counted, directory.path, directory.carried.get(name, {})))
    plan = plan_ends(directory, logs, serial, is_news=serial != directory.serial)
    plan.run(disk)
    plan.done(disk)
    directory.serial = serial
    store_clean_shutdown(disk, directory.path, broker_epoch)
