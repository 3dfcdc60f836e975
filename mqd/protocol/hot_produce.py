"""Hand-written codec of Produce, versions 3 to 13, for brokers. hot_fetch_request.py and
hot_fetch_response.py have the same rules for Fetch.

They accept, reject and write exactly what `apis/produce.py` and `apis/fetch.py` declare
(tests/protocol/test_hot_codecs.py compares both on every version and on damaged bytes). They exist
because construct takes 3 to 6 times as long for a request.

Requests are read in place: names are bytes (UTF-8, checked), records are (start, end) positions
into the caller's buffer. Nothing is read at or beyond `end`, or what is read there cannot change
the result. Damaged bytes raise ProtocolError. Encoded responses include the 4 length bytes and the
header.

Functions named `..._in_slices` are generators that yield the number of rows read or written since.
Functions named `..._at_once` return None for a request that is larger than one slice:
`DECODED_AT_ONCE_ROWS` of limits.py.

Shapes, shared with the handlers. In versions with topic ids, name is None; in others, topic_id:
    topic of a produce request   (name, topic_id, [(partition_index, start, end)])
                                 start = end = -1: null records
    topic of its response        (name, topic_id, [row])
      row                        (partition_index, error_code, base_offset, log_append_time_ms,
                                  log_start_offset, error_message|None
                                  [, current_leader (node_id, leader_epoch)|None
                                  [, record_errors [(batch_index, message|None)]]])
    node endpoint                (node_id, host, port, rack|None)

Timings: timeit, the best of repeats, CPython 3.11 on the two-core bench machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error as struct_error
from typing import Any, Final

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.hot_primitives import (
    INT16,
    INT32,
    INT32_INT32,
    Buffer,
    NodeEndpoint,
    array_count,
    compact_array_count,
    compact_nullable_string,
    compact_string,
    need,
    nullable_string,
    skip_tagged_fields,
    string,
    unsigned_varint,
    uuid,
    write_compact_nullable_string,
    write_node_endpoints,
    write_nullable_string,
    write_topic_flexible,
    write_unsigned_varint,
)
from mqd.protocol.slices import SLICE_BYTES, SLICE_ROWS, Slices, all_slices, first_slice

ProducePartition = tuple[int, int, int]
ProduceTopic = tuple[bytes | None, bytes | None, list[ProducePartition]]
ProduceRequest = tuple[bytes | None, int, int, list[ProduceTopic]]
ProduceResponseTopic = tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]

_ACKS_TIMEOUT = Struct(">hi")

# null transactional id, acks, timeout, one topic, its name's length + 1
_PRODUCE_HEAD_9 = Struct(">BhiBB")
_PRODUCE_HEAD_13 = Struct(">BhiB16sB")  # the same with a topic id, and one partition
_PRODUCE_PARTITION_9 = Struct(">Bi")  # one partition, its index
_PRODUCE_TAIL_9 = Struct(">HB")  # no tagged fields, three times


def decode_produce_request(buffer: Buffer, position: int, end: int, version: int) -> ProduceRequest:
    """(transactional_id, acks, timeout_ms, topics) of the request body in `[position, end)`."""
    request = decode_produce_at_once(buffer, position, end, version)
    return (
        all_slices(decode_produce_in_slices(buffer, position, end, version))
        if request is None
        else request
    )


def decode_produce_at_once(
    buffer: Buffer, position: int, end: int, version: int
) -> ProduceRequest | None:
    """The same; None if the request has more rows than one slice decodes.

    One topic with one partition, v9 to v12: 1.0 us with 100 bytes, 1.25 us with 16 KiB (construct:
    12.6); v7: 2.6 us.
    """
    if version >= 9:
        try:
            if version < 13:
                absent, acks, timeout_ms, topics, size = _PRODUCE_HEAD_9.unpack_from(
                    buffer, position
                )
                position_name = position + 9
                after = position_name + size - 1
                partitions, index = _PRODUCE_PARTITION_9.unpack_from(buffer, after)
                name, topic_id = bytes(buffer[position_name:after]), None
                usual = (
                    absent == 0
                    and topics == 2
                    and partitions == 2
                    and 0 < size < 128
                    and name.isascii()
                )
                start = after + 5
            else:
                absent, acks, timeout_ms, topics, topic_id, partitions = (
                    _PRODUCE_HEAD_13.unpack_from(buffer, position)
                )
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
                            # the general decoder handles a fifth byte: `stop` is then not near
                            # `end`
                            size |= (byte & 127) << 21
                            start += 1
                            if byte > 127:
                                size = 0
                if size:
                    stop = start + size - 1
                    if stop + 3 == end and _PRODUCE_TAIL_9.unpack_from(buffer, stop) == (0, 0):
                        return None, acks, timeout_ms, [(name, topic_id, [(index, start, stop)])]
        except (struct_error, IndexError):
            pass  # truncated: the general decoder reports the position
    return first_slice(decode_produce_in_slices(buffer, position, end, version))


def decode_produce_in_slices(
    buffer: Buffer, position: int, end: int, version: int
) -> Slices[ProduceRequest]:
    """The same, in slices."""
    if version >= 9:
        return _decode_produce_flexible(buffer, position, end, version)
    return _decode_produce_classic(buffer, position, end)


def _decode_produce_flexible(
    buffer: Buffer, position: int, end: int, version: int
) -> Slices[ProduceRequest]:
    transactional_id, position = compact_nullable_string(buffer, position, end)
    need(position, 6, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    count, position = compact_array_count(buffer, position + 6, end, limits.REQUEST_ELEMENTS_MAX)
    left = limits.REQUEST_ELEMENTS_MAX - count
    topics: list[ProduceTopic] = []
    rows, pause_at = 0, position + SLICE_BYTES
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
                pause_at += size
            position = skip_tagged_fields(buffer, position, end)
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
    skip_tagged_fields(buffer, position, end)
    return transactional_id, acks, timeout_ms, topics


def _decode_produce_classic(buffer: Buffer, position: int, end: int) -> Slices[ProduceRequest]:
    transactional_id, position = nullable_string(buffer, position, end)
    need(position, 6, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    count, position = array_count(buffer, position + 6, end, limits.REQUEST_ELEMENTS_MAX)
    left = limits.REQUEST_ELEMENTS_MAX - count
    topics: list[ProduceTopic] = []
    rows = 0
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
            rows += 1
            if rows >= SLICE_ROWS:
                yield rows
                rows = 0
        topics.append((name, None, partitions))
        rows += 1
        if rows >= SLICE_ROWS:
            yield rows
            rows = 0
    return transactional_id, acks, timeout_ms, topics


# length, correlation id, no tagged fields; one topic, its name's length + 1
_PRODUCE_RESPONSE_HEAD_9 = Struct(">iiBBB")
# one partition ... no errors, no message, no tagged fields (2), throttle, none
_PRODUCE_RESPONSE_TAIL_9 = Struct(">BihqqqBBBBiB")
_PRODUCE_ROW_9 = Struct(">ihqqq")

_NUMBERS: Final = slice(5)
_ERROR_MESSAGE: Final = 5
_CURRENT_LEADER: Final = 6
_RECORD_ERRORS: Final = 7
"""Indexes in a row. It is a plain tuple: a NamedTuple takes ten times as long to create."""


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[ProduceResponseTopic],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole response, with length bytes and header.

    One topic with one successful partition, v9 to v12: 0.6 us; v7: 1.7 us.
    """
    if 9 <= version < 13 and len(topics) == 1 and not node_endpoints:
        name, _, rows = topics[0]
        if len(rows) == 1 and name is not None and len(name) < 127:
            row = rows[0]
            if len(row) == 6:
                index, error_code, base_offset, append_time_ms, log_start_offset, message = row
                if error_code == 0 and message is None:
                    size = len(name)
                    return (
                        _PRODUCE_RESPONSE_HEAD_9.pack(size + 47, correlation_id, 0, 2, size + 1)
                        + name
                        + _PRODUCE_RESPONSE_TAIL_9.pack(
                            2,
                            index,
                            0,
                            base_offset,
                            append_time_ms,
                            log_start_offset,
                            1,
                            0,
                            0,
                            0,
                            throttle_ms,
                            0,
                        )
                    )
    return all_slices(
        encode_produce_response_in_slices(
            version, correlation_id, topics, throttle_ms, node_endpoints
        )
    )


