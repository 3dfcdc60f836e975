"""Which record batches of a log a share group gets. Pure.

Only the headers of batches are read, and markers of transactions.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from mqd.limits import KIB
from mqd.protocol.batch import HEADER_BYTES, MAGIC, BatchHeader, Buffer, parse_header
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import iterate_records
from mqd.share.key_affinity import KeyOf
from mqd.types import Offset

_WINDOW_BYTES: Final = 8 * KIB
"""Bytes of one read of headers, and the largest marker."""

ReadAt = Callable[[int, int], Buffer]
"""Bytes of a part of the log: (position in the part, number of bytes)."""


class ReadBatch(NamedTuple):
    """One batch, at these positions of the part."""

    start: int
    end: int
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool
    """Whether it is of an aborted transaction, and the group reads committed records only."""
    has_records: bool = True
    """Whether it is not a marker of a transaction."""


def read_batches(
    read_at: ReadAt, size: int, aborted: Iterable[tuple[int, Offset]] | None
) -> Iterator[ReadBatch]:
    """The whole batches of a part of `size` bytes, read as they are needed. `aborted`: producer id
    and first offset of the aborted transactions among them; None if the group reads uncommitted
    records, too.
    """
    transactions: defaultdict[int, deque[Offset]] = defaultdict(deque)
    for producer_id, first_offset in aborted or ():
        transactions[producer_id].append(first_offset)
    open_aborted: set[int] = set()
    for start, end, header in _headers(read_at, size):
        producer_id, is_aborted = header.producer_id, False
        if aborted is not None and header.is_transactional:
            begins = transactions.get(producer_id)
            while begins and begins[0] <= header.last_offset:
                begins.popleft()
                open_aborted.add(producer_id)
            if header.is_control:
                marker = parse_end_marker(read_at(start, min(end - start, _WINDOW_BYTES)))
                if marker is not None and not marker.committed:
                    open_aborted.discard(producer_id)
            else:
                is_aborted = producer_id in open_aborted
        yield ReadBatch(
            start, end, header.base_offset, header.last_offset, is_aborted, not header.is_control
        )


def _headers(read_at: ReadAt, size: int) -> Iterator[tuple[int, int, BatchHeader]]:
    """(start, end, header) of each whole batch."""
    window: Buffer = b""
    window_start = start = 0
    while start + HEADER_BYTES <= size:
        if start + HEADER_BYTES > window_start + len(window):
            window, window_start = read_at(start, min(_WINDOW_BYTES, size - start)), start
            if len(window) < HEADER_BYTES:
                return
        header = parse_header(window, start - window_start)
        end = start + header.size
        if end < start + HEADER_BYTES or header.magic != MAGIC or end > size:
            return
        yield start, end, header
        start = end


def keys_of(data: bytes | memoryview, batches: Iterable[ReadBatch]) -> list[KeyOf]:
    """The key of each record of these batches that may be delivered, decompressed. Raises MqError
    CORRUPT_MESSAGE. It takes milliseconds for each MiB: call it in a worker thread.

    The hash is random for each process, so that nobody can choose keys with one hash.
    """
    view = memoryview(data)
    return [
        KeyOf(record.offset, None if record.key is None else hash(record.key))
        for batch in batches
        if batch.has_records and not batch.is_aborted
        for record in iterate_records(view, batch.start)
    ]
