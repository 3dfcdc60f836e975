"""Reads and writes columns of zigzag varints: a few numpy calls handle thousands of them.

Positions are int64 and never negative. A read beyond the buffer raises IndexError, which the caller
reports as a damaged batch. Numpy checks every index, so no byte outside the buffer is read. A test
compares the results with `mqd.protocol.batch.read_varint`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mqd.protocol.batch import corrupt

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
"""Each number has as few bytes as the largest one needs, so less data is moved."""

BYTES_MAX_32 = 5
BYTES_MAX_64 = 10


def read_varints(data: Bytes, positions: Ints) -> tuple[Numbers, Ints]:
    """Returns (the values of the 32-bit varints at `positions`, the positions after them). At least
    one position. Raises MqError CORRUPT_MESSAGE if a varint has no end.
    """
    first = data[positions]
    if first.max() < 0x80:
        return _unzigzag(first.view(np.int8)), positions + 1
    two = first >= 0x80
    at = positions + two
    second = data[at]
    if (first & second & 0x80).any():
        return _read_long(data, positions)
    raw = (first & 0x7F).astype(np.int16)
    raw |= (second * two).astype(np.int16) << 7
    at += 1
    return _unzigzag(raw), at


def _read_long(data: Bytes, positions: Ints) -> tuple[Ints, Ints]:
    """As `read_varints`, if some varints have more than two bytes."""
    byte = data[positions]
    raw = (byte & 0x7F).astype(np.int64)
    behind = positions + 1
    rows = np.flatnonzero(byte & 0x80)
    for shift in range(7, 7 * BYTES_MAX_32, 7):
        at = behind[rows]
        byte = data[at]
        raw[rows] |= (byte & 0x7F).astype(np.int64) << shift
        behind[rows] = at + 1
        rows = rows[byte >= 0x80]
        if not rows.size:
            break
    if rows.size or int(raw.max()) >> 32:
        raise corrupt("a varint does not end")
    return _unzigzag(raw), behind


def read_varlongs(data: Bytes, positions: Ints) -> tuple[Numbers, Ints]:
    """As `read_varints`, for varints of 64 bits."""
    first = data[positions]
    if first.max() < 0x80:
        return _unzigzag(first.view(np.int8)), positions + 1
    raw = (first & 0x7F).astype(np.uint64)
    behind = positions + 1
    rows = np.flatnonzero(first & 0x80)
    for shift in range(7, 7 * BYTES_MAX_64, 7):
        at = behind[rows]
        byte = data[at]
        if shift == 63 and int(byte.max()) > 1:
            raise corrupt("a varint does not end")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[rows] = at + 1
        rows = rows[byte >= 0x80]
        if not rows.size:
            break
    half = (raw >> np.uint64(1)).astype(np.int64)
    return half ^ -(raw & np.uint64(1)).astype(np.int64), behind


def skip_varints(data: Bytes, positions: Ints, bytes_max: int) -> Ints:
    """The positions after the varints at `positions`. Does not decode the values."""
    first = data[positions]
    if first.max() < 0x80:
        return positions + 1
    two = first >= 0x80
    behind = positions + two
    second = data[behind]
    behind += 1
    rows = np.flatnonzero(first & second & 0x80)
    for _ in range(2, bytes_max):
        if not rows.size:
            return behind
        at = behind[rows]
        behind[rows] = at + 1
        rows = rows[data[at] >= 0x80]
    if rows.size:
        raise corrupt("a varint does not end")
    return behind


def _unzigzag(raw: Any) -> Any:
    return (raw >> 1) ^ -(raw & 1)


def varint_sizes(zigzag: np.ndarray[Any, Any]) -> Ints:
    """The size of each varint in bytes. The values are zigzag-encoded and not negative (uint64, or
    int64 below 2**63).
    """
    sizes = np.ones(len(zigzag), np.int64)
    if len(zigzag):
        top = int(zigzag.max())
        shift = 7
        while top >> shift:
            sizes += zigzag >= zigzag.dtype.type(1 << shift)
            shift += 7
    return sizes


def write_varints(out: Bytes, positions: Ints, zigzag: np.ndarray[Any, Any], sizes: Ints) -> None:
    """Write each value at its position. `sizes` is the result of `varint_sizes`. Does not change
    `positions`.
    """
    if not len(zigzag):
        return
    size_max = int(sizes.max())
    if size_max == 1:
        out[positions] = zigzag.astype(np.uint8)
        return
    seven = zigzag.dtype.type(7)
    rest, at, left = zigzag, positions, sizes
    while True:
        more = left > 1
        out[at] = (rest.astype(np.uint8) & 0x7F) | (more.view(np.uint8) << 7)
        if not more.any():
            return
        if not more.all():
            rest, at, left = rest[more], at[more], left[more]
        rest, at, left = rest >> seven, at + 1, left - 1
