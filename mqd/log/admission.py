"""Why a batch is refused. A core.

`plan_append` (appending.py) compares the header with all limits at once. Only if a comparison
fails, it calls these functions. They find the error, with Kafka's code, or find nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import RECORDS_COMPRESSED_MAX
from mqd.log.log_config import LogConfig
from mqd.log.record_inspection import RecordInspection
from mqd.protocol.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc_of,
    validate,
)
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.types import NO_TIMESTAMP

RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers. A batch that claims more records than fit never had
them, and their offsets would be a gap."""
COMPRESSED_RECORDS_BYTES: Final = RECORDS_COMPRESSED_MAX * RECORD_BYTES_MIN
"""The same limit for a compressed batch, whose records are not counted."""


def _header_of(view: memoryview) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(view, 0))


def refuse_shape(view: memoryview, config: LogConfig, client: bool) -> None:
    """Raises for a wrong shape: 87 INVALID_RECORD, 2 CORRUPT_MESSAGE, 10 MESSAGE_TOO_LARGE."""
    size = len(view)
    header = _header_of(view)
    compressed = header.attributes & CODEC_MASK
    if header.magic == 2 and HEADER_BYTES <= header.size < size:
        reason = "a produce request must have exactly one batch for each partition"
        raise MqError(ErrorCode.INVALID_RECORD, reason)
    is_impossible = header.records_count < 1 or header.last_offset_delta < 0
    is_whole = header.magic == 2 and header.size == size
    if is_whole and is_impossible and crc_of(view) == header.crc:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.records_count} records"
            f" with a last offset delta of {header.last_offset_delta}",
        )
    validate(view)
    limit = config.max_message_bytes
    if size > limit and client:
        reason = f"a batch of {size} bytes; max.message.bytes is {limit}"
        raise MqError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    if header.base_offset:
        reason = f"the batch has base offset {header.base_offset}; a producer must send 0"
        raise MqError(ErrorCode.INVALID_RECORD, reason)
    if header.records_count != header.last_offset_delta + 1:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"{header.records_count} records,"
            f" but a last offset delta of {header.last_offset_delta}",
        )
    # Only the header is checked, so it may claim no more than this (I19).
    if compressed and header.records_count > RECORDS_COMPRESSED_MAX:
        reason = (
            f"{header.records_count} compressed records; the maximum is {RECORDS_COMPRESSED_MAX}"
        )
        raise MqError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    records_bytes = size - HEADER_BYTES
    if not compressed and header.records_count * RECORD_BYTES_MIN > records_bytes:
        reason = f"{header.records_count} records do not fit {records_bytes} bytes"
        raise MqError(ErrorCode.INVALID_RECORD, reason)


def refuse_content(
    view: memoryview, config: LogConfig, inspection: RecordInspection, now_ms: int, client: bool
) -> None:
    """Raises if this log does not accept a batch. Reasons are a control batch, a broker's
    timestamps, timestamps out of range, more bytes than a segment, and records without keys."""
    size = len(view)
    header = _header_of(view)
    codec = header.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise MqError(ErrorCode.CORRUPT_MESSAGE, f"unknown codec {codec}")
    if size > config.segment_bytes:
        reason = f"a batch of {size} bytes does not fit a segment of {config.segment_bytes}"
        raise MqError(ErrorCode.RECORD_LIST_TOO_LARGE, reason)
    if not client:
        return
    if header.attributes & CONTROL_MASK:
        raise MqError(ErrorCode.INVALID_RECORD, "clients do not write control batches")
    if header.attributes & TRANSACTIONAL_MASK and header.producer_id < 0:
        raise MqError(ErrorCode.INVALID_RECORD, "a transactional batch names its producer")
    timestamps = _Timestamps(view, header, config, inspection, now_ms)
    if config.message_timestamp_type == "CreateTime":
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        for timestamp in (header.base_timestamp, header.max_timestamp):
            if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                timestamps.refuse_out_of_range(earliest, latest)
        if header.is_log_append_time and header.max_timestamp == NO_TIMESTAMP:
            timestamps.refuse_log_append_time()
    elif header.is_log_append_time:
        timestamps.refuse_log_append_time()
    if "compact" in config.cleanup_policy:
        inspection.refuse_keyless(view, header, config.max_message_bytes, now_ms)


class _Timestamps:
    """Raises INVALID_TIMESTAMP for one batch, with the sentences of Apache Kafka's LogValidator."""

    __slots__ = ("_config", "_header", "_inspection", "_now_ms", "_view")

    def __init__(
        self,
        view: memoryview,
        header: BatchHeader,
        config: LogConfig,
        inspection: RecordInspection,
        now_ms: int,
    ) -> None:
        self._view = view
        self._header = header
        self._config = config
        self._inspection = inspection
        self._now_ms = now_ms

    def refuse_out_of_range(self, earliest: int, latest: int) -> None:
        allowed = f"The timestamp should be within [{earliest}, {latest}]"

        def why(record: Record) -> str | None:
            if record.timestamp == NO_TIMESTAMP or earliest <= record.timestamp <= latest:
                return None
            return (
                f"Timestamp {record.timestamp} of message with offset {record.offset}"
                f" is out of range. {allowed}"
            )

        header = self._header
        batch = f"they go from {header.base_timestamp} to {header.max_timestamp}. {allowed}"
        self._refuse(batch, why)

    def refuse_log_append_time(self) -> None:
        """Only a broker writes this timestamp type."""
        why = "Invalid timestamp type. Producer should not set timestamp type to LogAppendTime."
        self._refuse(why, lambda record: why)

    def _refuse(self, batch: str, why_of: Callable[[Record], str | None]) -> None:
        """`batch`: the reason if the inspection of the records would be too much work."""
        errors = self._inspection.find_record_errors(
            self._view, self._header, self._config.max_message_bytes, self._now_ms, why_of
        )
        message = "One or more records have been rejected due to invalid timestamp"
        if not errors:
            message = f"{message}: {batch}"
        raise MqError(ErrorCode.INVALID_TIMESTAMP, message, record_errors=errors)
