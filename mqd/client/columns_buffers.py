"""Conversions between numpy and Arrow: positions in a buffer to a binary column, and a binary
column to its positions.

Only this module makes Arrow arrays from positions. Callers of `gather` must have checked that every
position lies inside its record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mqd.client.columns_varints import Bools, Bytes, Ints
from mqd.protocol.batch import Buffer


def _even(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


_EVEN = _even(32_768)


def gather(body: Buffer, starts: Ints, ends: Ints, nulls: Bools | None = None) -> pa.Array:
    """The bytes `[begin, end)` of `body` for each row, copied by Arrow. Positions ascend; the begin
    of a null equals its end.
    """
    count = len(starts)
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = starts
    offsets[1::2] = ends
    fields_and_gaps = pa.Array.from_buffers(
        pa.binary(), max(2 * count - 1, 0), [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    fields = _EVEN.slice(0, count) if count <= len(_EVEN) else _even(count)
    column = fields_and_gaps.take(fields)
    if nulls is None or not nulls.any():
        return column
    return pa.Array.from_buffers(pa.binary(), count, [bitmap(~nulls), *column.buffers()[1:]])


def bitmap(present: Bools) -> pa.Buffer:
    """Arrow's validity bitmap: one bit for each row, 1 if the row is not null."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))


def binary(offsets: Ints, data: Bytes) -> pa.Array:
    """The binary column whose values follow one another in `data`. Copies no values."""
    return pa.Array.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
    )


def offsets_of(column: pa.Array) -> Ints:
    """The position in `data_of(column)` where each value of a binary column starts, and where the
    last value ends. Also for slices.
    """
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(buffer, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)


def data_of(column: pa.Array) -> Bytes:
    """The data of a binary column, into which `offsets_of` points. Also for slices."""
    buffer = column.buffers()[2]
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def nulls_of(column: pa.Array) -> Bools | None:
    """Which rows are null; None if none is."""
    if not column.null_count:
        return None
    nulls: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return nulls
