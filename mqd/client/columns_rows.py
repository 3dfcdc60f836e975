"""Decodes some thousand records, with known start and end positions, into one Arrow batch: for each
field, the varints of all records at once.

Invariant: the fields of a record follow one another inside the record. Before a buffer is passed to
Arrow, the position after the last decoded field is compared with the end of the record. Positions
only grow, so this comparison covers all earlier fields. Fields of columns that are not requested
are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from mqd.client.columns_buffers import gather
from mqd.client.columns_headers import headers_column
from mqd.client.columns_schema import TIMESTAMP_TYPE
from mqd.client.columns_varints import (
    BYTES_MAX_32,
    BYTES_MAX_64,
    Bools,
    Bytes,
    Ints,
    read_varints,
    read_varlongs,
    skip_varints,
)
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import Buffer, corrupt

_MICROSECONDS_MS_MAX = (2**63 - 1) // 1000
"""The largest timestamp in milliseconds that fits into 64 bits in microseconds."""


class Selection(NamedTuple):
    """The selection of a caller of `decode`: the columns of `schema`, of records with offsets in
    `[start, end)`.
    """

    schema: pa.Schema
    topic: str
    partition: int
    start: int
    end: int


class Batch(NamedTuple):
    """A record batch with selected rows: its records are the bytes `[begin, end)` of a body."""

    begin: int
    end: int
    records: int
    base_offset: int
    last_offset: int
    timestamp: int
    """The base of the timestamps; if `stamped`, the timestamp of all records."""
    stamped: bool
    """Whether the timestamp is the broker's append time."""
    cut: bool
    """Whether `start` or `end` of the selection lies inside."""


class Slice(NamedTuple):
    """Consecutive records of some batches: the number of each batch, and where each record starts
    and ends in `body`.
    """

    body: Buffer
    array: Bytes
    batches: list[Batch]
    records: list[int]
    starts: Ints
    ends: Ints

    def of_batches(self, values: list[int]) -> Ints:
        """The value of its batch for each record."""
        if len(values) == 1:
            return np.full(len(self.starts), values[0], np.int64)
        return np.repeat(np.array(values, np.int64), self.records)


def rows_of(some: Slice, selection: Selection, previous: int) -> tuple[pa.RecordBatch, int]:
    """Returns (the selected rows, the last record's offset). `previous`: the offset before these
    records, which is returned if there are none. Raises MqError CORRUPT_MESSAGE or INVALID_RECORD.
    """
    try:
        return _rows_of(some, selection, previous)
    except IndexError:
        raise corrupt("a record is cut off") from None


def _rows_of(some: Slice, selection: Selection, previous: int) -> tuple[pa.RecordBatch, int]:
    names = selection.schema.names
    made: dict[str, pa.Array] = {}
    array, ends = some.array, some.ends
    first, behind = 0, len(ends)
    cut = any(batch.cut for batch in some.batches)
    fields = not {"key", "value", "headers"}.isdisjoint(names)
    numbers = cut or fields or not {"offset", "timestamp"}.isdisjoint(names)
    if numbers and behind:
        at = some.starts + 1  # after the attributes, which have no meaning yet
        if "timestamp" in names:
            deltas, at = read_varlongs(array, at)
            timestamps = _microseconds(some, deltas)
        else:
            at = skip_varints(array, at, BYTES_MAX_64)
        if cut or "offset" in names:
            deltas, at = read_varints(array, at)
            offsets = _offsets(some, deltas, previous)
            previous = int(offsets[-1])
            if cut:
                first, behind = np.searchsorted(offsets, (selection.start, selection.end)).tolist()
        elif fields:
            at = skip_varints(array, at, BYTES_MAX_32)
        if (at >= ends).any():
            raise corrupt("a record is cut off")
        if "offset" in names:
            made["offset"] = pa.array(offsets[first:behind])
        if "timestamp" in names:
            made["timestamp"] = pa.array(timestamps[first:behind]).view(TIMESTAMP_TYPE)
        if fields and first < behind:
            _fields(some, at[first:behind], ends[first:behind], names, made)
    _constants(some, selection, first, behind, made)
    columns = [
        made[field.name] if field.name in made else pa.array([], field.type)
        for field in selection.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=selection.schema), previous


