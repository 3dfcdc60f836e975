"""The cleaner of logs: picks the dirtiest compacted log, cleans it, and goes on until none is dirty
enough. One log at a time.

The rules are in compaction.py, the work is in disk/segment_rewrite.py and disk/segment_swap.py;
this shell runs the work in a worker thread, a slice at a time, and leaves the processor to others
for about as long as each slice took. When nothing is dirty, nothing is read: every
`log.cleaner.backoff.ms` the sizes of segments are looked at, in memory.

A log for which there is no space now waits for as long as that, too, while others are cleaned: a
disk may be too full for the copy of the dirtiest log, and not for those that would free some of it,
or lie in another directory.

A log may be cut, shortened, moved or deleted at any time. After every slice the pass asks whether
all is as it was, and gives up otherwise; what it has put in place until then stays. It never looks
at a high watermark or an offset but at its beginning.

Memory: the key map, which takes 24 bytes for each offset in the dirty part, at most
`log.cleaner.dedupe.buffer.size`, as long as a pass lasts (where the keys do not fit, several
passes); half of `log.cleaner.io.buffer.size`, or one batch; one batch unpacked, and some 200 bytes
more for each of its records; and what is written of these.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from mqd.config import NodeConfig
from mqd.errors import PASSING_ERRNOS, MqError, StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import CLEANER_BUFFER_BYTES_MIN, CLEANER_REST_SECONDS_MAX, DISK_RESERVE_BYTES
from mqd.log.compaction import (
    Cleanable,
    Indexing,
    Rewriting,
    Transactions,
    group_segments,
    is_due,
    keys_max,
    plan_compaction,
)
from mqd.log.disk.segment_rewrite import SegmentRewrite, Uncleanable, index_dirty, sources_of
from mqd.log.disk.segment_swap import complete, drop_files, put_in_place, settle, stage
from mqd.log.manager.delayed_deletes import Removals
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import Reader, storage_error
from mqd.log.offset_map import BYTES_PER_SLOT, KeyMap
from mqd.log.partition_log import PartitionLog, Replacement
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.protocol.files import LOG_SUFFIX, TXN_INDEX_SUFFIX, AbortedTransaction, segment_file_name
from mqd.types import NO_TIMESTAMP, Offset, TopicPartition

logger = logging.getLogger(__name__)

_BACKOFF_SECONDS_MIN = 0.01


@dataclass(frozen=True, slots=True)
class CompactorOptions:
    """Kafka's `log.cleaner.*`."""

    enabled: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    bytes_per_second: float = math.inf

    @classmethod
    def from_config(cls, config: NodeConfig) -> CompactorOptions:
        return cls(
            enabled=config.boolean("log.cleaner.enable"),
            backoff_ms=config.integer("log.cleaner.backoff.ms"),
            dedupe_buffer_bytes=max(
                config.integer("log.cleaner.dedupe.buffer.size"), CLEANER_BUFFER_BYTES_MIN
            ),
            load_factor=min(max(config.number("log.cleaner.io.buffer.load.factor"), 0.01), 1.0),
            io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
            bytes_per_second=config.number("log.cleaner.io.max.bytes.per.second"),
        )


@dataclass(frozen=True, slots=True)
class CompactorStatistics:
    passes: int
    aborted: int
    """Passes that gave up because the log changed."""
    uncleanable: int
    """Logs that hold something that cannot be read; they are left alone until the next start."""
    bytes_moved: int
    """Read and written."""
    records_seen: int
    records_kept: int
    key_map_bytes: int
    """Of the pass that runs now."""
    key_map_bytes_max: int
    """The largest so far."""


class _Aborted(Exception):
    """The log is not what it was when the pass began."""


