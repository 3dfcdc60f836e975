"""Which record batches of a log a share group gets. Pure.

Only the headers of batches are read, and markers of transactions. Records are decoded only for
their keys or times, a few at a time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mqd.errors import MqError
from mqd.limits import HEADERS_READ_MAX, INSPECTED_BYTES_LARGEST, KIB
from mqd.protocol.batch import HEADER_BYTES, MAGIC, BatchHeader, Buffer, parse_header
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import Record
from mqd.protocol.record_scan import selected_records
from mqd.share.key_affinity import KeyOf
from mqd.share.ttl import OFF, is_expired
from mqd.types import Offset

_WINDOW_BYTES: Final = 8 * KIB
"""Bytes of one read of headers, and the largest marker."""
RECORDS_DECODED_MAX: Final = 5_000
"""Records of one read that are decoded: 10 ms, and 0.1 us for each one of the batch before them."""

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


class ReadRecords(NamedTuple):
    """The batches of a part, and what their records show."""

    batches: list[ReadBatch]
    """The last one may end early."""
    expired: list[tuple[Offset, Offset]]
    """(first offset, last offset) of expired records, in order."""
    keys: list[KeyOf]
    """The keys of records that were not known, for a group with `share.key.affinity`. The hash is
    random for each process, so that nobody can choose keys with one hash."""


def read_records(
    data: bytes | memoryview,
    batches: Iterable[ReadBatch],
    first: Offset,
    *,
    keys_known_end: Offset | None,
    ttl_ms: int,
    now_ms: int,
) -> ReadRecords:
    """Decode RECORDS_DECODED_MAX records from `first` on, for their times, unless `ttl_ms` is OFF,
    and for keys, if they are at or beyond `keys_known_end`. What follows is not read.

    A batch that cannot be read has no expired records. Raises MqError if its keys are needed.
    """
    view = memoryview(data)
    found = ReadRecords([], [], [])
    left = RECORDS_DECODED_MAX
    for batch in batches:
        found.batches.append(batch)
        learns = keys_known_end is not None and batch.last_offset >= keys_known_end
        if not batch.has_records or batch.is_aborted or (ttl_ms == OFF and not learns):
            continue
        try:
            offsets = range(max(first, batch.first_offset), batch.last_offset + 1)
            for record in records_of(view[batch.start : batch.end], offsets):
                if not left:
                    found.batches[-1] = batch._replace(last_offset=record.offset - 1)
                    return found
                left -= 1
                if is_expired(record, ttl_ms, now_ms):
                    _add(found.expired, record.offset)
                if learns:
                    key = None if record.key is None else hash(record.key)
                    found.keys.append(KeyOf(record.offset, key))
        except MqError:
            if learns:
                raise
    return found


def records_of(batch: memoryview, offsets: Sequence[Offset]) -> Iterator[Record]:
    """The records at these ascending offsets of a batch. Raises MqError: the batch is damaged, or
    too large."""
    header = parse_header(batch)
    return selected_records(
        batch, header, offsets, limit=INSPECTED_BYTES_LARGEST, headers_max=HEADERS_READ_MAX
    )


def _add(ranges: list[tuple[Offset, Offset]], offset: Offset) -> None:
    if ranges and ranges[-1][1] == offset - 1:
        ranges[-1] = (ranges[-1][0], offset)
    else:
        ranges.append((offset, offset))
