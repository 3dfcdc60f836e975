"""Decodes records on the broker, within bounds: a small batch may hold millions of records. A core.

Batches are stored without decoding their records, with two exceptions: keys, when a client writes
to a compacted topic, and lookups by time. Both are bounded by the decompressed size and by a
minimum weight for each record. The batches of clients are also bounded by a sum over one turn of
the loop: a batch above it gets a retriable error. A large batch is decompressed in a worker thread
(decompression.py), and inspected in slices on the event loop before it is appended (`is_large`,
`RecordInspection.inspect`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    INSPECTED_AT_ONCE_BYTES,
    INSPECTED_BYTES_MAX,
    INSPECTED_BYTES_PER_RECORD,
    INSPECTED_BYTES_PER_TURN,
    LOOKUP_BYTES_MIN,
    LOOKUP_EXPANSION_MAX,
    RECORD_ERRORS_MAX,
)
from mqd.log.decompression import (
    Decompression,
    bytes_max,
    decompressed_bytes,
    records_in_place,
)
from mqd.protocol import record_scan
from mqd.protocol.batch import HEADER_BYTES, BatchHeader, corrupt, crc_of, parse_header
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records, record_bytes
from mqd.protocol.record_scan import KEYS_AT_ONCE, keyless_records
from mqd.protocol.slices import WHOLE_SLICE
from mqd.types import Offset

_RECORDS_COUNT = Struct(">i").unpack_from
_RECORDS_COUNT_POSITION = 57


def is_large(
    view: memoryview, start: int, stop: int, bytes_at_once: int = INSPECTED_AT_ONCE_BYTES
) -> bool:
    """Whether the keys in the batch in [start, stop) are too much work for one step of the event
    loop. The batch has more decompressed bytes than this, or very many records.
    """
    return (
        has_many_records(view, start, stop) or decompressed_bytes(view, start, stop) > bytes_at_once
    )


def has_many_records(view: memoryview, start: int, stop: int) -> bool:
    """Whether the batch in [start, stop) has more records than one step inspects."""
    if start < 0 or stop - start < HEADER_BYTES:
        return False
    return bool(_RECORDS_COUNT(view, start + _RECORDS_COUNT_POSITION)[0] > KEYS_AT_ONCE)


class _Inspected(NamedTuple):
    view: memoryview
    """Kept, so that no other view gets its identity."""
    error: MqError | None


class RecordInspection:
    """Counts the inspected bytes of one turn (a turn has one `now_ms`), and holds the results for
    large batches until they are appended.
    """

    __slots__ = ("_inspected", "_inspected_bytes", "_now_ms")

    def __init__(self) -> None:
        self._now_ms = self._inspected_bytes = 0
        self._inspected: dict[int, _Inspected] = {}
        """Results by the identity of the view."""

    def inspect(
        self, view: memoryview, max_message_bytes: int
    ) -> Generator[int | Decompression, None, None]:
        """Inspect one batch, in slices. When this view is appended, `refuse_keyless` raises the
        error that was found. The caller calls `forget` at the end.

        A yielded decompression is for a worker thread. Ignores a batch with a wrong shape: the
        append refuses it before it inspects records.
        """
        header = parse_header(view)
        if (
            header.magic != 2
            or header.size != len(view)
            or header.codec > Codec.ZSTD
            or crc_of(view) != header.crc
        ):
            return
        try:
            yield from self._inspect(view, header, max_message_bytes)
            error = None
        except MqError as found:
            error = found.with_traceback(None)  # its frames have the records
        self._inspected[id(view)] = _Inspected(view, error)

    def forget(self, view: memoryview) -> None:
        """Drop the result for a view."""
        self._inspected.pop(id(view), None)

    @staticmethod
    def _inspect(
        view: memoryview, header: BatchHeader, max_message_bytes: int
    ) -> Generator[int | Decompression, None, None]:
        limit = bytes_max(max_message_bytes)
        _check_weight(header, limit)
        yield WHOLE_SLICE
        records, _ = yield from _records_of(view, header, limit)
        keyless: list[int] = []
        for index in keyless_records(records, header):
            if index < 0:
                yield WHOLE_SLICE
                continue
            keyless.append(index)
            if len(keyless) == RECORD_ERRORS_MAX:
                break
        _refuse(keyless)

    def refuse_keyless(
        self, view: memoryview, header: BatchHeader, max_message_bytes: int, now_ms: int
    ) -> None:
        """Raises MqError for a batch with records without keys, or beyond the bounds.

        INVALID_RECORD names the first few such records. Others are CORRUPT_MESSAGE, and
        MESSAGE_TOO_LARGE beyond the bounds of a batch (Java's producer then splits it).
        KAFKA_STORAGE_ERROR (retriable) is raised beyond the bound of a turn, or for a large batch
        that was not inspected before.
        """
        inspected = self._inspected.get(id(view))
        if inspected is not None:
            if inspected.error is not None:
                raise inspected.error
            return
        limit = bytes_max(max_message_bytes)
        weight = _check_weight(header, limit)
        if now_ms != self._now_ms:
            self._now_ms, self._inspected_bytes = now_ms, 0
        if self._inspected_bytes >= INSPECTED_BYTES_PER_TURN:
            raise MqError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "too many records to inspect for their keys at once: retry later",
            )
        self._inspected_bytes += weight
        try:
            records = (
                record_bytes(view, header, INSPECTED_AT_ONCE_BYTES)
                if header.codec
                else records_in_place(view, header)
            )
        except MqError as error:
            self._inspected_bytes += INSPECTED_BYTES_MAX
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                raise MqError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    "the topic has become a compacted one, or a batch states a wrong size: "
                    "retry later",
                ) from None
            raise
        if header.codec:
            self._inspected_bytes += max(0, len(records) - weight)
        _refuse(
            list(
                islice(
                    (index for index in keyless_records(records, header) if index >= 0),
                    RECORD_ERRORS_MAX,
                )
            )
        )

    def find_record_errors(
        self,
        view: memoryview,
        header: BatchHeader,
        max_message_bytes: int,
        now_ms: int,
        why: Callable[[Record], str | None],
    ) -> list[tuple[int, str]]:
        """(index, reason) of the first few records with a reason from `why`, in a batch that is
        refused anyway (KIP-467).

        Empty if the batch is damaged or large, or if the bound of the turn is reached. Then the
        response names no records.
        """
        if now_ms != self._now_ms:
            self._now_ms, self._inspected_bytes = now_ms, 0
        if self._inspected_bytes >= INSPECTED_BYTES_PER_TURN or is_large(view, 0, len(view)):
            return []
        self._inspected_bytes += max(len(view), header.records_count * INSPECTED_BYTES_PER_RECORD)
        found = []
        try:
            for index, record in enumerate(
                iterate_records(view, header=header, limit=INSPECTED_AT_ONCE_BYTES)
            ):
                if header.codec:
                    self._inspected_bytes += INSPECTED_BYTES_PER_RECORD + len(record.value or b"")
                if (reason := why(record)) is not None:
                    found.append((index, reason))
                if len(found) == RECORD_ERRORS_MAX:
                    break
        except MqError:
            self._inspected_bytes += INSPECTED_BYTES_MAX
            return []
        return found


def _records_of(
    view: memoryview, header: BatchHeader, limit: int
) -> Generator[int | Decompression, None, tuple[bytes | memoryview, Decompression | None]]:
    """The uncompressed records of a batch, and their decompression. A large one is yielded once,
    for a worker thread. A caller that has no thread resumes at once.
    """
    if header.codec == Codec.NONE:
        return records_in_place(view, header), None
    if header.codec > Codec.ZSTD:
        raise corrupt(f"unknown codec {header.codec}")
    work = Decompression(view, header, limit)
    if work.is_small:
        next(work.slices, None)
    if not work.is_done:
        yield work
    for _ in work.slices:  # nothing, after a thread
        yield WHOLE_SLICE
    content = work.content()
    return bytes(content) if len(content) <= INSPECTED_AT_ONCE_BYTES else content, work


def _check_weight(header: BatchHeader, limit: int) -> int:
    """The minimum weight of the records of a batch. MESSAGE_TOO_LARGE above `limit`."""
    weight = header.records_count * INSPECTED_BYTES_PER_RECORD
    if weight > limit:
        raise MqError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header.records_count} records in a batch for a compacted topic; "
            f"the maximum is {limit // INSPECTED_BYTES_PER_RECORD}",
        )
    return weight


def _refuse(keyless: list[int]) -> None:
    if keyless:
        why = "a record without a key in a compacted topic"
        raise MqError(
            ErrorCode.INVALID_RECORD, why, record_errors=[(index, why) for index in keyless]
        )


def _lookup_bytes_max(size: int) -> int:
    """The maximum decompressed size of a batch of `size` bytes in which a lookup reads."""
    return min(max(LOOKUP_BYTES_MIN, LOOKUP_EXPANSION_MAX * size), INSPECTED_BYTES_MAX)


def first_record_since(
    view: memoryview | None,
    header: BatchHeader,
    timestamp: int,
    start_offset: Offset,
    limit_offset: Offset,
) -> Generator[int | Decompression, None, tuple[Offset, int] | None]:
    """(offset, timestamp) of the first record in a batch with `timestamp` or later, from
    `start_offset` on and below `limit_offset`. None: there is none. In slices; a yielded
    decompression is for a worker thread.

    By its header, the batch has such a record. An empty batch, which compaction leaves, has none. A
    batch is not searched if it is too large (`view` is None, or it would be when decompressed) or
    has too many records. Then, or if it is damaged or has only older records, the result is its
    first offset and its largest timestamp. A consumer that seeks there misses no record.
    """
    if not header.records_count:
        return None
    whole_batch = (max(header.base_offset, start_offset), header.max_timestamp)
    result: tuple[Offset, int] | None = whole_batch
    weight = header.records_count * INSPECTED_BYTES_PER_RECORD
    if view is not None and not header.is_log_append_time and weight <= INSPECTED_BYTES_MAX:
        work: Decompression | None = None
        try:
            records, work = yield from _records_of(view, header, _lookup_bytes_max(len(view)))
            search = record_scan.first_record_since(records, header, timestamp, start_offset)
            found = None
            while True:
                try:
                    next(search)
                except StopIteration as end:
                    found = end.value
                    break
                yield WHOLE_SLICE
            if found is not None:
                result = found
            elif header.base_offset < start_offset:
                result = None  # the record is before the start
        except MqError:
            result = whole_batch
        if work is not None:
            work.release()
    if result is None:
        return None
    offset, _timestamp = result
    return result if offset < limit_offset else None
