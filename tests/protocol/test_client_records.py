"""The fast paths of clients give the same results as the general ones, `iterate_records` and
`build_batch`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mqd.errors import MqError
from mqd.protocol import batch, client_records
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.batch_writer import BatchWriter
from mqd.protocol.client_records import read_records
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record, iterate_records

SIZES = (0, 1, 60, 61, 62, 63, 64, 8100, 8180, 8189, 8190, 8191, 8192, 20_000)
blobs = st.none() | st.binary(max_size=20) | st.sampled_from(SIZES).map(bytes)
header_lists = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
).map(tuple)
moments = (
    st.integers(0, 50) | st.integers(0, 2**63 - 1) | st.integers(60, 70) | st.integers(8180, 8200)
)
rows = st.tuples(moments, blobs, blobs, st.just(()) | header_lists)
row_lists = st.lists(rows, min_size=1, max_size=6)


def numbered(given_rows: list[Any], gaps: list[int] | None = None) -> list[Record]:
    offset, records = 0, []
    for index, row in enumerate(given_rows):
        records.append(Record(offset, *row))
        offset += 1 + (gaps[index % len(gaps)] if gaps else 0)
    return records


def outcome(read: Any, data: Any, **options: Any) -> Any:
    try:
        return list(read(data, **options))
    except MqError as error:
        return error.code, error.message


@settings(deadline=None, max_examples=100)
@given(
    row_lists,
    st.sampled_from(list(Codec)),
    st.lists(st.sampled_from((0, 0, 1, 70, 9000, 2**20)), min_size=1, max_size=4),
)
def test_the_fast_reader_equals_the_general_one(
    given_rows: list[Any], codec: Codec, gaps: list[int]
) -> None:
    records = numbered(given_rows, gaps)
    data = build_batch(records, codec=codec, keep_offsets=True)
    assert read_records(data) == records == list(iterate_records(data))
    assert all(type(record) is Record for record in read_records(memoryview(b"..." + data), 3))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8200])
def test_many_records_and_the_times_of_a_broker(count: int) -> None:
    given_rows = [
        (1_700_000_000_000 + index * 3, None if index % 3 else b"key", b"v" * (index % 130), ())
        for index in range(count)
    ]
    choices: list[dict[str, Any]] = [{}, {"log_append_time": 77}, {"base_offset": 2**40}]
    for options in choices:
        data = build_batch(numbered(given_rows), **options)
        assert read_records(data) == list(iterate_records(data))


@settings(deadline=None, max_examples=150)
@given(row_lists, st.floats(0, 1, exclude_max=True), st.integers(0, 255))
def test_damage_is_the_same_error(given_rows: list[Any], where: float, byte: int) -> None:
    data = build_batch(numbered(given_rows))
    data[57 + int(where * (len(data) - 57))] = byte
    assert outcome(read_records, data, limit=1 << 20) == outcome(
        iterate_records, data, limit=1 << 20
    )


#                length  attr  ts    offset key  value     headers
GOOD = bytes([14,   0,    0,    0,     1,   2, 0x61,  0])  # fmt: skip


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_every_byte_of_a_record_at_every_value(place: int) -> None:
    head = build_batch([(None, b"")])[: batch.HEADER_BYTES]
    for tail in (b"", GOOD):
        for byte in range(256):
            body = bytearray(GOOD + tail)
            body[place] = byte
            data = head + body
            batch.HEADER.pack_into(
                data, 0, *batch.parse_header(data)._replace(batch_length=len(data) - 12)
            )
            assert outcome(read_records, data) == outcome(iterate_records, data), (
                place,
                byte,
                tail,
            )


@settings(deadline=None, max_examples=100)
@given(row_lists, st.sampled_from(list(Codec)), st.booleans())
def test_the_fast_writer_equals_the_general_one(
    given_rows: list[Any], codec: Codec, transactional: bool
) -> None:
    writer = BatchWriter()
    places = [writer.append(*row) for row in given_rows]
    assert places == list(range(len(given_rows))) and writer.records() == numbered(given_rows)
    for sequence in (5, 9):
        options: Any = {
            "codec": codec,
            "producer_id": 7,
            "producer_epoch": 1,
            "base_sequence": sequence,
            "transactional": transactional,
        }
        assert writer.finish(**options) == build_batch(numbered(given_rows), **options)


def test_a_long_batch_is_written_the_same() -> None:
    writer = BatchWriter()
    given_rows = [(index, b"k" * (index % 70), b"v" * (index % 70), ()) for index in range(8300)]
    for row in given_rows:
        writer.append(*row)
    assert writer.finish() == build_batch(numbered(given_rows))
    writer.free()
    assert writer.count == 8300


def alike(
    count: int, *, key: int | None, value: int | None, step: int, odd: int | None = None
) -> list[Any]:
    """Rows of one shape; the one at `odd` has another size."""
    made = []
    for index in range(count):
        size = value if index != odd or value is None else value + 1
        made.append(
            (
                1_000 + index * step,
                *(None if n is None else bytes([index % 251]) * n for n in (key, size)),
                (),
            )
        )
    return made


@pytest.mark.parametrize("key", [None, 0, 12, 70])
@pytest.mark.parametrize("value", [None, 0, 63, 64, 100, 9000])
def test_records_of_one_shape_are_read_alike(key: int | None, value: int | None) -> None:
    for step in (0, 1, -1, 40, 9000):
        for odd in (None, 0, 64, 90):
            data = build_batch(numbered(alike(120, key=key, value=value, step=step, odd=odd)))
            assert read_records(data) == list(iterate_records(data)), (step, odd)


def test_a_run_ends_where_offsets_have_a_gap_or_headers_come() -> None:
    made = numbered(alike(200, key=3, value=100, step=0))
    gaps = [record._replace(offset=record.offset + 5 * (record.offset >= 100)) for record in made]
    assert read_records(build_batch(gaps, keep_offsets=True)) == gaps
    made[120] = made[120]._replace(headers=(("h", b"x"),))
    made[121] = made[121]._replace(value=b"x" * 96, headers=(("h", b"x"),))
    assert read_records(build_batch(made)) == made
    many = numbered(alike(8300, key=None, value=10, step=0))
    assert read_records(build_batch(many)) == many


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_the_same_byte_in_every_record_of_a_run(place: int) -> None:
    """Except for offsets, the records are `GOOD`, and one byte has another value in all of them."""
    head = build_batch([(None, b"")] * 20)[: batch.HEADER_BYTES]
    for byte in range(256):
        body = bytearray()
        for index in range(20):
            record = bytearray(GOOD)
            record[3] = index << 1
            record[place] = byte
            body += record
        data = head + body
        batch.HEADER.pack_into(
            data, 0, *batch.parse_header(data)._replace(batch_length=len(data) - 12)
        )
        assert outcome(read_records, data) == outcome(iterate_records, data), byte


def test_a_run_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the speed is lost, and no other test fails."""
    runs: list[int] = []
    read_run = client_records._Reading.read_run

    def counted(self: Any, index: int, count: int) -> int:
        runs.append(read_run(self, index, count))
        return runs[-1]

    monkeypatch.setattr(client_records._Reading, "read_run", counted)
    data = build_batch(numbered(alike(2000, key=None, value=100, step=0)))
    assert len(read_records(data)) == 2000 and sum(runs) == 2000 and len(runs) == 2


