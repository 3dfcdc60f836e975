"""What a broker decompresses to inspect, and where it stops: batches that are small on the wire and
large inside, or have false headers.
"""

from __future__ import annotations

import os
from struct import pack_into
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mqd import limits
from mqd.errors import ErrorCode, MqError
from mqd.log import decompression, record_inspection as module
from mqd.log.decompression import Decompression, bytes_max
from mqd.log.record_inspection import RecordInspection
from mqd.protocol.batch import HEADER, HEADER_BYTES, parse_header, write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec, compress, decompress
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.protocol.record_reader import Record, iterate_records, record_bytes
from mqd.protocol.record_scan import first_record_since, keyless_records
from mqd.protocol.slices import all_slices
from tests.log.support import NOW, batch

LIMIT = limits.BATCH_BYTES_MAX
# size 6, attributes, timestamp delta, offset delta, key of 0 bytes, value null, no headers
KEYED = b"\x0c\0\0\0\0\1\0"
KEYLESS = b"\x0c\0\0\0\1\1\0"


def forged(
    records: bytes,
    count: int,
    *,
    codec: Codec = Codec.NONE,
    attributes: int | None = None,
    base_timestamp: int = NOW,
    max_timestamp: int = NOW,
) -> memoryview:
    """A batch with any header and a valid CRC. `attributes`: of records that are compressed."""
    body = bytes(compress(codec, records))
    data = bytearray(
        HEADER.pack(
            0,
            len(body) + 49,
            0,
            2,
            0,
            int(codec) if attributes is None else attributes,
            count - 1,
            base_timestamp,
            max_timestamp,
            -1,
            -1,
            -1,
            count,
        )
        + body
    )
    write_crc(data)
    return memoryview(data)


def refusal(
    view: memoryview, looking: RecordInspection | None = None, now_ms: int = NOW
) -> MqError:
    with pytest.raises(MqError) as caught:
        (looking or RecordInspection()).refuse_keyless(view, parse_header(view), LIMIT, now_ms)
    return caught.value


def since(
    view: memoryview, timestamp: int, start: int = 0, limit: int = 1 << 40
) -> tuple[int, int] | None:
    return all_slices(module.first_record_since(view, parse_header(view), timestamp, start, limit))


def inspected(view: memoryview, max_message_bytes: int = LIMIT) -> None:
    """Inspect in slices, then as an append does. MqError."""
    looking = RecordInspection()
    all_slices(looking.inspect(view, max_message_bytes))
    looking.refuse_keyless(view, parse_header(view), max_message_bytes, NOW)


# -- keys


@pytest.mark.parametrize("codec", list(Codec))
def test_the_first_few_records_without_a_key_are_named(codec: Codec) -> None:
    rows = [
        Record(0, NOW, None if number % 2 else b"k" * 100, b"v" * 200, [("h", b"x")])
        for number in range(100)
    ]
    error = refusal(memoryview(build_batch(rows, codec=codec)))
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == list(
        range(1, 2 * limits.RECORD_ERRORS_MAX, 2)
    )
    keyed = memoryview(build_batch([row._replace(key=b"") for row in rows], codec=codec))
    RecordInspection().refuse_keyless(keyed, parse_header(keyed), LIMIT, NOW)


def test_a_million_records_in_a_kilobyte_are_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "record_bytes", lambda *_: pytest.fail("was unpacked"))
    assert (
        refusal(forged(KEYED * 200_000, 200_000, codec=Codec.ZSTD)).code
        is ErrorCode.MESSAGE_TOO_LARGE
    )


def test_one_large_record_is_not_decompressed_beyond_the_bound() -> None:
    data = memoryview(
        build_batch(
            [(b"k", bytes(limits.INSPECTED_BYTES_MAX + 1000))], codec=Codec.ZSTD, timestamp=NOW
        )
    )
    assert refusal(data).code is ErrorCode.KAFKA_STORAGE_ERROR, "it was not inspected before"
    with pytest.raises(MqError) as caught:
        inspected(data)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    inspected(data, 2 * LIMIT)  # a topic of larger messages has a larger bound
    assert bytes_max(100 * limits.MIB) == limits.INSPECTED_BYTES_LARGEST


