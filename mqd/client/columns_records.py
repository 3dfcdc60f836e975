"""Encodes Arrow columns into the bytes of records, each with its length first, column by column.

A record is a prefix (its length, attributes, timestamp, offset, the key's length), the key, the
value's length, the value, and its headers. The numbers are written by columns, and Arrow joins the
pieces of all rows in one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqd.client.columns_buffers import binary, data_of, nulls_of, offsets_of
from mqd.client.columns_varints import Ints, varint_sizes, write_varints

CALL_POOL = pa.system_memory_pool()
"""The memory pool for bytes of one call. malloc reuses them in the next call. Arrow's default pool
returns them to the kernel: then page faults take as long as the work of the next call.
"""
_EMPTY = pa.scalar(b"", pa.binary())
_NO_HEADERS = pa.scalar(b"\0", pa.binary())


def records_of(
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array | None,
    offset_deltas: Ints,
    stamp_deltas: Ints | None,
) -> pa.Array:
    """The bytes of each record, with its length first."""
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
        sizes += data_sizes(tail[0]) + data_sizes(tail[1])
    numbers = _zigzag(sizes)
    number_bytes = varint_sizes(numbers)
    starts = _running(number_bytes + prefix)
    out = np.zeros(int(starts[-1]), np.uint8)  # attributes stay zero
    at = starts[:-1].copy()
    write_varints(out, at, numbers, number_bytes)
    at += number_bytes + 1
    write_varints(out, at, stamps, stamp_bytes)
    at += stamp_bytes
    write_varints(out, at, offsets, offset_bytes)
    at += offset_bytes
    write_varints(out, at, key_numbers, key_bytes)
    return _joined(
        binary(starts, out),
        _without_nulls(keys),
        _varints(value_numbers, value_bytes),
        _without_nulls(values),
        *tail,
    )


def _joined(*pieces: Any) -> pa.Array:
    """The pieces of each row, joined."""
    return pc.binary_join_element_wise(*pieces, _EMPTY, memory_pool=CALL_POOL)


def _headers(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns (the header count, the headers) of each row, as bytes. The headers of all rows
    already follow one another.
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
    starts = _running(sizes)
    out = np.empty(int(starts[-1]), np.uint8)
    write_varints(out, starts[:-1], numbers, sizes)
    return binary(starts, out)


def _zigzag(numbers: Ints) -> Any:
    """Zigzag numbers; uint64 if a number may need all 64 bits."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    return zigzag.view(np.uint64) if len(zigzag) and int(zigzag.min()) < 0 else zigzag


def _running(sizes: Ints) -> Ints:
    """0, then the running sum of the sizes."""
    total = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=total[1:])
    return total


def data_sizes(column: pa.Array) -> Ints:
    """The bytes of each value in the data, including bytes of nulls, which Arrow permits."""
    return np.diff(offsets_of(column))


def _field_sizes(column: pa.Array) -> Ints:
    """The size of each value as in the protocol: -1 for null."""
    sizes = np.diff(offsets_of(column))
    if (nulls := nulls_of(column)) is not None:
        sizes[nulls] = -1
    return sizes


def _without_nulls(column: pa.Array) -> pa.Array:
    """The column with empty values in place of nulls. Copied only if a null has bytes, which Arrow
    permits but rarely makes.
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


def headers_bytes(headers: pa.Array) -> Ints:
    """An upper bound on the bytes of each row's headers."""
    flat = headers.flatten()
    each = _running(data_sizes(flat.field(0).cast(pa.binary())) + data_sizes(flat.field(1)) + 10)
    ends = _running(_counts(headers))
    return np.diff(each[ends])
