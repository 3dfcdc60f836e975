"""Scans of the records of a batch for their keys: all of them, for a key filter, or one, for a
lookup. As record_scan.py, they skip most of the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from mqd.protocol.batch import BatchHeader, corrupt
from mqd.protocol.record_reader import INT64_MAX, INT64_MIN, Record, read_record, read_varint

RECORDS_AT_ONCE = 4096
"""Records of a scan between two pauses: 2 to 4 ms."""


def add_hashes(
    records: bytes | memoryview, header: BatchHeader, hash_of: Callable[[bytes], int], to: set[int]
) -> tuple[int, int]:
    """Add the hash of each key. Returns the smallest and the largest timestamp of the records; both
    are of the header for log append time, or an empty batch.

    MqError(CORRUPT_MESSAGE) if the records cannot be read. 1.1 us a record.
    """
    position, end = 0, len(records)
    smallest = largest = None
    try:
        for _ in range(header.records_count):
            byte = records[position]
            if byte < 0x80:
                position += 1
                following = position + (byte >> 1)
            else:
                byte, position = read_varint(records, position, 5)
                following = position + byte
            if following > end or following <= position:
                raise corrupt("a record does not end")
            byte = records[position + 1]  # after the attributes
            if byte < 0x80:
                position += 2
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, position = read_varint(records, position + 1, 10)
            if smallest is None or largest is None:
                smallest = largest = delta
            elif delta < smallest:
                smallest = delta
            elif delta > largest:
                largest = delta
            if records[position] < 0x80:
                position += 1
            else:
                _, position = read_varint(records, position, 5)
            byte = records[position]
            if byte < 0x80:
                position += 1
                size = (byte >> 1) ^ -(byte & 1)
            else:
                size, position = read_varint(records, position, 5)
            if size > following - position:
                raise corrupt("a key does not end")
            if size >= 0:
                to.add(hash_of(bytes(records[position : position + size])))
            position = following
    except IndexError:
        raise corrupt("a record is cut off") from None
    if smallest is None or largest is None or header.is_log_append_time:
        return header.max_timestamp, header.max_timestamp
    smallest, largest = header.base_timestamp + smallest, header.base_timestamp + largest
    if smallest < INT64_MIN or largest > INT64_MAX:
        raise corrupt(f"timestamps of {smallest} to {largest}")
    return smallest, largest


Place = tuple[int, int, int]
"""Where a record is in its batch, its offset, its timestamp. A plain tuple is made faster."""


class Bounds(NamedTuple):
    """Which records with a key are wanted: ends are exclusive."""

    start_offset: int
    end_offset: int
    since: int
    until: int


def places_with_key(
    records: bytes | memoryview, header: BatchHeader, key: bytes, bounds: Bounds, to: deque[Place]
) -> Generator[None, None, int]:
    """Add the places of the wanted records with this key to `to`, in their order, and return their
    number. Pauses after `RECORDS_AT_ONCE` records.

    MqError(CORRUPT_MESSAGE) if the records cannot be read. 0.5 us a record without the key, 1 us
    with it.
    """
    position, end, wanted, count = 0, len(records), len(key), 0
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    try:
        for index in range(header.records_count):
            start = position
            byte = records[position]
            if byte < 0x80:
                position += 1
                following = position + (byte >> 1)
            else:
                byte, position = read_varint(records, position, 5)
                following = position + byte
            if following > end or following <= position:
                raise corrupt(f"record {index} does not end")
            byte = records[position + 1]  # after the attributes
            if byte < 0x80:
                position += 2
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
            else:
                timestamp_delta, position = read_varint(records, position + 1, 10)
            byte = records[position]
            if byte < 0x80:
                position += 1
                offset_delta = (byte >> 1) ^ -(byte & 1)
            else:
                offset_delta, position = read_varint(records, position, 5)
            byte = records[position]
            if byte < 0x80:
                position += 1
                size = (byte >> 1) ^ -(byte & 1)
            else:
                size, position = read_varint(records, position, 5)
            if size == wanted and records[position : position + size] == key:
                timestamp = (
                    base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
                )
                if not (
                    0 <= offset_delta <= header.last_offset_delta
                    and INT64_MIN <= timestamp <= INT64_MAX
                ):
                    raise corrupt(f"record {index} has offset delta {offset_delta}")
                offset = base_offset + offset_delta
                if (
                    bounds.start_offset <= offset < bounds.end_offset
                    and bounds.since <= timestamp < bounds.until
                ):
                    to.append((start, offset, timestamp))
                    count += 1
            position = following
            if index % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
                yield
    except IndexError:
        raise corrupt("a record is cut off") from None
    return count


def record_at(records: bytes | memoryview, place: Place, headers_max: int) -> Record:
    """The record there. Raises MqError: CORRUPT_MESSAGE, or MESSAGE_TOO_LARGE for more headers."""
    start, offset, timestamp = place
    _, _, _, key, value, headers = read_record(records, start, len(records), headers_max)
    return Record(offset, timestamp, key, value, headers)
