"""Builds a record batch: records as bytes, then header and CRC. batch_writer.py is faster, for
clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqd.protocol.batch import (
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Buffer,
    write_crc,
)
from mqd.protocol.compression import Codec, compress
from mqd.protocol.record_reader import Record
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP


def build_batch(
    records: Iterable[
        Record | tuple[int, int, bytes | None, bytes | None] | tuple[bytes | None, bytes | None]
    ],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    timestamp: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = -1,
    partition_leader_epoch: int = NO_EPOCH,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    keep_offsets: bool = False,
) -> bytearray:
    """One batch, sealed. Each record is a `Record`, or (key, value) stamped with `timestamp` in
    milliseconds.

    Offsets count from `base_offset`; with `keep_offsets` records keep their own ascending offsets
    (a compacted batch). `log_append_time` sets the timestamp type of a broker. A batch has at least
    one record.
    """
    body = bytearray()
    count = 0
    offset_delta = -1
    base_timestamp = max_timestamp = NO_TIMESTAMP
    for item in records:
        record = item if len(item) > 2 else (0, timestamp, *item)
        record_timestamp = record[1]
        if not count:
            base_timestamp = max_timestamp = record_timestamp
        elif record_timestamp > max_timestamp:
            max_timestamp = record_timestamp
        previous, offset_delta = offset_delta, record[0] - base_offset if keep_offsets else count
        assert offset_delta > previous, (offset_delta, previous)
        headers = record[4] if len(record) > 4 else ()
        write_record(
            body, record_timestamp - base_timestamp, offset_delta, record[2], record[3], headers
        )
        count += 1
    assert count, "a batch without records"
    attributes = int(codec)
    if log_append_time is not None:
        attributes |= TIMESTAMP_TYPE_MASK
        max_timestamp = log_append_time
    if transactional:
        attributes |= TRANSACTIONAL_MASK
    if control:
        attributes |= CONTROL_MASK
    data = compress(codec, body)
    batch = bytearray(HEADER_BYTES)
    batch += data
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD_BYTES,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    write_crc(batch)
    return batch


def write_record(
    body: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, Buffer | None]],
) -> None:
    record = bytearray(1)  # attributes
    write_varint(record, timestamp_delta)
    write_varint(record, offset_delta)
    _write_bytes(record, key)
    _write_bytes(record, value)
    write_varint(record, len(headers))
    for name, content in headers:
        _write_bytes(record, name.encode())
        _write_bytes(record, content)
    write_varint(body, len(record))
    body += record


def _write_bytes(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)  # zigzag of -1
    else:
        write_varint(out, len(data))
        out += data


def write_varint(out: bytearray, value: int) -> None:
    """A zigzag varint of 32 or 64 bits, least significant group first."""
    value = value << 1 if value >= 0 else ~(value << 1)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
