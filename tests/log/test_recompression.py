"""Batches with the codec of their topic."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from struct import pack_into
from typing import Any

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import RECOMPRESSED_BATCH_BYTES_MAX
from mqd.log.decompression import bytes_max
from mqd.log.log_config import LogConfig
from mqd.log.recompression import Recompression, is_small, is_wanted, recompressed
from mqd.protocol.batch import ATTRIBUTES_POSITION, parse_header, validate, write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records
from tests.log.support import NOW

TYPES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
RECORDS = [
    Record(index, NOW + index, b"k%d" % index, b"value" * 30, (("h", b"x"),)) for index in range(50)
]


def sent(codec: Codec = Codec.NONE, **options: Any) -> memoryview:
    return memoryview(build_batch(RECORDS, codec=codec, **options))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("wanted", [*TYPES, "producer"])
def test_a_batch_gets_the_codec_of_its_topic_without_other_changes(
    wanted: str, codec: Codec
) -> None:
    config = LogConfig(compression_type=wanted)
    view = sent(codec, producer_id=7, producer_epoch=1, base_sequence=40, transactional=True)
    assert is_wanted(config, view, 0, len(view)) == (
        wanted != "producer" and TYPES[wanted] != codec
    )
    if wanted == "producer":
        return
    batch = recompressed(view, config)
    header, before = validate(batch), parse_header(view)
    assert header.codec == TYPES[wanted] and header.is_transactional
    assert header[4:5] != before[4:5] or TYPES[wanted] == codec, "another CRC"
    assert header[6:] == before[6:], "offset deltas, timestamps, producer, count"
    assert list(iterate_records(batch)) == RECORDS


def test_levels() -> None:
    def size(**levels: Any) -> int:
        return len(recompressed(sent(), LogConfig(**levels)))

    for name, levels in (("gzip", (1, -1, 9)), ("lz4", (1, 9, 17)), ("zstd", (-131_072, 3, 22))):
        sizes = [
            size(**{"compression_type": name, f"compression_{name}_level": level})
            for level in levels
        ]
        assert sizes[0] > sizes[2], name


def test_the_highest_levels_of_zstd_are_no_slower_than_the_ninth() -> None:
    def stored(level: int) -> memoryview:
        return recompressed(
            sent(), LogConfig(compression_type="zstd", compression_zstd_level=level)
        )

    assert stored(22) == stored(9) != stored(1)


@pytest.mark.parametrize("wanted", [codec for codec in TYPES if codec != "uncompressed"])
def test_a_large_batch_is_recompressed_in_slices(wanted: str) -> None:
    """One stream, whatever the number of slices."""
    value = b"".join(b"%d" % number for number in range(500_000))
    records = [Record(0, NOW, b"k", value)]
    source = Codec.GZIP if wanted != "gzip" else Codec.ZSTD
    view = memoryview(build_batch(records, codec=source))
    config = LogConfig(compression_type=wanted, max_message_bytes=8 << 20)
    work = Recompression(view, config)
    assert len(list(work.slices)) > 2
    batch = work.batch()
    assert validate(batch).codec == TYPES[wanted]
    assert list(iterate_records(batch)) == records


def test_a_batch_that_grows_beyond_the_maximum_is_refused() -> None:
    """Its write would be one long step."""
    size = RECOMPRESSED_BATCH_BYTES_MAX
    config = LogConfig(compression_type="uncompressed", max_message_bytes=4 * size)
    view = memoryview(build_batch([Record(0, NOW, b"k", bytes(size))], codec=Codec.GZIP))
    with pytest.raises(MqError) as caught:
        recompressed(view, config)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_the_error_of_a_batch_keeps_no_records() -> None:
    size = RECOMPRESSED_BATCH_BYTES_MAX
    config = LogConfig(compression_type="uncompressed", max_message_bytes=4 * size)
    view = memoryview(build_batch([Record(0, NOW, b"k", bytes(size))], codec=Codec.GZIP))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            with contextlib.suppress(MqError):
                recompressed(view, config)
        assert tracemalloc.get_traced_memory()[0] < size
    finally:
        tracemalloc.stop()
        gc.enable()


def test_small_batches_are_recompressed_inline() -> None:
    config = LogConfig(compression_type="zstd")
    view = sent()
    assert is_small(config, view, 0, len(view))
    packed = sent(Codec.GZIP)
    assert not is_small(config, packed, 0, len(packed)), "it may become large"
    large = memoryview(build_batch([Record(0, NOW, None, bytes(17_000))]))
    assert not is_small(config, large, 0, len(large))


def test_invalid_batches_are_not_recompressed() -> None:
    config = LogConfig(compression_type="gzip")
    assert not is_wanted(config, memoryview(b"short"), 0, 5) and not is_wanted(
        config, memoryview(b""), -1, -1
    )
    damaged = bytearray(sent())
    damaged[-1] ^= 1
    other = bytearray(sent())
    other[16] = 1
    for data in (
        damaged,
        other,
        bytearray(sent()) + b"x",
        bytearray(sent(control=True, producer_id=1)),
    ):
        view = memoryview(data)
        assert recompressed(view, config) is view
    view = sent()
    assert (
        recompressed(view, LogConfig(compression_type="gzip", max_message_bytes=len(view) - 1))
        is view
    )


def test_records_that_cannot_be_decompressed_are_refused() -> None:
    view = memoryview(bytearray(sent()))
    pack_into(">h", view, ATTRIBUTES_POSITION, Codec.ZSTD)
    write_crc(view)
    with pytest.raises(MqError) as caught:
        recompressed(view, LogConfig(compression_type="gzip"))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    grown = memoryview(build_batch([Record(0, NOW, None, bytes(5000))], codec=Codec.GZIP))
    with pytest.raises(MqError) as caught:
        recompressed(grown, LogConfig(compression_type="uncompressed", max_message_bytes=5000))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    bomb = memoryview(
        build_batch(
            [Record(0, NOW, None, bytes(bytes_max(LogConfig().max_message_bytes)))],
            codec=Codec.ZSTD,
        )
    )
    with pytest.raises(MqError) as caught:
        recompressed(bomb, LogConfig(compression_type="gzip"))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
