"""The log end checkpoint of a log directory, and its comparison with the logs on disk. A core.

A killed process loses no written data as long as its machine runs. That is not true for a disk that
was detached and attached again, or was replaced by an older copy of itself. So each log directory
has a checkpoint with one line for each log. A line has the written end, and the leader epoch and
the CRC of the last batch. At the next start, each log must have that batch, or end beyond it.
Otherwise records were lost: the log is offline, and the node cannot vouch for its logs.

    log-end-checkpoint
        0                                                   version
        17                                                  disk serial: rises with each change (the
                                                            controller stores it)
        c0ffee00                                            CRC-32C of the recovery point checkpoint
                                                            that was written before this file
        1                                                   number of lines that follow
        orders 0 xtzWWN4bTjitpL3kfd9s5g 42 3 9f2c11d0       partition, topic id, end offset, leader
                                                            epoch, CRC; "-" if unknown

A line covers written records, synced or not, because a lost page cache must be detected, too. A
power cut may lose unsynced records. So the lines count only if the machine was not restarted, or
after a clean shutdown. Then the next start sees all file changes in their order, and no sync is
needed for that.

Intended changes are not reported as losses:
- Before a log becomes shorter than its line, the empty file `log-end-void` in its directory voids
  the line. The next checkpoint with this log removes that file.
- DeleteRecords, retention and compaction do not move the end and do not change the active segment.
  Only batches in the active segment are compared.
- A line with another topic id belongs to a deleted topic of the same name.
- A release that does not know this file writes only the recovery point checkpoint. Then the CRC in
  the third line differs, and no line counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from mqd.protocol.files import FileFormatError, decode_uuid, encode_uuid
from mqd.types import NO_EPOCH, Offset, TopicPartition

LOG_END_CHECKPOINT: Final = "log-end-checkpoint"
LOG_END_VOID: Final = "log-end-void"
"""Name of an empty file in the directory of a log, whose line then does not count."""
NO_CRC: Final = -1

_LINE = re.compile(
    r"(\S{1,249}) ([0-9]{1,10}) (\S{22}) ([0-9]{1,19}) (-|-?[0-9]{1,10}) (-|[0-9a-f]{8})"
)


class LogEnd(NamedTuple):
    """The end of a log. `leader_epoch` and `crc` are of the last batch before `end_offset`, or
    NO_EPOCH and NO_CRC.
    """

    topic_id: UUID
    end_offset: Offset
    leader_epoch: int = NO_EPOCH
    crc: int = NO_CRC

    def __str__(self) -> str:
        if self.crc == NO_CRC:
            return f"end offset {self.end_offset}"
        return f"end offset {self.end_offset}, leader epoch {self.leader_epoch}, CRC {self.crc:08x}"


class EndClaim:
    """The line of one log in the log end checkpoint on disk."""

    __slots__ = ("is_void", "line", "offset_max")

    def __init__(self) -> None:
        self.line: LogEnd | None = None
        """None: there is no line."""
        self.offset_max: Offset = 0
        """The largest end offset that the line may have. A write of the checkpoint may be under
        way."""
        self.is_void = False
        """Whether the file `log-end-void` exists."""

    def differs_from(self, end_offset: Offset) -> bool:
        """Whether a new checkpoint would have another line for a log that ends at `end_offset`."""
        return self.is_void or (self.line.end_offset if self.line is not None else 0) != end_offset


@dataclass(slots=True)
class LogEndCheckpoint:
    """The content of the file."""

    serial: int = 0
    recovery_points_crc: int = 0
    lines: dict[TopicPartition, LogEnd] = field(default_factory=dict)


def encode_log_ends(checkpoint: LogEndCheckpoint) -> bytes:
    rows = [
        f"0\n{checkpoint.serial}\n{checkpoint.recovery_points_crc:08x}\n{len(checkpoint.lines)}\n"
    ]
    for (topic, partition), (topic_id, end, epoch, crc) in checkpoint.lines.items():
        last = "- -" if crc == NO_CRC else f"{epoch} {crc:08x}"
        rows.append(f"{topic} {partition} {encode_uuid(topic_id)} {end} {last}\n")
    return "".join(rows).encode()


def decode_log_ends(data: bytes) -> LogEndCheckpoint:
    """Raises FileFormatError for bytes that `encode_log_ends` did not write."""
    rows = data.decode(errors="replace").split("\n")
    if len(rows) < 5 or rows.pop() or rows[0] != "0":
        raise FileFormatError("not of version 0, or cut off")
    try:
        checkpoint = LogEndCheckpoint(int(rows[1]), int(rows[2], 16))
        if int(rows[3]) != len(rows) - 4:
            raise ValueError(f"{len(rows) - 4} lines, but a count of {rows[3]}")
        for row in rows[4:]:
            found = _LINE.fullmatch(row)
            if found is None:
                raise ValueError(f"line {row[:80]!r}")
            topic, partition, topic_id, end, epoch, crc = found.groups()
            epoch_and_crc = (NO_EPOCH, NO_CRC) if crc == "-" else (int(epoch), int(crc, 16))
            checkpoint.lines[TopicPartition(topic, int(partition))] = LogEnd(
                decode_uuid(topic_id), int(end), *epoch_and_crc
            )
    except ValueError as error:
        raise FileFormatError(str(error)) from None
    return checkpoint


def loss_reason(claim: LogEnd, found_end: Offset, found_last: LogEnd | None) -> str | None:
    """The difference between the line `claim` and a log that ends at `found_end`. None: nothing is
    lost.

    `found_last`: the batch with the last offset before the claimed end. None: it cannot be
    compared, because it is no longer in the active segment or was removed correctly.
    """
    if found_end < claim.end_offset:
        return f"the checkpoint names {claim}; found: end offset {found_end}"
    if found_last is not None and claim.crc != NO_CRC and found_last != claim:
        return f"the checkpoint names {claim}; found there: {found_last}"
    return None
