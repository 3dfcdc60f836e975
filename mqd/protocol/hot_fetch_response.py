"""Hand-written encoder of Fetch responses, versions 4 to 18, for brokers. hot_produce.py has the
rules.

Shapes, shared with the handlers. In versions with topic ids, name is None; in others, topic_id:
    topic of a fetch response    (name, topic_id, [row])
      row                        (partition_index, error_code, high_watermark, last_stable_offset,
                                  log_start_offset,
                                  aborted_transactions [(producer_id, first_offset)]|None,
                                  preferred_read_replica, records [part]|None
                                  [, diverging_epoch (epoch, end_offset)|None
                                  [, current_leader|None [, snapshot_id (end_offset, epoch)|None]]])
    node endpoint                (node_id, host, port, rack|None)

A row is a plain tuple: a NamedTuple takes ten times as long to create. File ranges of a response
are passed on, and count with their `size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from struct import Struct
from typing import Any, Final, Protocol

from mqd.protocol.hot_primitives import (
    INT16,
    INT32,
    INT32_INT32,
    INT32_INT64,
    INT64_INT32,
    INT64_INT64,
    NodeEndpoint,
    write_node_endpoints,
    write_topic_flexible,
    write_unsigned_varint,
)
from mqd.protocol.slices import SLICE_ROWS, Slices, all_slices


class Sized(Protocol):
    """Bytes outside of this response, such as a range of a file."""

    @property
    def size(self) -> int: ...


FetchResponseTopic = tuple[bytes | None, bytes | None, Sequence[tuple[Any, ...]]]

_FETCH_RESPONSE_HEAD_4 = Struct(">iii")  # length, correlation id, throttle
_FETCH_RESPONSE_HEAD_7 = Struct(">iiihi")  # ... error code, session id
_FETCH_RESPONSE_HEAD_12 = Struct(">iiBihi")  # ... no tagged fields after the correlation id
_FETCH_ROW_4 = Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_FETCH_ROW_5 = Struct(">ihqqq")  # ... log start offset
# ... no aborted transactions (1: none, 0: null), preferred read replica
_FETCH_ROW_12 = Struct(">ihqqqBi")

_NUMBERS_4: Final = slice(4)
_NUMBERS: Final = slice(5)
_ABORTED_TRANSACTIONS: Final = 5
_PREFERRED_READ_REPLICA: Final = 6
_RECORDS: Final = 7
"""Indexes in a row; the three optional ones follow."""


def encode_fetch_response_parts(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[FetchResponseTopic],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Any]:
    """The whole response, as parts to send in order: encoded bytes, with the caller's parts of
    records unchanged between them.

    A part of records is a bytes-like object or a `Sized` one, such as a FileRange. The length of
    the frame includes all parts.
    """
    return all_slices(
        encode_fetch_response_in_slices(
            version, correlation_id, throttle_ms, error_code, session_id, topics, node_endpoints
        )
    )


def encode_fetch_response_in_slices(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[FetchResponseTopic],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Slices[list[Any]]:
    """The same, in slices."""
    out = bytearray()
    made = [out]
    parts: list[Any] = [out]
    passed_bytes = written = 0
    flexible = version >= 12
    if flexible:
        out += _FETCH_RESPONSE_HEAD_12.pack(
            0, correlation_id, 0, throttle_ms, error_code, session_id
        )
        write_unsigned_varint(out, len(topics) + 1)
    elif version >= 7:
        out += _FETCH_RESPONSE_HEAD_7.pack(
            0, correlation_id, throttle_ms, error_code, session_id
        ) + INT32.pack(len(topics))
    else:
        out += _FETCH_RESPONSE_HEAD_4.pack(0, correlation_id, throttle_ms) + INT32.pack(len(topics))
    for name, topic_id, rows in topics:
        if flexible:
            write_topic_flexible(out, name, topic_id, version >= 13)
            write_unsigned_varint(out, len(rows) + 1)
        else:
            assert name is not None
            out += INT16.pack(len(name)) + name + INT32.pack(len(rows))
        for row in rows:
            records = row[_RECORDS]
            size = 0
            if records:
                for part in records:
                    size += (
                        len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
                    )
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
                if len(row) > _RECORDS + 1:
                    _write_fetch_row_tagged_fields(out, row)
                else:
                    out.append(0)
            written += 1
            if written >= SLICE_ROWS:
                yield written
                written = 0
        if flexible:
            out.append(0)
        written += 1
    if flexible:
        write_node_endpoints(out, node_endpoints if version >= 16 else ())
    elif not out:
        parts.pop()
    INT32.pack_into(made[0], 0, sum(map(len, made)) + passed_bytes - 4)
    return parts


def _write_fetch_row_flexible(out: bytearray, row: tuple[Any, ...], size: int) -> None:
    index, error_code, high_watermark, last_stable_offset, log_start_offset, aborted, preferred = (
        row[:_RECORDS]
    )
    if not aborted:
        count = 0 if aborted is None else 1
        out += _FETCH_ROW_12.pack(
            index,
            error_code,
            high_watermark,
            last_stable_offset,
            log_start_offset,
            count,
            preferred,
        )
    else:
        out += _FETCH_ROW_5.pack(
            index, error_code, high_watermark, last_stable_offset, log_start_offset
        )
        write_unsigned_varint(out, len(aborted) + 1)
        out += b"\x00".join(starmap(INT64_INT64.pack, aborted)) + b"\x00"
        out += INT32.pack(preferred)
    write_unsigned_varint(out, 0 if row[_RECORDS] is None else size + 1)


def _write_fetch_row_classic(out: bytearray, row: tuple[Any, ...], size: int, version: int) -> None:
    out += (
        _FETCH_ROW_5.pack(*row[_NUMBERS]) if version >= 5 else _FETCH_ROW_4.pack(*row[_NUMBERS_4])
    )
    aborted = row[_ABORTED_TRANSACTIONS]
    out += INT32.pack(-1 if aborted is None else len(aborted))
    out += b"".join(starmap(INT64_INT64.pack, aborted or ()))
    if version >= 11:
        out += INT32.pack(row[_PREFERRED_READ_REPLICA])
    out += INT32.pack(-1 if row[_RECORDS] is None else size)


def _write_fetch_row_tagged_fields(out: bytearray, row: tuple[Any, ...]) -> None:
    fields = []
    for tag, pair, layout in zip(
        (0, 1, 2), row[_RECORDS + 1 :], (INT32_INT64, INT32_INT32, INT64_INT32), strict=False
    ):
        if pair is not None and pair != (-1, -1):
            fields.append(bytes((tag, layout.size + 1)) + layout.pack(*pair) + b"\x00")
    out.append(len(fields))
    out += b"".join(fields)
