"""Decodes the headers of many records into one Arrow column. One pass handles the first header of
each record, the next pass the second, and so on.

Invariants: the headers of a record end exactly where the record ends, and their keys are UTF-8 and
not null. A record without headers has null.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from mqd.client.columns_buffers import bitmap, gather
from mqd.client.columns_schema import HEADER_TYPE, HEADERS_TYPE
from mqd.client.columns_varints import BYTES_MAX_32, Bools, Bytes, Ints, read_varints
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import Buffer, corrupt
from mqd.protocol.record_reader import read_varint

HEADERS_MAX: Final = 1 << 20
"""The maximum number of headers of one record. A header of two bytes takes twenty times as much
memory here.
"""

_TOGETHER_MIN = 16
"""The headers of fewer records are read one by one, which costs less than numpy calls."""


class _Pairs(NamedTuple):
    """The positions of the keys and values of all headers."""

    key_starts: Ints
    key_ends: Ints
    value_starts: Ints
    value_ends: Ints
    value_nulls: Bools


def headers_column(body: Buffer, array: Bytes, positions: Ints, ends: Ints) -> pa.Array:
    """The headers of one or more records. Their header counts are at `positions`, and the records
    end at `ends`.
    """
    counts, behind = read_varints(array, positions)
    if (counts < 0).any() or (counts > (ends - behind) // 2).any():
        raise corrupt("a count of headers does not fit its record")
    if int(counts.max()) > HEADERS_MAX:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"a record has {counts.max()} headers; at most {HEADERS_MAX} can be read",
        )
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    total = int(first[-1])
    marks = np.empty((4, total), np.int64)
    pairs = _Pairs(marks[0], marks[1], marks[2], marks[3], np.zeros(total, np.bool_))
    rows = np.flatnonzero(counts)
    ordinal = 0
    while rows.size >= _TOGETHER_MIN:
        behind[rows] = _read_pairs(array, behind[rows], pairs, first[rows] + ordinal)
        ordinal += 1
        rows = rows[counts[rows] > ordinal]
    for row in rows.tolist():
        own = range(int(first[row]) + ordinal, int(first[row + 1]))
        behind[row] = _walk_pairs(array[: ends[row]].data, int(behind[row]), pairs, own)
    if (behind != ends).any():
        raise corrupt("a record does not end where its length says")
    return _assemble(body, counts, first, pairs)


def _read_pairs(array: Bytes, positions: Ints, pairs: _Pairs, where: Ints) -> Ints:
    """Read one header of each record: store its position, return the position after it."""
    sizes, starts = read_varints(array, positions)
    if (sizes < 0).any():
        raise _bad_key(int(sizes.min()))
    pairs.key_starts[where] = starts
    pairs.key_ends[where] = ends = starts + sizes
    sizes, starts = read_varints(array, ends)
    if (sizes < -1).any():
        raise corrupt("a length is negative")
    pairs.value_starts[where] = starts
    pairs.value_ends[where] = ends = starts + np.maximum(sizes, 0)
    pairs.value_nulls[where] = sizes < 0
    return ends


def _walk_pairs(data: memoryview, position: int, pairs: _Pairs, where: range) -> int:
    """Read the remaining headers of one record, one by one."""
    for index in where:
        size, position = read_varint(data, position, BYTES_MAX_32)
        if size < 0:
            raise _bad_key(size)
        pairs.key_starts[index] = position
        position += size
        pairs.key_ends[index] = position
        size, position = read_varint(data, position, BYTES_MAX_32)
        if size < -1:
            raise corrupt("a length is negative")
        pairs.value_starts[index] = position
        position += max(size, 0)
        pairs.value_ends[index] = position
        pairs.value_nulls[index] = size < 0
    return position


def _bad_key(size: int) -> MqError:
    if size == -1:
        return MqError(ErrorCode.INVALID_RECORD, "a header key is null")
    return corrupt("a length is negative")


def _assemble(body: Buffer, counts: Ints, first: Ints, pairs: _Pairs) -> pa.Array:
    """All positions are checked before: within each record they ascend up to its end."""
    keys = gather(body, pairs.key_starts, pairs.key_ends)
    values = gather(body, pairs.value_starts, pairs.value_ends, pairs.value_nulls)
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise MqError(ErrorCode.INVALID_RECORD, "a header key is not UTF-8") from None
    children = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    present = counts > 0
    valid = None if present.all() else bitmap(present)
    offsets = pa.py_buffer(first.astype(np.int32))
    return pa.Array.from_buffers(HEADERS_TYPE, len(counts), [valid, offsets], children=[children])
