"""Record batches to Arrow columns, without a Python object for each record.

First the headers of the batches are read one by one (`_visible`): CRC, offsets, aborted transactions, control batches,
decompression. Then groups of batches become columns: where records begin, then one varint of all records at a time.

What must hold: every position is compared with the end of its record before a buffer is wrapped into Arrow, so Arrow sees
nothing but bytes of the record that a row belongs to. Bytes of columns that are not requested are stepped over, unchecked.
The reference is `mqd.protocol.batch.iterate_records`: equal rows or MqError, by test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mqd import limits
from mqd.client.columns_headers import headers_column
from mqd.client.columns_schema import COLUMNS, TIMESTAMP_TYPE, schema
from mqd.client.columns_starts import Span, find_starts
from mqd.client.columns_varints import (
    BYTES_MAX_64,
    Bytes,
    Ints,
    read_varints,
    read_varlongs,
    skip_varints,
)
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    Codec,
    corrupt,
    decompress,
    iterate_batches,
    validate,
)
from mqd.protocol.markers import parse_end_marker

GROUP_BYTES_MAX = 32 * limits.MIB
"""Batches are decoded together up to this many bytes; a larger batch is a group by itself."""

_INT64_MAX = 2**63 - 1
_MICROSECONDS_MS_MAX = _INT64_MAX // 1000


class _Batch(NamedTuple):
    """A batch whose rows are wanted: its records are `[begin, end)` of the body of its group."""

    begin: int
    end: int
    records: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    append_time: int | None
    cut: bool
    """Whether `start` or `end` of the call lies inside."""


class _Part(NamedTuple):
    """Records of one batch within a group: all of them, or the next few of a batch with very many."""

    batch: _Batch
    records: int


class _Wish(NamedTuple):
    """What the caller of `decode` wants."""

    schema: pa.Schema
    topic: str
    partition: int
    start: int
    end: int


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
    rows_max: int = 32_768,
) -> Iterator[pa.RecordBatch]:
    """The records of whole record batches with offsets in `[start, end)`, as Arrow batches of at most `rows_max` rows.

    `data` is what one fetch answer holds for the partition; a partial batch at its end is ignored, and control batches are
    skipped. With `read_committed`, records of `aborted` transactions (producer id, first offset) are hidden. Only `columns` are
    built. MqError: CORRUPT_MESSAGE or INVALID_RECORD on damage, MESSAGE_TOO_LARGE where a batch grows beyond its limit.
    """
    if rows_max < 1:
        raise ValueError(f"rows_max is {rows_max}; it must be at least 1")
    wish = _Wish(
        schema(columns), topic, partition, start, _INT64_MAX if end is None else max(start, end)
    )
    previous = -1
    for body, batches in _groups(data, wish, aborted if read_committed else None):
        array = np.frombuffer(body, np.uint8)
        for parts, starts, ends in _slices(body, array, batches, rows_max):
            columns_of = _Columns(body, array, parts, starts, ends, wish, previous)
            rows = columns_of.record_batch()
            previous = columns_of.last_offset
            if rows.num_rows:
                yield rows


# -- batches


def _groups(
    data: Buffer, wish: _Wish, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[Buffer, list[_Batch]]]:
    """Neighbours that share a body: uncompressed ones a window of `data`, compressed ones what they decompress to."""
    view = memoryview(data)
    plain: list[_Batch] = []
    packed: list[_Batch] = []
    bodies: list[Buffer] = []
    packed_bytes = 0
    for position, size, header in _visible(view, wish, aborted):
        append_time = header.max_timestamp if header.is_log_append_time else None
        cut = header.base_offset < wish.start or header.last_offset >= wish.end
        rest = (
            header.records_count,
            header.base_offset,
            header.last_offset,
            header.base_timestamp,
            append_time,
            cut,
        )
        if header.records_count < 0:
            raise corrupt(f"{header.records_count} records")
        if not header.attributes & CODEC_MASK:
            if bodies:
                yield _joined(bodies), packed
                bodies, packed, packed_bytes = [], [], 0
            if plain and position + size - plain[0].begin > GROUP_BYTES_MAX:
                yield _window(view, plain)
                plain = []
            plain.append(_Batch(position + HEADER_BYTES, position + size, *rest))
            continue
        if plain:
            yield _window(view, plain)
            plain = []
        body = view[position + HEADER_BYTES : position + size]
        if not header.records_count and not body:  # what a cleaner leaves
            continue
        body = decompress(Codec(header.attributes & CODEC_MASK), body)
        if bodies and packed_bytes + len(body) > GROUP_BYTES_MAX:
            yield _joined(bodies), packed
            bodies, packed, packed_bytes = [], [], 0
        packed.append(_Batch(packed_bytes, packed_bytes + len(body), *rest))
        bodies.append(body)
        packed_bytes += len(body)
    if plain:
        yield _window(view, plain)
    if bodies:
        yield _joined(bodies), packed


def _window(view: memoryview, batches: list[_Batch]) -> tuple[Buffer, list[_Batch]]:
    """The part of `view` that holds the records of `batches`, whose positions then count from its beginning.

    Arrow's offsets are 32 bits: a window keeps them small wherever in `view` it lies.
    """
    first, last = batches[0].begin, batches[-1].end
    return view[first:last], [
        each._replace(begin=each.begin - first, end=each.end - first) for each in batches
    ]


def _joined(bodies: list[Buffer]) -> Buffer:
    return bodies[0] if len(bodies) == 1 else b"".join(bodies)


def _visible(
    view: memoryview, wish: _Wish, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[int, int, BatchHeader]]:
    """The batches with rows that the caller wants, validated. Aborted transactions end with their marker (KIP-98)."""
    waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted or ())
    waiting.reverse()
    hidden: set[int] = set()
    previous = -1
    for position, size, header in iterate_batches(view):
        if header.base_offset >= wish.end:
            return
        validate(view, position, end=position + size)
        last_offset = header.last_offset
        if header.base_offset <= previous or last_offset > _INT64_MAX:
            raise corrupt(
                f"a batch with offsets {header.base_offset} to {last_offset} follows offset {previous}"
            )
        previous = last_offset
        while waiting and waiting[-1][0] <= last_offset:
            hidden.add(waiting.pop()[1])
        if header.is_control:
            if header.producer_id in hidden:
                marker = parse_end_marker(view[position : position + size])
                if marker is not None and not marker.committed:
                    hidden.discard(header.producer_id)
        elif last_offset >= wish.start and not (
            header.is_transactional and header.producer_id in hidden
        ):
            yield position, size, header


def _slices(
    body: Buffer, array: Bytes, batches: list[_Batch], rows_max: int
) -> Iterator[tuple[list[_Part], Ints, Ints]]:
    """Records of `batches` by at most `rows_max`, with where each begins and ends."""
    parts: list[_Part] = []
    spans: list[Span] = []
    room = rows_max
    for batch in batches:
        begin, left = batch.begin, batch.records
        while True:
            count = min(left, room)
            parts.append(_Part(batch, count))
            spans.append(Span(begin, batch.end, count, finished=count == left))
            left -= count
            room -= count
            if not room:
                starts, ends = find_starts(body, array, spans)
                begin = int(ends[-1])
                yield parts, starts, ends
                parts, spans, room = [], [], rows_max
            if not left:
                break
    if spans:
        starts, ends = find_starts(body, array, spans)
        yield parts, starts, ends


# -- columns


class _Columns:
    """The columns of one slice. `last_offset` is that of the last record, or what it was before."""

    def __init__(
        self,
        body: Buffer,
        array: Bytes,
        parts: list[_Part],
        starts: Ints,
        ends: Ints,
        wish: _Wish,
        previous: int,
    ) -> None:
        self.last_offset = previous
        self._body, self._array, self._wish = body, array, wish
        self._parts = [part for part in parts if part.records]
        self._counts = np.array([part.records for part in self._parts], np.int64)
        self._starts, self._ends = starts, ends

    def record_batch(self) -> pa.RecordBatch:
        try:
            return self._record_batch()
        except IndexError:
            raise corrupt("a record is cut off") from None

    def _record_batch(self) -> pa.RecordBatch:
        wish, array = self._wish, self._array
        names = wish.schema.names
        made: dict[str, pa.Array] = {}
        rows = slice(0, len(self._starts))
        cut = any(part.batch.cut for part in self._parts)
        positions = self._starts
        wants = {"key", "value", "headers"} & set(names)
        if len(positions) and (cut or wants or {"offset", "timestamp"} & set(names)):
            positions = (
                skip_varints(array, positions, 5) + 1
            )  # the length, and attributes of which none are assigned
            if "timestamp" in names:
                deltas, positions = read_varlongs(array, positions)
                timestamps = self._timestamps(deltas)
            else:
                positions = skip_varints(array, positions, BYTES_MAX_64)
            if cut or "offset" in names:
                deltas, positions = read_varints(array, positions)
                offsets = self._offsets(deltas)
                if cut:
                    rows = slice(*np.searchsorted(offsets, [wish.start, wish.end]).tolist())
            elif wants:
                positions = skip_varints(array, positions, 5)
            if (positions > self._ends).any():
                raise corrupt("a record is cut off")
            if "offset" in names:
                made["offset"] = pa.array(offsets[rows])
            if "timestamp" in names:
                made["timestamp"] = pa.array(timestamps[rows]).view(TIMESTAMP_TYPE)
            if wants:
                self._bytes_columns(positions[rows], self._ends[rows], made)
        count = rows.stop - rows.start
        for name in names:
            if name == "topic":
                made[name] = _repeated(wish.topic, count)
            elif name == "partition":
                made[name] = pa.array(np.full(count, wish.partition, np.int32))
            elif name == "timestampType":
                kinds = np.array(
                    [part.batch.append_time is not None for part in self._parts], np.int32
                )
                made[name] = pa.array(np.repeat(kinds, self._counts)[rows])
        empty = {name for name in names if name not in made}
        assert not empty or not count, (empty, count)
        return pa.RecordBatch.from_arrays(
            [
                made[name] if name in made else pa.array([], wish.schema.field(name).type)
                for name in names
            ],
            schema=wish.schema,
        )

    def _of_batches(self, values: list[int]) -> Ints:
        """A value of each batch, for each of its records."""
        return np.repeat(np.array(values, np.int64), self._counts)

    def _offsets(self, deltas: Ints) -> Ints:
        """Offsets ascend strictly, within what the header of each batch says."""
        offsets = self._of_batches([part.batch.base_offset for part in self._parts]) + deltas
        last = self._of_batches([part.batch.last_offset for part in self._parts])
        if (
            (deltas < 0).any()
            or (offsets > last).any()
            or (np.diff(offsets) <= 0).any()
            or offsets[0] <= self.last_offset
        ):
            raise corrupt("offsets do not ascend within their batch")
        self.last_offset = int(offsets[-1])
        return offsets

    def _timestamps(self, deltas: Ints) -> Ints:
        """In microseconds. MqError where a timestamp does not fit."""
        bases = [
            part.batch.base_timestamp if part.batch.append_time is None else part.batch.append_time
            for part in self._parts
        ]
        stamped = [part.batch.append_time is not None for part in self._parts]
        if any(stamped):
            deltas = np.where(np.repeat(np.array(stamped), self._counts), 0, deltas)
        highest = max(bases) + int(deltas.max())
        lowest = min(bases) + int(deltas.min())
        if highest > _MICROSECONDS_MS_MAX or lowest < -_MICROSECONDS_MS_MAX:
            for base, count, begin in zip(
                bases, self._counts, np.cumsum(self._counts) - self._counts, strict=True
            ):
                some = deltas[begin : begin + count]
                if (
                    base + int(some.max()) > _MICROSECONDS_MS_MAX
                    or base + int(some.min()) < -_MICROSECONDS_MS_MAX
                ):
                    raise MqError(
                        ErrorCode.INVALID_RECORD,
                        "a timestamp does not fit into microseconds; leave out the column 'timestamp'",
                    )
        return (self._of_batches(bases) + deltas) * 1000

    def _bytes_columns(self, positions: Ints, ends: Ints, made: dict[str, pa.Array]) -> None:
        """key, value and headers of the records whose key lengths are at `positions`."""
        if not len(positions):
            return
        array, names = self._array, self._wish.schema.names
        key_sizes, key_begins = read_varints(array, positions)
        key_ends = _ends_of(key_begins, key_sizes)
        value_sizes, value_begins = read_varints(array, key_ends)
        value_ends = _ends_of(value_begins, value_sizes)
        if (value_ends >= ends).any():
            raise corrupt("a record is cut off")
        if "key" in names:
            made["key"] = _binary(self._body, key_begins, key_ends, key_sizes)
        if "value" in names:
            made["value"] = _binary(self._body, value_begins, value_ends, value_sizes)
        if "headers" in names:
            made["headers"] = headers_column(self._body, array, value_ends, ends)
        elif ((array[value_ends] == 0) & (value_ends + 1 != ends)).any():
            raise corrupt("a record does not end where its length says")


def _ends_of(begins: Ints, sizes: Ints) -> Ints:
    """Where fields end that begin there; a size of -1 is null and takes nothing."""
    if (sizes < -1).any():
        raise corrupt("a length is negative")
    return begins + np.maximum(sizes, 0)


def _binary(body: Buffer, begins: Ints, ends: Ints, sizes: Ints) -> pa.Array:
    """The bytes `[begin, end)` of each row, copied by Arrow; null where the size is negative. Positions ascend and are checked."""
    count = len(begins)
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = begins
    offsets[1::2] = ends
    raw = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    column = raw.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    nulls = sizes < 0
    if not nulls.any():
        return column
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [valid, *column.buffers()[1:]])


def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    )
