"""`compression.type` of a topic: recompresses batches of another codec before they are appended. A
core.

As in Apache Kafka, a batch with the topic's codec is stored unchanged, whatever its level. The
records are not decoded: they are decompressed and compressed as one stream. In the header only
length, codec and CRC change.

The work is bounded by the decompressed size (decompression.py, `bytes_max`), if the batch is
compressed, and by `max.message.bytes` otherwise. Small batches (`is_small`) are recompressed on the
event loop, others in slices in a worker thread before the append (server/batch_work.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from mqd.errors import ErrorCode, MqError
from mqd.limits import KIB, RECOMPRESSED_BATCH_BYTES_MAX, ZSTD_LEVEL_MAX
from mqd.log.decompression import Decompression, bytes_max
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
from mqd.protocol.compression import Buffer, Codec, compress_in_slices

if TYPE_CHECKING:
    from mqd.log.log_config import LogConfig

PRODUCER: Final = "producer"
"""The `compression.type` that stores batches unchanged."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_SMALL_BYTES: Final = 16 * KIB
_LENGTH: Final = Struct(">i").pack_into
_LENGTH_POSITION: Final = 8
_ATTRIBUTES: Final = Struct(">h").pack_into


def is_wanted(config: LogConfig, view: memoryview, start: int, stop: int) -> bool:
    """Whether the batch in [start, stop) has another codec than its topic."""
    if config.compression_type == PRODUCER or start < 0 or stop - start < HEADER_BYTES:
        return False
    return view[start + CODEC_POSITION] & CODEC_MASK != _CODECS[config.compression_type]


def is_small(config: LogConfig, view: memoryview, start: int, stop: int) -> bool:
    """Whether the recompression takes about a millisecond. Not for compressed batches, which may
    be large inside.
    """
    return not view[start + CODEC_POSITION] & CODEC_MASK and stop - start <= _SMALL_BYTES


def recompressed(view: memoryview, config: LogConfig) -> memoryview:
    """`Recompression` at once, for a small batch."""
    work = Recompression(view, config)
    for _ in work.slices:
        pass
    return work.batch()


class Recompression:
    """Makes the one batch in `view` one with the codec of its topic, and a new CRC. A batch with a
    wrong shape, size, CRC or codec stays unchanged: the append refuses it.
    """

    __slots__ = ("_config", "_decompression", "_error", "_header", "_result", "_view", "slices")

    def __init__(self, view: memoryview, config: LogConfig) -> None:
        self._view: memoryview | None = view
        self._config = config
        self._header = parse_header(view)
        self._result: memoryview | None = None
        self._error: MqError | None = None
        limit = bytes_max(config.max_message_bytes)
        self._decompression = (
            Decompression(view, self._header, limit)
            if self._is_sound(len(view)) and self._header.codec
            else None
        )
        self.slices: Iterator[None] = self._run()
        """The work, for a thread."""

    @property
    def size(self) -> int:
        """The bytes that the next slices make, at most."""
        if self._decompression is not None:
            return self._decompression.size
        return len(self._view) if self._view is not None else 0

    def batch(self) -> memoryview:
        """MqError: CORRUPT_MESSAGE for records that cannot be decompressed, MESSAGE_TOO_LARGE
        beyond the bound, or if the result is larger than max.message.bytes.
        """
        if self._error is not None:
            raise MqError(self._error.code, self._error.message)
        assert self._result is not None
        return self._result

    def give_up(self) -> None:
        """Nobody wants the batch any more."""
        self._error = MqError(ErrorCode.NETWORK_EXCEPTION, "the client has closed the connection")
        self._view = self._result = self._decompression = None
        self.slices = iter(())

    def _is_sound(self, size: int) -> bool:
        header = self._header
        return (
            header.magic == MAGIC
            and header.size == size
            and header.codec <= Codec.ZSTD
            and not header.is_control
            and header.records_count >= 1
            and size <= self._config.max_message_bytes
        )

    def _run(self) -> Iterator[None]:
        view = self._view
        assert view is not None
        if not self._is_sound(len(view)) or crc_of(view) != self._header.crc:
            self._result = view
            return
        records: Buffer = view[HEADER_BYTES:]
        try:
            if self._decompression is not None:
                yield from self._decompression.slices
                records = self._decompression.content()
                yield
            codec = _CODECS[self._config.compression_type]
            body = yield from compress_in_slices(codec, records, _level(codec, self._config))
            self._result = self._sealed(view, codec, body)
        except MqError as error:
            self._error = error.with_traceback(None)  # its frames have the records
        finally:
            self._view = self._decompression = None

    def _sealed(self, view: memoryview, codec: Codec, body: Buffer) -> memoryview:
        size, size_max = HEADER_BYTES + len(body), self._config.max_message_bytes
        if size > max(len(view), RECOMPRESSED_BATCH_BYTES_MAX):
            raise MqError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes with the codec of its topic; "
                f"the maximum is {RECOMPRESSED_BATCH_BYTES_MAX}",
            )
        if size > size_max:
            raise MqError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes; max.message.bytes is {size_max}",
            )
        batch = bytearray(view[:HEADER_BYTES])
        batch += body
        _LENGTH(batch, _LENGTH_POSITION, len(batch) - LOG_OVERHEAD_BYTES)
        _ATTRIBUTES(batch, ATTRIBUTES_POSITION, self._header.attributes & ~CODEC_MASK | codec)
        write_crc(batch)
        return memoryview(batch)


def _level(codec: Codec, config: LogConfig) -> int | None:
    """The compression level; None if the codec has no levels."""
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: min(config.compression_zstd_level, ZSTD_LEVEL_MAX),
    }
    return levels.get(codec)
