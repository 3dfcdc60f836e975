"""Where each log ended: a checkpoint beside the recovery points, and what a start makes of it.

A killed process loses nothing as long as its machine runs. That does not hold for a disk that was
detached and attached again, or replaced by an older copy of itself. So each log directory has a
checkpoint of ends. A line names the written end of a log when the file was made, and leader epoch
and CRC of the last batch below it. What a start finds must have that batch, or lie beyond it; else
the log is lost: it is fenced, and the node vouches for nothing.

    log-end-checkpoint
        0                                                   version
        17                                                  disk serial: rises with each change (the
                                                            controller keeps it)
        c0ffee00                                            CRC-32C of the recovery points that were
                                                            written before it
        1                                                   lines that follow
        orders 0 xtzWWN4bTjitpL3kfd9s5g 42 3 9f2c11d0       partition, topic id, end offset, leader
                                                            epoch, CRC; "-" for none

A claim is of written records, synced or not, since lost page cache is what is looked for. After a
power cut those may be missing by right; so claims count only where the machine ran on, or after an
orderly stop. There every change of a file is seen in the order in which it was made, and nothing
here rests on a sync.

No honest change raises an alarm. Whatever makes a log shorter than its claim leaves the mark `void`
in the log's directory first; the next checkpoint that covers the log removes it. DeleteRecords,
retention and compaction do not move the end, and never touch the active segment, the only one in
which batches are compared. A line of another topic id is of a topic that was deleted. A release
that does not know this file writes the recovery points alone.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from mqd.errors import PASSING_ERRNOS
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.protocol.files import RECOVERY_POINT_CHECKPOINT, FileFormatError, decode_uuid, encode_uuid
from mqd.types import NO_EPOCH, Offset, TopicPartition

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.segment import Segment

logger = logging.getLogger(__name__)

NAME: Final = "log-end-checkpoint"
VOID: Final = "log-end-void"
"""In a log's directory: the checkpoint says nothing of this log, until it is written again."""
NO_CRC: Final = -1

_LINE = re.compile(
    r"(\S{1,249}) ([0-9]{1,10}) (\S{22}) ([0-9]{1,19}) (-|-?[0-9]{1,10}) (-|[0-9a-f]{8})"
)


class LogEnd(NamedTuple):
    """One line.

    `leader_epoch` and `crc` are of the last batch below `end_offset`; NO_EPOCH and NO_CRC: not
    known.
    """

    topic_id: UUID
    end_offset: Offset
    leader_epoch: int = NO_EPOCH
    crc: int = NO_CRC

    def __str__(self) -> str:
        if self.crc == NO_CRC:
            return f"end offset {self.end_offset}"
        return f"end offset {self.end_offset}, leader epoch {self.leader_epoch}, CRC {self.crc:08x}"


@dataclass(slots=True)
class Ends:
    """What a checkpoint file says. `pair`: CRC-32C of the recovery points beside it."""

    serial: int = 0
    pair: int = 0
    lines: dict[TopicPartition, LogEnd] = field(default_factory=dict)


def encode_ends(ends: Ends) -> bytes:
    rows = [f"0\n{ends.serial}\n{ends.pair:08x}\n{len(ends.lines)}\n"]
    for (topic, partition), (topic_id, end, epoch, crc) in ends.lines.items():
        last = "- -" if crc == NO_CRC else f"{epoch} {crc:08x}"
        rows.append(f"{topic} {partition} {encode_uuid(topic_id)} {end} {last}\n")
    return "".join(rows).encode()


def decode_ends(data: bytes) -> Ends:
    """Raises FileFormatError for bytes that no `encode_ends` wrote."""
    rows = data.decode(errors="replace").split("\n")
    if len(rows) < 5 or rows.pop() or rows[0] != "0":
        raise FileFormatError("not of version 0, or cut off")
    try:
        ends = Ends(int(rows[1]), int(rows[2], 16))
        if int(rows[3]) != len(rows) - 4:
            raise ValueError(f"{len(rows) - 4} lines, but a count of {rows[3]}")
        for row in rows[4:]:
            found = _LINE.fullmatch(row)
            if found is None:
                raise ValueError(f"line {row[:80]!r}")
            topic, partition, topic_id, end, epoch, crc = found.groups()
            known = (NO_EPOCH, NO_CRC) if crc == "-" else (int(epoch), int(crc, 16))
            ends.lines[TopicPartition(topic, int(partition))] = LogEnd(
                decode_uuid(topic_id), int(end), *known
            )
    except ValueError as error:
        raise FileFormatError(str(error)) from None
    return ends


def load_ends(disk: Disk, directory: Path) -> Ends:
    """The checkpoint of a log directory; without lines where nothing can be concluded from it.

    OSError.
    """
    path = directory / NAME
    try:
        ends = decode_ends(disk.read_bytes(path))
    except FileNotFoundError:
        return Ends()
    except FileFormatError as error:
        logger.warning("checkpoint ignored file=%s reason=%s", path, error)
        return Ends()
    if ends.pair != pair_of(disk, directory):
        logger.warning(
            "checkpoint ignored file=%s reason=the recovery points were written without it", path
        )
        ends.lines.clear()
    return ends


def keep_lines(
    disk: Disk, directory: Path, ends: Ends, lines: dict[TopicPartition, LogEnd]
) -> None:
    """Have the checkpoint hold these lines only; without space for that, there is none.

    Durable on return; OSError.
    """
    try:
        disk.write_atomic(directory / NAME, encode_ends(replace(ends, lines=lines)))
    except OSError as error:
        if error.errno not in PASSING_ERRNOS:
            raise
        logger.warning(
            "checkpoint removed, no space left to write it file=%s reason=%s",
            directory / NAME,
            error,
        )
        disk.remove(directory / NAME)
        disk.sync_directory(directory)


def pair_of(disk: Disk, directory: Path) -> int:
    try:
        return int(crc32c(disk.read_bytes(directory / RECOVERY_POINT_CHECKPOINT)))
    except FileNotFoundError:
        return 0


def why_lost(claim: LogEnd, found_end: Offset, found_last: LogEnd | None) -> str | None:
    """What a log lacks by its claim; None where it has all. A pure comparison.

    `found_last`: the batch that holds the last offset below the claimed end; None where it cannot
    be compared (it is no longer in the active segment, or was removed by right).
    """
    if found_end < claim.end_offset:
        return f"the checkpoint names {claim}; found: end offset {found_end}"
    if found_last is not None and claim.crc != NO_CRC and found_last != claim:
        return f"the checkpoint names {claim}; found there: {found_last}"
    return None


def batch_below(segment: Segment, topic_id: UUID, end: Offset) -> LogEnd | None:
    """The batch of `segment`, which is open, that holds the offset below `end`; None where
    there is none.
    """
    position = segment.seek(end - 1) if segment.base_offset < end <= segment.next_offset else None
    if position is None:
        return None
    assert segment.file is not None
    return last_batch(segment.file, position, position + 1, topic_id)


def last_batch(file: File, position: int, size: int, topic_id: UUID) -> LogEnd | None:
    """The last batch that begins in `[position, size)`; None where there is no whole header."""
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


def leave_mark(disk: Disk, path: Path) -> None:
    disk.open(path / VOID, create=True).close()
