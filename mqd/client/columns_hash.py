"""murmur2 of a column of keys. A test checks that it equals that of `mqd.client.partitioner`.

Each step hashes four bytes of every key. Keys of one length form a matrix. Of keys of several
lengths, numpy gathers the next four bytes by their positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from mqd.client.columns_buffers import data_of, offsets_of
from mqd.client.columns_varints import Bytes, Int32s, Ints
from mqd.client.partitioner import murmur2

Hashes = np.ndarray[Any, np.dtype[np.uint32]]

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
ALONE_ROWS_MAX = 16
"""Up to this many keys are hashed one by one, which costs less than numpy calls for every four
bytes.
"""


def partition_for_keys(keys: pa.Array, partition_count: int) -> Int32s:
    """The partition of each key, as Java clients choose it; -1 if the key is null."""
    if partition_count < 1:
        raise ValueError(f"a topic has {partition_count} partitions; it must have at least 1")
    hashes = hash_keys(keys)
    partitions = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def hash_keys(keys: pa.Array) -> Hashes:
    """murmur2 of each key. The hash of a null is undefined."""
    if not len(keys):
        return np.empty(0, np.uint32)
    offsets, data = offsets_of(keys), data_of(keys)
    sizes = np.diff(offsets)
    size = int(sizes[0])
    if (sizes == size).all():
        return _of_one_length(data[offsets[0] : offsets[-1]].reshape(len(keys), size))
    return _of_any_length(data, offsets[:-1], sizes)


def _of_one_length(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Hashes:
    count, size = rows.shape
    if count <= ALONE_ROWS_MAX:
        return np.array([murmur2(row.tobytes()) for row in rows], np.uint32)
    hashes = np.full(count, (_SEED ^ size) & 0xFFFFFFFF, np.uint32)
    words, shifted = np.empty(count, np.uint32), np.empty(count, np.uint32)
    for position in range(0, size & ~3, 4):
        source = np.ndarray((count,), "<u4", rows, position, (size,))
        _mix(hashes, np.multiply(source, _M, out=words), shifted)
    if rest := size & 3:
        for index in range(rest):
            hashes ^= rows[:, size - rest + index].astype(np.uint32) << np.uint32(8 * index)
        hashes *= _M
    return _finish(hashes)


def _of_any_length(data: Bytes, begins: Ints, sizes: Ints) -> Hashes:
    hashes = sizes.astype(np.uint32) ^ np.uint32(_SEED)
    wholes = sizes >> 2
    words: np.ndarray[Any, Any] = np.zeros(0, "<u4")
    if len(data) >= 4:
        words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    rows, at = np.arange(len(sizes)), begins.copy()
    alone: list[int] = []
    for step in range(int(wholes.max())):
        more = wholes[rows] > step
        if not more.all():
            rows = rows[more]
        if len(rows) <= ALONE_ROWS_MAX:
            alone = rows.tolist()
            break
        some = hashes[rows]
        mixed = words[at[rows]]
        mixed *= _M
        _mix(some, mixed, np.empty_like(mixed))
        hashes[rows] = some
        at[rows] += 4
    rest = sizes & 3
    for index in range(3):
        rows = np.flatnonzero(rest > index)
        hashes[rows] ^= data[at[rows] + index].astype(np.uint32) << np.uint32(8 * index)
    hashes[rest > 0] *= _M
    _finish(hashes)
    for row in alone:  # the longest keys
        hashes[row] = murmur2(data[begins[row] : begins[row] + sizes[row]].tobytes())
    return hashes


def _mix(hashes: Hashes, words: Hashes, scratch: Hashes) -> None:
    """One round. `words` are already multiplied by `_M`, and are overwritten."""
    words ^= np.right_shift(words, np.uint32(24), out=scratch)
    words *= _M
    hashes *= _M
    hashes ^= words


def _finish(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
