"""Hand-written decoder of Fetch requests, versions 4 to 18, for brokers. hot_produce.py has the
rules.

Shape, shared with the handlers. In versions with topic ids, name is None; in others, topic_id:
    topic of a fetch request     (name, topic_id, [FetchPartition])
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import NamedTuple

from mqd import limits
from mqd.protocol.hot_primitives import (
    INT32_INT32,
    INT32_INT64,
    INT64,
    Buffer,
    array_count,
    compact_array_count,
    compact_nullable_string,
    compact_string,
    finish,
    need,
    skip_tagged_fields,
    string,
    tagged_fields,
    uuid,
)
from mqd.protocol.slices import SLICE_BYTES, SLICE_ROWS, Slices, all_slices, first_slice


class FetchPartition(NamedTuple):
    """The request for one partition in a fetch."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: bytes
    high_watermark: int


FetchTopic = tuple[bytes | None, bytes | None, list[FetchPartition]]
ForgottenTopic = tuple[bytes | None, bytes | None, list[int]]


class FetchRequest(NamedTuple):
    """A Fetch request. Fields that its version lacks have the schema's defaults."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: bytes
    cluster_id: bytes | None


_NO_DIRECTORY = bytes(16)
_HIGH_WATERMARK_UNSUPPORTED = 0x7FFFFFFFFFFFFFFF

_FETCH_HEAD = Struct(">iiiib")  # replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level
_FETCH_HEAD_15 = Struct(">iiib")
_FETCH_PARTITION_4 = Struct(">iqi")  # partition, fetch_offset, partition_max_bytes
_FETCH_PARTITION_5 = Struct(">iqqi")  # ... log_start_offset before the bytes
_FETCH_PARTITION_9 = Struct(">iiqqi")  # ... current_leader_epoch
_FETCH_PARTITION_12 = Struct(">iiqiqiB")  # ... last_fetched_epoch, the count of tagged fields


def decode_fetch_request(buffer: Buffer, position: int, end: int, version: int) -> FetchRequest:
    """The request body in `[position, end)`."""
    return all_slices(decode_fetch_in_slices(buffer, position, end, version))


def decode_fetch_at_once(
    buffer: Buffer, position: int, end: int, version: int
) -> FetchRequest | None:
    """The same; None if the request has more rows than one slice decodes.

    One topic with one partition, v12: 5.0 us; v11: 4.7 us.
    """
    return first_slice(decode_fetch_in_slices(buffer, position, end, version))


def decode_fetch_in_slices(
    buffer: Buffer, position: int, end: int, version: int
) -> Slices[FetchRequest]:
    """The same, in slices."""
    replica_id = -1
    if version < 15:
        need(position, 17, end)
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD.unpack_from(
            buffer, position
        )
        position += 17
    else:
        need(position, 13, end)
        max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD_15.unpack_from(
            buffer, position
        )
        position += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        need(position, 8, end)
        session_id, session_epoch = INT32_INT32.unpack_from(buffer, position)
        position += 8
    forgotten: list[ForgottenTopic] = []
    rack_id = b""
    cluster_id: bytes | None = None
    replica_epoch = -1
    if version >= 12:
        topics, position, left = yield from _fetch_topics_flexible(
            buffer, position, end, version, limits.REQUEST_ELEMENTS_MAX
        )
        if position < end and buffer[position] == 1:  # no forgotten topics: the usual case
            position += 1
        else:
            forgotten, position = yield from _forgotten_topics_flexible(
                buffer, position, end, version, left
            )
        rack_id, position = compact_string(buffer, position, end)
        if position >= end or buffer[position]:
            replica_id, replica_epoch, cluster_id, position = _fetch_tagged_fields(
                buffer, position, end, version, replica_id
            )
        else:
            position += 1
    else:
        topics, position, left = yield from _fetch_topics_classic(
            buffer, position, end, version, limits.REQUEST_ELEMENTS_MAX
        )
        if version >= 7:
            forgotten, position = yield from _forgotten_topics_classic(buffer, position, end, left)
        if version == 11:
            rack_id, position = string(buffer, position, end)
    return FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        cluster_id,
    )


def _fetch_topics_flexible(
    buffer: Buffer, position: int, end: int, version: int, left: int
) -> Slices[tuple[list[FetchTopic], int, int]]:
    topics: list[FetchTopic] = []
    count, position = compact_array_count(buffer, position, end, left)
    left -= count
    rows, pause_at = 0, position + SLICE_BYTES
    for _ in range(count):
        name: bytes | None = None
        topic_id: bytes | None = None
        if version < 13:
            name, position = compact_string(buffer, position, end)
        else:
            topic_id, position = uuid(buffer, position, end)
        partitions: list[FetchPartition] = []
        partition_count, position = compact_array_count(buffer, position, end, left)
        left -= partition_count
        for _ in range(partition_count):
            need(position, 33, end)
            partition, leader_epoch, offset, fetched_epoch, log_start, bytes_max, tagged = (
                _FETCH_PARTITION_12.unpack_from(buffer, position)
            )
            directory, high_watermark = _NO_DIRECTORY, _HIGH_WATERMARK_UNSUPPORTED
            if tagged:
                directory, high_watermark, position = _fetch_partition_tagged_fields(
                    buffer, position + 32, end, version
                )
            else:
                position += 33
            partitions.append(
                FetchPartition(
                    partition,
                    leader_epoch,
                    offset,
                    fetched_epoch,
                    log_start,
                    bytes_max,
                    directory,
                    high_watermark,
                )
            )
            rows += 1
            if rows >= SLICE_ROWS or position > pause_at:
                yield rows
                rows, pause_at = 0, position + SLICE_BYTES
        topics.append((name, topic_id, partitions))
        position = skip_tagged_fields(buffer, position, end)
        rows += 1
        if rows >= SLICE_ROWS or position > pause_at:
            yield rows
            rows, pause_at = 0, position + SLICE_BYTES
    return topics, position, left


def _fetch_topics_classic(
    buffer: Buffer, position: int, end: int, version: int, left: int
) -> Slices[tuple[list[FetchTopic], int, int]]:
    topics: list[FetchTopic] = []
    layout = (
        _FETCH_PARTITION_9
        if version >= 9
        else _FETCH_PARTITION_5
        if version >= 5
        else _FETCH_PARTITION_4
    )
    count, position = array_count(buffer, position, end, left)
    left -= count
    rows = 0
    for _ in range(count):
        name, position = string(buffer, position, end)
        partitions: list[FetchPartition] = []
        partition_count, position = array_count(buffer, position, end, left)
        left -= partition_count
        for _ in range(partition_count):
            need(position, layout.size, end)
            leader_epoch = log_start = -1
            if version >= 9:
                partition, leader_epoch, offset, log_start, bytes_max = layout.unpack_from(
                    buffer, position
                )
            elif version >= 5:
                partition, offset, log_start, bytes_max = layout.unpack_from(buffer, position)
            else:
                partition, offset, bytes_max = layout.unpack_from(buffer, position)
            position += layout.size
            partitions.append(
                FetchPartition(
                    partition,
                    leader_epoch,
                    offset,
                    -1,
                    log_start,
                    bytes_max,
                    _NO_DIRECTORY,
                    _HIGH_WATERMARK_UNSUPPORTED,
                )
            )
            rows += 1
            if rows >= SLICE_ROWS:
                yield rows
                rows = 0
        topics.append((name, None, partitions))
        rows += 1
        if rows >= SLICE_ROWS:
            yield rows
            rows = 0
    return topics, position, left


def _forgotten_topics_flexible(
    buffer: Buffer, position: int, end: int, version: int, left: int
) -> Slices[tuple[list[ForgottenTopic], int]]:
    topics: list[ForgottenTopic] = []
    count, position = compact_array_count(buffer, position, end, left)
    left -= count
    rows, pause_at = 0, position + SLICE_BYTES
    for _ in range(count):
        name: bytes | None = None
        topic_id: bytes | None = None
        if version < 13:
            name, position = compact_string(buffer, position, end)
        else:
            topic_id, position = uuid(buffer, position, end)
        partition_count, position = compact_array_count(buffer, position, end, left)
        left -= partition_count
        need(position, 4 * partition_count, end)
        partitions = list(unpack_from(f">{partition_count}i", buffer, position))
        topics.append((name, topic_id, partitions))
        position = skip_tagged_fields(buffer, position + 4 * partition_count, end)
        rows += 1 + partition_count
        if rows >= SLICE_ROWS or position > pause_at:
            yield rows
            rows, pause_at = 0, position + SLICE_BYTES
    return topics, position


def _forgotten_topics_classic(
    buffer: Buffer, position: int, end: int, left: int
) -> Slices[tuple[list[ForgottenTopic], int]]:
    topics: list[ForgottenTopic] = []
    count, position = array_count(buffer, position, end, left)
    left -= count
    rows = 0
    for _ in range(count):
        name, position = string(buffer, position, end)
        partition_count, position = array_count(buffer, position, end, left)
        left -= partition_count
        need(position, 4 * partition_count, end)
        topics.append((name, None, list(unpack_from(f">{partition_count}i", buffer, position))))
        position += 4 * partition_count
        rows += 1 + partition_count
        if rows >= SLICE_ROWS:
            yield rows
            rows = 0
    return topics, position


def _fetch_partition_tagged_fields(
    buffer: Buffer, position: int, end: int, version: int
) -> tuple[bytes, int, int]:
    """(replica_directory_id, high_watermark, position after): tags 0 (v17) and 1 (v18)."""
    directory, high_watermark = _NO_DIRECTORY, _HIGH_WATERMARK_UNSUPPORTED
    fields, position = tagged_fields(buffer, position, end)
    for tag, start, stop in fields:
        if tag == 0 and version >= 17:
            directory, start = uuid(buffer, start, stop)
            finish(start, stop)
        elif tag == 1 and version >= 18:
            need(start, 8, stop)
            (high_watermark,) = INT64.unpack_from(buffer, start)
            finish(start + 8, stop)
    return directory, high_watermark, position


def _fetch_tagged_fields(
    buffer: Buffer, position: int, end: int, version: int, replica_id: int
) -> tuple[int, int, bytes | None, int]:
    """(replica_id, replica_epoch, cluster_id, position after): tags 0 (v12) and 1 (v15)."""
    replica_epoch = -1
    cluster_id: bytes | None = None
    fields, position = tagged_fields(buffer, position, end)
    for tag, start, stop in fields:
        if tag == 0:
            cluster_id, start = compact_nullable_string(buffer, start, stop)
            finish(start, stop)
        elif tag == 1 and version >= 15:
            need(start, 12, stop)
            replica_id, replica_epoch = INT32_INT64.unpack_from(buffer, start)
            finish(skip_tagged_fields(buffer, start + 12, stop), stop)
    return replica_id, replica_epoch, cluster_id, position
