"""Between numpy and Arrow: binary columns out of positions in a buffer, and the positions of a
column that is there.

The only place where positions become an Arrow array. Whoever calls `gather` has compared every
position with its record.
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
    """Arrow's validity: a bit for each row that is not null."""
    return pa.py_buffer(np.packbits(present, bitorder="little"))


def binary(offsets: Ints, data: Bytes) -> pa.Array:
    """The column whose values lie one behind the other in `data`, without a copy of them."""
    return pa.Array.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
    )


def offsets_of(column: pa.Array) -> Ints:
    """Where each value of a binary column starts in its data, and where the last one ends; a slice
    has its own.
    """
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    return np.frombuffer(buffer, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)


def data_of(column: pa.Array) -> Bytes:
    """The data of a binary column, of a slice too: as much as `offsets_of` points into."""
    buffer = column.buffers()[2]
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def nulls_of(column: pa.Array) -> Bools | None:
    """Which rows are null; None where none is."""
    if not column.null_count:
        return None
    nulls: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return nulls
