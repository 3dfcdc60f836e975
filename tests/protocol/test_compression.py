"""Four codecs in both directions, and streams that would grow beyond the limit."""

from __future__ import annotations

import gzip
import os
import resource
import struct
import zlib

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings, strategies as st

from mqd import limits
from mqd.errors import ErrorCode, MqError
from mqd.protocol.compression import Codec, compress, compress_in_slices, decompress, stated_bytes

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = limits.MIB
payloads = st.binary(max_size=500) | st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=60), st.integers(1, 3000)
)
stock_encode = {
    Codec.GZIP: aiokafka_codec.gzip_encode,
    Codec.SNAPPY: aiokafka_codec.snappy_encode,
    Codec.LZ4: aiokafka_codec.lz4_encode,
    Codec.ZSTD: aiokafka_codec.zstd_encode,
}
stock_decode = {
    Codec.GZIP: aiokafka_codec.gzip_decode,
    Codec.SNAPPY: aiokafka_codec.snappy_decode,
    Codec.LZ4: aiokafka_codec.lz4_decode,
    Codec.ZSTD: aiokafka_codec.zstd_decode,
}


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=25)
@given(data=payloads)
def test_ours_and_stock_streams_are_read_by_both(codec: Codec, data: bytes) -> None:
    ours = bytes(compress(codec, data))
    assert bytes(decompress(codec, ours)) == data
    if data:  # aiokafka interprets an empty framed snappy stream as a raw one
        assert bytes(stock_decode[codec](ours)) == data
    assert bytes(decompress(codec, memoryview(bytes(stock_encode[codec](data))))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_large_payloads(codec: Codec) -> None:
    data = os.urandom(300_000) + b"log line " * 400_000 + bytes(1_000_000)
    assert decompress(codec, compress(codec, bytearray(data))) == data


def test_no_codec_is_the_bytes_themselves() -> None:
    data = bytearray(b"abc")
    assert compress(Codec.NONE, data) is data
    assert bytes(decompress(Codec.NONE, data)) == b"abc"


def test_snappy_is_framed_as_java_does_and_read_raw_too() -> None:
    data = os.urandom(40_000)
    framed = bytes(compress(Codec.SNAPPY, data))
    assert framed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    (first_block_bytes,) = struct.unpack_from(">i", framed, 16)
    assert cramjam.snappy.decompress_raw_len(framed[20 : 20 + first_block_bytes]) == 32 * limits.KIB
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    assert decompress(Codec.SNAPPY, framed + framed) == data + data  # concatenated streams
    with_zero_length_block = framed + struct.pack(">i", 1) + b"\0"
    assert decompress(Codec.SNAPPY, with_zero_length_block) == data


def test_lz4_blocks_are_independent() -> None:
    """Java refuses linked ones: bit 5 of the flags."""
    assert memoryview(compress(Codec.LZ4, b"x" * 200_000))[4] & 0x20


def test_zstd_without_content_size_concatenated_and_skippable() -> None:
    data = b"some text " * 1000
    encoder = cramjam.zstd.Compressor()
    encoder.compress(data)
    frame = bytes(encoder.finish())
    assert frame[4] >> 5 == 0, "no content size, no single segment: as a streaming encoder writes"
    assert decompress(Codec.ZSTD, frame + frame) == data + data
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert decompress(Codec.ZSTD, skippable + frame) == data


def test_gzip_members_follow_one_another() -> None:
    members = gzip.compress(b"one") + gzip.compress(b"two")
    assert bytes(decompress(Codec.GZIP, members)) == b"onetwo"


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams_raise_only_corruption_errors(codec: Codec) -> None:
    good = bytes(compress(codec, b"some text " * 500 + os.urandom(100)))
    for bad in [
        b"",
        b"junk" * 9,
        *(good[:size] for size in range(0, len(good), 7)),
        good[:-1],
        good + b"junkjunk",
    ]:
        with pytest.raises(MqError) as caught:
            decompress(codec, bad)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE, bad


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=40)
@given(where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_wrong_byte_is_an_mq_error_or_bounded_output(
    codec: Codec, where: float, byte: int
) -> None:
    stream = bytearray(compress(codec, b"some text " * 5000))
    stream[int(where * len(stream))] = byte
    try:
        assert len(decompress(codec, stream, MIB)) <= MIB
    except MqError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


# -- sizes before the decompression, and slices


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_streams_state_their_size(codec: Codec, size: int) -> None:
    stream = compress(codec, (b"some text " * (size // 10)))
    stated = stated_bytes(codec, stream, 16 * MIB)
    assert size <= stated <= size + 128 * limits.KIB
    assert stated_bytes(codec, stream, 50_000) == min(stated, 50_000)
    assert stated_bytes(codec, b"", 16 * MIB) == 0
    if codec is not Codec.GZIP:
        assert stated_bytes(codec, bytes(stream)[:-5] + b"junk" * 3, 16 * MIB) >= size


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [1000, 5 * MIB + 7])
def test_slices_make_one_stream(codec: Codec, size: int) -> None:
    data = (b"some text " * (size // 10 + 1))[:size]
    work = compress_in_slices(codec, data)
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            stream = end.value
            break
        slices += 1
    assert decompress(codec, stream) == data
    assert (slices > 4) == (size > MIB and codec is not Codec.NONE)


def test_streams_of_very_many_blocks_are_damaged() -> None:
    count = limits.COMPRESSED_BLOCKS_MAX + 1
    empty_block = struct.pack("<I", 0)[:3]
    zstd = struct.pack("<IBB", 0xFD2FB528, 0, 0x38) + empty_block * count
    snappy = bytes(compress(Codec.SNAPPY, b"a"))
    lz4 = bytes(compress(Codec.LZ4, b"a"))
    gzips = gzip.compress(b"a") * (limits.GZIP_MEMBERS_MAX + 1)
    streams = {
        Codec.ZSTD: zstd + b"\1\0\0",
        Codec.SNAPPY: snappy[:16] + snappy[16:] * count,
        Codec.LZ4: lz4[:7] + lz4[7:-4] * count + bytes(4),
        Codec.GZIP: gzips,
    }
    for codec, stream in streams.items():
        with pytest.raises(MqError) as caught:
            decompress(codec, stream)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert "more than" in caught.value.message, codec


# -- bombs


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Codec) -> None:
    data = os.urandom(1000) * 3000
    stream = compress(codec, data)
    if codec is Codec.LZ4:  # counted in whole blocks
        assert decompress(codec, stream, len(data) + 64 * limits.KIB) == data
    else:
        assert decompress(codec, stream, len(data)) == data
    with pytest.raises(MqError) as caught:
        decompress(codec, stream, len(data) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert str(len(data) - 1) in caught.value.message


def zstd_bomb(size: int) -> bytes:
    """A frame of blocks that each repeat one byte 128 KiB times: four bytes expand to 131,072."""
    block = struct.pack("<I", 1 << 1 | (128 * limits.KIB) << 3)[:3] + b"a"
    last = struct.pack("<I", 1 | 1 << 1 | 1 << 3)[:3] + b"a"
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x38) + block * (size // (128 * limits.KIB)) + last


def gzip_bomb(size: int) -> bytes:
    encoder = zlib.compressobj(9, wbits=31)
    chunk = bytes(MIB)
    return b"".join(encoder.compress(chunk) for _ in range(size // MIB)) + encoder.flush()


def test_a_bomb_uses_almost_no_memory() -> None:
    bombs = {
        Codec.GZIP: gzip_bomb(80 * MIB),
        Codec.ZSTD: zstd_bomb(1024 * MIB),
        Codec.SNAPPY: b"\xff\xff\xff\xff\x0f" + b"\0" * 20,
        Codec.LZ4: bytes(compress(Codec.LZ4, bytes(8 * MIB)))[:-4],
    }
    lz4_header, lz4_body = bombs[Codec.LZ4][:7], bombs[Codec.LZ4][7:]
    bombs[Codec.LZ4] = lz4_header + lz4_body * 16 + bytes(4)
    assert decompress(Codec.ZSTD, zstd_bomb(8 * MIB)) == b"a" * (8 * MIB + 1), (
        "the bomb is a valid stream"
    )
    before = peak_mib()
    for codec, bomb in bombs.items():
        assert len(bomb) < 6 * MIB
        with pytest.raises(MqError) as caught:
            decompress(codec, bomb, 64 * MIB)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE, codec
    assert peak_mib() - before < 16, "refused because of the sizes in the streams"


def test_a_stream_with_a_false_size_ends_at_the_limit() -> None:
    gzip_lie = bytearray(gzip_bomb(32 * MIB))
    gzip_lie[-4:] = b"\1\0\0\0"
    encoder = cramjam.zstd.Compressor()
    encoder.compress(b"abcdefg" * (64 * MIB // 7))
    zstd_lie = bytes(encoder.finish())  # no content size, and compressed blocks do not state theirs
    before = peak_mib()
    for codec, stream in ((Codec.GZIP, bytes(gzip_lie)), (Codec.ZSTD, zstd_lie)):
        with pytest.raises(MqError) as caught:
            decompress(codec, stream, 4 * MIB)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak_mib() - before < 24
