"""Zigzag varints by columns: thousands are read or written with a few numpy calls.

Positions are int64 and never negative. A read beyond the buffer raises IndexError, which the caller turns into a damaged batch:
numpy checks every index, so no byte outside the buffer is seen. Equal to `mqd.protocol.batch.read_varint`, by test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mqd.protocol.batch import corrupt

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

BYTES_MAX_32 = 5
BYTES_MAX_64 = 10


def read_varints(data: Bytes, positions: Ints) -> tuple[Ints, Ints]:
    """(values, positions behind them) of the 32-bit varints at `positions`. MqError(CORRUPT_MESSAGE) where one does not end."""
    byte = data[positions]
    if not byte.size or byte.max() < 0x80:
        return _unzigzag(byte.astype(np.int64)), positions + 1
    raw = (byte & 0x7F).astype(np.int64)
    behind = positions + 1
    rows = np.flatnonzero(byte & 0x80)
    for group in range(1, BYTES_MAX_32):
        at = behind[rows]
        byte = data[at]
        raw[rows] |= (byte & 0x7F).astype(np.int64) << (7 * group)
        behind[rows] = at + 1
        rows = rows[byte >= 0x80]
        if not rows.size:
            break
    else:
        raise corrupt("a varint does not end")
    if group == BYTES_MAX_32 - 1 and int(raw.max()) >> 32:
        raise corrupt("a varint does not end")
    return _unzigzag(raw), behind


def read_varlongs(data: Bytes, positions: Ints) -> tuple[Ints, Ints]:
    """The same for varints of 64 bits."""
    byte = data[positions]
    if not byte.size or byte.max() < 0x80:
        return _unzigzag(byte.astype(np.int64)), positions + 1
    raw = (byte & 0x7F).astype(np.uint64)
    behind = positions + 1
    rows = np.flatnonzero(byte & 0x80)
    for group in range(1, BYTES_MAX_64):
        at = behind[rows]
        byte = data[at]
        if group == BYTES_MAX_64 - 1 and int(byte.max()) > 1:
            raise corrupt("a varint does not end")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * group)
        behind[rows] = at + 1
        rows = rows[byte >= 0x80]
        if not rows.size:
            break
    half = (raw >> np.uint64(1)).astype(np.int64)
    return half ^ -(raw & np.uint64(1)).astype(np.int64), behind


def skip_varints(data: Bytes, positions: Ints, bytes_max: int) -> Ints:
    """The positions behind the varints at `positions`; their values are not looked at."""
    rows = np.flatnonzero(data[positions] & 0x80)
    behind = positions + 1
    for _ in range(1, bytes_max):
        if not rows.size:
            return behind
        at = behind[rows]
        behind[rows] = at + 1
        rows = rows[data[at] >= 0x80]
    if rows.size:
        raise corrupt("a varint does not end")
    return behind


def _unzigzag(raw: Ints) -> Ints:
    return (raw >> 1) ^ -(raw & 1)


def varint_sizes(zigzag: np.ndarray[Any, Any]) -> Ints:
    """How many bytes each value takes. Values are zigzag already, never negative (uint64, or int64 below 2**63)."""
    sizes = np.ones(len(zigzag), np.int64)
    if len(zigzag):
        top = int(zigzag.max())
        shift = 7
        while top >> shift:
            sizes += zigzag >= zigzag.dtype.type(1 << shift)
            shift += 7
    return sizes


def write_varints(out: Bytes, positions: Ints, zigzag: np.ndarray[Any, Any], sizes: Ints) -> None:
    """Write each value at its position; `sizes` comes from `varint_sizes`. `positions` is left as it is."""
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
