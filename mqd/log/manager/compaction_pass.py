"""One pass of the compactor over one log: fills the offset map from the dirty part, then rewrites
the segments.

A worker thread does the work in slices (disk/segment_rewrite.py). After each slice the pass pauses
for about the time that the slice took. A log may be truncated, moved or deleted at any time. After
each slice the pass checks that the log is unchanged, and is aborted otherwise. Segments that were
swapped in before stay. A pass reads the high watermark only at its beginning.

Memory: the offset map has 24 bytes for each offset of the dirty part, up to
`log.cleaner.dedupe.buffer.size`. More keys need several passes. Then half of
`log.cleaner.io.buffer.size`, or one batch; one decompressed batch, with about 200 bytes for each
record; and the output of these.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import trio

from mqd.errors import PASSING_ERRNOS, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import CLEANER_REST_SECONDS_MAX, DISK_RESERVE_BYTES
from mqd.log.compaction import (
    BatchRewriter,
    Cleanable,
    CleanedTransactions,
    OffsetMapBuilder,
    group_segments,
    keys_max,
)
from mqd.log.compactor_options import CompactorOptions
from mqd.log.disk.segment_rewrite import (
    SegmentRewrite,
    Uncleanable,
    fill_offset_map,
    sources_of,
)
from mqd.log.disk.segment_swap import (
    begin_swap,
    complete_swap,
    finish_or_abort_swap,
    put_in_place,
    remove_unfinished_files,
)
from mqd.log.manager.delayed_deletes import DelayedDeletes
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.reading import Reader
from mqd.log.offset_map import BYTES_PER_SLOT, OffsetMap
from mqd.log.partition_log import PartitionLog, SegmentSwap
from mqd.log.segment import Segment
from mqd.protocol.batch import HEADER_BYTES
from mqd.protocol.files import TXN_INDEX_SUFFIX, AbortedTransaction, segment_file_name
from mqd.types import Offset, TopicPartition


class PassAborted(Exception):
    """The log has changed since the pass began."""


def is_served(logs: Mapping[TopicPartition, PartitionLog], log: PartitionLog) -> bool:
    """Whether the log is not deleted. Another log may have its name."""
    return logs.get(log.topic_partition) is log


class CompactionPass:
    """See the head of this file. `options` returns the current options, which may change."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        logs: Mapping[TopicPartition, PartitionLog],
        descriptors: Descriptors,
        reader: Reader,
        deletes: DelayedDeletes,
        options: Callable[[], CompactorOptions],
        log: PartitionLog,
        cleanable: Cleanable,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._logs = logs
        self._descriptors = descriptors
        self._reader = reader
        self._deletes = deletes
        self._options = options
        self._log = log
        self._cleanable = cleanable
        self._truncations = log.truncations
        self._chunk_bytes = max(options().io_buffer_bytes // 2, HEADER_BYTES)
        self.keys = 0
        """Number of keys in the offset map."""
        self.records_seen = self.records_kept = 0

    async def run(self) -> Offset:
        """Returns the end of the clean part. PassAborted, Uncleanable, OSError."""
        log, cleanable = self._log, self._cleanable
        # Check for the smallest group first, before the whole dirty part is read.
        self._check_space(log.segments[:1])
        first, end = cleanable.first_dirty_offset, cleanable.end_offset
        dirty = [one for one in log.segments if first < one.next_offset <= end]
        offset_map = await self._create_offset_map()
        self._check(dirty)
        aborted = self._aborted_transactions(end)
        builder = OffsetMapBuilder(
            offset_map, CleanedTransactions(aborted, dirty[0].base_offset), first
        )
        await self._run_slices(
            dirty,
            fill_offset_map(self._disk, log.path, sources_of(dirty), builder, self._chunk_bytes),
        )
        if builder.is_full:
            end = builder.end_offset
            if end <= first:
                raise Uncleanable(
                    f"one batch at offset {first} has more keys than "
                    "log.cleaner.dedupe.buffer.size holds"
                )
        rewriter = BatchRewriter(
            offset_map,
            end,
            CleanedTransactions(aborted, log.segments[0].base_offset),
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
            await self._clean_group(group, rewriter)
        self.keys = offset_map.count
        self.records_seen, self.records_kept = rewriter.records_seen, rewriter.records_kept
        reason = self._why_changed()
        if reason is not None:  # during the last sync
            raise PassAborted(reason)
        return end

    async def _create_offset_map(self) -> OffsetMap:
        options = self._options()
        slots = min(
            options.dedupe_buffer_bytes // BYTES_PER_SLOT,
            math.ceil(keys_max(self._cleanable) / options.load_factor) + 2,
        )
        return await self._disk.offload(OffsetMap, slots, options.load_factor)

    def _aborted_transactions(self, end: Offset) -> list[AbortedTransaction]:
        log = self._log
        try:
            return self._reader.aborted(log, log.segments[0].base_offset, end)
        except MqError as error:  # the log is damaged and now offline, or the error is temporary
            raise OSError(errno.ENOMEM, error.message, str(log.path)) from error

    # -- a group of segments ---------------------------------------------------------------------

    async def _clean_group(self, group: list[Segment], rewriter: BatchRewriter) -> None:
        log, disk = self._log, self._disk
        self._check(group)
        self._check_space(group)
        transactions = log.path / segment_file_name(group[0].base_offset, TXN_INDEX_SUFFIX)
        rewrite = SegmentRewrite(
            disk,
            log.path,
            sources_of(group),
            group[-1].next_offset,
            rewriter,
            log.config,
            now_ms=self._clock.wall_ms(),
            chunk_bytes=self._chunk_bytes,
            with_transactions=disk.exists(transactions),
        )
        try:
            await self._run_slices(group, rewrite.slices())
        except BaseException as error:
            rewrite.segment.file = None
            # Also if the log was deleted: another log may have its name, and these files.
            if not isinstance(error, trio.Cancelled):
                await disk.offload(_remove_if_possible, disk, log.path, rewrite.segment.base_offset)
            raise
        if rewrite.changed:
            await self._swap(SegmentSwap(group, rewrite.segment))

    def _check_space(self, group: list[Segment]) -> None:
        """Raises OSError if the disk has no space for a copy of the group."""
        path = self._log.path
        size = sum(segment.size for segment in group)
        if self._disk.free_bytes(path) < size + DISK_RESERVE_BYTES:
            raise OSError(errno.ENOSPC, f"no space for {size} bytes beside the log", str(path))

    async def _swap(self, swap: SegmentSwap) -> None:
        """Renames run on the event loop, so that nothing else changes the files meanwhile. Syncs
        run in a worker thread.
        """
        log, disk = self._log, self._disk
        begin_swap(disk, log, swap)
        await self._sync_directory()
        self._check_swap(swap)
        retired = put_in_place(disk, log)
        self._descriptors.opened(log, swap.cleaned)
        self._deletes.add_all(retired, log.config.file_delete_delay_ms)
        await self._sync_directory()
        if log.swap is swap and is_served(self._logs, log):
            complete_swap(disk, log)
            await self._sync_directory()

    async def _sync_directory(self) -> None:
        try:
            await self._disk.offload(self._disk.sync_directory, self._log.path)
        except FileNotFoundError:
            if is_served(self._logs, self._log):
                raise

    def _check_swap(self, swap: SegmentSwap) -> None:
        log = self._log
        reason = self._why_changed()
        if reason is None and log.swap is not swap:
            reason = "segments were removed"
        if reason is not None:
            if log.swap is swap and is_served(self._logs, log):
                finish_or_abort_swap(self._disk, log)
            raise PassAborted(reason)

    # -- slices ----------------------------------------------------------------------------------

    async def _run_slices(self, segments: list[Segment], slices: Iterator[int]) -> None:
        """Run the slices in a worker thread. Pause after each for the time that it took, and keep
        to `log.cleaner.io.max.bytes.per.second`.

        PassAborted as soon as `segments`, which the slices read, have changed.
        """
        while True:
            began = self._clock.monotonic()
            try:
                moved = await self._disk.offload(next, slices, None)
            except (Uncleanable, FileNotFoundError):
                self._check(segments)
                raise
            self._check(segments)
            if moved is None:
                return
            taken = self._clock.monotonic() - began
            rate = self._options().bytes_per_second
            await trio.sleep(
                max(min(taken, CLEANER_REST_SECONDS_MAX), moved / rate - taken if rate > 0 else 0.0)
            )

    def _check(self, segments: list[Segment]) -> None:
        """PassAborted if the log or these segments have changed."""
        reason = self._why_changed()
        if reason is None and not _are_adjacent(self._log, segments):
            reason = "segments were removed"
        if reason is not None:
            raise PassAborted(reason)

    def _why_changed(self) -> str | None:
        log = self._log
        if not is_served(self._logs, log):
            return "the log was deleted"
        if log.failure is not None:
            return log.failure.reason
        if log.truncations != self._truncations:
            return "the log was truncated"
        if "compact" not in log.config.cleanup_policy:
            return "the topic is no longer compacted"
        return None if self._options().enabled else "log.cleaner.enable is false"


def _are_adjacent(log: PartitionLog, group: list[Segment]) -> bool:
    """Whether the segments are still in the log, one after the other."""
    if group[0] not in log.segments:
        return False
    at = log.segments.index(group[0])
    return log.segments[at : at + len(group)] == group


def _remove_if_possible(disk: Disk, path: Path, base_offset: Offset) -> None:
    try:
        remove_unfinished_files(disk, path, base_offset)
    except OSError as error:
        if error.errno not in PASSING_ERRNOS and not isinstance(error, FileNotFoundError):
            raise
