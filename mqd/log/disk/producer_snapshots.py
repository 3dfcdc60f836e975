"""The producers of a log at an offset, from a snapshot file and the batches after it. The same
replay rebuilds transaction indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.segment_files import open_segment, read_transaction_index, store_transaction_index
from mqd.log.disk.segment_reading import seek
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.producers import Producers, replay_marker
from mqd.log.segment import Segment
from mqd.log.transaction_index import TransactionIndex
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

logger = logging.getLogger(__name__)


def batches_from(
    disk: Disk, path: Path, segments: list[Segment], offset: Offset, config: LogConfig
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """(header, bytes) of each batch from `offset` on. Raises OSError or BadBatch."""
    for segment in segments:
        if segment.next_offset > offset and segment.size:
            open_segment(disk, path, segment, config)
            assert segment.file is not None
            start = seek(segment, offset)
            if start is not None:
                for _position, header, view in scan_batches(
                    segment.file.read_at, start, segment.size
                ):
                    yield header, view


def _batches_between(
    disk: Disk, path: Path, segments: list[Segment], start: Offset, end: Offset, config: LogConfig
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """(header, bytes) of each batch whose base offset is in [start, end). Reads nothing after
    `end`, except the batch there. Raises OSError or BadBatch.
    """
    for header, view in batches_from(disk, path, segments, start, config):
        if header.base_offset >= end:
            break
        if header.base_offset >= start:
            yield header, view


def replay_batch(
    producers: Producers, header: BatchHeader, view: memoryview
) -> AbortedTransaction | None:
    """Update the producers for a batch. Returns the transaction that it aborts, if any."""
    if header.producer_id < 0:
        return None
    if header.is_control:
        return replay_marker(producers, view, header.last_offset)
    producers.replay(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_offset,
        header.last_offset_delta,
        header.max_timestamp,
        header.attributes,
    )
    return None


def open_transaction_index(
    disk: Disk, path: Path, segments: list[Segment], segment: Segment, config: LogConfig
) -> TransactionIndex:
    """The transaction index of one of `segments`, in memory. It is loaded from its file, or rebuilt
    from the log if the file is damaged. Raises OSError or BadBatch.
    """
    if segment.transaction_index is None:
        try:
            segment.transaction_index = read_transaction_index(disk, path, segment)
        except FileFormatError as error:
            logger.warning(
                "transaction index rebuilt path=%s segment=%d reason=%s",
                path,
                segment.base_offset,
                error,
            )
            segment.transaction_index = _rebuild_transaction_index(
                disk, path, segments, segment, config
            )
            store_transaction_index(disk, path, segment)
    return segment.transaction_index


def _rebuild_transaction_index(
    disk: Disk, path: Path, segments: list[Segment], segment: Segment, config: LogConfig
) -> TransactionIndex:
    producers, start = newest_snapshot(disk, path, segment.base_offset)
    found = TransactionIndex()
    for header, view in batches_from(
        disk, path, segments[: segments.index(segment) + 1], start, config
    ):
        if header.base_offset >= start:
            aborted = replay_batch(producers, header, view)
            if aborted is not None and aborted.last_offset >= segment.base_offset:
                found.extend((aborted,))
    return found


def newest_snapshot(disk: Disk, path: Path, end_offset: Offset) -> tuple[Producers, Offset]:
    """The newest valid snapshot up to `end_offset`, and its offset. Without one: no producers, and
    offset 0.
    """
    for offset in snapshot_offsets(disk, path):
        if offset <= end_offset:
            snapshot = load_snapshot(disk, path, offset)
            if snapshot is not None:
                return snapshot, offset
    return Producers(), 0


def snapshot_offsets(disk: Disk, path: Path) -> list[Offset]:
    """Offsets of the producer snapshots in a partition's directory, newest first. The directory may
    have thousands of other files.
    """
    names = [name for name in disk.list(path) if name.endswith(SNAPSHOT_SUFFIX)]
    parsed = map(parse_segment_file_name, names)
    return sorted((one[0] for one in parsed if one is not None), reverse=True)


def remove_snapshots(disk: Disk, path: Path, segments: list[Segment]) -> None:
    """Remove producer snapshots beyond the end, and those at no segment's base offset except the
    newest.
    """
    for outdated in outdated_snapshots(disk, path, segments, segments[-1].next_offset):
        disk.remove(outdated)


def outdated_snapshots(disk: Disk, path: Path, segments: list[Segment], end: Offset) -> list[Path]:
    """The snapshots that `remove_snapshots` removes from a log with these segments and this end."""
    bases = {segment.base_offset for segment in segments}
    found = []
    newest = True
    for offset in snapshot_offsets(disk, path):
        if offset > end or not (newest or offset in bases):
            found.append(path / segment_file_name(offset, SNAPSHOT_SUFFIX))
        else:
            newest = False
    return found


def load_snapshot(disk: Disk, path: Path, offset: Offset) -> Producers | None:
    """The producers of a snapshot file; None if it is damaged."""
    try:
        return Producers(
            decode_producer_snapshot(
                disk.read_bytes(path / segment_file_name(offset, SNAPSHOT_SUFFIX))
            )
        )
    except FileFormatError:
        return None


def producers_at(disk: Disk, log: PartitionLog, end: Offset) -> Producers:
    """The producers at `end`, up to the written end: from the newest valid snapshot and the batches
    after it. Raises OSError or BadBatch.
    """
    producers, start = newest_snapshot(disk, log.path, end)
    note_unreplicated(
        disk, log.path, log.segments, log.config, producers, start, log.checkpointed_high_watermark
    )
    for header, view in _batches_between(disk, log.path, log.segments, start, end, log.config):
        replay_batch(producers, header, view)
    return producers


def note_unreplicated(
    disk: Disk,
    path: Path,
    segments: list[Segment],
    config: LogConfig,
    producers: Producers,
    snapshot_offset: Offset,
    high_watermark: Offset,
) -> None:
    """Add transactions to `producers`, of the snapshot at `snapshot_offset`, whose markers are not
    below `high_watermark`: a snapshot does not contain them. Raises OSError or BadBatch.

    The log is read after an older snapshot only if there is such a marker.
    """
    if snapshot_offset <= high_watermark or not producers.have_ended_transactions:
        return
    earlier_batches = _batches_between(
        disk, path, segments, high_watermark, snapshot_offset, config
    )
    if not any(header.is_control for header, _ in earlier_batches):
        return
    older, start = newest_snapshot(disk, path, high_watermark)
    for header, view in _batches_between(disk, path, segments, start, snapshot_offset, config):
        replay_batch(older, header, view)
    producers.take_unreplicated(older)
