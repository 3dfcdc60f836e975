"""Where a broker must look at records itself, and how much of that it does: a small batch may hold
millions. A core.

Batches are stored without being unpacked, with two exceptions: keys, when a client writes to a
compacted topic, and lookups by time. Both run on the event loop, so both are bounded: by bytes once
decompressed, by a least weight a record, and, for what clients send, by a sum over one turn of the
loop, beyond which a batch is sent back to be tried again. A large batch is looked at in slices
before it is appended (`is_large`, `Looking.examining`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from struct import Struct

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    KIB,
    LOOKED_AT_BYTES_MAX,
    LOOKED_AT_BYTES_PER_RECORD,
    LOOKED_AT_BYTES_PER_TURN,
    LOOKED_AT_MESSAGES,
    RECORD_ERRORS_MAX,
)
from mqd.protocol import record_scan
from mqd.protocol.batch import (
    CODEC_MASK,
    CODEC_POSITION,
    HEADER_BYTES,
    BatchHeader,
    crc_of,
    parse_header,
)
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records, record_bytes
from mqd.protocol.record_scan import KEYS_AT_ONCE, keyless_records
from mqd.protocol.slices import WHOLE_SLICE, Slices
from mqd.types import Offset

_COMPRESSED_AT_ONCE_BYTES = 16 * KIB
_RECORDS_COUNT = Struct(">i").unpack_from
_RECORDS_COUNT_POSITION = 57


def bytes_max(max_message_bytes: int) -> int:
    """What may be decompressed of one batch of a topic to look at its records."""
    return max(LOOKED_AT_BYTES_MAX, LOOKED_AT_MESSAGES * max_message_bytes)


def is_large(view: memoryview, start: int, stop: int) -> bool:
    """Whether a look at the keys of the batch in [start, stop) takes more than some
    milliseconds.
    """
    if start < 0 or stop - start < HEADER_BYTES:
        return False
    if view[start + CODEC_POSITION] & CODEC_MASK and stop - start > _COMPRESSED_AT_ONCE_BYTES:
        return True
    return bool(_RECORDS_COUNT(view, start + _RECORDS_COUNT_POSITION)[0] > KEYS_AT_ONCE)


class Looking:
    """What was looked at in one turn, which is told by its `now_ms`; and what was found in
    large batches that wait to be appended.
    """

    __slots__ = ("_found", "_now_ms", "_spent")

    def __init__(self) -> None:
        self._now_ms = self._spent = 0
        self._found: dict[int, tuple[memoryview, MqError | None]] = {}
        """By the identity of the view."""

    def examining(self, view: memoryview, max_message_bytes: int) -> Slices[None]:
        """Look at one batch, in slices. When this very view is appended, `refuse_keyless` raises
        what was found. `forget` it at last.

        A batch of the wrong shape is left to those who append it: they refuse it before they look
        at its records.
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
            yield from self._examining(view, header, max_message_bytes)
            error = None
        except MqError as found:
            error = found
        self._found[id(view)] = view, error

    def forget(self, view: memoryview) -> None:
        """Of a view that was examined."""
        self._found.pop(id(view), None)

    @staticmethod
    def _examining(view: memoryview, header: BatchHeader, max_message_bytes: int) -> Slices[None]:
        limit = bytes_max(max_message_bytes)
        _check_weight(header, limit)
        yield WHOLE_SLICE
        records = record_bytes(view, header, limit)
        yield WHOLE_SLICE
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
        """Raises for a batch that has records without a key, or that cannot be looked at.

        MqError: INVALID_RECORD (the first few such records by name), CORRUPT_MESSAGE,
        MESSAGE_TOO_LARGE for a batch beyond the bounds (Java's producer then splits it),
        KAFKA_STORAGE_ERROR (retriable) when the turn has seen enough.
        """
        found = self._found.get(id(view))
        if found is not None:
            if found[1] is not None:
                raise found[1]
            return
        limit = bytes_max(max_message_bytes)
        weight = _check_weight(header, limit)
        if now_ms != self._now_ms:
            self._now_ms, self._spent = now_ms, 0
        if self._spent >= LOOKED_AT_BYTES_PER_TURN:
            raise MqError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "too many records to look at for their keys at once: try again",
            )
        self._spent += weight
        try:
            records = record_bytes(view, header, limit)
        except MqError:
            self._spent += limit
            raise
        if header.codec:
            self._spent += max(0, len(records) - weight)
        _refuse(
            list(
                islice(
                    (index for index in keyless_records(records, header) if index >= 0),
                    RECORD_ERRORS_MAX,
                )
            )
        )

    def named_records(
        self,
        view: memoryview,
        header: BatchHeader,
        max_message_bytes: int,
        now_ms: int,
        why: Callable[[Record], str | None],
    ) -> list[tuple[int, str]]:
        """(index, why) of the first few records that `why` finds wrong in a batch that is refused
        anyway (KIP-467).

        None of a batch that cannot be read, is large, or comes when the turn has seen enough: the
        refusal names no records then.
        """
        if now_ms != self._now_ms:
            self._now_ms, self._spent = now_ms, 0
        if self._spent >= LOOKED_AT_BYTES_PER_TURN or is_large(view, 0, len(view)):
            return []
        limit = bytes_max(max_message_bytes)
        self._spent += max(len(view), header.records_count * LOOKED_AT_BYTES_PER_RECORD)
        found = []
        try:
            for index, record in enumerate(iterate_records(view, header=header, limit=limit)):
                if header.codec:
                    self._spent += LOOKED_AT_BYTES_PER_RECORD + len(record.value or b"")
                if (reason := why(record)) is not None:
                    found.append((index, reason))
                if len(found) == RECORD_ERRORS_MAX:
                    break
        except MqError:
            self._spent += limit
            return []
        return found


