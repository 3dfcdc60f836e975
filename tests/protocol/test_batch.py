"""Record batch v2 compared with kafka-python's and aiokafka's builders and readers, in both
directions, and with damage.
"""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch as AioBatch,
    DefaultRecordBatchBuilder as AioBuilder,
)
from hypothesis import given, settings, strategies as st

from mqd.errors import ErrorCode, MqError
from mqd.protocol import batch
from mqd.protocol.batch import iterate_batches, parse_header, validate
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, check_records, iterate_records

with warnings.catch_warnings():  # it reads its schemas by a function that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import (
        DefaultRecordBatch as PythonBatch,
        DefaultRecordBatchBuilder as PythonBuilder,
    )

blobs = st.none() | st.binary(max_size=30) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 9000])
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
timestamps = st.integers(0, 2**48) | st.integers(1_700_000_000_000, 1_700_000_000_100)
record_lists = st.lists(st.tuples(timestamps, blobs, blobs, headers), min_size=1, max_size=8)
codecs = st.sampled_from(list(Codec))
quick = settings(deadline=None, max_examples=40)


def numbered(rows: list[Any], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + i, moment, key, value, tuple(pairs))
        for i, (moment, key, value, pairs) in enumerate(rows)
    ]


def with_valid_crc(data: bytes | bytearray, **changes: int) -> bytearray:
    """The batch with other header fields and a valid CRC."""
    out = bytearray(data)
    header = parse_header(out)._replace(**changes)
    batch.HEADER.pack_into(out, 0, *header)
    batch.write_crc(out)
    return out


# -- with stock clients