@pytest.mark.parametrize(
    "records",
    [
        KEYED,
        KEYED * 3,
        KEYED[:-1],
        b"\x00" * 7,
        b"\x01" * 7,
        b"\xff" * 12,
        b"garbage",
        KEYED + b"\x80",
        b"",
    ],
)
def test_records_that_contradict_the_header_are_corrupt(records: bytes) -> None:
    assert refusal(forged(records, 2)).code is ErrorCode.CORRUPT_MESSAGE


class CountedBytes(bytes):
    """Counts the bytes that are read one by one."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("body", [b"\0" + b"\x80" * 100_000, b"\0\0" + b"\x80" * 100_000])
def test_a_number_without_an_end_is_read_no_further_than_its_size(body: bytes) -> None:
    records = CountedBytes(pack_unsigned_varint(2 * len(body)) + body)
    with pytest.raises(MqError) as caught:
        list(keyless_records(records, parse_header(forged(records, 1))))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert records.reads < 30


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(b"\x80" * 9 + b"\0", b"\0"), (b"\0", b"\x80" * 4 + b"\0")]
)
def test_the_longest_numbers_are_read(timestamp: bytes, offset: bytes) -> None:
    body = b"\0" + timestamp + offset + b"\x01\x01\0"
    records = pack_unsigned_varint(2 * len(body)) + body
    assert list(keyless_records(records, parse_header(forged(records, 1)))) == [0]


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(1, 5))
def test_random_bytes_raise_no_other_error(records: bytes, count: int) -> None:
    view = forged(records, count)
    try:
        RecordInspection().refuse_keyless(view, parse_header(view), LIMIT, NOW)
    except MqError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    offset, moment = since(view, NOW) or (0, 0)
    assert 0 <= offset < count and -(2**63) <= moment < 2**63


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**40), 2**40),
            st.none() | st.binary(max_size=300),
            st.binary(max_size=20_000),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(deadline=None)
def test_the_fast_inspections_agree_with_reading(
    rows: list[tuple[int, bytes | None, bytes]],
) -> None:
    data = build_batch(
        [Record(0, NOW + shift, key, value, [("h", b"")]) for shift, key, value in rows],
        base_offset=7,
    )
    read = list(iterate_records(data))
    header = parse_header(data)
    records = record_bytes(data, header, 1 << 20)
    keyless = [index for index in keyless_records(records, header) if index >= 0]
    assert keyless == [index for index, record in enumerate(read) if record.key is None]
    for wanted in {record.timestamp for record in read} | {NOW, 0, 1 << 62}:
        for start in range(6, 9):
            expected = next(
                (
                    (one.offset, one.timestamp)
                    for one in read
                    if one.timestamp >= wanted and one.offset >= start
                ),
                None,
            )
            assert all_slices(first_record_since(records, header, wanted, start)) == expected


def test_a_turn_is_bounded_and_the_next_one_continues() -> None:
    looking = RecordInspection()
    view = memoryview(
        build_batch(
            [(b"k", bytes(limits.INSPECTED_AT_ONCE_BYTES - 100))], codec=Codec.ZSTD, timestamp=NOW
        )
    )
    many = memoryview(build_batch([(b"k", b"")] * 400, timestamp=NOW))
    views = limits.INSPECTED_BYTES_PER_TURN // limits.INSPECTED_AT_ONCE_BYTES
    for one in (*[view] * views, many, many):
        try:
            looking.refuse_keyless(one, parse_header(one), LIMIT, NOW)
        except MqError as error:
            assert (
                error.code is ErrorCode.KAFKA_STORAGE_ERROR and error.code.retriable and one is many
            )
            break
    else:
        pytest.fail("a turn has no end")
    looking.refuse_keyless(view, parse_header(view), LIMIT, NOW + 1)


def test_an_unreadable_stream_costs_its_whole_budget() -> None:
    looking = RecordInspection()
    data = bytearray(forged(KEYED, 1, codec=Codec.GZIP))
    data[-5:] = b"xxxxx"
    write_crc(data)
    assert refusal(memoryview(data), looking).code is ErrorCode.CORRUPT_MESSAGE
    assert refusal(memoryview(batch()), looking).code is ErrorCode.KAFKA_STORAGE_ERROR


# -- lookups by time


def test_a_lookup_returns_the_first_record_within_the_offsets() -> None:
    view = memoryview(
        build_batch(
            [Record(0, NOW + delta, b"k", b"v") for delta in (0, 30, 20, 30)],
            codec=Codec.LZ4,
            base_offset=10,
        )
    )
    assert since(view, NOW) == (10, NOW)
    assert since(view, NOW + 1) == (11, NOW + 30)
    assert since(view, NOW + 1, start=12) == (12, NOW + 20)
    assert since(view, NOW + 21, start=12, limit=13) is None
    assert since(view, NOW + 21, start=13) == (13, NOW + 30)


@pytest.mark.parametrize(
    "view",
    [
        forged(KEYED * 1_000_000, 1_000_000, codec=Codec.ZSTD),
        forged(b"garbage", 3, codec=Codec.ZSTD),
        forged(KEYED, 1, base_timestamp=NOW - 5),
        forged(b"\x0e\0\2\0\0\1\0", 1, base_timestamp=2**63 - 1),
        forged(b"\x0c\0\2\0\0\1\0", 1, base_timestamp=2**63 - 1),
        forged(b"\x0c\0\0\x08\0\1\0", 1),
    ],
    ids=[
        "too many",
        "not compressed",
        "all older",
        "cut off",
        "beyond 64 bits",
        "an offset of another batch",
    ],
)
def test_records_over_the_limit_are_not_inspected(view: memoryview) -> None:
    assert since(view, NOW) == (0, NOW)
    assert since(view, NOW, limit=0) is None


def bomb(codec: Codec, size: int, *, members: int = 1) -> memoryview:
    """One record of `size` bytes or more, in a small batch."""
    value = bytes(size)
    body = bytes(build_batch([(b"k", value)], timestamp=NOW))[HEADER_BYTES:]
    if members == 1:
        return forged(body, 1, codec=codec)
    cut = len(body) // members
    parts = [body[start : start + cut] for start in range(0, len(body), cut)]
    return forged(b"".join(bytes(compress(codec, part)) for part in parts), 1, attributes=codec)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_lookup_does_not_decompress_a_bomb(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever max.message.bytes its topic has."""
    made = []
    real = decompress

    def counted(*arguments: Any) -> memoryview:
        content = real(*arguments)
        made.append(len(content))
        return content

    monkeypatch.setattr(decompression, "decompress", counted)
    view = bomb(codec, 3 * limits.INSPECTED_BYTES_MAX)
    assert since(view, NOW) == (0, NOW)
    assert not made


