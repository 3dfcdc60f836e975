"""Hand codecs for the two messages that carry records: Produce 3 to 13 and Fetch 4 to 18, as a broker sees them.

They accept, refuse and write exactly what `apis/produce.py` and `apis/fetch.py` declare (tests/protocol/test_hot.py holds
both equal on every version and on damaged bytes); they exist because construct takes 3 to 6 times as long a request.

Requests are read in place: names are bytes (UTF-8, checked), records are (start, end) positions into the caller's buffer.
Nothing is read at or beyond `end`, or what is read there cannot change the answer. Damage raises ProtocolError.
Responses come out with their 4 length bytes and header; what a fetch sends from files is passed through, counted by `size`.

Shapes, shared with the handlers (name is None from the version on that has topic ids, and topic_id before it):
    topic of a produce request   (name, topic_id, [(partition_index, start, end)])          start = end = -1: null records
    topic of its response        (name, topic_id, [row])
      row                        (partition_index, error_code, base_offset, log_append_time_ms, log_start_offset, error_message|None
                                  [, current_leader (node_id, leader_epoch)|None [, record_errors [(batch_index, message|None)]]])
    topic of a fetch request     (name, topic_id, [FetchPartition])
    topic of its response        (name, topic_id, [row])
      row                        (partition_index, error_code, high_watermark, last_stable_offset, log_start_offset,
                                  aborted_transactions [(producer_id, first_offset)]|None, preferred_read_replica, records [part]|None
                                  [, diverging_epoch (epoch, end_offset)|None
                                  [, current_leader|None [, snapshot_id (end_offset, epoch)|None]]])
    node endpoint                (node_id, host, port, rack|None)

Timings: timeit, the best of repeats, CPython 3.11 on the two-core bench machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error as struct_error
from typing import Any, NamedTuple, Protocol

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.bricks import (
    INT16,
    INT32,
    INT32_INT32,
    INT32_INT64,
    INT64,
    INT64_INT32,
    INT64_INT64,
    Buffer,
    NodeEndpoint,
    array_count,
    compact_array_count,
    compact_nullable_string,
    compact_string,
    finish,
    need,
    nullable_string,
    skip_tagged_fields,
    string,
    tagged_fields,
    unsigned_varint,
    uuid,
    write_compact_nullable_string,
    write_node_endpoints,
    write_nullable_string,
    write_topic_flexible,
    write_unsigned_varint,
)

ProducePartition = tuple[int, int, int]
ProduceTopic = tuple[bytes | None, bytes | None, list[ProducePartition]]
ProduceRequest = tuple[bytes | None, int, int, list[ProduceTopic]]


class Sized(Protocol):
    """Bytes that are elsewhere, such as a range of a file."""

    @property
    def size(self) -> int: ...


class FetchPartition(NamedTuple):
    """What one fetch asks of one partition."""

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
    """A fetch, with the schema's defaults for what its version lacks."""

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

_ACKS_TIMEOUT = Struct(">hi")


# -- Produce


_PRODUCE_HEAD_9 = Struct(">BhiBB")  # null transactional id, acks, timeout, one topic, its name's length + 1
_PRODUCE_HEAD_13 = Struct(">BhiB16sB")  # the same with a topic id, and one partition
_PRODUCE_PARTITION_9 = Struct(">Bi")  # one partition, its index
_PRODUCE_TAIL_9 = Struct(">HB")  # no tagged fields, three times


