"""Encodes Arrow columns into record batches for produce requests, without a Python object for each
record.

Rows keep their order within a partition. A batch has rows of one partition, of at most
`batch_bytes` bytes before compression, by an estimate. Rows of one size take the faster way of
`columns_even.py`, others that of `columns_records.py`.
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
from mqd.client.columns_arguments import checked_timestamps
from mqd.client.columns_buffers import data_of, offsets_of
from mqd.client.columns_even import EvenRecords
from mqd.client.columns_records import CALL_POOL, data_sizes, headers_bytes, records_of
from mqd.client.columns_varints import Bytes, Ints
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
    write_crc,
)
from mqd.protocol.compression import Codec, compress
from mqd.types import NO_EPOCH, NO_PRODUCER_ID

BATCH_BYTES: Final = 512 * limits.KIB
JOINED_BYTES_MAX: Final = 24 * limits.MIB
"""Rows are encoded together up to this estimate, but at least one row. Below 32 MiB, malloc reuses
freed memory instead of returning it to the kernel.
"""
RECORD_OVERHEAD_BYTES: Final = 22
"""The maximum bytes of a record without its key, value, headers and timestamp, in batches of fewer
than 2**20 rows.
"""
RECORD_BYTES_MAX: Final = 2**31 - 1 - 2 * limits.KIB

_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")


@dataclass(slots=True, eq=False)
class EncodedBatch:
    """A record batch for `partition`. Call `finish` before `data` is sent, and again before it is
    sent with another sequence number.
    """

    partition: int
    records: int
    data: bytearray | memoryview

    def finish(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
    ) -> None:
        """Write the producer id, its epoch and the sequence, then the CRC."""
        data = self.data
        (attributes,) = _ATTRIBUTES.unpack_from(data, ATTRIBUTES_POSITION)
        attributes = (
            attributes | TRANSACTIONAL_MASK if transactional else attributes & ~TRANSACTIONAL_MASK
        )
        _ATTRIBUTES.pack_into(data, ATTRIBUTES_POSITION, attributes)
        _PRODUCER.pack_into(data, PRODUCER_ID_POSITION, producer_id, producer_epoch, base_sequence)
        write_crc(data)


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
    """Record batches of all rows. `partitions` has the partition of each row. Raises ClientError
    for an invalid argument.

    `keys` and `values` are binary, `headers` is list<struct<key: string, value: binary>>; nulls are
    kept. `timestamps_ms` is one timestamp for all rows, or an int64 column without nulls. A row
    larger than `batch_bytes` becomes a batch of its own.
    """
    count = len(values)
    stamps = checked_timestamps(
        count, keys, values, partitions, timestamps_ms, headers, batch_bytes
    )
    sizes = data_sizes(keys) + data_sizes(values) + RECORD_OVERHEAD_BYTES
    if headers is not None:
        sizes += headers_bytes(headers)
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
    if isinstance(stamps, int) and headers is None:
        even = EvenRecords.of(keys, values, int(np.diff(firsts).max()))
        if even is not None:
            return [
                EncodedBatch(
                    int(partitions[first]),
                    behind - first,
                    _even_batch(even, order, first, behind, stamps, codec),
                )
                for first, behind in pairwise(firsts.tolist())
            ]
    starts, counts = firsts[:-1], np.diff(firsts)
    offset_deltas = np.arange(len(partitions)) - np.repeat(starts, counts)
    stamp_deltas = None
    if isinstance(stamps, int):
        bases = tops = np.full(len(counts), stamps, np.int64)
    else:
        stamps = stamps if order is None else stamps[order]
        bases, tops = stamps[starts], np.maximum.reduceat(stamps, starts)
        stamp_deltas = stamps - np.repeat(bases, counts)
    if order is not None:
        # Reorder the numbers, not the columns: it costs less to move the whole records once.
        offset_deltas = _put(offset_deltas, order)
        stamp_deltas = None if stamp_deltas is None else _put(stamp_deltas, order)
    records = records_of(keys, values, headers, offset_deltas, stamp_deltas)
    if order is not None:
        records = pc.take(records, pa.array(order), memory_pool=CALL_POOL)
    edges, data = offsets_of(records)[firsts].tolist(), data_of(records).data
    made = []
    for index, (partition, count, base, top) in enumerate(
        zip(
            partitions[starts].tolist(), counts.tolist(), bases.tolist(), tops.tolist(), strict=True
        )
    ):
        body = data[edges[index] : edges[index + 1]]
        made.append(EncodedBatch(partition, count, _batch(body, count, base, top, codec)))
    return made


def _put(numbers: Ints, order: Ints) -> Ints:
    """Numbers that are in the order of partitions, put into the order of the rows."""
    rows = np.empty_like(numbers)
    rows[order] = numbers
    return rows


def _batch(
    body: memoryview, count: int, base_timestamp: int, max_timestamp: int, codec: Codec
) -> bytearray:
    data = bytearray(HEADER_BYTES)
    data += compress(codec, body)
    _write_header(data, count, base_timestamp, max_timestamp, codec)
    return data


def _even_batch(
    even: EvenRecords, order: Ints | None, first: int, behind: int, stamp: int, codec: Codec
) -> bytearray | memoryview:
    """Uncompressed records are written to their final place, after the space for the header."""
    count = behind - first
    rows = slice(first, behind) if order is None else order[first:behind]
    out: Bytes = np.empty(HEADER_BYTES + even.bytes_of(count), np.uint8)
    even.write(out[HEADER_BYTES:], rows, count)
    if codec is not Codec.NONE:
        return _batch(out[HEADER_BYTES:].data, count, stamp, stamp, codec)
    data = out.data
    _write_header(data, count, stamp, stamp, codec)
    return data


def _write_header(
    data: bytearray | memoryview, count: int, base_timestamp: int, max_timestamp: int, codec: Codec
) -> None:
    """All fields but those that `finish` writes."""
    HEADER.pack_into(
        data, 0, 0, len(data) - LOG_OVERHEAD_BYTES, NO_EPOCH, MAGIC, 0, int(codec), count - 1,
        base_timestamp, max_timestamp, NO_PRODUCER_ID, NO_EPOCH, -1, count,
    )  # fmt: skip


# -- which rows go together


def _order(partitions: np.ndarray[Any, Any]) -> Ints | None:
    """The order of the rows by partition, and within a partition as before. None if the rows are
    already in this order.
    """
    if (partitions[1:] >= partitions[:-1]).all():
        return None
    if int(partitions.max()) < 2**16:
        partitions = partitions.astype(np.uint16)  # radix sort, which takes a tenth of the time
    return np.argsort(partitions, kind="stable")


def _batch_bounds(partitions: np.ndarray[Any, Any], sizes: Ints, batch_bytes: int) -> Ints:
    """The first row of each batch, and the end of the last batch."""
    edges = [0, *(np.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist(), len(partitions)]
    bounds = [0]
    for first, behind in pairwise(edges):
        bounds += _bounds(sizes, first, behind, batch_bytes)[1:]
    return np.array(bounds, np.int64)


def _bounds(sizes: Ints, first: int, behind: int, bytes_max: int) -> list[int]:
    """Cut the rows `[first, behind)` into runs of at most `bytes_max` bytes, or of one larger
    row.
    """
    total = np.cumsum(sizes[first:behind])
    bounds = [first]
    done = 0
    while bounds[-1] < behind:
        cut = first + int(np.searchsorted(total, done + bytes_max, side="right"))
        cut = max(cut, bounds[-1] + 1)
        done = int(total[cut - first - 1])
        bounds.append(cut)
    return bounds