def encode_produce_response_in_slices(
    version: int,
    correlation_id: int,
    topics: Sequence[ProduceResponseTopic],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Slices[bytes]:
    """The same, in slices."""
    out = bytearray(8)
    if version >= 9:
        out.append(0)
        yield from _write_produce_flexible(out, version, topics, throttle_ms, node_endpoints)
    else:
        yield from _write_produce_classic(out, version, topics, throttle_ms)
    INT32_INT32.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def _write_produce_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[ProduceResponseTopic],
    throttle_ms: int,
    node_endpoints: Sequence[NodeEndpoint],
) -> Slices[None]:
    written = 0
    write_unsigned_varint(out, len(topics) + 1)
    for name, topic_id, rows in topics:
        write_topic_flexible(out, name, topic_id, version >= 13)
        write_unsigned_varint(out, len(rows) + 1)
        for row in rows:
            out += _PRODUCE_ROW_9.pack(*row[_NUMBERS])
            record_errors = row[_RECORD_ERRORS] if len(row) > _RECORD_ERRORS else ()
            write_unsigned_varint(out, len(record_errors) + 1)
            for batch_index, message in record_errors:
                out += INT32.pack(batch_index)
                write_compact_nullable_string(out, message)
                out.append(0)
            write_compact_nullable_string(out, row[_ERROR_MESSAGE])
            leader = row[_CURRENT_LEADER] if len(row) > _CURRENT_LEADER and version >= 10 else None
            if leader is None or leader == (-1, -1):
                out.append(0)
            else:  # one tagged field: tag 0, 9 bytes
                out += b"\x01\x00\x09" + INT32_INT32.pack(*leader) + b"\x00"
            written += 1
            if written >= SLICE_ROWS:
                yield written
                written = 0
        out.append(0)
        written += 1
    out += INT32.pack(throttle_ms)
    write_node_endpoints(out, node_endpoints if version >= 10 else ())


def _write_produce_classic(
    out: bytearray, version: int, topics: Sequence[ProduceResponseTopic], throttle_ms: int
) -> Slices[None]:
    written = 0
    out += INT32.pack(len(topics))
    for name, _, rows in topics:
        assert name is not None
        out += INT16.pack(len(name)) + name + INT32.pack(len(rows))
        for row in rows:
            packed = _PRODUCE_ROW_9.pack(*row[_NUMBERS])
            out += packed if version >= 5 else packed[:-8]  # log_start_offset came with v5
            if version >= 8:
                record_errors = row[_RECORD_ERRORS] if len(row) > _RECORD_ERRORS else ()
                out += INT32.pack(len(record_errors))
                for batch_index, message in record_errors:
                    out += INT32.pack(batch_index)
                    write_nullable_string(out, message)
                write_nullable_string(out, row[_ERROR_MESSAGE])
            written += 1
            if written >= SLICE_ROWS:
                yield written
                written = 0
        written += 1
    out += INT32.pack(throttle_ms)
