"""Where a segment's good batches end: is the rest a torn write, or is a batch damaged that others
follow?

Recovery asks this of the first bad batch. A valid batch behind it is evidence that the bad one was
written whole. There is one exception. A write that a kill cut short leaves a whole header and a
part of the payload, and the payload is the client's: it may contain valid batches. So where a
plausible header claims more bytes than the file has, a batch behind it counts only if it begins
where the first one ends by its CRC-32C: then the length field is damaged, not the tail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqd.limits import RECOVERY_BATCH_BYTES_MAX, SCAN_BYTES
from mqd.protocol.batch import (
    ATTRIBUTES_POSITION,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    continued_crc,
    crc_of,
    parse_header,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import File

_LIKE_A_HEADER = re.compile(rb"\x02(?=.{4}\x00[\x00-\x7f])", re.DOTALL)
"""Magic, CRC and the attributes of a batch, from position 16 on."""
_MAGIC_POSITION = 16


def batch_after(
    file: File, bad_position: int, offset: Offset, *, may_be_torn: bool
) -> tuple[int, Offset] | None:
    """(position, base offset) of a batch that was written behind the bad one at `bad_position`;
    None for a torn tail.

    `offset` is the offset that the bad batch was due to have. `may_be_torn` is False for bytes that
    were synced.
    """
    header = _unfinished_batch(file, bad_position, offset) if may_be_torn else None
    if header is None:
        return find_batch(file, bad_position + 1, offset)
    position, crc = bad_position + ATTRIBUTES_POSITION, 0
    for found, base_offset in find_batches(file, bad_position + HEADER_BYTES, offset):
        crc = _crc_until(file, position, found, crc)
        position = found
        if crc == header.crc:
            return found, base_offset
    return None


def _unfinished_batch(file: File, position: int, offset: Offset) -> BatchHeader | None:
    """The header at `position`, if it is that of a batch whose bytes end behind the end of
    the file.
    """
    data = file.read_at(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = parse_header(data, 0)
    batch_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    plausible = (
        header.magic == MAGIC
        and header.base_offset >= offset
        and header.last_offset_delta >= 0
        and HEADER_BYTES <= batch_bytes <= RECOVERY_BATCH_BYTES_MAX
    )
    return header if plausible and position + batch_bytes > file.size() else None


def _crc_until(file: File, position: int, end: int, crc: int) -> int:
    """The CRC-32C of the bytes before `position`, continued up to `end`."""
    while position < end:
        chunk = file.read_at(position, min(SCAN_BYTES, end - position))
        crc = continued_crc(chunk, crc)
        position += len(chunk)
    return crc


def find_batch(file: File, position: int, offset: Offset) -> tuple[int, Offset] | None:
    """(position, base offset) of the first valid batch at or behind `position` whose offset
    is `offset` or higher.
    """
    return next(find_batches(file, position, offset), None)


def find_batches(file: File, position: int, offset: Offset) -> Iterator[tuple[int, Offset]]:
    """The same of all such batches, also of those inside another one."""
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
                yield position + at, header.base_offset
        position += SCAN_BYTES