def _check_weight(header: BatchHeader, limit: int) -> int:
    """What its records count for, at least."""
    weight = header.records_count * LOOKED_AT_BYTES_PER_RECORD
    if weight > limit:
        raise MqError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header.records_count} records in a batch for a compacted topic; "
            f"{limit // LOOKED_AT_BYTES_PER_RECORD} may be",
        )
    return weight


def _refuse(keyless: list[int]) -> None:
    if keyless:
        why = "a record without a key in a compacted topic"
        raise MqError(
            ErrorCode.INVALID_RECORD, why, record_errors=[(index, why) for index in keyless]
        )


def first_record_since(
    view: memoryview,
    header: BatchHeader,
    timestamp: int,
    start_offset: Offset,
    limit_offset: Offset,
    max_message_bytes: int,
) -> Slices[tuple[Offset, int] | None]:
    """(offset, timestamp) of the first record in a batch that is not older than `timestamp`, from
    `start_offset` below `limit_offset`.

    In slices. The header has said that there is one; an empty batch, which a cleaner leaves, has
    none. A batch whose records are too many, cannot be read or are all older answers as a whole:
    with its first offset and its largest timestamp, so that a consumer that seeks there misses
    nothing. None: it lies outside the offsets.
    """
    if not header.records_count:
        return None
    whole = (max(header.base_offset, start_offset), header.max_timestamp)
    limit = bytes_max(max_message_bytes)
    if not header.is_log_append_time and header.records_count * LOOKED_AT_BYTES_PER_RECORD <= limit:
        try:
            if is_large(view, 0, len(view)):
                yield WHOLE_SLICE
            records = record_bytes(view, header, limit)
            if len(records) > _COMPRESSED_AT_ONCE_BYTES:
                yield WHOLE_SLICE
            looking = record_scan.first_record_since(records, header, timestamp, start_offset)
            found = None
            while True:
                try:
                    next(looking)
                except StopIteration as end:
                    found = end.value
                    break
                yield WHOLE_SLICE
        except MqError:
            return whole if whole[0] < limit_offset else None
        if found is not None:
            return found if found[0] < limit_offset else None
        if header.base_offset < start_offset:
            return None  # it was a record before the start
    return whole if whole[0] < limit_offset else None
