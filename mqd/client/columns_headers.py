"""The headers of many records as one Arrow column: a pass for the first header of each record, one for the second, ...

What must hold: a record's headers end exactly where the record ends, their keys are UTF-8 and not null, and a record without
headers has null.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mqd.client.columns_schema import HEADER_TYPE, HEADERS_TYPE
from mqd.client.columns_varints import Bytes, Ints, read_varints
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import Buffer, corrupt


def headers_column(body: Buffer, array: Bytes, positions: Ints, ends: Ints) -> pa.Array:
    """The headers of the records whose header counts are at `positions` and which end at `ends`."""
    counts, behind = read_varints(array, positions)
    if (counts < 0).any() or (counts > (ends - behind) // 2).any():
        raise corrupt("a count of headers does not fit its record")
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    total = int(first[-1])
    marks = np.empty(4 * total, np.int64)  # of each header: key begin and end, value begin and end
    nulls = np.zeros(total, np.bool_)
    rows = np.flatnonzero(counts)
    at = behind[rows]
    ordinal = 0
    while rows.size:
        sizes, begins = read_varints(array, at)
        if (sizes < 0).any():
            raise (
                MqError(ErrorCode.INVALID_RECORD, "a header key is null")
                if (sizes == -1).any()
                else corrupt("a length is negative")
            )
        where = first[rows] + ordinal
        marks[4 * where] = begins
        marks[4 * where + 1] = at = begins + sizes
        sizes, begins = read_varints(array, at)
        if (sizes < -1).any():
            raise corrupt("a length is negative")
        marks[4 * where + 2] = begins
        marks[4 * where + 3] = at = begins + np.maximum(sizes, 0)
        nulls[where] = sizes < 0
        behind[rows] = at
        ordinal += 1
        more = counts[rows] > ordinal
        rows, at = rows[more], at[more]
    if (behind != ends).any():
        raise corrupt("a record does not end where its length says")
    return _assemble(body, counts, first, marks, nulls)


def _assemble(
    body: Buffer,
    counts: Ints,
    first: Ints,
    marks: Ints,
    nulls: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> pa.Array:
    """All positions are checked: within each record they ascend up to its end."""
    total = len(nulls)
    raw = pa.Array.from_buffers(
        pa.binary(),
        max(4 * total - 1, 0),
        [None, pa.py_buffer(marks.astype(np.int32)), pa.py_buffer(body)],
    )
    every_fourth = np.arange(0, 4 * total, 4, dtype=np.int32)
    keys = raw.take(pa.array(every_fourth))
    values = raw.take(pa.array(every_fourth + np.int32(2)))
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise MqError(ErrorCode.INVALID_RECORD, "a header key is not UTF-8") from None
    if nulls.any():
        values = pa.Array.from_buffers(pa.binary(), total, [_bitmap(~nulls), *values.buffers()[1:]])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    present = counts > 0
    valid = None if present.all() else _bitmap(present)
    return pa.Array.from_buffers(
        HEADERS_TYPE, len(counts), [valid, pa.py_buffer(first.astype(np.int32))], children=[pairs]
    )


def _bitmap(present: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(present, bitorder="little"))
