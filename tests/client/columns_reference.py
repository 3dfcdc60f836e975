"""The expected results of decode: the rows of `mqd.protocol.batch.iterate_records`, and batches for
comparison.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from mqd.client.columns import COLUMNS, decode
from mqd.errors import MqError
from mqd.protocol.batch import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    corrupt,
    iterate_batches,
    parse_header,
    validate,
    write_crc,
)
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec, compress, decompress
from mqd.protocol.record_reader import Record, iterate_records, read_varint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python uses deprecated parts of Python
    from kafka.record.default_records import (
        DefaultRecordBatch as PythonBatch,
        DefaultRecordBatchBuilder as PythonBuilder,
    )

__all__ = [
    "PythonBatch",
    "PythonBuilder",
    "decoded",
    "rows_of",
    "some_batches",
    "some_records",
    "stepped",
    "walked",
    "with_header",
    "with_records",
]

Row = dict[str, Any]
Outcome = list[Row] | None
"""Rows, or None for an MqError."""


def walked(
    data: bytes,
    *,
    start: int = 0,
    end: int = 2**63 - 1,
    columns: Sequence[str] = COLUMNS,
    topic: str = "t",
    partition: int = 0,
) -> Outcome:
    """The rows of every batch that is not a control batch, record by record."""
    rows = []
    try:
        for position, size, header in iterate_batches(data):
            validate(data, position, end=position + size)
            if header.is_control:
                continue
            for record in iterate_records(data, position, header=header):
                if start <= record.offset < end:
                    rows.append(_row(record, header, topic, partition, columns))
    except MqError:
        return None
    return rows


def _row(
    record: Record, header: BatchHeader, topic: str, partition: int, columns: Sequence[str]
) -> Row:
    row = {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": int(header.is_log_append_time),
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }
    return {name: row[name] for name in columns}


def decoded(data: bytes, **options: Any) -> Outcome:
    """The same through `decode`; every Arrow batch is checked in full."""
    try:
        return rows_of(decode(data, "t", 0, **{"columns": COLUMNS, **options}))
    except MqError:
        return None


def stepped(batch: bytes, columns: Sequence[str]) -> Outcome:
    """One uncompressed batch read leniently: each record as far as `columns` need, then the next.

    Each value is within its record, and at least one byte follows.
    """
    rows = []
    header = parse_header(batch)
    position, end = HEADER_BYTES, len(batch)
    try:
        for _ in range(header.records_count):
            size, position = read_varint(batch, position, 5)
            record, position = batch[position : position + size], position + size
            if not 0 <= size <= end - position + size:
                return None
            rows.append(_stepped(record, header, columns))
    except (IndexError, MqError):
        return None
    return rows if position == end else None


def _stepped(record: bytes, header: BatchHeader, columns: Sequence[str]) -> Row:
    delta, at = read_varint(record, 1, 10)
    row: Row = {"timestamp": (header.base_timestamp + delta) * 1000}
    if columns != ("timestamp",):
        _, at = read_varint(record, at, 5)
    record[at]  # a byte must follow
    for name in ("key", "value"):
        if name in columns or "value" in columns:
            size, at = read_varint(record, at, 5)
            field, at = record[at : at + max(size, 0)], at + max(size, 0)
            record[at]
            if size < -1:
                raise corrupt("a length is negative")
            row[name] = None if size < 0 else field
    if "value" in columns and record[at] == 0 and at + 1 != len(record):
        raise corrupt("no headers, and bytes behind")
    return {name: row[name] for name in columns}


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            plain = column.cast(pa.int64()) if name == "timestamp" else column
            columns[name] = plain.to_pylist()
        rows += [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
    return rows


def some_records(dice: random.Random, count: int, base: int, *, gaps: bool) -> list[Record]:
    """Records of every shape: nulls, empty and long fields, with and without headers."""
    records: list[Record] = []
    offset = base
    for _ in range(count):
        offset += dice.choice((1, 1, 2, 70)) if gaps and records else 1 if records else 0
        headers = [
            (dice.choice(("", "a", "trace-id", "größe")), _field(dice, 20))
            for _ in range(dice.choice((0, 0, 1, 3)))
        ]
        stamp = 1_700_000_000_000 + dice.choice((-1, 1)) * dice.randrange(1 << dice.randrange(40))
        records.append(Record(offset, stamp, _field(dice, 30), _field(dice, 300), headers))
    return records


def _field(dice: random.Random, size_max: int) -> bytes | None:
    return dice.choice((None, b"", dice.randbytes(dice.randrange(1, size_max))))


def some_batches(dice: random.Random, counts: Sequence[int], **options: Any) -> bytes:
    """Consecutive batches, occasionally with a gap between two."""
    data = bytearray()
    base = dice.randrange(1000)
    for count in counts:
        records = some_records(dice, count, base, gaps=dice.random() < 0.3)
        codec = options.get("codec", dice.choice(list(Codec)))
        stamp = dice.choice((None, None, 1_690_000_000_000))
        batch = build_batch(
            records, codec=codec, base_offset=base, keep_offsets=True, log_append_time=stamp
        )
        data += batch
        base = parse_header(batch).next_offset + dice.choice((0, 0, 5))
    return bytes(data)


def with_records(batch: bytes, change: Any) -> bytes:
    """The batch with its uncompressed records changed by `change(bytearray)`. The CRC is valid."""
    header = parse_header(batch)
    codec = Codec(header.codec)
    body = bytearray(decompress(codec, batch[HEADER_BYTES:]))
    change(body)
    packed = compress(codec, body)
    made = bytearray(batch[:HEADER_BYTES]) + packed
    HEADER.pack_into(made, 0, *header._replace(batch_length=len(made) - 12))
    write_crc(made)
    return bytes(made)


def with_header(batch: bytes | bytearray, **fields: int) -> bytes:
    """The batch with other header fields and a valid CRC."""
    made = bytearray(batch)
    HEADER.pack_into(made, 0, *parse_header(batch)._replace(**fields))
    write_crc(made)
    return bytes(made)
