"""The logs of a node: opens and recovers them, writes what was planned, reads ranges, syncs, removes what is old.

The stretch that matters has no await: `append_nowait` any number of times, then `flush`, which makes one vectored write
a touched log and only then lets anyone read. Everything slow happens in worker threads: fdatasync (one cycle a
directory takes all logs that asked for it, group commit; `on_durable` tells), small files, recovery, removals.

What a disk may do to us (RELIABILITY §3):
- full: the write is taken back, the log refuses appends (KAFKA_STORAGE_ERROR, retriable) and goes on reading; the next
  append tries again once there is space. A process without descriptors or memory is the same.
- any other failed write, and any failed sync: the directory is offline, `on_directory_failed` tells, nothing is retried.
- corruption found by recovery: that log is fenced, with the reason; the others serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import trio

from mqd.errors import NO_DESCRIPTORS, ErrorCode, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import DISK_RESERVE_BYTES, FOLLOWER_BATCHES_MAX, INDEX_ENTRIES_BUFFERED
from mqd.log.checkpoints import checkpointed
from mqd.log.cleaner import plan_retention, rolls_by_time
from mqd.log.compactor import Compactor
from mqd.log.descriptors import Descriptors
from mqd.log.directory import (
    LoadProgress,
    LogDirectory,
    LogStatistics,
    SyncPlan,
    create_log,
    free_name,
    load_directory,
    reset_log,
    retire_directory,
    retire_log,
    why_missing,
)
from mqd.log.ends import is_news
from mqd.log.homes import Homes
from mqd.log.looking import Looking
from mqd.log.partition_log import FOREVER_MS, Appended, LogConfig, PartitionLog, Queued
from mqd.log.reading import Reader, storage_error
from mqd.log.recovery import RecoveryReport
from mqd.log.removals import Removals
from mqd.log.segment_files import append_indexes, new_segment
from mqd.log.shortening import carry_out, plan_truncation, put_back, remove_outdated, retire_oldest
from mqd.log.suspect import mark
from mqd.log.syncs import Syncer, close_directory, every, store_checkpoint, store_ends
from mqd.protocol.batch import HEADER_BYTES, crc_of, parse_header
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    BadBatch,
    MetaProperties,
    encode_producer_snapshot,
)
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0
"""Kafka's `log.flush.offset.checkpoint.interval.ms`: how often recovery points and log starts are written."""
CHECKPOINT_SECONDS_MIN = 0.1
HIGH_WATERMARK_SECONDS = 5.0
"""Kafka's `replica.high.watermark.checkpoint.interval.ms`."""
PROGRESS_SECONDS = 5.0
NO_SPACE_RETRY_SECONDS = 5.0


