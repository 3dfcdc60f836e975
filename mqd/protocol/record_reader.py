"""Reads the records of a batch, decompressed: each one as a `Record`. Also checks every record of a
batch from a peer. Keys and values are copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mqd import limits
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    corrupt,
    parse_header,
    validate,
)
from mqd.protocol.compression import Codec, decompress

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
ANY_HEADERS: Final = 2**31
"""No bound on the headers of a record besides its size."""


class Record(NamedTuple):
    """One record.

    `timestamp` is in milliseconds; a header's key is text, its value bytes or None.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def iterate_records(
    view: Buffer,
    position: int = 0,
    *,
    header: BatchHeader | None = None,
    limit: int = limits.DECOMPRESSED_BYTES_MAX,
    headers_max: int = ANY_HEADERS,
) -> Iterator[Record]:
    """The records of the batch at `position`, decompressed to at most `limit` bytes. Raises
    MqError(CORRUPT_MESSAGE) on damage, MESSAGE_TOO_LARGE for a record with more than `headers_max`
    headers.

    Offsets that do not ascend within the range of the header, and timestamps above 64 bits, are
    damage. Control batches have records, too: markers, which a consumer skips.
    """
    if header is None:
        header = parse_header(view, position)
    records, start, end = _records_of(view, position, header, limit)
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    previous, last = -1, header.last_offset_delta
    for _ in range(header.records_count):
        start, timestamp_delta, offset_delta, key, value, headers = read_record(
            records, start, end, headers_max
        )
        if not previous < offset_delta <= last:
            raise corrupt(f"offset delta {offset_delta} after {previous}, the last one is {last}")
        previous = offset_delta
        timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise corrupt(f"a timestamp of {timestamp}")
        yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    if start != end:
        raise corrupt(f"{end - start} bytes follow the last of {header.records_count} records")


def check_records(
    view: Buffer, position: int = 0, *, end: int | None = None, compacted: bool = False
) -> BatchHeader:
    """The deep check of a batch from a peer: all that `validate` checks, and every record.

    The count and the lengths are right, and header keys exist. Offset deltas are 0, 1, 2 ... up to
    `last_offset_delta`; with `compacted` they ascend, with gaps. Raises MqError: CORRUPT_MESSAGE,
    or INVALID_RECORD if the bytes are readable and the content is not allowed.
    """
    header = validate(view, position, end=end)
    records, start, stop = _records_of(view, position, header, limits.DECOMPRESSED_BYTES_MAX)
    if not compacted and header.records_count != header.last_offset_delta + 1:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"{header.records_count} records, but a last offset delta of "
            f"{header.last_offset_delta}",
        )
    previous = -1
    for index in range(header.records_count):
        start, _timestamp_delta, offset_delta, _key, _value, _headers = read_record(
            records, start, stop
        )
        if offset_delta != index and not (
            compacted and previous < offset_delta <= header.last_offset_delta
        ):
            raise MqError(
                ErrorCode.INVALID_RECORD, f"record {index} has offset delta {offset_delta}"
            )
        previous = offset_delta
    if start != stop:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"{stop - start} bytes follow the last of {header.records_count} records",
        )
    return header


def record_bytes(view: Buffer, header: BatchHeader, limit: int) -> bytes:
    """The records of the batch at the start of `view`, decompressed to at most `limit` bytes. For
    record_scan.py.

    Raises MqError: CORRUPT_MESSAGE for damage, MESSAGE_TOO_LARGE above `limit`.
    """
    records, start, end = _records_of(view, 0, header, limit)
    return bytes(records[start:end])  # indexing bytes takes half the time of a memoryview


def _records_of(
    view: Buffer, position: int, header: BatchHeader, limit: int
) -> tuple[bytes | memoryview, int, int]:
    """The uncompressed bytes of the records, with their start and end positions."""
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size < HEADER_BYTES or position + size > len(view):
        raise corrupt(f"a batch of {size} bytes where {len(view) - position} are left")
    if header.records_count < 0:
        raise corrupt(f"{header.records_count} records")
    codec = header.attributes & CODEC_MASK
    body = memoryview(view)[position + HEADER_BYTES : position + size]
    if codec == Codec.NONE:
        return body, 0, len(body)
    if codec > Codec.ZSTD:
        raise corrupt(f"unknown codec {codec}")
    # a compacted batch whose records were all removed
    if not header.records_count and not body:
        return body, 0, 0
    data = decompress(Codec(codec), body, limit)
    return data, 0, len(data)


_Fields = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_record(
    data: bytes | memoryview, position: int, end: int, headers_max: int = ANY_HEADERS
) -> _Fields:
    """(position after it, timestamp delta, offset delta, key, value, headers) of the record at
    `position`. Raises MqError: CORRUPT_MESSAGE, INVALID_RECORD, or MESSAGE_TOO_LARGE for more than
    `headers_max` headers, which take 1 us and 150 bytes of memory each.

    One-byte varints are read in line: 2.0 us for a record with a key and 50 bytes, bench machine.
    """
    try:
        byte = data[position]
        if byte < 0x80:
            position += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, position = read_varint(data, position, 5)
        if size < 0 or size > end - position:
            raise corrupt(f"a record of {size} bytes where {end - position} are left")
        end = position + size
        position += 1  # attributes: no bit is assigned
        byte = data[position]
        if byte < 0x80:
            position += 1
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
        else:
            timestamp_delta, position = read_varint(data, position, 10)
        byte = data[position]
        if byte < 0x80:
            position += 1
            offset_delta = (byte >> 1) ^ -(byte & 1)
        else:
            offset_delta, position = read_varint(data, position, 5)
        key, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        byte = data[position]
        if byte == 0:
            position += 1
            headers: tuple[tuple[str, bytes | None], ...] = ()
        else:
            count, position = read_varint(data, position, 5)
            if not 0 <= count <= (end - position) // 2:  # a header has at least two bytes
                raise corrupt(f"{count} headers in {end - position} bytes")
            if count > headers_max:
                raise MqError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record has {count} headers, and at most {headers_max} are read",
                )
            pairs = []
            for _ in range(count):
                name, position = _read_bytes(data, position, end)
                if name is None:
                    raise MqError(ErrorCode.INVALID_RECORD, "a header key is null")
                content, position = _read_bytes(data, position, end)
                pairs.append((name.decode(), content))
            headers = tuple(pairs)
    except IndexError:
        raise corrupt("a record is cut off") from None
    except UnicodeDecodeError as error:
        raise MqError(
            ErrorCode.INVALID_RECORD, f"a header key is not UTF-8: {error.reason}"
        ) from None
    if position != end:
        raise corrupt(f"a record ends {position - end:+d} bytes from its end by its length")
    return end, timestamp_delta, offset_delta, key, value, headers


def _read_bytes(data: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    byte = data[position]
    if byte < 0x80:
        position += 1
        size = (byte >> 1) ^ -(byte & 1)
    else:
        size, position = read_varint(data, position, 5)
    if size < 0:
        if size != -1:
            raise corrupt(f"a length of {size}")
        return None, position
    if size > end - position:
        raise corrupt(f"a field of {size} bytes where {end - position} are left")
    return bytes(data[position : position + size]), position + size


def read_varint(data: bytes | memoryview, position: int, bytes_max: int) -> tuple[int, int]:
    """A zigzag varint of at most `bytes_max` bytes (5 for 32 bits, 10 for 64)."""
    value = shift = 0
    for current in range(position, position + bytes_max):
        byte = data[current]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == 5 else 64):
                break
            return (value >> 1) ^ -(value & 1), current + 1
        shift += 7
    raise corrupt("a varint does not end")