@settings(deadline=None, max_examples=150)
@given(
    st.integers(8, 130),
    st.sampled_from((None, 0, 3, 70)),
    st.sampled_from((None, 0, 3, 70)),
    st.sampled_from((0, 1, 30)),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3
    ),
)
def test_damage_in_a_run_is_the_same_error(
    count: int, key: Any, value: Any, step: int, blows: list[tuple[float, int]]
) -> None:
    data = build_batch(numbered(alike(count, key=key, value=value, step=step)))
    for where, byte in blows:
        data[57 + int(where * (len(data) - 57))] = byte
    assert outcome(read_records, data, limit=1 << 20) == outcome(
        iterate_records, data, limit=1 << 20
    )


def test_a_list_of_records_is_a_sequence() -> None:
    made = numbered(
        [(index, None, b"%d" % index, (("h", b""),) if index == 3 else ()) for index in range(10)]
    )
    records = read_records(build_batch(made))
    assert (
        records[3] == made[3]
        and records[-1] == made[-1]
        and records[2:4] == made[2:4]
        and isinstance(records[2:4], list)
    )
    assert (
        list(reversed(records)) == made[::-1]
        and made[4] in records
        and records.index(made[4]) == 4
        and repr(records) == repr(made)
    )
    assert (
        records.between(0, 10) is records
        and records.between(3, 5) == made[3:5]
        and not records.between(10, 20)
    )
    assert records != made[:9] and records != 5 and bool(records)
    with pytest.raises(IndexError):
        records[10]
