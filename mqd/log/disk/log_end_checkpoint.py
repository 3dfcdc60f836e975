"""Reads and writes the log end checkpoint of a log directory (log_end.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from crc32c import crc32c

from mqd.errors import PASSING_ERRNOS
from mqd.log.disk.segment_reading import seek
from mqd.log.log_directory import LogDirectory
from mqd.log.log_end import (
    LOG_END_CHECKPOINT,
    LOG_END_VOID,
    LogEnd,
    LogEndCheckpoint,
    decode_log_ends,
    encode_log_ends,
)
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT, FileFormatError
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.segment import Segment

logger = logging.getLogger(__name__)

# -- at a start


def load_log_ends(disk: Disk, directory: Path) -> LogEndCheckpoint:
    """The checkpoint of a log directory. It has no lines if the file is missing or damaged, or does
    not belong to the recovery point checkpoint. Raises OSError.
    """
    path = directory / LOG_END_CHECKPOINT
    try:
        checkpoint = decode_log_ends(disk.read_bytes(path))
    except FileNotFoundError:
        return LogEndCheckpoint()
    except FileFormatError as error:
        logger.warning("checkpoint ignored file=%s reason=%s", path, error)
        return LogEndCheckpoint()
    if checkpoint.recovery_points_crc != crc_of_recovery_points(disk, directory):
        logger.warning(
            "checkpoint ignored file=%s reason='the recovery points were written without it'", path
        )
        checkpoint.lines.clear()
    return checkpoint


def rewrite_log_ends(
    disk: Disk,
    directory: Path,
    checkpoint: LogEndCheckpoint,
    lines: dict[TopicPartition, LogEnd],
) -> None:
    """Write the checkpoint again with these lines only. If there is no space, remove it.

    Durable on return. Raises OSError.
    """
    path = directory / LOG_END_CHECKPOINT
    try:
        disk.write_atomic(path, encode_log_ends(replace(checkpoint, lines=lines)))
    except OSError as error:
        if error.errno not in PASSING_ERRNOS:
            raise
        logger.warning(
            "checkpoint removed, no space left to write it file=%s reason=%s", path, error
        )
        disk.remove(path)
        disk.sync_directory(directory)


def crc_of_recovery_points(disk: Disk, directory: Path) -> int:
    try:
        return int(crc32c(disk.read_bytes(directory / RECOVERY_POINT_CHECKPOINT)))
    except FileNotFoundError:
        return 0


def batch_below(segment: Segment, topic_id: UUID, end: Offset) -> LogEnd | None:
    """The batch of an open segment with the last offset below `end`. None: there is none."""
    position = seek(segment, end - 1) if segment.base_offset < end <= segment.next_offset else None
    if position is None:
        return None
    assert segment.file is not None
    return last_batch(segment.file, position, position + 1, topic_id)


def last_batch(file: File, position: int, size: int, topic_id: UUID) -> LogEnd | None:
    """The last batch that begins in `[position, size)`. None: there is no complete header."""
    last = None
    while position < size:
        data = file.read_at(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        header = parse_header(data)
        if header.size < HEADER_BYTES:
            return None
        last = LogEnd(
            topic_id, header.next_offset, header.partition_leader_epoch, header.crc & 0xFFFFFFFF
        )
        position += header.size
    return last


# -- while the node runs


@dataclass(slots=True)
class LogEndPlan:
    """One write of the checkpoint of a log directory. The event loop plans it, a worker thread runs
    it. Then `on_stored` updates the logs, on the event loop.
    """

    directory: Path
    serial: int
    recovery_points_crc: int
    """The CRC of the recovery point checkpoint on disk."""
    changed: bool
    """Whether any log of the node has another end than on disk."""
    lines: dict[TopicPartition, LogEnd]
    unread: list[tuple[PartitionLog, File, int, int]] = field(default_factory=list)
    """Logs whose last batch the thread reads: the file, the start position, and the size of the
    file at that time."""
    planned: list[tuple[PartitionLog, Offset, int, bool]] = field(default_factory=list)
    """Each log with its end, its `truncations` and whether its line was void when this was planned.
    """

    def run(self, disk: Disk) -> None:
        """Write the checkpoint, in a worker thread. Raises OSError. If a log is truncated
        meanwhile, its line is void already, so the line that is written here does not count.
        """
        recovery_points_crc = crc_of_recovery_points(disk, self.directory)
        if not self.changed and recovery_points_crc == self.recovery_points_crc:
            return
        self.recovery_points_crc = recovery_points_crc
        for log, file, position, size in self.unread:
            line = self.lines[log.topic_partition]
            last = last_batch(file, position, size, log.topic_id)
            if last is not None and last.end_offset == line.end_offset:
                self.lines[log.topic_partition] = last
        checkpoint = LogEndCheckpoint(self.serial, recovery_points_crc, self.lines)
        disk.write_atomic(self.directory / LOG_END_CHECKPOINT, encode_log_ends(checkpoint))

    def on_stored(self, disk: Disk) -> None:
        """`run` has returned."""
        for log, end, truncations, was_void in self.planned:
            if log.truncations == truncations:
                log.end_claim.line = self.lines.get(log.topic_partition)
                log.end_claim.offset_max = end
                if was_void:
                    with suppress(OSError):  # the next checkpoint removes it
                        disk.remove(log.path / LOG_END_VOID)
                        log.end_claim.is_void = False


def plan_log_ends(
    directory: LogDirectory, logs: Iterable[PartitionLog], serial: int, *, changed: bool
) -> LogEndPlan:
    """`logs`: those of the directory. Lines of logs that are not served stay as they are."""
    plan = LogEndPlan(
        directory.path,
        serial,
        directory.recovery_points_crc,
        changed,
        dict(directory.unserved_ends),
    )
    for log in logs:
        end, active, claim = log.written_end_offset, log.active, log.end_claim
        plan.planned.append((log, end, log.truncations, claim.is_void))
        if (
            claim.line is not None
            and not claim.is_void
            and (claim.line.end_offset == end or log.failure is not None)
        ):
            plan.lines[log.topic_partition] = claim.line
        elif end:
            plan.lines[log.topic_partition] = LogEnd(log.topic_id, end)
            if active.size and active.file is not None and active.index is not None:
                plan.unread.append((log, active.file, active.index.last_position(), active.size))
        claim.offset_max = max(claim.offset_max, end)
    return plan


def log_ends_changed(logs: Iterable[PartitionLog]) -> bool:
    """Whether a new checkpoint would differ from the one on disk."""
    return any(
        log.failure is None and log.end_claim.differs_from(log.written_end_offset) for log in logs
    )


def void_log_end(disk: Disk, log: PartitionLog) -> None:
    """Call this before a log becomes shorter than its line. Raises OSError, and nothing is
    changed."""
    if not log.end_claim.is_void:
        create_void_mark(disk, log.path)
        log.end_claim.is_void = True


def create_void_mark(disk: Disk, path: Path) -> None:
    """`path`: the directory of a log."""
    disk.open(path / LOG_END_VOID, create=True).close()
