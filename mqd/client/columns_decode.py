"""Decodes record batches into Arrow columns, without a Python object for each record.

First the headers of the batches are read one by one (`_visible`): CRC, offsets, aborted
transactions, control batches. Batches are decompressed and put into groups that share a body
(`_groups`). Groups are cut into slices of at most `rows_max` records, which `columns_rows` turns
into columns.

A test compares the result with `mqd.protocol.batch.iterate_records`: equal rows or an equal
MqError. Fields of columns that are not requested are skipped and not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from mqd import limits
from mqd.client.columns_rows import Batch, Selection, Slice, rows_of
from mqd.client.columns_schema import COLUMNS, schema
from mqd.client.columns_starts import RECORD_BYTES_MIN, Span, find_starts
from mqd.client.columns_varints import Bytes
from mqd.protocol.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    corrupt,
    iterate_batches,
    validate,
)
from mqd.protocol.compression import Codec, decompress
from mqd.protocol.markers import parse_end_marker

GROUP_BYTES_MAX: Final = 32 * limits.MIB
"""Batches are decoded together up to this many bytes; a larger batch is a group by itself."""

ROWS_MAX: Final = 32_768

_INT64_MAX = 2**63 - 1

_Found = tuple[int, int, BatchHeader]
_Group = tuple[Buffer, list[Batch]]


def decode(
    data: Buffer,
    topic: str,
    partition: int,
    *,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str] = COLUMNS[:7],
    aborted: Iterable[tuple[int, int]] = (),
    read_committed: bool = False,
    rows_max: int = ROWS_MAX,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in `[start, end)`, as Arrow batches of at most `rows_max` rows.

    `data` is the part of one fetch response for the partition. A partial batch at its end is
    ignored, control batches are skipped. With `read_committed`, records of `aborted` transactions
    (producer id, first offset) are hidden. Only `columns` are decoded. Raises MqError
    CORRUPT_MESSAGE or INVALID_RECORD for damaged data, MESSAGE_TOO_LARGE if a batch is larger than
    its limit when it is decompressed.
    """
    if rows_max < 1:
        raise ValueError(f"rows_max is {rows_max}; it must be at least 1")
    selection = Selection(
        schema(columns), topic, partition, start, _INT64_MAX if end is None else max(start, end)
    )
    previous = -1
    for body, batches in _groups(memoryview(data), selection, aborted if read_committed else ()):
        for some in _slices(body, batches, rows_max):
            rows, previous = rows_of(some, selection, previous)
            if rows.num_rows:
                yield rows


def _groups(
    view: memoryview, selection: Selection, aborted: Iterable[tuple[int, int]]
) -> Iterator[_Group]:
    """Groups of consecutive batches that share a body, compressed or not."""
    found = _visible(view, selection, aborted)
    for codec, run in groupby(found, key=lambda each: each[2].attributes & CODEC_MASK):
        if codec:
            yield from _packed(view, run, selection, Codec(codec))
        else:
            yield from _plain(view, run, selection)


def _plain(view: memoryview, run: Iterable[_Found], selection: Selection) -> Iterator[_Group]:
    """A group of uncompressed batches: its body is a part of `view`. Positions count from its
    beginning, because Arrow's offsets have 32 bits.
    """
    group: list[Batch] = []
    origin = 0
    for position, size, header in run:
        if group and position + size - origin > GROUP_BYTES_MAX:
            yield view[origin : origin + group[-1].end], group
            group = []
        if not group:
            origin = position + HEADER_BYTES
        group.append(
            _batch(position + HEADER_BYTES - origin, position + size - origin, header, selection)
        )
    yield view[origin : origin + group[-1].end], group


def _packed(
    view: memoryview, run: Iterable[_Found], selection: Selection, codec: Codec
) -> Iterator[_Group]:
    """A group of compressed batches: its body is their decompressed records."""
    group: list[Batch] = []
    bodies: list[Buffer] = []
    filled = 0
    for position, size, header in run:
        body: Buffer = view[position + HEADER_BYTES : position + size]
        if header.records_count or len(body):  # compaction leaves empty batches
            body = decompress(codec, body)
        if group and filled + len(body) > GROUP_BYTES_MAX:
            yield _joined(bodies), group
            group, bodies, filled = [], [], 0
        group.append(_batch(filled, filled + len(body), header, selection))
        bodies.append(body)
        filled += len(body)
    yield _joined(bodies), group


def _joined(bodies: list[Buffer]) -> Buffer:
    return bodies[0] if len(bodies) == 1 else b"".join(bodies)


def _batch(begin: int, end: int, header: BatchHeader, selection: Selection) -> Batch:
    return Batch(
        begin,
        end,
        header.records_count,
        header.base_offset,
        header.last_offset,
        header.max_timestamp if header.is_log_append_time else header.base_timestamp,
        header.is_log_append_time,
        header.base_offset < selection.start or header.last_offset >= selection.end,
    )


def _visible(
    view: memoryview, selection: Selection, aborted: Iterable[tuple[int, int]]
) -> Iterator[_Found]:
    """The validated batches with rows for the caller. An aborted transaction ends with its marker
    (KIP-98).
    """
    waiting = sorted(
        ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
    )
    hidden: set[int] = set()
    previous = -1
    for position, size, header in iterate_batches(view):
        if header.base_offset >= selection.end:
            return
        validate(view, position, end=position + size)
        last_offset = header.last_offset
        if header.base_offset <= previous or last_offset > _INT64_MAX:
            raise corrupt(f"offsets {header.base_offset} to {last_offset} follow offset {previous}")
        previous = last_offset
        while waiting and waiting[-1][0] <= last_offset:
            hidden.add(waiting.pop()[1])
        if header.is_control:
            if header.producer_id in hidden and _is_abort(view[position : position + size]):
                hidden.discard(header.producer_id)
        elif last_offset >= selection.start and not (
            header.is_transactional and header.producer_id in hidden
        ):
            yield position, size, header


def _is_abort(batch: memoryview) -> bool:
    marker = parse_end_marker(batch)
    return marker is not None and not marker.committed


def _slices(body: Buffer, batches: list[Batch], rows_max: int) -> Iterator[Slice]:
    """The records of `batches` in slices of at most `rows_max`."""
    array = np.frombuffer(body, np.uint8)
    spans: list[Span] = []
    owners: list[Batch] = []
    room = rows_max
    for batch in batches:
        begin, left = batch.begin, batch.records
        if not left and begin == batch.end:  # compaction has left it empty
            continue
        if not 0 < left * RECORD_BYTES_MIN <= batch.end - begin:
            raise corrupt(f"{left} records in {batch.end - begin} bytes")
        while True:
            if not room:
                some = _slice(body, array, owners, spans)
                if owners[-1] is batch:
                    begin = int(some.ends[-1])
                yield some
                spans, owners, room = [], [], rows_max
            records = min(left, room)
            left -= records
            room -= records
            spans.append(Span(begin, batch.end, records, finished=not left))
            owners.append(batch)
            if not left:
                break
    if spans:
        yield _slice(body, array, owners, spans)


def _slice(body: Buffer, array: Bytes, owners: list[Batch], spans: list[Span]) -> Slice:
    starts, ends = find_starts(body, array, spans)
    return Slice(body, array, owners, [span.records for span in spans], starts, ends)
