"""murmur2 of a column of keys, bit for bit that of `mqd.client.partitioner`, by test.

Keys are sorted by length, so that keys of one length form a matrix: each step of the hash is then a few numpy calls for all of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from mqd.client.columns_buffers import data_of, offsets_of
from mqd.client.columns_varints import Int32s
from mqd.client.partitioner import murmur2

Hashes = np.ndarray[Any, np.dtype[np.uint32]]

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
_ALONE_ROWS_MAX = 16
"""Up to so many keys of one length are hashed one by one: that costs less than the numpy calls."""


def partition_for_keys(keys: pa.Array, partition_count: int) -> Int32s:
    """The partition of each key, as every Java client chooses it; -1 where the key is null."""
    if partition_count < 1:
        raise ValueError(f"a topic has {partition_count} partitions; it must have at least 1")
    hashes = hash_keys(keys)
    partitions = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def hash_keys(keys: pa.Array) -> Hashes:
    """murmur2 of each key; of a null, anything."""
    offsets, data = offsets_of(keys), data_of(keys)
    hashes = np.empty(len(keys), np.uint32)
    if not len(keys):
        return hashes
    sizes = np.diff(offsets)
    size = int(sizes[0])
    if (sizes == size).all():
        _hash_rows(data[offsets[0] : offsets[-1]].reshape(len(keys), size), hashes)
        return hashes
    order = np.argsort(sizes, kind="stable")
    keys = keys.take(pa.array(order))
    offsets, data = offsets_of(keys), data_of(keys)
    sizes = np.diff(offsets)
    sorted_hashes = np.empty_like(hashes)
    bounds = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
    for first, behind in pairwise(bounds):
        rows = data[offsets[first] : offsets[behind]].reshape(behind - first, int(sizes[first]))
        _hash_rows(rows, sorted_hashes[first:behind])
    hashes[order] = sorted_hashes
    return hashes


def _hash_rows(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]], out: Hashes) -> None:
    """Keys of one length, a row each."""
    count, size = rows.shape
    if count <= _ALONE_ROWS_MAX:
        out[:] = [murmur2(row.tobytes()) for row in rows]
        return
    hashes = np.full(count, (_SEED ^ size) & 0xFFFFFFFF, np.uint32)
    for position in range(0, size & ~3, 4):
        words = np.ascontiguousarray(rows[:, position : position + 4]).view("<u4")[:, 0] * _M
        words ^= words >> np.uint32(24)
        words *= _M
        hashes *= _M
        hashes ^= words
    if rest := size & 3:
        for index in range(rest):
            hashes ^= rows[:, size - rest + index].astype(np.uint32) << np.uint32(8 * index)
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    np.bitwise_xor(hashes, hashes >> np.uint32(15), out=out)
