"""Making a log shorter, at either end: its files first, then its state, so that they agree when a
call returns.

A cut at the end is done or not done. `plan_cut` opens and reads all that it takes: OSError there,
for lack of descriptors or space, and nothing has changed. `carry_out` opens nothing; an OSError
there is of a broken disk, and the log is of no use until the next start. A segment that is taken
out lets go of its file: an in-flight sendfile holds its own reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.log_end_plan import void
from mqd.log.disk.producer_snapshots import (
    have_aborted,
    outdated_snapshots,
    producers_at,
    remove_snapshots,
)
from mqd.log.disk.segment_files import (
    cut_segment,
    open_indexes,
    open_segment,
    remove_segment,
    retire_segment,
)
from mqd.log.disk.segment_swap import settle
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_file_name
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.producers import Producers
    from mqd.log.segment import Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut at the end of a log, with all that it takes at hand."""

    kept: int
    """How many segments stay; the last of them is cut."""
    size: int
    """Bytes that stay of that one: the border before `next_offset`."""
    next_offset: Offset
    indexes: tuple[File | None, File | None]
    snapshots: list[Path]
    """To be removed."""
    producers: Producers
    """As of `next_offset`."""


def plan_cut(disk: Disk, log: PartitionLog, kept: int, size: int, next_offset: Offset) -> Cut:
    """The log is to keep so many segments, the last of them with `size` bytes up to `next_offset`.

    OSError; BadBatch.
    """
    # All files are opened and read before the first change (I51).
    segment = log.segments[kept - 1]
    open_segment(disk, log.path, segment, log.config)
    have_aborted(disk, log.path, log.segments, segment, log.config)
    indexes = open_indexes(disk, log.path, segment)
    snapshots = outdated_snapshots(disk, log.path, log.segments[:kept], next_offset)
    producers = producers_at(disk, log, next_offset)
    if next_offset < log.noted_end:
        void(disk, log)
    return Cut(kept, size, next_offset, indexes, snapshots, producers)


def _cut(disk: Disk, log: PartitionLog, cut: Cut) -> None:
    cut_segment(log.active, cut.size, cut.next_offset, cut.indexes)
    log.on_truncated()
    for path in cut.snapshots:
        disk.remove(path)
    log.producers = cut.producers


def remove_outdated(
    disk: Disk, log: PartitionLog, written: Iterable[Segment], snapshots: Iterable[Offset]
) -> None:
    """A worker thread has written small files of a log that was cut meanwhile: have them go, or be
    written again. `written`: the segments whose transaction indexes are among them. OSError.
    """
    for offset in snapshots:
        disk.remove(log.path / segment_file_name(offset, SNAPSHOT_SUFFIX))
    remove_snapshots(disk, log.path, log.segments)
    segments = {segment.base_offset: segment for segment in log.segments}
    for one in written:
        segment = segments.get(one.base_offset)
        if segment is None:
            disk.remove(log.path / segment_file_name(one.base_offset, TXN_INDEX_SUFFIX))
        else:
            have_aborted(disk, log.path, log.segments, segment, log.config).stale = True


def put_back(disk: Disk, log: PartitionLog, segments: int, size: int, next_offset: Offset) -> None:
    """Back to so many segments, the last one of them with `size` bytes up to `next_offset`:
    what a turn found. OSError; BadBatch.
    """
    log.queue.clear()
    cut = plan_cut(disk, log, segments, size, next_offset)
    for dropped in reversed(log.segments[segments:]):  # the youngest first: a crash leaves no hole
        dropped.file = None
        remove_segment(disk, log.path, dropped.base_offset)
        log.segments.pop()
    _cut(disk, log, cut)
    log.durability.write_was_undone = True


def plan_truncation(disk: Disk, log: PartitionLog, offset: Offset) -> Cut:
    """The batch that holds `offset` and all behind it are to go. OSError, and nothing has changed;
    BadBatch.

    In the gap of a compacted log the end is that of the last batch which stays: a start would find
    no other.
    """
    # nothing that was planned or seen of this log before holds any longer, even if this is not
    # carried out
    log.cuts += 1
    settle(disk, log)
    kept = log.segment_index(offset) + 1
    segment = log.segments[kept - 1]
    open_segment(disk, log.path, segment, log.config)
    position = segment.seek(offset)
    if position is None:
        position = segment.size
    return plan_cut(disk, log, kept, position, segment.end_before(position))


def carry_out(disk: Disk, log: PartitionLog, cut: Cut) -> list[Path]:
    """Returns what is to be removed later.

    OSError and BadBatch leave the log in no state to be used.
    """
    paths = []
    for dropped in reversed(log.segments[cut.kept :]):  # the youngest first: a crash leaves no hole
        dropped.file = None
        paths += retire_segment(disk, log.path, dropped, or_remove=True)
        log.segments.pop()
    _cut(disk, log, cut)
    return paths


def retire_oldest(disk: Disk, log: PartitionLog, count: int) -> list[Path]:
    """Take the oldest segments out of the log, their files renamed; returns what is to be
    removed later.
    """
    settle(disk, log)
    retired = log.segments[:count]
    log.on_retired(count)
    paths = []
    for segment in retired:
        segment.file = None
        paths += retire_segment(disk, log.path, segment)
    return paths