class Compactor:
    """See the head of this file.

    `failed` is told of a directory that cannot be written; `store_checkpoint` writes what is clean.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        logs: Mapping[TopicPartition, PartitionLog],
        descriptors: Descriptors,
        reader: Reader,
        removals: Removals,
        *,
        failed: Callable[[Path, StorageError], None],
        store_checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self.options = CompactorOptions()
        """May be replaced at any time."""
        self.uncleanable: dict[PartitionLog, str] = {}
        self._waiting: dict[PartitionLog, float] = {}
        """Logs for which there was no space, and when they are tried again, in seconds of
        the monotonic clock.
        """
        self._disk = disk
        self._clock = clock
        self._logs = logs
        self._descriptors = descriptors
        self._reader = reader
        self._removals = removals
        self._failed = failed
        self._store_checkpoint = store_checkpoint
        self._passes = self._aborted = self._bytes_moved = self._records_seen = (
            self._records_kept
        ) = 0
        self._key_map_bytes = self._key_map_bytes_max = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not (self.options.enabled and await self.clean_one()):
                await trio.sleep(self._backoff_seconds)

    @property
    def _backoff_seconds(self) -> float:
        return max(self.options.backoff_ms / 1000, _BACKOFF_SECONDS_MIN)

    def statistics(self) -> CompactorStatistics:
        return CompactorStatistics(
            passes=self._passes,
            aborted=self._aborted,
            uncleanable=len(self.uncleanable),
            bytes_moved=self._bytes_moved,
            records_seen=self._records_seen,
            records_kept=self._records_kept,
            key_map_bytes=self._key_map_bytes,
            key_map_bytes_max=self._key_map_bytes_max,
        )

    # -- which

    async def clean_one(self) -> bool:
        """Clean the log with the largest share of dirty bytes that is due; whether there
        was one, and the next should be looked for.
        """
        for gone in [
            log for log in self.uncleanable if self._logs.get(log.topic_partition) is not log
        ]:
            del self.uncleanable[gone]
        now = self._clock.monotonic()
        self._waiting = {log: until for log, until in self._waiting.items() if until > now}
        new = [log for log in self._candidates() if log.cleaned_to is None]
        for log in new:
            # from here on it counts as one that may have gaps
            log.cleaned_to = log.log_start_offset
        if new:
            await self._store_checkpoint()
        # from here on nothing waits until a pass has begun: logs change meanwhile
        best: tuple[Cleanable, PartitionLog] | None = None
        for log in self._candidates():
            if log.cleaned_to is None:
                continue
            cleanable = plan_compaction(
                log,
                self._clock.wall_ms(),
                lambda segment, log=log: self._first_timestamp(log, segment),  # type: ignore[misc]
            )
            if (
                cleanable is not None
                and is_due(cleanable, log.config)
                and (best is None or cleanable.ratio > best[0].ratio)
            ):
                best = cleanable, log
        if best is None:
            return False
        cleanable, log = best
        try:
            await self._clean(log, cleanable)
        except _Aborted as reason:
            self._aborted += 1
            logger.info("cleaning cancelled partition=%s reason=%s", log.topic_partition, reason)
        except Uncleanable as error:
            self.uncleanable[log] = str(error)
            logger.error(
                "cannot clean a log, it stays as it is partition=%s reason=%s",
                log.topic_partition,
                error,
            )
        except OSError as error:
            failure = storage_error(f"cannot clean {log.path}", error)
            if not failure.out_of_space or (
                log.replacement is not None and self._logs.get(log.topic_partition) is log
            ):
                # with names half changed nobody goes on but the next start
                self._failed(log.directory, failure)
                return True
            logger.warning("cannot clean now, will retry reason=%s", failure)
            self._waiting[log] = self._clock.monotonic() + self._backoff_seconds
        return True

    def _candidates(self) -> list[PartitionLog]:
        return [
            log
            for log in self._logs.values()
            if "compact" in log.config.cleanup_policy
            and log.opened
            and log.failure is None
            and log not in self.uncleanable
            and log not in self._waiting
        ]

    def _first_timestamp(self, log: PartitionLog, segment: Segment) -> int:
        """Of its first batch; read once, where recovery believed the segment without reading it."""
        if segment.first_timestamp == NO_TIMESTAMP:
            file = self._disk.open(
                log.path / segment_file_name(segment.base_offset, LOG_SUFFIX + segment.suffix)
            )
            head = file.read_at(0, HEADER_BYTES)
            if len(head) == HEADER_BYTES:
                segment.first_timestamp = parse_header(head).max_timestamp
        return segment.first_timestamp

    # -- a pass

    async def _clean(self, log: PartitionLog, cleanable: Cleanable) -> None:
        """_Aborted, Uncleanable, OSError; what was put in place until then stays."""
        # no group is smaller: before all that is dirty is read in vain
        self._check_space(log, log.segments[:1])
        options, disk, began = self.options, self._disk, self._clock.monotonic()
        pass_ = _Pass(log, log.cuts, max(options.io_buffer_bytes // 2, HEADER_BYTES))
        seen, kept = self._records_seen, self._records_kept
        first, end = cleanable.first_dirty_offset, cleanable.end_offset
        slots = min(
            options.dedupe_buffer_bytes // BYTES_PER_SLOT,
            math.ceil(keys_max(cleanable) / options.load_factor) + 2,
        )
        self._key_map_bytes = slots * BYTES_PER_SLOT
        self._key_map_bytes_max = max(self._key_map_bytes_max, self._key_map_bytes)
        try:
            dirty = [
                segment
                for segment in log.segments
                if segment.next_offset > first and segment.next_offset <= end
            ]
            keys = await disk.offload(KeyMap, slots, options.load_factor)
            self._check(pass_, dirty)
            aborted = self._aborted_transactions(log, end)
            indexing = Indexing(keys, Transactions(aborted, dirty[0].base_offset), first)
            await self._carry_out(
                pass_,
                dirty,
                index_dirty(disk, log.path, sources_of(dirty), indexing, pass_.chunk_bytes),
            )
            if indexing.is_full:
                end = indexing.end_offset
                if end <= first:
                    raise Uncleanable(
                        f"one batch at offset {first} has more keys than "
                        "log.cleaner.dedupe.buffer.size holds"
                    )
            rewriting = Rewriting(
                keys,
                end,
                Transactions(aborted, log.segments[0].base_offset),
                await self._disk.offload(log.producers.freeze().last_batches),
                delete_retention_ms=log.config.delete_retention_ms,
                now_ms=self._clock.wall_ms(),
            )
            to_clean = [
                one
                for one in log.segments
                if one.base_offset < end and one.next_offset <= cleanable.end_offset
            ]
            for group in group_segments(to_clean, log.config):
                await self._clean_group(pass_, group, rewriting)
            self._records_seen, self._records_kept = (
                seen + rewriting.records_seen,
                kept + rewriting.records_kept,
            )
        finally:
            self._key_map_bytes = 0
        reason = self._why_changed(log, pass_.cuts)
        if reason is not None:  # while the last names were made durable
            raise _Aborted(reason)
        log.cleaned_to = end
        self._passes += 1
        logger.info(
            "cleaned partition=%s from=%d to=%d keys=%d records=%d kept=%d seconds=%.1f",
            log.topic_partition,
            first,
            end,
            keys.count,
            rewriting.records_seen,
            rewriting.records_kept,
            self._clock.monotonic() - began,
        )
        await self._store_checkpoint()

    def _aborted_transactions(self, log: PartitionLog, end: Offset) -> list[AbortedTransaction]:
        try:
            return self._reader.aborted(log, log.segments[0].base_offset, end)
        except MqError as error:  # damage, and the log is fenced by now; or what passes
            raise OSError(errno.ENOMEM, error.message, str(log.path)) from error

    async def _clean_group(self, pass_: _Pass, group: list[Segment], rewriting: Rewriting) -> None:
        log, disk = pass_.log, self._disk
        self._check(pass_, group)
        self._check_space(log, group)
        transactions = log.path / segment_file_name(group[0].base_offset, TXN_INDEX_SUFFIX)
        rewrite = SegmentRewrite(
            disk,
            log.path,
            sources_of(group),
            group[-1].next_offset,
            rewriting,
            log.config,
            now_ms=self._clock.wall_ms(),
            chunk_bytes=pass_.chunk_bytes,
            with_transactions=disk.exists(transactions),
        )
        try:
            await self._carry_out(pass_, group, rewrite.slices())
        except BaseException as error:
            rewrite.segment.file = None
            # also of a log that is gone: another one may have its name, and these files
            if not isinstance(error, trio.Cancelled):
                await disk.offload(_drop, disk, log.path, rewrite.segment.base_offset)
            raise
        if rewrite.changed:
            await self._replace(pass_, Replacement(group, rewrite.segment))

    def _check_space(self, log: PartitionLog, group: list[Segment]) -> None:
        """OSError where the disk has no room for what a group is cleaned into, which may be
        as large.
        """
        size = sum(segment.size for segment in group)
        if self._disk.free_bytes(log.path) < size + DISK_RESERVE_BYTES:
            raise OSError(errno.ENOSPC, f"no space for {size} bytes beside the log", str(log.path))

    async def _replace(self, pass_: _Pass, replacement: Replacement) -> None:
        """Each change of names is made on the loop, as nobody else may change them then; to
        be durable, in a thread.
        """
        log, disk = pass_.log, self._disk
        stage(disk, log, replacement)
        await self._sync(log)
        self._check_replacement(pass_, replacement)
        retired = put_in_place(disk, log)
        self._descriptors.opened(log, replacement.cleaned)
        self._removals.add_all(retired, log.config.file_delete_delay_ms)
        await self._sync(log)
        if log.replacement is replacement and self._logs.get(log.topic_partition) is log:
            complete(disk, log)
            await self._sync(log)

    async def _sync(self, log: PartitionLog) -> None:
        try:
            await self._disk.offload(self._disk.sync_directory, log.path)
        except FileNotFoundError:
            if self._logs.get(log.topic_partition) is log:
                raise

    def _check_replacement(self, pass_: _Pass, replacement: Replacement) -> None:
        log = pass_.log
        reason = self._why_changed(log, pass_.cuts)
        if reason is None and log.replacement is not replacement:
            reason = "segments were removed"
        if reason is not None:
            if log.replacement is replacement and self._logs.get(log.topic_partition) is log:
                settle(self._disk, log)
            raise _Aborted(reason)

    async def _carry_out(
        self, pass_: _Pass, segments: list[Segment], slices: Iterator[int]
    ) -> None:
        """In a worker thread, with as much rest as work, and no faster than
        `log.cleaner.io.max.bytes.per.second`.

        _Aborted as soon as `segments`, which are read, are not what they were: what was read of
        them then says nothing of the log.
        """
        while True:
            began = self._clock.monotonic()
            try:
                moved = await self._disk.offload(next, slices, None)
            except (Uncleanable, FileNotFoundError):
                self._check(pass_, segments)
                raise
            self._check(pass_, segments)
            if moved is None:
                return
            self._bytes_moved += moved
            taken = self._clock.monotonic() - began
            rate = self.options.bytes_per_second
            await trio.sleep(
                max(min(taken, CLEANER_REST_SECONDS_MAX), moved / rate - taken if rate > 0 else 0.0)
            )

    def _check(self, pass_: _Pass, segments: list[Segment]) -> None:
        """_Aborted where the pass must not go on."""
        reason = self._why_changed(pass_.log, pass_.cuts)
        if reason is None and not _holds(pass_.log, segments):
            reason = "segments were removed"
        if reason is not None:
            raise _Aborted(reason)

    def _why_changed(self, log: PartitionLog, cuts: int) -> str | None:
        if self._logs.get(log.topic_partition) is not log:
            return "the log is gone"
        if log.failure is not None:
            return log.failure.reason
        if log.cuts != cuts:
            return "the log was cut"
        if "compact" not in log.config.cleanup_policy:
            return "the topic is not compacted any more"
        return None if self.options.enabled else "log.cleaner.enable is false"


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass works on."""

    log: PartitionLog
    cuts: int
    """As they were when it began."""
    chunk_bytes: int


def _holds(log: PartitionLog, group: list[Segment]) -> bool:
    """Whether the segments are still neighbours in the log."""
    if group[0] not in log.segments:
        return False
    at = log.segments.index(group[0])
    return log.segments[at : at + len(group)] == group


def _drop(disk: Disk, path: Path, base_offset: Offset) -> None:
    try:
        drop_files(disk, path, base_offset)
    except OSError as error:
        if error.errno not in PASSING_ERRNOS and not isinstance(error, FileNotFoundError):
            raise
