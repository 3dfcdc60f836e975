"""Record batch v2 (magic 2): the header as one struct, CRC-32C, walking batches.

A batch has a header of 61 bytes, then the records, compressed together or not. `base_offset` and
`partition_leader_epoch` lie outside the CRC, so a broker patches them in place; the CRC covers
everything from `attributes` on. Positions are in the caller's buffer; nothing here copies a batch.
record_reader.py reads the records, batch_builder.py builds batches.

    position  0 base_offset int64          23 last_offset_delta int32    51 producer_epoch int16
              8 batch_length int32 (1)     27 base_timestamp int64       53 base_sequence int32
             12 partition_leader_epoch     35 max_timestamp int64        57 records_count int32
             16 magic int8                 43 producer_id int64          61 records
             17 crc uint32                 (1) counts from position 12
             21 attributes int16: 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                  6 delete horizon set

Source: KIP-98, KIP-110 (zstd), KIP-534 (delete horizon); Kafka's protocol guide, "Record Batch".
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c as _crc32c

from mqd.errors import ErrorCode, MqError
from mqd.protocol.compression import Codec

Buffer = bytes | bytearray | memoryview

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""Bytes that `batch_length` does not include: base_offset and itself."""

BASE_OFFSET_POSITION: Final = 0
LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
"""The bytes under the CRC begin here, too."""
CODEC_POSITION: Final = ATTRIBUTES_POSITION + 1
"""The low byte of the attributes: the codec is in its last three bits (`CODEC_MASK`)."""
LAST_OFFSET_DELTA_POSITION: Final = 23
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
PRODUCER_EPOCH_POSITION: Final = 51
BASE_SEQUENCE_POSITION: Final = 53
RECORDS_COUNT_POSITION: Final = 57

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

MAGIC: Final = 2

_OFFSET_AND_LENGTH = Struct(">qi")
_CRC = Struct(">I")
assert HEADER.size == HEADER_BYTES == RECORDS_COUNT_POSITION + 4


class BatchHeader(NamedTuple):
    """The 61 bytes, in their order on the wire. Times are milliseconds since the epoch, or -1."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A `Codec` when `validate` accepted the batch; 5 to 7 are unassigned."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)


def parse_header(view: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked. The caller has checked that 61 bytes are available."""
    return BatchHeader._make(HEADER.unpack_from(view, position))


def crc_of(view: Buffer, position: int = 0, end: int | None = None) -> int:
    """The computed CRC-32C of the batch at `position`. `end` defaults to the end by its length.

    The only caller of the crc package.
    """
    if end is None:
        end = position + LOG_OVERHEAD_BYTES + _OFFSET_AND_LENGTH.unpack_from(view, position)[1]
    if not isinstance(view, memoryview):
        view = memoryview(view)
    crc: int = _crc32c(view[position + ATTRIBUTES_POSITION : end])
    return crc


def write_crc(view: bytearray | memoryview, position: int = 0) -> None:
    """Write the CRC after a change of a field under it (a broker that sets LogAppendTime)."""
    _CRC.pack_into(view, position + CRC_POSITION, crc_of(view, position))


def validate(view: Buffer, position: int = 0, *, end: int | None = None) -> BatchHeader:
    """The header of a batch that is complete in `[position, end)`, with magic 2, a known codec and
    the right CRC.

    Raises MqError with Kafka's codes for a produce. INVALID_RECORD: an incomplete batch, or magic 0
    or 1. CORRUPT_MESSAGE: another magic, impossible lengths or counts, or a wrong CRC.
    """
    available = (len(view) if end is None else end) - position
    if available < HEADER_BYTES:
        raise MqError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {available} bytes is shorter than its header of {HEADER_BYTES}",
        )
    header = BatchHeader._make(HEADER.unpack_from(view, position))
    if header.magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if 0 <= header.magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        raise MqError(code, f"record format with magic {header.magic}; only magic 2 is stored")
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size < HEADER_BYTES:
        raise MqError(
            ErrorCode.CORRUPT_MESSAGE,
            f"batch length {header.batch_length} is below {HEADER_BYTES - LOG_OVERHEAD_BYTES}",
        )
    if size > available:
        raise MqError(
            ErrorCode.INVALID_RECORD, f"a batch of {size} bytes is cut off after {available}"
        )
    crc = crc_of(view, position, position + size)
    if crc != header.crc:
        raise MqError(
            ErrorCode.CORRUPT_MESSAGE,
            f"CRC-32C is {crc:#010x}, the batch has {header.crc:#010x}",
        )
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise MqError(ErrorCode.CORRUPT_MESSAGE, f"unknown codec {header.attributes & CODEC_MASK}")
    if header.last_offset_delta < 0 or header.records_count < 0:
        raise MqError(
            ErrorCode.CORRUPT_MESSAGE,
            f"last offset delta {header.last_offset_delta}, {header.records_count} records",
        )
    return header


def iterate_batches(view: Buffer, position: int = 0) -> Iterator[tuple[int, int, BatchHeader]]:
    """(position, size, header) of each complete batch; stops silently at an incomplete one, with
    which a fetch response may end.

    Raises MqError(CORRUPT_MESSAGE) if a length or magic makes it impossible to continue. It does
    not check the CRC: see `validate`.
    """
    end = len(view)
    while position + HEADER_BYTES <= end:
        header = BatchHeader._make(HEADER.unpack_from(view, position))
        size = header.batch_length + LOG_OVERHEAD_BYTES
        if size < HEADER_BYTES or header.magic != MAGIC:
            raise MqError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no batch v2 at byte {position}: length {header.batch_length}, magic "
                f"{header.magic}",
            )
        if position + size > end:
            return
        yield position, size, header
        position += size


def corrupt(what: str) -> MqError:
    return MqError(ErrorCode.CORRUPT_MESSAGE, what)