@quick
@given(
    rows=record_lists,
    codec=codecs,
    producer=st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
)
def test_ours_are_read_by_aiokafka(
    rows: list[Any], codec: Codec, producer: tuple[int, int, int]
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    data = build_batch(
        numbered(rows),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )
    theirs = AioBatch(bytes(data))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == producer
    assert theirs.is_transactional and not theirs.is_control_batch
    assert theirs.max_timestamp == max(row[0] for row in rows)
    read = [
        Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in theirs
    ]
    assert read == numbered(rows) == list(iterate_records(data))
    assert check_records(data) == parse_header(data)


@quick
@given(
    rows=record_lists,
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
    base_offset=st.integers(0, 2**62),
)
def test_ours_are_read_by_kafka_python(rows: list[Any], codec: Codec, base_offset: int) -> None:
    data = build_batch(numbered(rows), codec=codec, base_offset=base_offset)
    theirs = PythonBatch(bytes(data))
    assert theirs.validate_crc()
    read = [
        Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in theirs
    ]
    assert read == numbered(rows, base_offset) == list(iterate_records(data))


@quick
@given(rows=record_lists, codec=codecs)
def test_theirs_are_read_by_us(rows: list[Any], codec: Codec) -> None:
    for builder_class in (AioBuilder, PythonBuilder):
        if builder_class is PythonBuilder and codec not in (Codec.NONE, Codec.GZIP):
            continue  # its other codecs are not installed
        builder = builder_class(
            magic=2,
            compression_type=int(codec),
            is_transactional=0,
            producer_id=5,
            producer_epoch=6,
            base_sequence=7,
            batch_size=1 << 20,
        )
        for offset, (moment, key, value, pairs) in enumerate(rows):
            assert builder.append(offset, timestamp=moment, key=key, value=value, headers=pairs)
        data = builder.build()
        header = check_records(data)
        assert list(iterate_records(data)) == numbered(rows)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
        assert header.last_offset == len(rows) - 1 and header.next_offset == len(rows)
        if codec == Codec.NONE:
            assert (
                build_batch(
                    numbered(rows),
                    producer_id=5,
                    producer_epoch=6,
                    base_sequence=7,
                    partition_leader_epoch=0,
                )[batch.MAGIC_POSITION : batch.CRC_POSITION]
                == memoryview(data)[batch.MAGIC_POSITION : batch.CRC_POSITION]
            )


# -- building


def test_pairs_are_stamped_and_numbered() -> None:
    data = build_batch(
        [(b"k", b"v"), (None, None)], base_offset=40, timestamp=1234, partition_leader_epoch=3
    )
    assert list(iterate_records(data)) == [
        Record(40, 1234, b"k", b"v"),
        Record(41, 1234, None, None),
    ]
    assert parse_header(data).partition_leader_epoch == 3


def test_flags() -> None:
    header = validate(
        build_batch(
            [(b"k", b"v")], control=True, transactional=True, log_append_time=99, codec=Codec.LZ4
        )
    )
    assert (
        header.is_control
        and header.is_transactional
        and header.is_log_append_time
        and header.codec == Codec.LZ4
    )
    assert not validate(build_batch([(b"k", b"v")])).is_control


def test_log_append_time_covers_every_record() -> None:
    data = build_batch([(0, 5, None, b"a"), (1, 7, None, b"b")], log_append_time=99)
    assert [record.timestamp for record in iterate_records(data)] == [99, 99]
    assert parse_header(data).max_timestamp == 99


def test_explicit_offsets_may_leave_gaps() -> None:
    records = [Record(12, 1, None, b"a"), Record(15, 2, None, b"b")]
    data = build_batch(records, base_offset=10, keep_offsets=True)
    assert list(iterate_records(data)) == records
    assert check_records(data, compacted=True).last_offset == 15
    with pytest.raises(MqError) as caught:
        check_records(data)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_fields_outside_the_crc_are_patched_in_place() -> None:
    data = build_batch([(b"k", b"v")])
    struct.pack_into(">q", data, batch.BASE_OFFSET_POSITION, 77)
    struct.pack_into(">i", data, batch.LEADER_EPOCH_POSITION, 5)
    assert validate(data).base_offset == 77
    struct.pack_into(">q", data, batch.MAX_TIMESTAMP_POSITION, 5)
    with pytest.raises(MqError, match="CRC"):
        validate(data)
    batch.write_crc(data)
    assert validate(data).max_timestamp == 5


# -- reading


def test_batches_are_walked_up_to_a_partial_one() -> None:
    batches = [build_batch([(None, bytes(n))] * (n + 1), base_offset=100 * n) for n in range(3)]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    expected = [
        (start, len(one), parse_header(one)) for start, one in zip(starts, batches, strict=True)
    ]
    assert list(iterate_batches(data)) == expected
    assert list(iterate_batches(memoryview(data), starts[1])) == expected[1:]
    for end in range(len(data)):
        whole = sum(start + size <= end for start, size, _ in expected)
        assert list(iterate_batches(data[:end])) == expected[:whole]


@pytest.mark.parametrize("change", [{"batch_length": 48}, {"batch_length": -1}, {"magic": 1}])
def test_reading_ends_with_an_error_where_no_batch_is(change: dict[str, int]) -> None:
    good = build_batch([(None, b"x")])
    bad = bytearray(good)
    batch.HEADER.pack_into(bad, 0, *parse_header(bad)._replace(**change))
    walk = iterate_batches(good + bad)
    assert next(walk)[0] == 0
    with pytest.raises(MqError) as caught:
        next(walk)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


# -- errors


def code_of(check: Any, *arguments: Any, **options: Any) -> ErrorCode:
    with pytest.raises(MqError) as caught:
        check(*arguments, **options)
    return caught.value.code


def test_validate_returns_kafkas_codes() -> None:
    good = build_batch([(b"k", b"v")] * 3)
    validate(good)
    validate(b"..." + good + b"more", 3)
    for size in (0, 1, 60, 61, len(good) - 1):
        assert code_of(validate, good[:size]) is ErrorCode.INVALID_RECORD
        assert code_of(validate, good, end=size) is ErrorCode.INVALID_RECORD
    for magic, code in ((0, 87), (1, 87), (3, 2), (-1, 2)):
        assert code_of(validate, with_valid_crc(good, magic=magic)) == code
    for changes in (
        {"attributes": 5},
        {"attributes": 7},
        {"last_offset_delta": -1},
        {"records_count": -1},
    ):
        assert code_of(validate, with_valid_crc(good, **changes)) is ErrorCode.CORRUPT_MESSAGE
    for position in range(batch.CRC_POSITION, len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        assert code_of(validate, bad) is ErrorCode.CORRUPT_MESSAGE
    short = bytearray(good)
    struct.pack_into(">i", short, batch.LENGTH_POSITION, 48)
    assert code_of(validate, short) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", list(Codec))
def test_the_deep_check_counts(codec: Codec) -> None:
    good = build_batch([(b"k", b"v")] * 3, codec=codec)
    check_records(good)
    for changes in (
        {"records_count": 2},
        {"last_offset_delta": 3},
        {"records_count": 2, "last_offset_delta": 1},
    ):
        assert code_of(check_records, with_valid_crc(good, **changes)) is ErrorCode.INVALID_RECORD
    assert (
        code_of(check_records, with_valid_crc(good, records_count=4, last_offset_delta=3))
        is ErrorCode.CORRUPT_MESSAGE
    )
    assert (
        code_of(list, iterate_records(with_valid_crc(good, records_count=2)))
        is ErrorCode.CORRUPT_MESSAGE
    )
    assert (
        code_of(list, iterate_records(with_valid_crc(good, records_count=4)))
        is ErrorCode.CORRUPT_MESSAGE
    )
    assert (
        code_of(list, iterate_records(with_valid_crc(good, records_count=-4)))
        is ErrorCode.CORRUPT_MESSAGE
    )


def of_body(body: bytes, count: int = 1) -> bytearray:
    """A batch with a valid CRC around hand-made record bytes."""
    data = build_batch([(None, b"")])[: batch.HEADER_BYTES] + body
    return with_valid_crc(
        data,
        batch_length=len(data) - batch.LOG_OVERHEAD_BYTES,
        records_count=count,
        last_offset_delta=count - 1,
    )


#                length  attr  ts    offset key  value     headers
GOOD = bytes([14,   0,    0,    0,     1,   2, 0x61,  0])  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (GOOD[:-1], 2),  # cut off
        (bytes([14, 0, 0, 0, 1, 4, 0x61, 0]), 2),  # value longer than the record
        (bytes([16, 0, 0, 0, 1, 2, 0x61, 0, 0]), 2),  # record longer than its fields
        (bytes([12, 0, 0, 0, 1, 2, 0x61, 0]), 2),  # record shorter than its fields
        (bytes([1]) + GOOD[1:], 2),  # negative length
        (bytes([14, 0, 0, 0, 3, 2, 0x61, 0]), 2),  # key of length -2
        (bytes([14, 0, 0, 0, 1, 2, 0x61, 1]), 2),  # -1 headers
        (bytes([14, 0, 0, 0, 1, 2, 0x61, 126]), 2),  # 63 headers in no bytes
        (bytes([0x80] * 10) + GOOD, 2),  # a varint without end
        # an offset delta of more than 32 bits
        (bytes([22, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 2, 0x61, 0]), 2),
        (bytes([18, 0, 0, 0, 1, 2, 0x61, 2, 1, 1]), 87),  # a header with a null key
        (bytes([20, 0, 0, 0, 1, 2, 0x61, 2, 2, 0xFF, 1]), 87),  # a header key that is not UTF-8
        (bytes([14, 0, 0, 2, 1, 2, 0x61, 0]), 87),  # offset delta 1 in the first record
        (GOOD + b"\0", 87),  # bytes behind the last record
    ],
)
def test_the_deep_check_reads_every_record(body: bytes, code: int) -> None:
    check_records(of_body(GOOD))
    assert code_of(check_records, of_body(body)) == code


def test_the_deep_check_refuses_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = build_batch([(None, bytes(3 << 20))], codec=Codec.SNAPPY)
    check_records(bomb)
    monkeypatch.setattr("mqd.limits.DECOMPRESSED_BYTES_MAX", 1 << 20)
    assert code_of(check_records, bomb) is ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(list, iterate_records(bomb, limit=1 << 20)) is ErrorCode.MESSAGE_TOO_LARGE


@settings(deadline=None, max_examples=150)
@given(
    rows=record_lists,
    codec=codecs,
    where=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
)
def test_damage_under_a_true_crc_is_an_mq_error(
    rows: list[Any], codec: Codec, where: float, byte: int
) -> None:
    data = build_batch(numbered(rows), codec=codec)
    data[batch.HEADER_BYTES + int(where * (len(data) - batch.HEADER_BYTES))] = byte
    batch.write_crc(data)
    for read in (check_records, lambda view: list(iterate_records(view, limit=1 << 20))):
        try:
            read(data)
        except MqError as error:
            assert error.code in (
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
                ErrorCode.MESSAGE_TOO_LARGE,
            )
