"""Writes the log end checkpoint (log_end_checkpoint.py), and voids the line of a log before the log
becomes shorter.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.directory import LogDirectory
from mqd.log.disk.log_end_checkpoint import (
    NAME,
    VOID,
    Ends,
    LogEnd,
    encode_ends,
    last_batch,
    leave_mark,
    pair_of,
)
from mqd.log.partition_log import PartitionLog
from mqd.types import Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File


@dataclass(slots=True)
class EndsPlan:
    """The checkpoint of one log directory: planned on the event loop, written in a thread. Then
    `done` records the result on the loop."""

    directory: Path
    serial: int
    pair: int
    """Of the file that is there."""
    is_news: bool
    lines: dict[TopicPartition, LogEnd]
    unread: list[tuple[PartitionLog, File, int, int]] = field(default_factory=list)
    """Logs whose last batch the thread reads: the file, the start position, and the end of the
    log at that time."""
    planned: list[tuple[PartitionLog, Offset, int, bool]] = field(default_factory=list)
    """Each log with its end, its `cuts` and whether it had the mark when this was planned."""

    def run(self, disk: Disk) -> None:
        """In a worker thread. OSError. A log that is truncated meanwhile has its mark already, so
        the result for it does not matter."""
        pair = pair_of(disk, self.directory)
        if not self.is_news and pair == self.pair:
            return
        self.pair = pair
        for log, file, position, size in self.unread:
            line = self.lines[log.topic_partition]
            last = last_batch(file, position, size, log.topic_id)
            if last is not None and last.end_offset == line.end_offset:
                self.lines[log.topic_partition] = last
        disk.write_atomic(self.directory / NAME, encode_ends(Ends(self.serial, pair, self.lines)))

    def done(self, disk: Disk) -> None:
        """It is on the disk."""
        for log, end, cuts, was_void in self.planned:
            if log.cuts == cuts:
                log.noted = self.lines.get(log.topic_partition)
                log.noted_end = end
                if was_void:
                    with suppress(OSError):  # the next one does it
                        disk.remove(log.path / VOID)
                        log.end_is_void = False


def plan_ends(
    directory: LogDirectory, logs: Iterable[PartitionLog], serial: int, *, is_news: bool
) -> EndsPlan:
    """`logs`: those of the directory. Lines of logs that are not served stay as they are."""
    plan = EndsPlan(directory.path, serial, directory.pair, is_news, dict(directory.ends))
    for log in logs:
        end, active = log.written_end_offset, log.active
        plan.planned.append((log, end, log.cuts, log.end_is_void))
        if (
            log.noted is not None
            and not log.end_is_void
            and (log.noted.end_offset == end or log.failure is not None)
        ):
            plan.lines[log.topic_partition] = log.noted
        elif end:
            plan.lines[log.topic_partition] = LogEnd(log.topic_id, end)
            if active.size and active.file is not None and active.index is not None:
                plan.unread.append((log, active.file, active.index.last_position(), active.size))
        log.noted_end = max(log.noted_end, end)
    return plan


def is_news(logs: Iterable[PartitionLog]) -> bool:
    """Whether a checkpoint would say something else than the one before."""
    return any(
        log.failure is None
        and (
            log.end_is_void
            or (log.noted.end_offset if log.noted is not None else 0) != log.written_end_offset
        )
        for log in logs
    )


def void(disk: Disk, log: PartitionLog) -> None:
    """Call this before a log becomes shorter than its claim. Does nothing if it has the mark.
    OSError, and nothing is changed."""
    if not log.end_is_void:
        leave_mark(disk, log.path)
        log.end_is_void = True
