"""Where a broker must look at records itself, and how much of that it does: a small batch may hold millions. A core.

Batches are stored without being unpacked, with two exceptions: keys, when a client writes to a compacted topic, and
lookups by time. Both run on the event loop, so both are bounded: by bytes once decompressed, by a least weight a record, and,
for what clients send, by a sum over one turn of the loop, beyond which a batch is sent back to be tried again.
"""

from __future__ import annotations

from itertools import islice

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    LOOKED_AT_BYTES_MAX,
    LOOKED_AT_BYTES_PER_RECORD,
    LOOKED_AT_BYTES_PER_TURN,
    LOOKED_AT_MESSAGES,
    RECORD_ERRORS_MAX,
)
from mqd.protocol import batch
from mqd.protocol.batch import BatchHeader, keyless_records, record_bytes
from mqd.types import Offset


def bytes_max(max_message_bytes: int) -> int:
    """What may be decompressed of one batch of a topic to look at its records."""
    return max(LOOKED_AT_BYTES_MAX, LOOKED_AT_MESSAGES * max_message_bytes)


class Looking:
    """What was looked at in one turn, which is told by its `now_ms`."""

    __slots__ = ("_now_ms", "_spent")

    def __init__(self) -> None:
        self._now_ms = self._spent = 0

    def refuse_keyless(self, view: memoryview, header: BatchHeader, max_message_bytes: int, now_ms: int) -> None:
        """Raises for a batch that has records without a key, or that cannot be looked at.

        MqError: INVALID_RECORD (the first few such records by name), CORRUPT_MESSAGE, MESSAGE_TOO_LARGE for a batch beyond the bounds
        (Java's producer then splits it), KAFKA_STORAGE_ERROR (retriable) when the turn has seen enough.
        """
        limit = bytes_max(max_message_bytes)
        weight = header.records_count * LOOKED_AT_BYTES_PER_RECORD
        if weight > limit:
            raise MqError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{header.records_count} records in a batch for a compacted topic; {limit // LOOKED_AT_BYTES_PER_RECORD} may be",
            )
        if now_ms != self._now_ms:
            self._now_ms, self._spent = now_ms, 0
        if self._spent >= LOOKED_AT_BYTES_PER_TURN:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, "too many records to look at for their keys at once: try again")
        self._spent += weight
        try:
            records = record_bytes(view, header, limit)
        except MqError:
            self._spent += limit
            raise
        if header.codec:
            self._spent += max(0, len(records) - weight)
        keyless = list(islice(keyless_records(records, header), RECORD_ERRORS_MAX))
        if keyless:
            why = "a record without a key in a compacted topic"
            raise MqError(ErrorCode.INVALID_RECORD, why, record_errors=[(index, why) for index in keyless])


def first_record_since(
    view: memoryview, header: BatchHeader, timestamp: int, start_offset: Offset, limit_offset: Offset, max_message_bytes: int
) -> tuple[Offset, int] | None:
    """(offset, timestamp) of the first record in a batch that is not older than `timestamp`, from `start_offset` below `limit_offset`.

    The header has said that there is one; an empty batch, which a cleaner leaves, has none. A batch whose records are too many, cannot
    be read or are all older answers as a whole: with its first offset and its largest timestamp, so that whoever goes there misses
    nothing. None: it lies outside the offsets.
    """
    if not header.records_count:
        return None
    whole = (max(header.base_offset, start_offset), header.max_timestamp)
    limit = bytes_max(max_message_bytes)
    if not header.is_log_append_time and header.records_count * LOOKED_AT_BYTES_PER_RECORD <= limit:
        try:
            found = batch.first_record_since(record_bytes(view, header, limit), header, timestamp, start_offset)
        except MqError:
            return whole if whole[0] < limit_offset else None
        if found is not None:
            return found if found[0] < limit_offset else None
        if header.base_offset < start_offset:
            return None  # it was a record before the start
    return whole if whole[0] < limit_offset else None
