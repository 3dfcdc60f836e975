"""Producers of a log as of some offset: from a snapshot, and from the batches behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.partition_log import LogConfig, PartitionLog
from mqd.log.producers import Producers, replay_marker
from mqd.log.segment import Segment
from mqd.log.segment_files import open_segment
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import (
    SNAPSHOT_SUFFIX,
    AbortedTransaction,
    FileFormatError,
    decode_producer_snapshot,
    parse_segment_file_name,
    scan_batches,
    segment_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk


def batches_from(
    disk: Disk, path: Path, segments: list[Segment], offset: Offset, config: LogConfig
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each batch from `offset` on, and its header."""
    for segment in segments:
        if segment.next_offset > offset and segment.size:
            open_segment(disk, path, segment, config)
            assert segment.file is not None
            start = segment.seek(offset)
            if start is not None:
                for _position, header, view in scan_batches(segment.file.read_at, start, segment.size):
                    yield header, view


def replay_batch(producers: Producers, header: BatchHeader, view: memoryview) -> AbortedTransaction | None:
    """A batch is in the log. What it ends, where it is a marker that aborts."""
    if header.producer_id < 0:
        return None
    if header.is_control:
        return replay_marker(producers, view, header.last_offset)
    producers.replay(
        header.producer_id, header.producer_epoch, header.base_sequence, header.base_offset, header.last_offset_delta,
        header.max_timestamp, header.attributes,
    )  # fmt: skip
    return None


def snapshot_offsets(disk: Disk, path: Path) -> list[Offset]:
    """Offsets of the producer snapshots in a partition's directory, newest first."""
    parsed = map(parse_segment_file_name, disk.list(path))
    return sorted((one[0] for one in parsed if one is not None and one[1] == SNAPSHOT_SUFFIX), reverse=True)


def remove_snapshots(disk: Disk, path: Path, segments: list[Segment]) -> None:
    """Remove producer snapshots that nobody will use: beyond the end, and all but the newest that no segment begins with."""
    end, bases = segments[-1].next_offset, {segment.base_offset for segment in segments}
    newest = True
    for offset in snapshot_offsets(disk, path):
        if offset > end or not (newest or offset in bases):
            disk.remove(path / segment_file_name(offset, SNAPSHOT_SUFFIX))
        else:
            newest = False


def load_snapshot(disk: Disk, path: Path, offset: Offset) -> Producers | None:
    """None when the file is damaged."""
    try:
        return Producers(decode_producer_snapshot(disk.read_bytes(path / segment_file_name(offset, SNAPSHOT_SUFFIX))))
    except FileFormatError:
        return None


def reload_producers(disk: Disk, log: PartitionLog) -> None:
    """Producers as of the written end: the newest good snapshot, and the batches behind it."""
    producers, start = Producers(), 0
    for offset in snapshot_offsets(disk, log.path):
        if offset <= log.written_end_offset:
            snapshot = load_snapshot(disk, log.path, offset)
            if snapshot is not None:
                producers, start = snapshot, offset
                break
    for header, view in batches_from(disk, log.path, log.segments, start, log.config):
        if header.base_offset >= start:
            replay_batch(producers, header, view)
    log.producers = producers
