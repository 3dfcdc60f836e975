"""Arrow columns to record batches for a produce request, without a Python object for each record.

A record is a prefix (its length, attributes, timestamp, offset, the key's length), the key, the
value's length, the value, and its headers. The numbers are written by columns, and Arrow joins the
pieces of all rows in one call. Rows keep their order within a partition; a batch holds rows of one
partition, at most `batch_bytes` of them by an estimate that does not know the codec.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqd import limits
from mqd.client.columns_buffers import binary, data_of, nulls_of, offsets_of
from mqd.client.columns_schema import HEADERS_TYPE
from mqd.client.columns_varints import Ints, varint_sizes, write_varints
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode
from mqd.protocol.batch import (
    ATTRIBUTES_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_MASK,
    Codec,
    compress,
    seal,
)
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

BATCH_BYTES: Final = 512 * limits.KIB
JOINED_BYTES_MAX: Final = 24 * limits.MIB
"""Rows are encoded together up to this estimate, or one row: malloc keeps what it gets back below
32 MiB.
"""
STAMP_MAX: Final = 2**62
"""Differences of timestamps stay within 64 bits."""
RECORD_OVERHEAD_BYTES: Final = 22
"""The most that a record takes beside its key, value and headers in batches of fewer than 2**20
rows, timestamps apart.
"""
RECORD_BYTES_MAX: Final = 2**31 - 1 - 2 * limits.KIB

_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_POOL = pa.system_memory_pool()
"""For bytes that live as long as a call. malloc hands them out again; Arrow's default pool returns
them to the kernel, and the page faults of the next call take as long as its work.
"""
_EMPTY = pa.scalar(b"", pa.binary())
_NO_HEADERS = pa.scalar(b"\0", pa.binary())


@dataclass(slots=True, eq=False)
class EncodedBatch:
    """A record batch for `partition`. `seal` must be called before `data` is sent, and again when
    it is sent under another number.
    """

    partition: int
    records: int
    data: bytearray

    def seal(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
    ) -> None:
        """Write the producer's numbers and the CRC over them."""
        data = self.data
        (attributes,) = _ATTRIBUTES.unpack_from(data, ATTRIBUTES_POSITION)
        attributes = (
            attributes | TRANSACTIONAL_MASK if transactional else attributes & ~TRANSACTIONAL_MASK
        )
        _ATTRIBUTES.pack_into(data, ATTRIBUTES_POSITION, attributes)
        _PRODUCER.pack_into(data, PRODUCER_ID_POSITION, producer_id, producer_epoch, base_sequence)
        seal(data)


def encode(
    keys: pa.Array,
    values: pa.Array,
    partitions: np.ndarray[Any, Any],
    *,
    timestamps_ms: int | pa.Array,
    headers: pa.Array | None = None,
    codec: Codec = Codec.NONE,
    batch_bytes: int = BATCH_BYTES,
) -> list[EncodedBatch]:
    """Record batches of all rows. `partitions` holds the partition of each row; ClientError where
    an argument does not fit.

    `keys` and `values` are binary, `headers` is list<struct<key: string, value: binary>>; nulls are
    kept. `timestamps_ms` is one stamp for all rows or an int64 column without nulls. A row larger
    than `batch_bytes` becomes a batch of its own.
    """
    count = len(values)
    stamps = _checked(count, keys, values, partitions, timestamps_ms, headers, batch_bytes)
    sizes = _value_bytes(keys) + _value_bytes(values) + RECORD_OVERHEAD_BYTES
    if headers is not None:
        sizes += _headers_bytes(headers)
    if count and int(sizes.max()) > RECORD_BYTES_MAX:
        what = f"a record takes {sizes.max()} bytes; a batch holds at most {RECORD_BYTES_MAX}"
        raise ClientError(ErrorCode.MESSAGE_TOO_LARGE, what, remedy="send smaller records")
    bounds = _bounds(sizes, 0, count, JOINED_BYTES_MAX)
    batches: list[EncodedBatch] = []
    for first, behind in pairwise(bounds):
        some = slice(first, behind)
        rows = behind - first
        batches += _encode_rows(
            keys.slice(first, rows),
            values.slice(first, rows),
            partitions[some],
            stamps if isinstance(stamps, int) else stamps[some],
            None if headers is None else headers.slice(first, rows),
            sizes[some],
            codec,
            batch_bytes,
        )
    return batches