class LogService:
    """See the head of this file. All methods but `start`, `run` and `close` are synchronous and belong to the event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directories: Sequence[Path],
        *,
        on_durable: Callable[[PartitionLog], None],
        on_directory_failed: Callable[[Path, StorageError], None],
        on_log_start_moved: Callable[[PartitionLog], None] = lambda log: None,
        claim: Callable[[], MetaProperties] | None = None,
        retention_check_interval_ms: int = 300_000,
        producer_id_expiration_ms: int = 86_400_000,
        descriptors: int = 1 << 20,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        kept: bool = True,
        ran_on: bool = False,
    ) -> None:
        """`claim` gives what a directory without `meta.properties` is marked with; None leaves that file alone.
        `descriptors`: how many files the logs may hold open. `kept`: whether all that was written is there (`Disk.boot_id`).
        `ran_on`: whether that is proven, so that a log which lacks something is lost (ends.py).
        """
        assert directories
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.fenced: dict[TopicPartition, str] = {}
        """Partitions on disk that are not served, and why."""
        self.reports: list[RecoveryReport] = []
        """What `start` found worth telling."""
        self.directories = {path: LogDirectory(path) for path in directories}
        self.clean_start = False
        """Whether every directory was left by an orderly stop."""
        self.suspect = False
        """Whether `start` found acknowledged records missing, or a write or sync had failed: this node cannot vouch for what it wrote."""
        self._storing = trio.Lock()
        """Two tasks must not write one file at a time."""
        self._checkpoint_seconds = max(CHECKPOINT_SECONDS_MIN, checkpoint_seconds)
        self._disk = disk
        self._clock = clock
        self._on_durable = on_durable
        self._on_log_start_moved = on_log_start_moved
        self._on_directory_failed = on_directory_failed
        self.disk_serial = 0
        """How often the checkpoints of ends have moved on, as every directory says (ends.py). What the controller may be told."""
        self.on_ends_stored: Callable[[Mapping[UUID, int]], None] = lambda serials: None
        """Receives the disk serial of each directory, by id, in a worker thread. Set after `start`."""
        self._claim, self._kept, self._ran_on = claim, kept, ran_on
        self._retention_seconds = retention_check_interval_ms / 1000
        self._producer_expiry_ms = producer_id_expiration_ms
        self._holes: dict[TopicPartition, str] = {}
        """Logs that lack offsets: fenced when opened, unless their topic is compacted."""
        self._stale_points: dict[TopicPartition, Offset] = {}
        """What the checkpoint of recovery points may still say of logs that were deleted."""
        self._descriptors = Descriptors(disk, descriptors)
        self.reader = Reader(self._descriptors, self._fence)
        self.read = self.reader.read
        self.offset_for_timestamp = self.reader.offset_for_timestamp
        self.record_with_max_timestamp = self.reader.record_with_max_timestamp
        self.looking = Looking()
        self._homes = Homes()
        self._touched: list[PartitionLog] = []
        self._syncer = Syncer(disk, self.directories, self.after_sync, self._not_synced)
        self._housekeeping = trio.Event()
        self._flush_due: dict[PartitionLog, float] = {}
        self._removals = Removals(disk, clock, lambda: self._housekeeping.set())
        self.compactor = Compactor(
            disk, clock, self.logs, self._descriptors, self.reader, self._removals,
            failed=self._fail_directory, store_checkpoint=lambda: self._store(CLEANER_CHECKPOINT),
        )  # fmt: skip
        self._log_starts_moved = self._recovery_points_moved = False
        self._progress = LoadProgress()
        self._appended_batches = self._appended_bytes = self._failed_writes = self._syncs = self._cuts_below_high_watermark = 0
        self._retired_segments = 0

    # -- starting --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the directories, recover every log in them. StorageError when no directory can be used, or one is not ours."""
        began = self._clock.monotonic()
        refusals: list[StorageError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(every, PROGRESS_SECONDS, self._progress.tell)
            async with trio.open_nursery() as loading:
                for directory in self.directories.values():
                    loading.start_soon(self._start_directory, directory, refusals)
            nursery.cancel_scope.cancel()
        if refusals:
            self.release_locks()
            raise refusals[0]
        online = [directory for directory in self.directories.values() if directory.failed is None]
        if not online:
            raise StorageError("; ".join(str(directory.failed) for directory in self.directories.values()))
        self._descriptors.hold_spares(online[0].path)
        self.disk_serial = max(directory.serial for directory in online)
        if any(log.recovery_point > log.synced_end_offset for log in self.logs.values()):
            await self.checkpoint_recovery_points()
        cut = any(one.truncated_below_high_watermark is not None for one in self.reports)
        self.suspect = cut or any(one.suspect or one.lost for one in online)
        self.clean_start = all(directory.broker_epoch is not None for directory in online)
        logger.info(
            "logs loaded count=%d fenced=%d scanned_bytes=%d clean=%s seconds=%.3f",
            len(self.logs), len(self.fenced), self._progress.scanned_bytes, self.clean_start, self._clock.monotonic() - began,
        )  # fmt: skip

    def found_serial(self, directory_ids: Collection[UUID]) -> int:
        """The least disk serial that `start` has found in these directories; one may be an older copy of itself."""
        return min((serial for one, serial in self.found_serials().items() if one in directory_ids), default=0)

    def found_serials(self) -> dict[UUID, int]:
        """Directory id -> the disk serial that `start` has found, before it wrote anything."""
        online = (one for one in self.directories.values() if one.failed is None)
        return {one.id: one.found_serial for one in online if one.id is not None}

    async def _report_serials(self) -> None:
        """The checkpoints of ends are on the disk."""
        serials = {one.id: one.serial for one in self.directories.values() if one.id is not None}
        await self._disk.offload(self.on_ends_stored, serials)

    async def _start_directory(self, directory: LogDirectory, refusals: list[StorageError]) -> None:
        now_ms = self._clock.wall_ms()
        try:
            loaded = await self._disk.offload(
                load_directory, self._disk, directory, self._claim, now_ms, self._progress, self._kept, self._ran_on
            )
        except StorageError as error:
            refusals.append(error)
            return
        except BlockingIOError:
            refusals.append(StorageError(f"{directory.path} is in use by another process"))
            return
        except OSError as error:
            directory.failed = f"{directory.path}: {error}"
            logger.error("log directory is offline directory=%s reason=%s", directory.path, error)
            return
        for partition, reason in loaded.fenced:
            self._fence(partition, reason)
        for path in loaded.removals:
            logger.info("removing a partition that was deleted before path=%s", path)
            self._removals.add(path, 0)
        for log, report in loaded.logs:
            other = self.logs.get(log.topic_partition)
            if other is not None:
                self._fence(log.topic_partition, f"{log.topic_partition} is in two directories: {other.directory} and {log.directory}")
                del self.logs[log.topic_partition]
                self._carry(log)
                self._carry(other)
            elif log.topic_partition not in self.fenced:
                self.logs[log.topic_partition] = log
                if report.hole is not None:
                    self._holes[log.topic_partition] = report.hole
            if report.findings or report.truncated_below_high_watermark is not None:
                self.reports.append(report)

    def _carry(self, log: PartitionLog) -> None:
        """The log is not served: what the checkpoints say of it stays."""
        for name, carried in self.directories[log.directory].carried.items():
            carried |= checkpointed(name, [log], log.directory, {})

    def _fence(self, partition: TopicPartition, reason: str) -> None:
        self.fenced[partition] = reason
        logger.error("log is fenced and not served partition=%s reason=%s", partition, reason)

    def settle_missing(self, mine: Collection[TopicPartition]) -> None:
        """Told once which partitions the metadata had given to this node before now: what was here and is gone is fenced.

        It would otherwise begin again, empty, and nobody would know what is lost.
        """
        for partition in mine:
            if partition not in self.logs and partition not in self.fenced:
                reason = why_missing(self.directories.values(), partition)
                if reason is not None:
                    self._fence(partition, reason)
                else:
                    logger.warning("partition begins empty: it was given to this node before, and nothing is here partition=%s", partition)
        for directory in self.directories.values():
            directory.forget(directory.carries - set(mine) - set(self.fenced))

    # -- opening and removing --------------------------------------------------------------------------------------

    def open(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, *, directory: Path | None = None) -> PartitionLog:
        """The log of a partition, created where there is none: in the directory with the fewest, unless one is named.

        MqError KAFKA_STORAGE_ERROR for a fenced log, INCONSISTENT_TOPIC_ID when the one on disk is of another topic of that name;
        StorageError when the disk is full or no directory is online.
        """
        if partition in self.fenced:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, self.fenced[partition])
        log = self.logs.get(partition)
        if log is None:
            log = self.logs[partition] = self._create(partition, topic_id, config, directory)
        elif log.topic_id != topic_id:
            raise MqError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{log.path} holds topic id {log.topic_id}, not {topic_id}")
        elif (hole := self._holes.pop(partition, None)) is not None and log.cleaned_to is None and "compact" not in config.cleanup_policy:
            self._carry(log)
            del self.logs[partition]
            self._fence(partition, hole)
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, hole)
        log.opened = True
        log.looking = self.looking
        log.update_config(config)
        return log

    def _create(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, chosen: Path | None) -> PartitionLog:
        home = self._homes.choose(self.directories.values(), self.logs.values(), chosen)
        self._descriptors.check_partitions(len(self.logs))
        try:
            log = create_log(
                self._disk, home, partition, topic_id, config, self._clock.wall_ms(), end_is_void=partition in self._stale_points
            )
        except OSError as error:
            with self._descriptors.lent(home), suppress(OSError):
                self._disk.remove_tree(home / str(partition))
            raise storage_error(f"cannot create {home / str(partition)}", error) from error
        self._homes.added(home)
        self._uncarry(partition)
        log.recovery_point = self._stale_points.pop(partition, 0)
        self._check_recovery_point(log)
        return log

    def _uncarry(self, partition: TopicPartition) -> None:
        """What the checkpoints said of an earlier log of this name is past."""
        for directory in self.directories.values():
            directory.forget((partition,))

    def update_config(self, log: PartitionLog, config: LogConfig) -> None:
        log.update_config(config)
        due = self._flush_due.pop(log, None)
        if due is not None or (config.flush_before_ack and log.durable_end_offset < log.written_end_offset):
            self.request_sync(log)  # nobody may append again who would ask for it

    def delete(self, partition: TopicPartition, *, nameless: bool = False) -> None:
        """Forget a log; its directory is renamed now and removed later. Quiet when there is none.

        `nameless`: also directories of that name of which nobody can tell of which topic they were.
        """
        self._uncarry(partition)
        self._holes.pop(partition, None)
        log = self.logs.pop(partition, None)
        self._stale_points[partition] = log.recovery_point if log is not None else FOREVER_MS
        if self.fenced.pop(partition, None) is not None and log is None:
            self._delete_fenced(partition, nameless)
        if log is None:
            return
        self._homes.changed()
        log.failed, log.heals, log.lowest_cut = f"{partition} was deleted", False, -1  # of which a thread writes no snapshots any more
        log.forget_queue()
        self._forget(log)
        try:
            target = retire_log(self._disk, log)
        except OSError as error:
            self._fail_directory(log.directory, storage_error(f"cannot rename {log.path}", error))
            return
        self._removals.add(target, log.config.file_delete_delay_ms)

    def _delete_fenced(self, partition: TopicPartition, nameless: bool) -> None:
        """A log that is not served: nobody holds it, so only its directories are to be moved away."""
        for directory in self.directories.values():
            if directory.failed is None:
                try:
                    target = retire_directory(self._disk, directory.path, partition, nameless=nameless)
                except OSError as error:
                    self._fail_directory(directory.path, storage_error(f"cannot rename {directory.path / str(partition)}", error))
                    continue
                if target is not None:
                    self._removals.add(target, LogConfig().file_delete_delay_ms)

    def discard_corrupt(self, partition: TopicPartition) -> bool:
        """Move a log that is not served, or failed by itself, out of the way, so that `open` begins an empty one; whether it was.

        Only for a replica that another one can give back: one leads, and this node is neither in the ISR nor eligible to lead.
        False where the log is sound, or cannot be moved. What lies in a directory that is offline stays there.
        """
        log = self.logs.get(partition)
        if partition not in self.fenced and (log is None or log.failed is None or log.heals):
            return False
        reason = self.fenced.get(partition) or (log.failed if log is not None else None)
        logger.error("a log is given up and fetched again partition=%s reason=%s", partition, reason)
        if log is not None and self.directories[log.directory].failed is not None:
            del self.logs[partition]
        self.fenced.setdefault(partition, "it is given up")
        self.delete(partition, nameless=True)
        return partition not in self.fenced

    def _forget(self, log: PartitionLog) -> None:
        self._descriptors.forget(log)
        self._flush_due.pop(log, None)
        if log in self._touched:
            self._touched.remove(log)
        self.directories[log.directory].to_sync.pop(log, None)
        self._syncer.tell()

    # -- appending: no await from here to the end of `flush` ---------------------------------------------------------

    def append_nowait(self, log: PartitionLog, view: memoryview, *, leader_epoch: int, now_ms: int, client: bool = True) -> Appended:
        """Plan one batch and queue it; `view` must stay as it is until `flush`. MqError where it is refused."""
        if log.failed is not None:
            self._check_space(log, len(view))
        appended = log.plan_append(view, leader_epoch=leader_epoch, now_ms=now_ms, client=client)
        if log.queue and not log.touched:
            log.touched = True
            self._touched.append(log)
        return appended

    def append_as_follower(self, log: PartitionLog, view: memoryview, *, leader_epoch: int, batches_max: int = FOLLOWER_BATCHES_MAX) -> int:
        """Queue batches that the leader gave, as `PartitionLog.plan_append_as_follower` does; returns how many bytes of `view` that took.

        An empty log that was to begin within the first batch begins with it (the leader's log start lies within a batch).
        """
        if log.failed is not None:
            self._check_space(log, len(view))
        if log.log_start_offset == log.log_end_offset and len(view) >= HEADER_BYTES:
            header = parse_header(view)
            if header.base_offset < log.log_end_offset <= header.last_offset and crc_of(view, 0, min(header.size, len(view))) == header.crc:
                self.reset(log, header.base_offset)
        taken = log.plan_append_as_follower(view, leader_epoch=leader_epoch, batches_max=batches_max)
        if log.queue and not log.touched:
            log.touched = True
            self._touched.append(log)
        return taken

    def _check_space(self, log: PartitionLog, size: int) -> None:
        """A log without space or descriptors takes appends again when there are some."""
        if (
            not log.heals
            or self._disk.free_bytes(log.directory) < size + DISK_RESERVE_BYTES
            or not self._descriptors.hold_spares(log.directory)
        ):
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, log.failed or "")
        logger.info("appends go on partition=%s", log.topic_partition)
        log.failed, log.heals = None, False

    def flush(self) -> list[tuple[PartitionLog, StorageError]]:
        """Write everything that was queued. Logs whose write failed are as they were before, and are returned."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, []
        failures: list[tuple[PartitionLog, StorageError]] = []
        for log in touched:
            log.touched = False
            if log.failed is not None:  # since it was queued: by another log of its directory, or by bytes that cannot be read
                log.forget_queue()
                failures.append((log, StorageError(log.failed)))
                continue
            segments, active = len(log.segments), log.active
            size, next_offset = active.size, active.next_offset
            try:
                for queued in log.queue:
                    self._write(log, queued)
            except OSError as error:
                failures.append((log, self._take_back(log, segments, size, next_offset, error)))
                continue
            log.on_queue_written()
            config = log.config
            unsynced = log.written_end_offset - log.durable_end_offset
            if config.flush_before_ack or unsynced >= config.flush_messages:
                self.request_sync(log)
            elif config.flush_ms < FOREVER_MS and log not in self._flush_due:
                self._flush_due[log] = self._clock.monotonic() + config.flush_ms / 1000
                self._housekeeping.set()
        return failures

    def _write(self, log: PartitionLog, queued: Queued) -> None:
        if queued.new_segment is not None:
            self._roll(log, queued.base_offset, encode_producer_snapshot(queued.new_segment))
        active = log.active
        assert active.file is not None and active.index is not None
        self._appended_bytes += active.file.append(queued.views)
        self._appended_batches += len(queued.batches)
        log.on_written(queued)
        if active.index.unwritten >= INDEX_ENTRIES_BUFFERED:
            append_indexes(self._disk, log.path, active)

    def _roll(self, log: PartitionLog, base_offset: Offset, snapshot: bytes) -> None:
        old = log.active
        self._descriptors.check_room()
        log.on_rolled(new_segment(self._disk, log.path, base_offset, self._clock.wall_ms()))
        append_indexes(self._disk, log.path, old)
        log.snapshots.append((base_offset, snapshot))
        log.new_files = True
        self.request_sync(log, whole=False)
        self._descriptors.close_older(log)
        self._descriptors.opened(log, old)

    def _take_back(self, log: PartitionLog, segments: int, size: int, next_offset: Offset, error: OSError) -> StorageError:
        """A write failed: put the log back to what it was before this turn."""
        self._failed_writes += 1
        failure = storage_error(f"cannot write to {log.path}", error)
        if not failure.out_of_space:
            log.forget_queue()
            self._fail_directory(log.directory, failure)
            return failure
        try:
            with self._descriptors.lent(log.directory):
                put_back(self._disk, log, segments, size, next_offset)
        except (OSError, BadBatch) as second:
            log.forget_queue()
            self._fail_directory(log.directory, StorageError(f"{log.path} cannot be put back after {failure}: {second}"))
            return failure
        log.failed, log.heals = str(failure), True
        logger.error("appends are refused for now partition=%s reason=%s", log.topic_partition, failure)
        return failure

    def _unless_it_passes(self, path: Path, error: StorageError) -> None:
        """What is done now and then, and will be again."""
        if error.out_of_space:
            logger.warning("tried again later reason=%s", error)
        else:
            self._fail_directory(path, error)

    def _fail_directory(self, path: Path, error: StorageError) -> None:
        """Offline for good: every log in it refuses reads and writes."""
        directory = self.directories[path]
        if directory.failed is not None:
            return
        directory.failed = str(error)
        with self._descriptors.lent(path):
            mark(self._disk, path)
        self._homes.changed()
        directory.to_sync.clear()
        self._syncer.tell()
        for log in self.logs.values():
            if log.directory == path:
                log.failed, log.heals = str(error), False
        logger.critical("log directory is offline directory=%s reason=%s", path, error)
        self._on_directory_failed(path, error)

    # -- shortening ------------------------------------------------------------------------------------------------

    def delete_records(self, log: PartitionLog, offset: Offset) -> Offset:
        """Let the log begin at `offset` (not beyond the written end, or OFFSET_OUT_OF_RANGE); returns the log start."""
        if offset > log.written_end_offset or offset < 0:
            raise MqError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{log.topic_partition} ends at {log.written_end_offset}, before {offset}")
        if offset > log.log_start_offset:
            log.advance_log_start(offset)
            self._log_starts_moved = True
            self._housekeeping.set()
        return log.log_start_offset

    def truncate_to(self, log: PartitionLog, offset: Offset) -> None:
        """Remove the batch that holds `offset` and all behind it; below the log start, everything. StorageError.

        Below the checkpointed high watermark it is said loudly and counted.
        """
        assert not log.queue, log
        if offset >= log.log_end_offset:
            log.epochs.truncate_from_end(log.log_end_offset)
        elif offset < log.log_start_offset:
            self.reset(log, offset)
        else:
            high_watermark = log.high_watermark
            try:
                try:
                    cut = plan_truncation(self._disk, log, offset)
                except OSError as error:
                    raise self._not_cut(log, error) from error
                try:
                    paths = carry_out(self._disk, log, cut)
                except OSError as error:
                    failure = StorageError(f"{log.path} is cut in part: {error.strerror or error}")
                    self._fail_directory(log.directory, failure)
                    raise failure from error
            except BadBatch as bad:
                self.reader.unreadable(log, f"{log.path} {bad}")
                raise StorageError(log.failed or "") from bad
            self._removals.add_all(paths, log.config.file_delete_delay_ms)
            log.unsynced_cut = log.written_end_offset
            self.request_sync(log)
            self._after_cut(log, high_watermark)

    def reset(self, log: PartitionLog, offset: Offset) -> None:
        """Begin anew at `offset`, empty: where the leader's log begins, when this one ends before it. StorageError."""
        assert not log.queue, log
        high_watermark = log.high_watermark if offset < log.high_watermark and log.log_start_offset < log.log_end_offset else offset
        logger.info("log begins anew partition=%s offset=%d log_end=%d", log.topic_partition, offset, log.log_end_offset)
        fresh = free_name(self._disk, log.directory, log.topic_partition, log.topic_id)
        try:
            target = reset_log(self._disk, log, offset, self._clock.wall_ms(), fresh)
        except OSError as error:
            if self._disk.exists(fresh):
                self._removals.add(fresh, 0)
            raise self._not_cut(log, error) from error
        self._forget(log)
        self._log_starts_moved = True
        self._removals.add(target, log.config.file_delete_delay_ms)
        self._after_cut(log, high_watermark)

    def _not_cut(self, log: PartitionLog, error: OSError) -> StorageError:
        failure = storage_error(f"cannot truncate {log.path}", error)
        if not (failure.out_of_space and self._disk.exists(log.path)):
            self._fail_directory(log.directory, failure)
        return failure

    def _after_cut(self, log: PartitionLog, high_watermark: Offset) -> None:
        if log.log_end_offset < high_watermark:
            self._cuts_below_high_watermark += 1
            logger.error(
                "truncated below the high watermark: acknowledged records are removed partition=%s log_end=%d high_watermark=%d",
                log.topic_partition, log.log_end_offset, high_watermark,
            )  # fmt: skip
        self._check_recovery_point(log)

    def _check_recovery_point(self, log: PartitionLog) -> None:
        """Where the checkpoint may say more than is durable, have it written soon: until then the log begins no segment."""
        if log.recovery_point > log.synced_end_offset:
            self._recovery_points_moved = True
            self._housekeeping.set()

    # -- durability ------------------------------------------------------------------------------------------------

    def request_sync(self, log: PartitionLog, *, whole: bool = True) -> None:
        """Have a worker thread make durable what is written now; `on_durable` tells when that moved `durable_end_offset`."""
        self._syncer.request(log, whole=whole)

    async def wait_synced(self) -> None:
        """Until a sync has ended, of whichever log, well or not."""
        await self._syncer.wait()

    def checkpoint_high_watermark(self, partition: TopicPartition, high_watermark: Offset) -> None:
        """Note the high watermark of a partition; written within seconds, and at the latest by `close`."""
        if (log := self.logs.get(partition)) is not None:
            log.high_watermark = min(high_watermark, log.written_end_offset)

    def recovered_high_watermark(self, partition: TopicPartition) -> Offset:
        """The last checkpointed high watermark, within the log; 0 for a log that is not there."""
        return log.high_watermark if (log := self.logs.get(partition)) is not None else 0

    async def run(self) -> None:
        """Sync, retain, roll by time, checkpoint, remove; until cancelled. `close` comes after it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._syncer.run)
            nursery.start_soon(self._run_housekeeping)
            nursery.start_soon(self._run_high_watermarks)
            nursery.start_soon(self.compactor.run)

    def _not_synced(self, log: PartitionLog, error: StorageError | OSError) -> None:
        """StorageError: there was no space beside the log. Without descriptors nothing was tried. Anything else is final."""
        if isinstance(error, OSError) and error.errno not in NO_DESCRIPTORS:
            self._fail_directory(log.directory, storage_error(f"cannot sync {log.path}", error))
            return
        logger.warning("not synced, tried again soon partition=%s reason=%s", log.topic_partition, error)
        if self.logs.get(log.topic_partition) is log:
            self._flush_due[log] = self._clock.monotonic() + NO_SPACE_RETRY_SECONDS
            self._housekeeping.set()

    def after_sync(self, plan: SyncPlan) -> None:
        """On the loop: what the thread made durable counts now, unless the log was cut meanwhile."""
        log, now = plan.log, self.logs.get(plan.log.topic_partition)
        self._syncs += 1
        if now is not None and now.path == log.path and (now is not log or plan.cuts != log.cuts):
            with suppress(OSError):  # the next start does so, too
                remove_outdated(self._disk, now, plan.aborted, plan.outdated())
            now.epochs.dirty |= now is not log  # what has its name now may have got its files
            if self.directories[now.directory].failed is None:
                self.request_sync(now)  # a write that was taken back is a cut, too, and nobody else asks for what stands before it
        elif now is log and log.on_synced(plan.end_offset):
            self._descriptors.close_older(log)
            self._on_durable(log)

    # -- housekeeping ----------------------------------------------------------------------------------------------

    async def _run_high_watermarks(self) -> None:
        while True:
            await trio.sleep(HIGH_WATERMARK_SECONDS)
            await self._store(HIGH_WATERMARK_CHECKPOINT)

    async def _run_housekeeping(self) -> None:
        checkpoint_at = self._clock.monotonic() + self._checkpoint_seconds
        retention_at = self._clock.monotonic() + self._retention_seconds
        while True:
            self._housekeeping = trio.Event()
            now = self._clock.monotonic()
            for log in [log for log, due in self._flush_due.items() if due <= now]:
                del self._flush_due[log]
                self.request_sync(log)
            if retention_at <= now:
                retention_at = now + self._retention_seconds
                await self.retain()
            if self._log_starts_moved:
                self._log_starts_moved = False
                await self._store(LOG_START_CHECKPOINT)
                await self.retain()
            if checkpoint_at <= now:
                checkpoint_at = now + self._checkpoint_seconds
                await self._store(LOG_START_CHECKPOINT)
                self._recovery_points_moved = True
            if self._recovery_points_moved:
                await self.checkpoint_recovery_points()
            await self._removals.remove(now)
            wake_at = min([checkpoint_at, retention_at, *self._flush_due.values(), *self._removals.deadlines()])
            with trio.move_on_after(max(0.0, wake_at - self._clock.monotonic())):
                await self._housekeeping.wait()

    async def checkpoint_recovery_points(self) -> None:
        """Write down up to where each log is durable. Where a log was cut below that, it begins no segment until this is done."""
        self._recovery_points_moved = False
        stale = list(self._stale_points)
        if any(log.cleaned_to is not None for log in self.logs.values()):
            await self._store(CLEANER_CHECKPOINT)  # a start does not look for gaps below the recovery point
        await self._store(RECOVERY_POINT_CHECKPOINT)
        self.disk_serial = await store_ends(
            self._disk, self.directories.values(), self.logs.values(), self.disk_serial, self._not_stored
        )
        await self._report_serials()
        for partition in stale:
            self._stale_points.pop(partition, None)

    async def retain(self) -> None:
        """Remove what retention and log starts allow, roll what is old enough, forget producers that went away.

        Log starts are written down before a file is renamed. After a power cut any of the renamed files may be back under its old
        name, and a start must not take the gap between two segments for lost records.
        """
        now_ms = self._clock.wall_ms()
        plans: dict[PartitionLog, tuple[Offset, str]] = {}
        for log in self._cleanable():
            log.producers.expire(now_ms, self._producer_expiry_ms)
            count, reason = plan_retention(log, now_ms)
            if not log.may_roll:
                count = min(count, len(log.segments) - 1)
            if count:
                end = log.segments[count - 1].next_offset
                plans[log] = (end, reason)
                self._move_log_start(log, end)
            await trio.lowlevel.checkpoint()
        if self._log_starts_moved:
            self._log_starts_moved = False
            await self._store(LOG_START_CHECKPOINT)
        for log in self._cleanable():
            end, reason = plans.get(log, (0, ""))
            try:
                if log.may_roll and ((log.active.size and log.active.next_offset <= end) or rolls_by_time(log, now_ms)):
                    self._roll(log, log.log_end_offset, encode_producer_snapshot(log.producers.snapshot()))
                count = sum(segment.next_offset <= end for segment in log.segments[:-1])
                if count:
                    self._retire(log, count, reason)
            except OSError as error:
                self._unless_it_passes(log.directory, storage_error(f"cannot clean {log.path}", error))
            await trio.lowlevel.checkpoint()

    def _cleanable(self) -> Iterator[PartitionLog]:
        """Logs that are open and idle when the caller comes to them. One that was deleted since is not: another may have its name."""
        for log in list(self.logs.values()):
            if log.opened and log.failed is None and not log.queue:
                yield log

    def _move_log_start(self, log: PartitionLog, offset: Offset) -> None:
        if offset > log.log_start_offset:
            log.advance_log_start(offset)
            self._log_starts_moved = True
            self._on_log_start_moved(log)

    def _retire(self, log: PartitionLog, count: int, reason: str) -> None:
        """Take the oldest segments out of the log; their files go after `file.delete.delay.ms`."""
        end = log.segments[count - 1].next_offset
        logger.info("removing segments partition=%s count=%d up_to=%d reason=%s", log.topic_partition, count, end, reason)
        self._retired_segments += count
        self._removals.add_all(retire_oldest(self._disk, log, count), log.config.file_delete_delay_ms)

    async def _store(self, name: str) -> None:
        """Write one kind of checkpoint in every directory that is online."""
        async with self._storing:
            await store_checkpoint(self._disk, name, self.directories.values(), self.logs.values(), self._not_stored)

    def _not_stored(self, path: Path, error: OSError) -> None:
        self._unless_it_passes(path.parent, storage_error(f"cannot write {path}", error))

    # -- stopping --------------------------------------------------------------------------------------------------

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Orderly stop, after `run` was cancelled: sync, snapshots, checkpoints, and the marker that says that all this was done.

        `broker_epoch` goes into the marker. A directory where something fails gets no marker: the next start recovers it.
        """
        self._descriptors.release_spares()
        for log, error in self.flush():
            logger.error("records lost at shutdown partition=%s reason=%s", log.topic_partition, error)
        serial = self.disk_serial + is_news(self.logs.values())
        for directory in self.directories.values():
            logs = [log for log in self.logs.values() if log.directory == directory.path]
            try:
                if directory.failed is None:
                    await close_directory(self._disk, directory, logs, broker_epoch, serial)
            except StorageError as error:
                logger.warning("no clean marker, the next start scans directory=%s reason=%s", directory.path, error)
            except OSError as error:
                self._unless_it_passes(directory.path, storage_error(f"cannot close {directory.path}", error))
        await self._report_serials()
        self.release_locks()
        for log in self.logs.values():
            log.failed, log.heals = "the node is shutting down", False
            for segment in log.segments:
                segment.file = None

    def release_locks(self) -> None:
        for directory in self.directories.values():
            if directory.lock is not None:
                directory.lock.close()
                directory.lock = None

    def statistics(self) -> LogStatistics:
        done = (
            self._appended_batches,
            self._appended_bytes,
            self._failed_writes,
            self._syncs,
            self._cuts_below_high_watermark,
            self._retired_segments,
        )
        return LogStatistics.of(self.logs.values(), self.directories.values(), len(self.fenced), *done)
