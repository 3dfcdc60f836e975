"""Scans of the records of a batch for their keys: all of them, for a key filter, or one, for a
lookup. As record_scan.py, they skip most of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mqd.protocol.batch import BatchHeader, corrupt
from mqd.protocol.record_reader import INT64_MAX, INT64_MIN, Record, read_record, read_varint

RECORDS_AT_ONCE = 4096
"""Records of a scan between two pauses: 2 to 4 ms."""
_MATCH_WEIGHT = 16
"""A record with the key takes as long as so many others."""


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


def records_with_key(
    records: bytes | memoryview, header: BatchHeader, key: bytes
) -> Iterator[Record | None]:
    """The records with this key, in their order. None for a pause after the time of
    `RECORDS_AT_ONCE` records without the key.

    MqError(CORRUPT_MESSAGE) if the records cannot be read. 0.5 us a record without the key.
    """
    position, end, wanted, weight = 0, len(records), len(key), 0
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
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
            position += 1  # attributes
            if records[position] < 0x80:
                position += 1
            else:
                _, position = read_varint(records, position, 10)
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
            if size == wanted and records[position : position + size] == key:
                _, timestamp_delta, offset_delta, found, value, headers = read_record(
                    records, start, end
                )
                timestamp = (
                    header.base_timestamp + timestamp_delta
                    if fixed_timestamp is None
                    else fixed_timestamp
                )
                if not (
                    0 <= offset_delta <= header.last_offset_delta
                    and INT64_MIN <= timestamp <= INT64_MAX
                ):
                    raise corrupt(f"record {index} has offset delta {offset_delta}")
                yield Record(header.base_offset + offset_delta, timestamp, found, value, headers)
                weight += _MATCH_WEIGHT
            position = following
            weight += 1
            if weight >= RECORDS_AT_ONCE:
                weight = 0
                yield None
    except IndexError:
        raise corrupt("a record is cut off") from None
