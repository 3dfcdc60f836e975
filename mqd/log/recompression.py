"""`compression.type` of a topic: recompresses batches of another codec before they are appended. A
core.

As in Apache Kafka, a batch with the topic's codec is stored unchanged, whatever its level. The
records are not decoded: they are decompressed and compressed as one stream. In the header only
length, codec and CRC change.

The work is bounded by the decompressed size (record_inspection.py, `bytes_max`). Small batches
(`is_small`) are recompressed on the event loop, others in a worker thread before the append.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import KIB
from mqd.log.record_inspection import bytes_max
from mqd.protocol.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CODEC_POSITION,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    crc_of,
    parse_header,
    write_crc,
)
from mqd.protocol.compression import Codec, compress
from mqd.protocol.record_reader import record_bytes

if TYPE_CHECKING:
    from mqd.log.log_config import LogConfig

PRODUCER: Final = "producer"
"""The `compression.type` that stores batches unchanged."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_SMALL_BYTES: Final = 16 * KIB
_ZSTD_LEVEL_AT_ONCE_MAX: Final = 9
_LENGTH: Final = Struct(">i").pack_into
_LENGTH_POSITION: Final = 8
_ATTRIBUTES: Final = Struct(">h").pack_into


def is_wanted(config: LogConfig, view: memoryview, start: int, stop: int) -> bool:
    """Whether the batch in [start, stop) has another codec than its topic."""
    if config.compression_type == PRODUCER or start < 0 or stop - start < HEADER_BYTES:
        return False
    return view[start + CODEC_POSITION] & CODEC_MASK != _CODECS[config.compression_type]


def is_small(config: LogConfig, view: memoryview, start: int, stop: int) -> bool:
    """Whether the recompression takes at most a millisecond. Not for compressed batches, which may
    be large inside, and not for high levels of zstd, which are slow.
    """
    if view[start + CODEC_POSITION] & CODEC_MASK or stop - start > _SMALL_BYTES:
        return False
    return (
        config.compression_type != "zstd"
        or config.compression_zstd_level <= _ZSTD_LEVEL_AT_ONCE_MAX
    )


def recompressed(view: memoryview, config: LogConfig) -> memoryview:
    """The one batch in `view` with the codec of its topic, and a new CRC. A batch with a wrong
    shape, size, CRC or codec is returned unchanged: the append refuses it.

    Raises MqError: CORRUPT_MESSAGE for records that cannot be decompressed, MESSAGE_TOO_LARGE
    beyond the bound, or if the result is larger than max.message.bytes.
    """
    header = parse_header(view)
    size = len(view)
    if (
        header.magic != MAGIC
        or header.size != size
        or header.codec > Codec.ZSTD
        or header.is_control
        or header.records_count < 1
    ):
        return view
    if size > config.max_message_bytes or crc_of(view) != header.crc:
        return view
    codec = _CODECS[config.compression_type]
    records = record_bytes(view, header, bytes_max(config.max_message_bytes))
    batch = bytearray(view[:HEADER_BYTES])
    batch += compress(codec, records, _level(codec, config))
    if len(batch) > config.max_message_bytes:
        raise MqError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    _LENGTH(batch, _LENGTH_POSITION, len(batch) - LOG_OVERHEAD_BYTES)
    _ATTRIBUTES(batch, ATTRIBUTES_POSITION, header.attributes & ~CODEC_MASK | codec)
    write_crc(batch)
    return memoryview(batch)


def _level(codec: Codec, config: LogConfig) -> int | None:
    """The compression level; None if the codec has no levels."""
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)