def decode_produce_request(buffer: Buffer, position: int, end: int, version: int) -> ProduceRequest:
    """(transactional_id, acks, timeout_ms, topics) of the request body in `[position, end)`.

    One topic with one partition, v9 to v12: 1.0 us with 100 bytes, 1.25 us with 16 KiB (construct: 12.6); v7: 2.6 us.
    """
    if version >= 9:
        try:
            if version < 13:
                absent, acks, timeout_ms, topics, size = _PRODUCE_HEAD_9.unpack_from(buffer, position)
                position_name = position + 9
                after = position_name + size - 1
                partitions, index = _PRODUCE_PARTITION_9.unpack_from(buffer, after)
                name, topic_id = bytes(buffer[position_name:after]), None
                usual = absent == 0 and topics == 2 and partitions == 2 and 0 < size < 128 and name.isascii()
                start = after + 5
            else:
                absent, acks, timeout_ms, topics, topic_id, partitions = _PRODUCE_HEAD_13.unpack_from(buffer, position)
                (index,) = INT32.unpack_from(buffer, position + 25)
                name = None
                usual = absent == 0 and topics == 2 and partitions == 2
                start = position + 29
            if usual:
                size = buffer[start]
                start += 1
                if size > 127:
                    byte = buffer[start]
                    size = size & 127 | (byte & 127) << 7
                    start += 1
                    if byte > 127:
                        byte = buffer[start]
                        size |= (byte & 127) << 14
                        start += 1
                        if byte > 127:
                            byte = buffer[start]
                            size |= (byte & 127) << 21  # of a fifth byte the long way takes care: `stop` is then not near `end`
                            start += 1
                            if byte > 127:
                                size = 0
                if size:
                    stop = start + size - 1
                    if stop + 3 == end and _PRODUCE_TAIL_9.unpack_from(buffer, stop) == (0, 0):
                        return None, acks, timeout_ms, [(name, topic_id, [(index, start, stop)])]
        except (struct_error, IndexError):
            pass  # cut off: the long way says where
        return _decode_produce_flexible(buffer, position, end, version)
    return _decode_produce_classic(buffer, position, end)


