"""The four codecs of a record batch, and the limit on their output. Pure: bytes in, bytes out.

Every decoder writes into a buffer of at most `limit` bytes, so a small batch cannot make a large
process. Most streams state their size: gzip's trailer, snappy's preamble, the blocks or the content
size of zstd, the block count of lz4. A stream above the limit is rejected by these values, before
it is decompressed. A stream with a wrong size, or without one, costs at most `limit` bytes of
untouched address space. It is rejected when its output reaches the limit. A stream of very many
small blocks is rejected too: each block costs time.

Formats: RFC 1952 (gzip), google/snappy format_description and xerial/snappy-java's block stream,
the LZ4 frame format 1.6, RFC 8878 (zstd). Kafka frames snappy like xerial. The decoder also accepts
raw snappy, which kafka-go and old versions of librdkafka write.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Generator
from enum import IntEnum

import cramjam

from mqd import limits
from mqd.errors import ErrorCode, MqError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_MAGIC = b"\x1f\x8b"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# version 1, readable from version 1
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * limits.KIB  # snappy-java's default; readers take any
_INT32_BE = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")

_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_BYTES = {4: 64 * limits.KIB, 5: 256 * limits.KIB, 6: limits.MIB, 7: 4 * limits.MIB}
_LZ4_RATIO_MAX = 255  # one length byte adds at most 255 bytes of output

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # ... to 0x184D2A5F
_ZSTD_BLOCK_BYTES_MAX = 128 * limits.KIB

_DEFLATE_RATIO_MAX = 1032
_GZIP_CHUNK_BYTES = limits.MIB
_GZIP_INPUT_BYTES = 64 * limits.KIB
"""zlib copies the input that it has not consumed yet."""
_STATED_BLOCKS_MAX = 512
"""Blocks that `stated_bytes` reads: up to 0.3 ms. Encoders make 16 MiB and more of them."""
_RESIDENT_BYTES_MAX = limits.MIB
"""Output buffers up to this size are bytearrays. Larger ones are anonymous mappings, whose
untouched pages cost nothing.
"""


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """`data` as one stream of `codec`, in the framing of Java's client. Default levels: gzip -1,
    lz4 1, zstd 3.
    """
    if codec is Codec.GZIP:
        encoder = zlib.compressobj(-1 if level is None else level, wbits=31)
        return encoder.compress(data) + encoder.flush()
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        lz4 = _lz4_compressor(level)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    return data


def _lz4_compressor(level: int | None) -> cramjam.lz4.Compressor:
    # cramjam.lz4.compress would use the high-compression mode: 52 MB/s against 644. Kafka refuses
    # linked blocks.
    return cramjam.lz4.Compressor(
        level=1 if level is None else level, content_checksum=False, block_linked=False
    )


def compress_in_slices(
    codec: Codec, data: Buffer, level: int | None = None
) -> Generator[None, None, Buffer]:
    """As `compress`, in slices of about 5 ms, in a worker thread: the streams of cramjam hold the
    interpreter's lock.
    """
    if codec is Codec.NONE:
        return data
    view = memoryview(data)
    size = _slice_bytes(codec, level)
    if len(view) <= size:
        return compress(codec, data, level)
    if codec is Codec.SNAPPY:
        framed = bytearray(_XERIAL_HEADER)
        for start in range(0, len(view), size):
            framed += _compress_xerial(view[start : start + size])[len(_XERIAL_HEADER) :]
            yield
        return framed
    if codec is Codec.GZIP:
        encoder = zlib.compressobj(-1 if level is None else level, wbits=31)
        output = bytearray()
        for start in range(0, len(view), size):
            output += encoder.compress(view[start : start + size])
            yield
        output += encoder.flush()
        return output
    stream = (
        _lz4_compressor(level)
        if codec is Codec.LZ4
        else cramjam.zstd.Compressor(level=3 if level is None else level)
    )
    for start in range(0, len(view), size):
        stream.compress(bytes(view[start : start + size]))
        yield
    return bytes(stream.finish())


def _slice_bytes(codec: Codec, level: int | None) -> int:
    """Measured, in MB/s: gzip 11 to 361, snappy 250, lz4 310 (above level 2: 19 to 70), zstd 130
    (above level 3: 30).
    """
    slow = {Codec.LZ4: 2, Codec.ZSTD: 3}.get(codec)
    if slow is not None and level is not None and level > slow:
        return 128 * limits.KIB
    return {Codec.GZIP: 64 * limits.KIB, Codec.ZSTD: 512 * limits.KIB}.get(codec, limits.MIB)


def stated_bytes(codec: Codec, data: Buffer, limit: int) -> int:
    """What a stream states about the size of its content, in up to 0.3 ms. At most `limit`; exactly
    `limit` if it is damaged or has too many blocks to look at. Zero for an empty stream.

    An upper bound, except for gzip: a wrong trailer, or one of several members.
    """
    view = memoryview(data)
    if codec is Codec.NONE or not view:
        return 0
    try:
        if codec is Codec.GZIP:
            return min(int.from_bytes(view[-4:], "little"), limit)
        if codec is Codec.SNAPPY:
            is_xerial = view[:8] == _XERIAL_MAGIC
            blocks = _xerial_blocks(view, _STATED_BLOCKS_MAX) if is_xerial else [view]
            return min(sum(map(_snappy_length, blocks)), limit)
        walk = _lz4_bytes_max if codec is Codec.LZ4 else _zstd_bytes_max
        return min(walk(view, limit, _STATED_BLOCKS_MAX), limit)
    except (struct.error, IndexError, MqError):
        return limit


def decompress(
    codec: Codec, data: Buffer, limit: int = limits.DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """The content of `data`, at most `limit` bytes.

    Raises MqError: CORRUPT_MESSAGE for a damaged stream, MESSAGE_TOO_LARGE above `limit` (Java's
    producer then splits the batch).
    """
    view = memoryview(data)
    if codec is Codec.NONE:
        return view
    try:
        if codec is Codec.GZIP:
            return _decompress_gzip(view, limit)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(view, limit)
        if codec is Codec.LZ4:
            return _decompress_into(
                cramjam.lz4.decompress_into, view, _lz4_bytes_max(view, limit), limit
            )
        return _decompress_into(
            cramjam.zstd.decompress_into, view, _zstd_bytes_max(view, limit), limit
        )
    except (zlib.error, cramjam.DecompressionError, struct.error, IndexError) as error:
        raise _damaged(f"{codec.name.lower()}: {error}") from None


def _too_large(limit: int) -> MqError:
    return MqError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"compressed records would take more than {limit} bytes; send smaller batches",
    )


def _damaged(problem: str) -> MqError:
    return MqError(ErrorCode.CORRUPT_MESSAGE, f"compressed records cannot be read: {problem}")


def _too_many_blocks(codec: str, blocks_max: int) -> MqError:
    return _damaged(f"{codec}: more than {blocks_max} blocks")


def _output(size: int) -> bytearray | mmap.mmap:
    return bytearray(size) if size <= _RESIDENT_BYTES_MAX else mmap.mmap(-1, size)


def _decompress_into(decoder: object, view: memoryview, size_max: int, limit: int) -> memoryview:
    """One call of cramjam with a buffer of `size_max` bytes: an upper bound of the output, or the
    limit.
    """
    if not size_max:  # cramjam rejects an empty buffer; the output of an empty stream fits one byte
        size_max = 1
    output = _output(min(size_max, limit))
    try:
        size = decoder(view, output)  # type: ignore[operator]
    except cramjam.DecompressionError as error:
        if "failed to write whole buffer" in str(error) and size_max > limit:
            raise _too_large(limit) from None
        raise
    return memoryview(output)[:size]


# -- gzip


def _decompress_gzip(view: memoryview, limit: int) -> memoryview:
    if view[:2] != _GZIP_MAGIC:
        raise _damaged("gzip: no member begins here")
    if len(view) >= 18:
        # ISIZE of the last member, if this is its end
        (stated,) = _UINT32_LE.unpack_from(view, len(view) - 4)
        if limit < stated <= len(view) * _DEFLATE_RATIO_MAX:
            raise _too_large(limit)
    output = bytearray()
    position = members = 0
    rest: Buffer = b""
    while rest or position < len(view):  # several members may follow (RFC 1952 §2.2)
        members += 1
        if members > limits.GZIP_MEMBERS_MAX:
            raise _damaged(f"gzip: more than {limits.GZIP_MEMBERS_MAX} members")
        decoder = zlib.decompressobj(wbits=31)
        while not decoder.eof:
            if not rest:
                rest = view[position : position + _GZIP_INPUT_BYTES]
                position += len(rest)
            part = decoder.decompress(rest, _GZIP_CHUNK_BYTES)
            output += part
            if len(output) > limit:
                raise _too_large(limit)
            rest = decoder.unconsumed_tail
            if not part and not rest and not decoder.eof and position >= len(view):
                raise _damaged("gzip: the stream is cut off")
        rest = decoder.unused_data
    return memoryview(output)


# -- snappy


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32_BE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, limit: int) -> memoryview:
    blocks = _xerial_blocks(view) if view[:8] == _XERIAL_MAGIC else [view]
    sizes = [_snappy_length(block) for block in blocks]
    total = sum(sizes)
    if total > limit:
        raise _too_large(limit)
    if not total:
        return memoryview(b"")
    output = memoryview(_output(total))
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if size:
            written = cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            if written != size:
                raise _damaged(f"snappy: a block of {written} bytes instead of {size}")
        position += size
    return output


def _xerial_blocks(
    view: memoryview, blocks_max: int = limits.COMPRESSED_BLOCKS_MAX
) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = headers = 0
    while position < len(view):
        if len(blocks) + headers >= blocks_max:
            raise _too_many_blocks("snappy", blocks_max)
        if view[position : position + 8] == _XERIAL_MAGIC:  # streams may be concatenated
            position += len(_XERIAL_HEADER)
            headers += 1
            if position > len(view):
                raise _damaged("snappy: the stream header is cut off")
            continue
        (size,) = _INT32_BE.unpack_from(view, position)
        position += 4
        if not 0 < size <= len(view) - position:
            raise _damaged(f"snappy: a block of {size} bytes where {len(view) - position} are left")
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _snappy_length(block: memoryview) -> int:
    """The preamble: the uncompressed length as an unsigned varint of at most 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        byte = block[shift // 7]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise _damaged("snappy: the length does not end")


# -- lz4


def _lz4_bytes_max(
    view: memoryview, limit: int, blocks_max: int = limits.COMPRESSED_BLOCKS_MAX
) -> int:
    """An upper bound of the output, from the block headers of all frames. Raises MqError above
    `limit`.

    Encoders fill all blocks but the last, so the bound is at most one block too large. Raises
    IndexError or struct.error for a truncated stream.
    """
    total = position = blocks = 0
    while position < len(view):
        (magic,) = _UINT32_LE.unpack_from(view, position)
        if magic != _LZ4_MAGIC:
            raise _damaged(f"lz4: no frame begins with {magic:#010x}")
        flags = view[position + 4]
        block_bytes = _LZ4_BLOCK_BYTES.get(view[position + 5] >> 4 & 7)
        if block_bytes is None:
            raise _damaged("lz4: unknown block size")
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        checksum = 4 if flags & 0x10 else 0
        while True:
            (size,) = _UINT32_LE.unpack_from(view, position)
            position += 4
            blocks += 1
            if blocks > blocks_max:
                raise _too_many_blocks("lz4", blocks_max)
            if not size:
                break
            stored = size & 0x7FFFFFFF
            total += stored if size >> 31 else min(block_bytes, stored * _LZ4_RATIO_MAX)
            if total > limit:
                raise _too_large(limit)
            position += stored + checksum
        position += 4 if flags & 0x04 else 0
    return total


# -- zstd


def _zstd_bytes_max(
    view: memoryview, limit: int, blocks_max: int = limits.COMPRESSED_BLOCKS_MAX
) -> int:
    """An upper bound of the output, from the block headers of all frames. Raises MqError if the
    certain part is above `limit`.

    A compressed block has up to 128 KiB of output, and encoders split blocks freely. So such blocks
    count for the upper bound, and not for the certain part.
    """
    certain = possible = position = blocks = 0
    while position < len(view):
        (magic,) = _UINT32_LE.unpack_from(view, position)
        blocks += 1
        if blocks > blocks_max:
            raise _too_many_blocks("zstd", blocks_max)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + int(_UINT32_LE.unpack_from(view, position + 4)[0])
            continue
        if magic != _ZSTD_MAGIC:
            raise _damaged(f"zstd: no frame begins with {magic:#010x}")
        descriptor = view[position + 4]
        single_segment = descriptor >> 5 & 1
        position += 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
        content_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        if content_bytes:
            stated = int.from_bytes(view[position : position + content_bytes], "little") + (
                256 if content_bytes == 2 else 0
            )
            if certain + stated > limit:
                raise _too_large(limit)
            position += content_bytes
        last = 0
        while not last:
            blocks += 1
            if blocks > blocks_max:
                raise _too_many_blocks("zstd", blocks_max)
            header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if kind == 2:  # compressed
                possible += _ZSTD_BLOCK_BYTES_MAX
            else:  # raw or one byte repeated
                certain += size
            if certain > limit:
                raise _too_large(limit)
            position += 3 + (1 if kind == 1 else size)
        position += 4 if descriptor & 4 else 0
    return certain + possible
