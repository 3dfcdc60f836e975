"""Making a log shorter, at either end: its files first, then its state, so that they agree when a call returns.

Each function may raise OSError, between two steps; the service then decides what becomes of the log. A segment that is taken out lets go
of its file: whoever still sends it holds it himself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.partition_log import PartitionLog
from mqd.log.replacing import settle
from mqd.log.segment_files import cut_segment, open_segment, remove_segment, retire_segment
from mqd.log.snapshots import have_aborted, reload_producers, remove_snapshots
from mqd.protocol.files import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_file_name
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk
    from mqd.log.segment import Segment


def cut_log(disk: Disk, log: PartitionLog, size: int, next_offset: Offset) -> None:
    """Cut the active segment to `size` bytes, the border before `next_offset`, and put the log's state right."""
    open_segment(disk, log.path, log.active, log.config)
    have_aborted(disk, log.path, log.segments, log.active, log.config)
    cut_segment(disk, log.path, log.active, size, next_offset)
    log.on_truncated()
    remove_snapshots(disk, log.path, log.segments)
    reload_producers(disk, log)


def remove_outdated(disk: Disk, log: PartitionLog, written: Iterable[Segment], snapshots: Iterable[Offset]) -> None:
    """A worker thread has written small files of a log that was cut meanwhile: have them go, or be written again. `written`: the
    segments whose transaction indexes are among them. OSError."""
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
    """Back to so many segments, the last one of them with `size` bytes up to `next_offset`: what a turn found."""
    log.queue.clear()
    _drop_segments(disk, log, segments)
    cut_log(disk, log, size, next_offset)
    log.taken_back = True


def truncate_log(disk: Disk, log: PartitionLog, offset: Offset) -> list[Path]:
    """Remove the batch that holds `offset` and all behind it; returns what is to be removed later.

    In the gap of a compacted log the end is that of the last batch which stays: a start would find no other.
    """
    log.cuts += 1  # a cut has begun: nothing that was planned or seen of this log before holds any longer, even if it is not finished
    settle(disk, log)
    kept = log.segment_index(offset) + 1
    paths = []
    for dropped in reversed(log.segments[kept:]):  # the youngest first: a crash leaves no hole
        dropped.file = None
        paths += retire_segment(disk, log.path, dropped)
        log.segments.pop()
    segment = log.active
    open_segment(disk, log.path, segment, log.config)
    position = segment.seek(offset)
    if position is None:
        position = segment.size
    cut_log(disk, log, position, segment.end_before(position))
    return paths


def retire_oldest(disk: Disk, log: PartitionLog, count: int) -> list[Path]:
    """Take the oldest segments out of the log, their files renamed; returns what is to be removed later."""
    settle(disk, log)
    retired = log.segments[:count]
    log.on_retired(count)
    paths = []
    for segment in retired:
        segment.file = None
        paths += retire_segment(disk, log.path, segment)
    return paths


def _drop_segments(disk: Disk, log: PartitionLog, kept: int) -> None:
    for segment in reversed(log.segments[kept:]):  # the youngest first: a crash leaves no hole
        segment.file = None
        remove_segment(disk, log.path, segment.base_offset)
    del log.segments[kept:]