def _encode_rows(
    keys: pa.Array,
    values: pa.Array,
    partitions: np.ndarray[Any, Any],
    stamps: int | Ints,
    headers: pa.Array | None,
    sizes: Ints,
    codec: Codec,
    batch_bytes: int,
) -> list[EncodedBatch]:
    order = _order(partitions)
    if order is not None:
        partitions, sizes = partitions[order], sizes[order]
    firsts = _batch_bounds(partitions, sizes, batch_bytes)
    begins, counts = firsts[:-1], np.diff(firsts)
    offset_deltas = np.arange(len(partitions)) - np.repeat(begins, counts)
    stamp_deltas = None
    if isinstance(stamps, int):
        bases = tops = np.full(len(counts), stamps, np.int64)
    else:
        stamps = stamps if order is None else stamps[order]
        bases, tops = stamps[begins], np.maximum.reduceat(stamps, begins)
        stamp_deltas = stamps - np.repeat(bases, counts)
    if order is not None:
        # Numbers go back to the rows: to move whole records once costs less than their columns.
        offset_deltas = _put(offset_deltas, order)
        stamp_deltas = None if stamp_deltas is None else _put(stamp_deltas, order)
    records = _records(keys, values, headers, offset_deltas, stamp_deltas)
    if order is not None:
        records = pc.take(records, pa.array(order), memory_pool=_POOL)
    edges, data = offsets_of(records)[firsts].tolist(), data_of(records).data
    made = []
    for index, (partition, count, base, top) in enumerate(
        zip(
            partitions[begins].tolist(), counts.tolist(), bases.tolist(), tops.tolist(), strict=True
        )
    ):
        body = data[edges[index] : edges[index + 1]]
        made.append(EncodedBatch(partition, count, _batch(body, count, base, top, codec)))
    return made


def _put(numbers: Ints, order: Ints) -> Ints:
    """Numbers in the order of partitions, for the rows as they came."""
    rows = np.empty_like(numbers)
    rows[order] = numbers
    return rows


def _batch(
    body: memoryview, count: int, base_timestamp: int, max_timestamp: int, codec: Codec
) -> bytearray:
    packed = compress(codec, body)
    data = bytearray(HEADER_BYTES)
    data += packed
    HEADER.pack_into(
        data, 0, 0, len(data) - LOG_OVERHEAD_BYTES, NO_EPOCH, MAGIC, 0, int(codec), count - 1,
        base_timestamp, max_timestamp, NO_PRODUCER_ID, NO_EPOCH, -1, count,
    )  # fmt: skip
    return data


# -- which rows go together


def _order(partitions: np.ndarray[Any, Any]) -> Ints | None:
    """Rows by partition, in their order within each; None where they lie so already."""
    if (partitions[1:] >= partitions[:-1]).all():
        return None
    if int(partitions.max()) < 2**16:
        partitions = partitions.astype(
            np.uint16
        )  # sorted by digits, which takes a tenth of the time
    return np.argsort(partitions, kind="stable")