def _offsets(some: Slice, deltas: Ints, previous: int) -> Ints:
    """Offsets ascend strictly, within the range of each batch's header."""
    offsets = some.of_batches([batch.base_offset for batch in some.batches]) + deltas
    last = some.of_batches([batch.last_offset for batch in some.batches])
    ascending = offsets[0] > previous and (offsets[1:] > offsets[:-1]).all()
    if not ascending or (deltas < 0).any() or (offsets > last).any():
        raise corrupt("offsets do not ascend within their batch")
    return offsets


def _microseconds(some: Slice, deltas: Ints) -> Ints:
    """Timestamps in microseconds. Raises MqError INVALID_RECORD if one does not fit into 64
    bits.
    """
    bases = [batch.timestamp for batch in some.batches]
    if any(batch.stamped for batch in some.batches):
        deltas = np.where(
            np.repeat([batch.stamped for batch in some.batches], some.records), 0, deltas
        )
    if (
        max(bases) + int(deltas.max()) > _MICROSECONDS_MS_MAX
        or min(bases) + int(deltas.min()) < -_MICROSECONDS_MS_MAX
    ):
        first = 0
        for base, records in zip(bases, some.records, strict=True):
            own = deltas[first : first + records]
            if (
                not -_MICROSECONDS_MS_MAX
                <= base + int(own.min())
                <= base + int(own.max())
                <= _MICROSECONDS_MS_MAX
            ):
                raise MqError(
                    ErrorCode.INVALID_RECORD,
                    "a timestamp does not fit into microseconds; leave out the column 'timestamp'",
                )
            first += records
    return (some.of_batches(bases) + deltas) * 1000


def _fields(some: Slice, at: Ints, ends: Ints, names: list[str], made: dict[str, pa.Array]) -> None:
    """The columns of key, value and headers that are requested. `at`: the positions of the keys'
    lengths.
    """
    array, body = some.array, some.body
    key_starts, key_ends, key_nulls = _field(array, at)
    if "value" not in names and "headers" not in names:
        if (key_ends >= ends).any():
            raise corrupt("a key does not end within its record")
        made["key"] = gather(body, key_starts, key_ends, key_nulls)
        return
    value_starts, value_ends, value_nulls = _field(array, key_ends)
    if (value_ends >= ends).any():  # at least the header count follows it
        raise corrupt("a key or value does not end within its record")
    if "headers" in names:
        made["headers"] = headers_column(body, array, value_ends, ends)
    elif ((array[value_ends] == 0) & (value_ends + 1 != ends)).any():
        raise corrupt("a record does not end where its length says")
    if "key" in names:
        made["key"] = gather(body, key_starts, key_ends, key_nulls)
    if "value" in names:
        made["value"] = gather(body, value_starts, value_ends, value_nulls)


def _field(array: Bytes, at: Ints) -> tuple[Ints, Ints, Bools | None]:
    """Returns (starts, ends, nulls) of the fields whose lengths are at `at`. A null has no
    bytes.
    """
    sizes, starts = read_varints(array, at)
    lowest = int(sizes.min())
    if lowest >= 0:
        return starts, starts + sizes, None
    if lowest < -1:
        raise corrupt("a length is negative")
    return starts, starts + np.maximum(sizes, 0), sizes < 0


def _constants(
    some: Slice, selection: Selection, first: int, behind: int, made: dict[str, pa.Array]
) -> None:
    """topic, partition and timestampType of the rows `[first, behind)`."""
    count = behind - first
    names = selection.schema.names
    if "topic" in names:
        name = selection.topic.encode()
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(name))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(name * count)]
        made["topic"] = pa.Array.from_buffers(pa.string(), count, buffers)
    if "partition" in names:
        made["partition"] = pa.array(np.full(count, selection.partition, np.int32))
    if "timestampType" in names:
        kinds = np.array([batch.stamped for batch in some.batches], np.int32)
        made["timestampType"] = pa.array(np.repeat(kinds, some.records)[first:behind])
