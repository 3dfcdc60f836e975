"""Truncates the files of one log at the end, and takes the oldest segments out at the start. Files
and state agree when a call returns.

A truncation has two steps. `plan_truncation` opens and reads everything that is needed. It may
raise OSError for lack of descriptors or space, and then nothing has changed. `run_truncation` opens
no file. If it raises OSError, the disk is broken, and the log is unusable until the next start. A
removed segment drops its file: an in-flight sendfile holds its own reference.

manager/truncation.py calls this and decides what a failure means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.key_filter_build import remove_filter
from mqd.log.disk.log_end_checkpoint import void_log_end
from mqd.log.disk.producer_snapshots import (
    open_transaction_index,
    outdated_snapshots,
    producers_at,
    remove_snapshots,
)
from mqd.log.disk.segment_files import (
    open_indexes,
    open_segment,
    remove_segment,
    retire_segment,
    truncate_segment,
)
from mqd.log.disk.segment_reading import next_offset_before, seek
from mqd.log.disk.segment_swap import finish_or_abort_swap
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_file_name
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.producers import Producers
    from mqd.log.segment import Segment


@dataclass(frozen=True, slots=True)
class PlannedTruncation:
    """A truncation and everything that it needs."""

    segment_count: int
    """The number of segments that stay. The last of them is truncated."""
    size: int
    """The new size of that segment in bytes, where the batch before `next_offset` ends."""
    next_offset: Offset
    index_files: tuple[File | None, File | None]
    snapshots: list[Path]
    """Snapshots to remove."""
    producers: Producers
    """The producers at `next_offset`."""


def plan_truncation(disk: Disk, log: PartitionLog, offset: Offset) -> PlannedTruncation:
    """Plan to remove the batch with `offset`, and everything after it. Raises OSError, and then
    nothing has changed, or BadBatch.

    If `offset` is in the gap of a compacted log, the new end is that of the last batch before the
    gap. A start would find the same end.
    """
    # Plans from before this are invalid, even if this truncation fails.
    log.truncations += 1
    finish_or_abort_swap(disk, log)
    segment_count = log.segment_index(offset) + 1
    segment = log.segments[segment_count - 1]
    open_segment(disk, log.path, segment, log.config)
    position = seek(segment, offset)
    if position is None:
        position = segment.size
    next_offset = next_offset_before(segment, position)
    return _plan(disk, log, segment_count, position, next_offset)


def _plan(
    disk: Disk, log: PartitionLog, segment_count: int, size: int, next_offset: Offset
) -> PlannedTruncation:
    # All files are opened and read before the first change (I51).
    segment = log.segments[segment_count - 1]
    open_segment(disk, log.path, segment, log.config)
    open_transaction_index(disk, log.path, log.segments, segment, log.config)
    index_files = open_indexes(disk, log.path, segment)
    snapshots = outdated_snapshots(disk, log.path, log.segments[:segment_count], next_offset)
    producers = producers_at(disk, log, next_offset)
    if next_offset < log.end_claim.offset_max:
        void_log_end(disk, log)
    return PlannedTruncation(segment_count, size, next_offset, index_files, snapshots, producers)


def run_truncation(disk: Disk, log: PartitionLog, plan: PlannedTruncation) -> list[Path]:
    """Returns the files to remove later. Raises OSError or BadBatch: the log is unusable."""
    paths = []
    for dropped in reversed(log.segments[plan.segment_count :]):  # a crash leaves no gap
        dropped.file = None
        paths += retire_segment(disk, log.path, dropped, or_remove=True)
        log.segments.pop()
    _truncate_active(disk, log, plan)
    return paths


def _truncate_active(disk: Disk, log: PartitionLog, plan: PlannedTruncation) -> None:
    remove_filter(disk, log.path, log.active)
    truncate_segment(log.active, plan.size, plan.next_offset, plan.index_files)
    log.on_truncated()
    for path in plan.snapshots:
        disk.remove(path)
    log.producers = plan.producers


def undo_write(
    disk: Disk, log: PartitionLog, segment_count: int, size: int, next_offset: Offset
) -> None:
    """Remove what a failed flush wrote. The arguments describe the log before that flush. Raises
    OSError or BadBatch.
    """
    log.queue.clear()
    plan = _plan(disk, log, segment_count, size, next_offset)
    for dropped in reversed(log.segments[segment_count:]):  # a crash leaves no gap
        dropped.file = None
        remove_segment(disk, log.path, dropped.base_offset)
        log.segments.pop()
    _truncate_active(disk, log, plan)
    log.durability.write_was_undone = True


def remove_outdated_files(
    disk: Disk, log: PartitionLog, indexed: Iterable[Segment], snapshots: Iterable[Offset]
) -> None:
    """A worker thread wrote small files of a log that was truncated meanwhile. Remove them, or have
    them written again. `indexed`: the segments whose transaction index was written. Raises OSError.
    """
    for offset in snapshots:
        disk.remove(log.path / segment_file_name(offset, SNAPSHOT_SUFFIX))
    remove_snapshots(disk, log.path, log.segments)
    segments = {segment.base_offset: segment for segment in log.segments}
    for one in indexed:
        segment = segments.get(one.base_offset)
        if segment is None:
            disk.remove(log.path / segment_file_name(one.base_offset, TXN_INDEX_SUFFIX))
        else:
            index = open_transaction_index(disk, log.path, log.segments, segment, log.config)
            index.stale = True


def retire_oldest(disk: Disk, log: PartitionLog, count: int) -> list[Path]:
    """Take the oldest segments out of the log and rename their files. Returns the files to remove
    later.
    """
    finish_or_abort_swap(disk, log)
    retired = log.segments[:count]
    log.on_retired(count)
    paths = []
    for segment in retired:
        segment.file = None
        paths += retire_segment(disk, log.path, segment)
    return paths