def test_a_lookup_decompresses_once_and_in_a_thread() -> None:
    records = [(b"k", os.urandom(40_000))] * 10
    view = memoryview(build_batch(records, codec=Codec.GZIP, timestamp=NOW))
    work = module.first_record_since(view, parse_header(view), NOW, 0, 1 << 40)
    steps = [step for step in work if isinstance(step, Decompression)]
    assert len(steps) == 1 and steps[0].is_done
    assert limits.INSPECTED_AT_ONCE_BYTES < steps[0].size < 500_000


def test_a_gzip_stream_that_states_a_wrong_size_needs_the_whole_limit() -> None:
    size = 2 * limits.MIB
    view = bomb(Codec.GZIP, size, members=100)
    work = Decompression(view, parse_header(view), 8 * limits.MIB)
    assert work.size < 50_000
    next(work.slices)
    assert work.size == 8 * limits.MIB and not work.is_done
    assert list(work.slices) == [] and len(work.content()) > size


def test_a_stamped_batch_and_an_empty_one_need_no_inspection() -> None:
    assert since(
        memoryview(build_batch([(b"k", b"v")] * 3, timestamp=5, log_append_time=NOW)), NOW, start=1
    ) == (1, NOW)
    assert since(forged(b"", 0), NOW) is None


# -- records that clients read


@pytest.mark.parametrize("body", [b"\x0c\0\2\0\0\1\0", b"\x0c\0\0\2\0\1\0", b"\x0c\0\0\1\0\1\0"])
def test_records_outside_their_batch_are_corrupt(body: bytes) -> None:
    data = bytearray(forged(body, 1))
    pack_into(">q", data, 27, 2**63 - 1)
    with pytest.raises(MqError) as caught:
        list(iterate_records(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