def _decode_produce_flexible(buffer: Buffer, position: int, end: int, version: int) -> ProduceRequest:
    transactional_id, position = compact_nullable_string(buffer, position, end)
    need(position, 6, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    count, position = compact_array_count(buffer, position + 6, end, limits.REQUEST_ELEMENTS_MAX)
    left = limits.REQUEST_ELEMENTS_MAX - count
    topics: list[ProduceTopic] = []
    for _ in range(count):
        name: bytes | None = None
        topic_id: bytes | None = None
        if version < 13:
            name, position = compact_string(buffer, position, end)
        else:
            topic_id, position = uuid(buffer, position, end)
        partitions: list[ProducePartition] = []
        partition_count, position = compact_array_count(buffer, position, end, left)
        left -= partition_count
        for _ in range(partition_count):
            need(position, 4, end)
            (index,) = INT32.unpack_from(buffer, position)
            size, position = unsigned_varint(buffer, position + 4, end)
            if size == 0:
                partitions.append((index, -1, -1))
            else:
                stop = position + size - 1
                need(position, size - 1, end)
                partitions.append((index, position, stop))
                position = stop
            position = skip_tagged_fields(buffer, position, end)
        topics.append((name, topic_id, partitions))
        position = skip_tagged_fields(buffer, position, end)
    skip_tagged_fields(buffer, position, end)
    return transactional_id, acks, timeout_ms, topics


def _decode_produce_classic(buffer: Buffer, position: int, end: int) -> ProduceRequest:
    transactional_id, position = nullable_string(buffer, position, end)
    need(position, 6, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    count, position = array_count(buffer, position + 6, end, limits.REQUEST_ELEMENTS_MAX)
    left = limits.REQUEST_ELEMENTS_MAX - count
    topics: list[ProduceTopic] = []
    for _ in range(count):
        name, position = string(buffer, position, end)
        partitions: list[ProducePartition] = []
        partition_count, position = array_count(buffer, position, end, left)
        left -= partition_count
        for _ in range(partition_count):
            need(position, 8, end)
            index, size = INT32_INT32.unpack_from(buffer, position)
            position += 8
            if size < 0:
                if size != -1:
                    raise ProtocolError(f"records of {size} bytes")
                partitions.append((index, -1, -1))
            else:
                need(position, size, end)
                partitions.append((index, position, position + size))
                position += size
        topics.append((name, None, partitions))
    return transactional_id, acks, timeout_ms, topics


_PRODUCE_ANSWER_HEAD_9 = Struct(">iiBBB")  # length, correlation id, no tagged fields; one topic, its name's length + 1
_PRODUCE_ANSWER_TAIL_9 = Struct(">BihqqqBBBBiB")  # one partition ... no errors, no message, no tagged fields (2), throttle, none
_PRODUCE_ROW_9 = Struct(">ihqqq")


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole answer, length bytes and header included.

    One topic with one partition that went well, v9 to v12: 0.6 us; v7: 1.7 us.
    """
    if 9 <= version < 13 and len(topics) == 1 and not node_endpoints:
        name, _, rows = topics[0]
        if len(rows) == 1 and name is not None and len(name) < 127:
            row = rows[0]
            if row[1] == 0 and row[5] is None and len(row) == 6:
                size = len(name)
                return (
                    _PRODUCE_ANSWER_HEAD_9.pack(size + 47, correlation_id, 0, 2, size + 1)
                    + name
                    + _PRODUCE_ANSWER_TAIL_9.pack(2, row[0], 0, row[2], row[3], row[4], 1, 0, 0, 0, throttle_ms, 0)
                )
    out = bytearray(8)
    if version >= 9:
        out.append(0)
        _write_produce_flexible(out, version, topics, throttle_ms, node_endpoints)
    else:
        _write_produce_classic(out, version, topics, throttle_ms)
    INT32_INT32.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def _write_produce_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]],
    throttle_ms: int,
    node_endpoints: Sequence[NodeEndpoint],
) -> None:
    write_unsigned_varint(out, len(topics) + 1)
    for name, topic_id, rows in topics:
        write_topic_flexible(out, name, topic_id, version >= 13)
        write_unsigned_varint(out, len(rows) + 1)
        for row in rows:
            out += _PRODUCE_ROW_9.pack(*row[:5])
            record_errors = row[7] if len(row) > 7 else ()
            write_unsigned_varint(out, len(record_errors) + 1)
            for batch_index, message in record_errors:
                out += INT32.pack(batch_index)
                write_compact_nullable_string(out, message)
                out.append(0)
            write_compact_nullable_string(out, row[5])
            leader = row[6] if len(row) > 6 and version >= 10 else None
            if leader is None or leader == (-1, -1):
                out.append(0)
            else:  # one tagged field: tag 0, 9 bytes
                out += b"\x01\x00\x09" + INT32_INT32.pack(*leader) + b"\x00"
        out.append(0)
    out += INT32.pack(throttle_ms)
    write_node_endpoints(out, node_endpoints if version >= 10 else ())


def _write_produce_classic(
    out: bytearray, version: int, topics: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]], throttle_ms: int
) -> None:
    out += INT32.pack(len(topics))
    for name, _, rows in topics:
        assert name is not None
        out += INT16.pack(len(name)) + name + INT32.pack(len(rows))
        for row in rows:
            packed = _PRODUCE_ROW_9.pack(*row[:5])
            out += packed if version >= 5 else packed[:-8]  # log_start_offset came with v5
            if version >= 8:
                record_errors = row[7] if len(row) > 7 else ()
                out += INT32.pack(len(record_errors))
                for batch_index, message in record_errors:
                    out += INT32.pack(batch_index)
                    write_nullable_string(out, message)
                write_nullable_string(out, row[5])
    out += INT32.pack(throttle_ms)


# -- Fetch


_FETCH_HEAD = Struct(">iiiib")  # replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level
_FETCH_HEAD_15 = Struct(">iiib")
_FETCH_PARTITION_4 = Struct(">iqi")  # partition, fetch_offset, partition_max_bytes
_FETCH_PARTITION_5 = Struct(">iqqi")  # ... log_start_offset before the bytes
_FETCH_PARTITION_9 = Struct(">iiqqi")  # ... current_leader_epoch
_FETCH_PARTITION_12 = Struct(">iiqiqiB")  # ... last_fetched_epoch, the count of tagged fields


def decode_fetch_request(buffer: Buffer, position: int, end: int, version: int) -> FetchRequest:
    """The request body in `[position, end)`. One topic with one partition, v12: 5.0 us; v11: 4.7 us."""
    replica_id = -1
    if version < 15:
        need(position, 17, end)
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD.unpack_from(buffer, position)
        position += 17
    else:
        need(position, 13, end)
        max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD_15.unpack_from(buffer, position)
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
        topics, position, left = _fetch_topics_flexible(buffer, position, end, version, limits.REQUEST_ELEMENTS_MAX)
        if position < end and buffer[position] == 1:  # no forgotten topics: the usual case
            position += 1
        else:
            forgotten, position = _forgotten_topics_flexible(buffer, position, end, version, left)
        rack_id, position = compact_string(buffer, position, end)
        if position >= end or buffer[position]:
            replica_id, replica_epoch, cluster_id, position = _fetch_tagged_fields(buffer, position, end, version, replica_id)
        else:
            position += 1
    else:
        topics, position, left = _fetch_topics_classic(buffer, position, end, version, limits.REQUEST_ELEMENTS_MAX)
        if version >= 7:
            forgotten, position = _forgotten_topics_classic(buffer, position, end, left)
        if version == 11:
            rack_id, position = string(buffer, position, end)
    return FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        topics, forgotten, rack_id, cluster_id,
    )  # fmt: skip


def _fetch_topics_flexible(buffer: Buffer, position: int, end: int, version: int, left: int) -> tuple[list[FetchTopic], int, int]:
    topics: list[FetchTopic] = []
    count, position = compact_array_count(buffer, position, end, left)
    left -= count
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
            partition, leader_epoch, offset, fetched_epoch, log_start, bytes_max, tagged = _FETCH_PARTITION_12.unpack_from(buffer, position)
            directory, high_watermark = _NO_DIRECTORY, _HIGH_WATERMARK_UNSUPPORTED
            if tagged:
                directory, high_watermark, position = _fetch_partition_tagged_fields(buffer, position + 32, end, version)
            else:
                position += 33
            partitions.append(
                FetchPartition(partition, leader_epoch, offset, fetched_epoch, log_start, bytes_max, directory, high_watermark)
            )
        topics.append((name, topic_id, partitions))
        position = skip_tagged_fields(buffer, position, end)
    return topics, position, left


def _fetch_topics_classic(buffer: Buffer, position: int, end: int, version: int, left: int) -> tuple[list[FetchTopic], int, int]:
    topics: list[FetchTopic] = []
    layout = _FETCH_PARTITION_9 if version >= 9 else _FETCH_PARTITION_5 if version >= 5 else _FETCH_PARTITION_4
    count, position = array_count(buffer, position, end, left)
    left -= count
    for _ in range(count):
        name, position = string(buffer, position, end)
        partitions: list[FetchPartition] = []
        partition_count, position = array_count(buffer, position, end, left)
        left -= partition_count
        for _ in range(partition_count):
            need(position, layout.size, end)
            fields = layout.unpack_from(buffer, position)
            position += layout.size
            leader_epoch = fields[1] if version >= 9 else -1
            log_start = fields[-2] if version >= 5 else -1
            offset = fields[2] if version >= 9 else fields[1]
            partitions.append(
                FetchPartition(fields[0], leader_epoch, offset, -1, log_start, fields[-1], _NO_DIRECTORY, _HIGH_WATERMARK_UNSUPPORTED)
            )
        topics.append((name, None, partitions))
    return topics, position, left


def _forgotten_topics_flexible(buffer: Buffer, position: int, end: int, version: int, left: int) -> tuple[list[ForgottenTopic], int]:
    topics: list[ForgottenTopic] = []
    count, position = compact_array_count(buffer, position, end, left)
    left -= count
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
        partitions = [INT32.unpack_from(buffer, position + 4 * i)[0] for i in range(partition_count)]
        topics.append((name, topic_id, partitions))
        position = skip_tagged_fields(buffer, position + 4 * partition_count, end)
    return topics, position


def _forgotten_topics_classic(buffer: Buffer, position: int, end: int, left: int) -> tuple[list[ForgottenTopic], int]:
    topics: list[ForgottenTopic] = []
    count, position = array_count(buffer, position, end, left)
    left -= count
    for _ in range(count):
        name, position = string(buffer, position, end)
        partition_count, position = array_count(buffer, position, end, left)
        left -= partition_count
        need(position, 4 * partition_count, end)
        topics.append((name, None, [INT32.unpack_from(buffer, position + 4 * i)[0] for i in range(partition_count)]))
        position += 4 * partition_count
    return topics, position


def _fetch_partition_tagged_fields(buffer: Buffer, position: int, end: int, version: int) -> tuple[bytes, int, int]:
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


def _fetch_tagged_fields(buffer: Buffer, position: int, end: int, version: int, replica_id: int) -> tuple[int, int, bytes | None, int]:
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


_FETCH_ANSWER_HEAD_4 = Struct(">iii")  # length, correlation id, throttle
_FETCH_ANSWER_HEAD_7 = Struct(">iiihi")  # ... error code, session id
_FETCH_ANSWER_HEAD_12 = Struct(">iiBihi")  # ... no tagged fields after the correlation id
_FETCH_ROW_4 = Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_FETCH_ROW_5 = Struct(">ihqqq")  # ... log start offset
_FETCH_ROW_12 = Struct(">ihqqqBi")  # ... no aborted transactions (1: none, 0: null), preferred read replica


def encode_fetch_response_parts(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]:
    """The whole answer as parts to send in order: bytes made here, and the callers' parts of records in between, untouched.

    A part of records is a bytes-like object or a `Sized` one, such as a FileRange. The length bytes count all of them.
    """
    out = bytearray()
    made = [out]
    parts: list[Any] = [out]
    passed_bytes = 0
    flexible = version >= 12
    if flexible:
        out += _FETCH_ANSWER_HEAD_12.pack(0, correlation_id, 0, throttle_ms, error_code, session_id)
        write_unsigned_varint(out, len(topics) + 1)
    elif version >= 7:
        out += _FETCH_ANSWER_HEAD_7.pack(0, correlation_id, throttle_ms, error_code, session_id) + INT32.pack(len(topics))
    else:
        out += _FETCH_ANSWER_HEAD_4.pack(0, correlation_id, throttle_ms) + INT32.pack(len(topics))
    for name, topic_id, rows in topics:
        if flexible:
            write_topic_flexible(out, name, topic_id, version >= 13)
            write_unsigned_varint(out, len(rows) + 1)
        else:
            assert name is not None
            out += INT16.pack(len(name)) + name + INT32.pack(len(rows))
        for row in rows:
            records = row[7]
            size = 0
            if records:
                for part in records:
                    size += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
            if flexible:
                _write_fetch_row_flexible(out, row, size)
            else:
                _write_fetch_row_classic(out, row, size, version)
            if size:
                passed_bytes += size
                parts += records
                out = bytearray()
                made.append(out)
                parts.append(out)
            if flexible:
                if len(row) > 8:
                    _write_fetch_row_tagged_fields(out, row)
                else:
                    out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        write_node_endpoints(out, node_endpoints if version >= 16 else ())
    elif not out:
        parts.pop()
    INT32.pack_into(made[0], 0, sum(map(len, made)) + passed_bytes - 4)
    return parts


def _write_fetch_row_flexible(out: bytearray, row: tuple[Any, ...], size: int) -> None:
    index, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, preferred = row[:7]
    if not aborted:
        count = 0 if aborted is None else 1
        out += _FETCH_ROW_12.pack(index, error_code, high_watermark, last_stable_offset, log_start_offset, count, preferred)
    else:
        out += _FETCH_ROW_5.pack(index, error_code, high_watermark, last_stable_offset, log_start_offset)
        write_unsigned_varint(out, len(aborted) + 1)
        for producer_id, first_offset in aborted:
            out += INT64_INT64.pack(producer_id, first_offset) + b"\x00"
        out += INT32.pack(preferred)
    write_unsigned_varint(out, 0 if row[7] is None else size + 1)


def _write_fetch_row_classic(out: bytearray, row: tuple[Any, ...], size: int, version: int) -> None:
    out += _FETCH_ROW_5.pack(*row[:5]) if version >= 5 else _FETCH_ROW_4.pack(*row[:4])
    aborted = row[5]
    out += INT32.pack(-1 if aborted is None else len(aborted))
    for transaction in aborted or ():
        out += INT64_INT64.pack(*transaction)
    if version >= 11:
        out += INT32.pack(row[6])
    out += INT32.pack(-1 if row[7] is None else size)


def _write_fetch_row_tagged_fields(out: bytearray, row: tuple[Any, ...]) -> None:
    fields = []
    for tag, pair, layout in zip((0, 1, 2), row[8:], (INT32_INT64, INT32_INT32, INT64_INT32), strict=False):
        if pair is not None and pair != (-1, -1):
            fields.append(bytes((tag, layout.size + 1)) + layout.pack(*pair) + b"\x00")
    out.append(len(fields))
    out += b"".join(fields)
