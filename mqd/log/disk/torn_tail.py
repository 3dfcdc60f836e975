"""Decides whether the first bad batch of a segment is a torn write, or a damaged batch with valid
batches after it.

A valid batch after the bad one shows that the bad one was complete once. There is one exception. A
write that a kill interrupted leaves a whole header and a part of the payload. The client chose the
payload, so it may contain valid batches at any position, and their CRC-32C may match. So if a
plausible header claims more bytes than the file has, no byte after it counts. Only a checkpoint
that was written later than the batch shows that its length field is damaged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from mqd.limits import RECOVERY_BATCH_BYTES_MAX, SCAN_BYTES
from mqd.protocol.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    crc_of,
    parse_header,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import File

_LIKE_A_HEADER = re.compile(rb"\x02(?=.{4}\x00[\x00-\x7f])", re.DOTALL)
"""Magic, CRC and attributes of a batch, from position 16 on."""
_MAGIC_POSITION = 16


class FoundBatch(NamedTuple):
    """A valid batch in a file."""

    position: int
    base_offset: Offset


def batch_after(
    file: File, bad_position: int, offset: Offset, *, may_be_torn: bool
) -> FoundBatch | None:
    """A valid batch after the bad one at `bad_position`. None: the tail is torn.

    `offset`: the base offset that the bad batch should have. `may_be_torn`: false if this batch was
    complete once.
    """
    if may_be_torn and _is_unfinished(file, bad_position, offset):
        return None
    return find_batch(file, bad_position + 1, offset)


def _is_unfinished(file: File, position: int, offset: Offset) -> bool:
    """Whether a plausible header is at `position`, and its batch ends beyond the file."""
    data = file.read_at(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return False
    header = parse_header(data, 0)
    batch_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    return (
        header.magic == MAGIC
        and header.base_offset >= offset
        and header.last_offset_delta >= 0
        and HEADER_BYTES <= batch_bytes <= RECOVERY_BATCH_BYTES_MAX
        and position + batch_bytes > file.size()
    )


def find_batch(file: File, position: int, offset: Offset) -> FoundBatch | None:
    """The first valid batch at or after `position` with a base offset of `offset` or more. It may
    be inside another batch.
    """
    size = file.size()
    while position + HEADER_BYTES <= size:
        chunk = file.read_at(position, SCAN_BYTES + HEADER_BYTES)
        for match in _LIKE_A_HEADER.finditer(chunk, _MAGIC_POSITION):
            at = match.start() - _MAGIC_POSITION
            if at >= SCAN_BYTES or at + HEADER_BYTES > len(chunk):
                break
            header = parse_header(chunk, at)
            batch_bytes = header.batch_length + LOG_OVERHEAD_BYTES
            if (
                header.base_offset >= offset
                and header.last_offset_delta >= 0
                and HEADER_BYTES
                <= batch_bytes
                <= min(RECOVERY_BATCH_BYTES_MAX, size - position - at)
                and crc_of(file.read_at(position + at, batch_bytes), 0, batch_bytes) == header.crc
            ):
                return FoundBatch(position + at, header.base_offset)
        position += SCAN_BYTES
    return None