def _batch_bounds(partitions: np.ndarray[Any, Any], sizes: Ints, batch_bytes: int) -> Ints:
    """The first row of each batch, and the row behind the last one."""
    edges = [0, *(np.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist(), len(partitions)]
    bounds = [0]
    for first, behind in pairwise(edges):
        bounds += _bounds(sizes, first, behind, batch_bytes)[1:]
    return np.array(bounds, np.int64)


def _bounds(sizes: Ints, first: int, behind: int, bytes_max: int) -> list[int]:
    """Cut the rows `[first, behind)` into runs of at most `bytes_max`, or of one row."""
    total = np.cumsum(sizes[first:behind])
    bounds = [first]
    done = 0
    while bounds[-1] < behind:
        cut = first + int(np.searchsorted(total, done + bytes_max, side="right"))
        cut = max(cut, bounds[-1] + 1)
        done = int(total[cut - first - 1])
        bounds.append(cut)
    return bounds


# -- the bytes of the records


def _records(
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None,
    offset_deltas: Ints,
    stamp_deltas: Ints | None,
) -> pa.Array:
    """The bytes of each record, its length in front."""
    count = len(offset_deltas)
    key_sizes, value_sizes = _field_sizes(keys), _field_sizes(values)
    key_numbers, value_numbers = _zigzag(key_sizes), _zigzag(value_sizes)
    stamps = np.zeros(count, np.int64) if stamp_deltas is None else _zigzag(stamp_deltas)
    offsets = _zigzag(offset_deltas)
    key_bytes, value_bytes = varint_sizes(key_numbers), varint_sizes(value_numbers)
    stamp_bytes, offset_bytes = varint_sizes(stamps), varint_sizes(offsets)
    prefix = 1 + stamp_bytes + offset_bytes + key_bytes
    sizes = prefix + np.maximum(key_sizes, 0) + value_bytes + np.maximum(value_sizes, 0)
    tail: tuple[Any, ...] = (_NO_HEADERS,)
    if headers is None:
        sizes += 1
    else:
        tail = _headers(headers)
        sizes += _value_bytes(tail[0]) + _value_bytes(tail[1])
    numbers = _zigzag(sizes)
    number_bytes = varint_sizes(numbers)
    begins = _running(number_bytes + prefix)
    out = np.zeros(int(begins[-1]), np.uint8)  # attributes stay zero
    at = begins[:-1].copy()
    write_varints(out, at, numbers, number_bytes)
    at += number_bytes + 1
    write_varints(out, at, stamps, stamp_bytes)
    at += stamp_bytes
    write_varints(out, at, offsets, offset_bytes)
    at += offset_bytes
    write_varints(out, at, key_numbers, key_bytes)
    return _joined(
        binary(begins, out),
        _without_nulls(keys),
        _varints(value_numbers, value_bytes),
        _without_nulls(values),
        *tail,
    )


def _joined(*pieces: Any) -> pa.Array:
    """The pieces of each row, one behind the other."""
    return pc.binary_join_element_wise(*pieces, _EMPTY, memory_pool=_POOL)


def _headers(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(the count, the headers) of each row, as bytes. The headers of all rows lie one behind the
    other already.
    """
    counts = _counts(headers)
    flat = headers.flatten()
    keys, values = flat.field(0).cast(pa.binary()), flat.field(1)
    assert len(keys) == len(values) == len(flat)
    key_numbers, value_numbers = _zigzag(_field_sizes(keys)), _zigzag(_field_sizes(values))
    pairs = _joined(
        _varints(key_numbers, varint_sizes(key_numbers)),
        keys,
        _varints(value_numbers, varint_sizes(value_numbers)),
        _without_nulls(values),
    )
    blocks = binary(offsets_of(pairs)[_running(counts)], data_of(pairs))
    numbers = _zigzag(counts)
    return _varints(numbers, varint_sizes(numbers)), blocks


def _varints(numbers: Ints, sizes: Ints) -> pa.Array:
    begins = _running(sizes)
    out = np.empty(int(begins[-1]), np.uint8)
    write_varints(out, begins[:-1], numbers, sizes)
    return binary(begins, out)


def _zigzag(numbers: Ints) -> Any:
    """As uint64 where a number may need all 64 bits."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    return zigzag.view(np.uint64) if len(zigzag) and int(zigzag.min()) < 0 else zigzag


def _running(sizes: Ints) -> Ints:
    """0, and the sums of the first one, two, ... sizes."""
    total = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=total[1:])
    return total


def _value_bytes(column: pa.Array) -> Ints:
    """The bytes of each value; those that Arrow lets a null have count too."""
    return np.diff(offsets_of(column))


def _field_sizes(column: pa.Array) -> Ints:
    """The bytes of each value, -1 for null, as it is on the wire."""
    sizes = np.diff(offsets_of(column))
    if (nulls := nulls_of(column)) is not None:
        sizes[nulls] = -1
    return sizes


def _without_nulls(column: pa.Array) -> pa.Array:
    """With empty values for nulls. Arrow lets a null have bytes; as a rule it has none, and nothing
    is copied.
    """
    nulls = nulls_of(column)
    if nulls is None:
        return column
    offsets = offsets_of(column)
    if np.diff(offsets)[nulls].any():
        return column.fill_null(b"")
    return pa.Array.from_buffers(
        column.type, len(column), [None, *column.buffers()[1:]], offset=column.offset
    )


def _counts(headers: pa.Array) -> Ints:
    counts: Ints = (
        pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return counts


def _headers_bytes(headers: pa.Array) -> Ints:
    """An upper bound on the bytes of each row's headers."""
    flat = headers.flatten()
    each = _running(
        _value_bytes(flat.field(0).cast(pa.binary())) + _value_bytes(flat.field(1)) + 10
    )
    ends = _running(_counts(headers))
    return np.diff(each[ends])


# -- arguments


def _checked(
    count: int,
    keys: pa.Array,
    values: pa.Array,
    partitions: np.ndarray[Any, Any],
    timestamps_ms: int | pa.Array,
    headers: pa.Array | None,
    batch_bytes: int,
) -> int | Ints:
    """The timestamps as encode needs them. ClientError names the argument that does not fit."""
    for name, column in (("keys", keys), ("values", values)):
        if column.type != pa.binary():
            raise _refused(f"'{name}' has type {column.type}", "cast it to binary")
    lengths = {"keys": len(keys), "partitions": len(partitions)}
    if headers is not None:
        lengths["headers"] = len(headers)
    if not isinstance(timestamps_ms, int):
        lengths["timestamps_ms"] = len(timestamps_ms)
    for name, length in lengths.items():
        if length != count:
            raise _refused(
                f"'{name}' has {length} rows, 'values' has {count}", "pass columns of one length"
            )
    if batch_bytes < 1:
        raise _refused(f"'batch_bytes' is {batch_bytes}", "choose at least 1")
    if count and int(partitions.min()) < 0:
        raise _refused("'partitions' has a negative number", "choose a partition for each row")
    if headers is not None:
        if headers.type != HEADERS_TYPE:
            raise _refused(f"'headers' has type {headers.type}", f"cast it to {HEADERS_TYPE}")
        flat = headers.flatten()
        if flat.null_count or flat.field(0).null_count:
            raise _refused("'headers' has a header without a key", "give each header a key")
    if isinstance(timestamps_ms, int):
        if abs(timestamps_ms) > STAMP_MAX:
            raise _refused(f"'timestamps_ms' has {timestamps_ms}", "pass milliseconds since 1970")
        return timestamps_ms
    if timestamps_ms.type != pa.int64():
        raise _refused(
            f"'timestamps_ms' has type {timestamps_ms.type}", "cast it to int64, milliseconds"
        )
    if timestamps_ms.null_count:
        raise _refused("'timestamps_ms' has a null", "fill nulls with the current time")
    stamps: Ints = timestamps_ms.to_numpy()
    if count and max(int(stamps.max()), -int(stamps.min())) > STAMP_MAX:
        far = stamps[np.argmax(np.abs(stamps))]
        raise _refused(f"'timestamps_ms' has {far}", "pass milliseconds since 1970")
    return stamps


def _refused(what: str, remedy: str) -> ClientError:
    return ClientError(ErrorCode.INVALID_REQUEST, f"cannot encode: {what}", remedy=remedy)
