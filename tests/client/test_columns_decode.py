"""Record batches to Arrow columns: equal to reading record by record."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from mqd.client import columns_decode, columns_headers, columns_rows, columns_starts
from mqd.client.columns import COLUMNS, Aborted, decode, schema
from mqd.client.columns_buffers import gather
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import parse_header
from mqd.protocol.batch_builder import build_batch, write_varint
from mqd.protocol.compression import Codec
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.protocol.record_reader import Record
from tests.client.columns_reference import (
    PythonBuilder,
    decoded,
    rows_of,
    some_batches,
    stepped,
    walked,
    with_header,
    with_records,
)

FIELDS = st.none() | st.binary(max_size=70)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
STAMPS = st.integers(0, 2**42) | st.integers(-1, 1)


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """A few batches with ascending offsets."""
    data = bytearray()
    base = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 3))):
        records: list[Record] = []
        for _ in range(draw(st.integers(1, 5))):
            step = draw(st.integers(1, 200)) if records else 0
            offset = (records[-1].offset if records else base) + step
            records.append(Record(offset, draw(STAMPS), draw(FIELDS), draw(FIELDS), draw(HEADERS)))
        batch = build_batch(
            records,
            codec=draw(st.sampled_from(Codec)),
            base_offset=base,
            keep_offsets=True,
            log_append_time=draw(st.none() | STAMPS),
        )
        data += batch
        base = parse_header(batch).next_offset + draw(st.integers(0, 3))
    return bytes(data)


@settings(max_examples=40, deadline=None)
@given(segments(), st.data())
def test_decode_equals_reading_record_by_record(data: bytes, more: st.DataObject) -> None:
    every = walked(data)
    assert every is not None
    assert decoded(data) == every
    offsets = [row["offset"] for row in every]
    around = st.integers(max(offsets[0] - 2, 0), offsets[-1] + 2)
    start, end = sorted((more.draw(around), more.draw(around)))
    names = more.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
    rows_max = more.draw(st.integers(1, 20))
    options: dict[str, Any] = {"start": start, "end": end, "columns": names}
    assert decoded(data, rows_max=rows_max, **options) == walked(data, **options)


@pytest.mark.parametrize("codec", list(Codec))
def test_many_records_of_every_shape(codec: Codec) -> None:
    data = some_batches(random.Random(codec), (1, 300, 40, 40, 100), codec=codec)
    want = walked(data)
    for rows_max in (7, 64, 100_000):
        assert decoded(data, rows_max=rows_max) == want


def test_groups_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions count from the beginning of a window, wherever it is in the data."""
    data = some_batches(random.Random(5), [20] * 20)
    want = walked(data)
    for group_bytes in (1, 5_000, 20_000):
        monkeypatch.setattr(columns_decode, "GROUP_BYTES_MAX", group_bytes)
        assert decoded(data) == want
        assert decoded(data, rows_max=7) == want


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_and_a_partial_last_batch(kind: type) -> None:
    data = some_batches(random.Random(1), (5, 5))
    whole = len(some_batches(random.Random(1), (5,)))
    assert decoded(kind(data)) == walked(data)
    for cut in (len(data) - 1, whole + 61, whole + 60, whole + 1, whole):
        assert decoded(kind(data[:cut])) == walked(data[:whole])
    assert decoded(kind(b"")) == []


def test_schema_and_column_order() -> None:
    data = some_batches(random.Random(2), (9,))
    names = ("offset", "headers", "key")
    (batch,) = decode(data, "t", 0, columns=names)
    assert batch.schema == schema(names)
    assert schema(COLUMNS).types[4:7] == [pa.int64(), pa.timestamp("us", "UTC"), pa.int32()]
    (batch,) = decode(data, "größe", 3, columns=("topic", "partition"))
    assert batch.to_pylist() == [{"topic": "größe", "partition": 3}] * 9
    with pytest.raises(ClientError, match="unknown column 'size'"):
        schema(["size"])
    with pytest.raises(ClientError, match="twice"):
        list(decode(data, "t", 0, columns=("key", "key")))


def test_columns_that_are_not_requested_cost_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = 0

    def counted(*args: Any) -> pa.Array:
        nonlocal copies
        copies += 1
        return gather(*args)

    monkeypatch.setattr(columns_rows, "gather", counted)
    data = some_batches(random.Random(3), (50,), codec=Codec.NONE)
    for names, wanted in ((("offset", "timestamp"), 0), (("value",), 1), (("key", "value"), 2)):
        copies = 0
        assert decoded(data, columns=names) == walked(data, columns=names)
        assert copies == wanted


def test_start_and_end_skip_whole_batches() -> None:
    data = some_batches(random.Random(4), [10] * 5, codec=Codec.NONE)
    offsets = [row["offset"] for row in walked(data) or []]
    for start, end in ((offsets[12], offsets[31]), (offsets[10], offsets[20]), (0, 0), (9, 5)):
        assert decoded(data, start=start, end=end) == walked(data, start=start, end=end)
    assert decoded(data, start=offsets[-1] + 1) == []


def test_empty_batches_of_a_cleaner() -> None:
    for codec in (0, 1, 4):
        header = build_batch([(b"k", b"v")], base_offset=2)[:61]
        empty = with_header(header, batch_length=49, records_count=0, attributes=codec)
        data = build_batch([(b"a", b"b")]) + empty + build_batch([(b"c", b"d")], base_offset=3)
        want = walked(bytes(data))
        assert want is not None and [row["offset"] for row in want] == [0, 3]
        assert decoded(bytes(data)) == want
        assert decoded(bytes(data), rows_max=1) == want
        assert decoded(empty) == []


def test_log_append_time_beside_create_time() -> None:
    data = build_batch([(0, 5, b"k", b"v"), (1, 9, b"k", b"v")], log_append_time=77)
    data += build_batch([(0, 5, b"k", b"v"), (1, 3, b"k", b"v")], base_offset=2)
    (batch,) = decode(bytes(data), "t", 0, columns=("timestamp", "timestampType"))
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [77_000, 77_000, 5_000, 3_000]
    assert batch["timestampType"].to_pylist() == [1, 1, 0, 0]


# -- transactions


def _transactional(producer_id: int, base: int, *values: bytes) -> bytearray:
    records = [(b"k", value) for value in values]
    return build_batch(
        records, base_offset=base, producer_id=producer_id, producer_epoch=0, transactional=True
    )


def _marker(producer_id: int, base: int, *, committed: bool) -> bytes:
    batch = build_end_marker(producer_id, 0, EndMarker(committed, 1), 0)
    return with_header(bytes(batch), base_offset=base)


def _mixed() -> bytes:
    data = _transactional(7, 0, b"a0", b"a1")
    data += _transactional(8, 2, b"b2")
    data += build_batch([(b"k", b"plain3")], base_offset=3)
    data += _marker(7, 4, committed=False)
    data += _transactional(7, 5, b"c5")
    data += _marker(8, 6, committed=True)
    data += _marker(7, 7, committed=True)
    data += _transactional(7, 8, b"d8")
    data += _marker(7, 9, committed=False)
    return bytes(data)


def _values(data: bytes, **options: Any) -> list[bytes]:
    batches = decode(data, "t", 0, columns=("value",), **options)
    return [row["value"] for row in rows_of(batches)]


def test_read_committed_hides_aborted_transactions() -> None:
    data = _mixed()
    every = [b"a0", b"a1", b"b2", b"plain3", b"c5", b"d8"]
    aborted = (Aborted(7, 8), Aborted(7, 0))
    assert _values(data) == _values(data, aborted=aborted) == every
    assert _values(data, read_committed=True) == every
    committed = [b"b2", b"plain3", b"c5"]
    assert _values(data, read_committed=True, aborted=aborted) == committed
    assert _values(data, read_committed=True, aborted=((7, 0),)) == [*committed, b"d8"]


def test_a_marker_before_start_ends_its_transaction() -> None:
    assert _values(_mixed(), read_committed=True, aborted=((7, 0),), start=5) == [b"c5", b"d8"]


def test_hidden_batches_are_not_decompressed() -> None:
    """An aborted transaction may contain any bytes; its batches only need a valid CRC."""
    data = bytearray(
        build_batch([(b"k", b"v")], codec=Codec.ZSTD, producer_id=7, transactional=True)
    )
    data[61:65] = b"oops"
    hidden = with_header(bytes(data))
    assert _values(hidden, read_committed=True, aborted=((7, 0),)) == []
    with pytest.raises(MqError):
        _values(hidden)


# -- damage


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("columns", [COLUMNS, ("key", "value", "headers")])
def test_damage_is_refused_as_by_the_record_reader(codec: Codec, columns: tuple[str, ...]) -> None:
    """Bytes of records change under a valid CRC."""
    dice = random.Random(codec)
    batch = some_batches(dice, (12,), codec=codec)
    refused = 0
    for _ in range(400):
        changed = with_records(batch, lambda body: _damage(dice, body))
        want = walked(changed, columns=columns)
        if columns is not COLUMNS and want is None:
            continue  # damage may be in skipped bytes
        got = decoded(changed, columns=columns)
        assert got == want or (got is None and _far_timestamps(want)), changed.hex()
        refused += want is None
    assert refused > 100 or columns is not COLUMNS


@pytest.mark.parametrize("columns", [("key",), ("value",), ("timestamp",), ("value", "key")])
def test_pruned_columns_never_read_beyond_their_record(columns: tuple[str, ...]) -> None:
    """Damage in fields that are not requested may be undetected; returned rows are right."""
    dice = random.Random(len(columns))
    records = [
        Record(i, i, dice.choice((None, b"", b"key")), dice.choice((None, b"", b"value")))
        for i in range(6)
    ]
    batch = bytes(build_batch(records))
    passed = refused = 0
    for _ in range(700):
        changed = with_records(batch, lambda body: _damage_numbers(dice, body))
        want = stepped(changed, columns)
        got = decoded(changed, columns=columns)
        assert got == want or (got is None and _far_timestamps(want)), changed.hex()
        passed += got is not None
        refused += got is None
    assert passed > 20
    assert refused > 20


def test_a_record_that_contains_only_attributes() -> None:
    """Its timestamp would be the next record's length."""
    batch = bytes(build_batch([(b"key", b"value")] * 2))
    bad = _with_body(batch, b"\x02\x00" + b"\x1c\x00\x00\x02\x06key\x0avalue\x00")
    for columns in (("timestamp",), ("offset",), ("key",), COLUMNS):
        assert decoded(bad, columns=columns) is None, columns


def test_bytes_after_a_record_without_headers() -> None:
    """A value that is one byte too short leaves a header count of zero, and one more byte."""
    batch = bytes(build_batch([(b"k", b"ab\0")]))
    bad = with_records(batch, lambda body: body.__setitem__(6, 4))
    assert decoded(batch) == walked(batch)
    for columns in (("value",), COLUMNS[:7], COLUMNS):
        assert decoded(bad, columns=columns) is None, columns


def _damage_numbers(dice: random.Random, body: bytearray) -> None:
    """Records of a few bytes are mostly numbers: lengths become slightly longer or shorter."""
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.randrange(len(body))
        body[at] = dice.choice((body[at] ^ 2, body[at] + 2 & 0xFF, 0x80, dice.randrange(32)))


def _far_timestamps(rows: object) -> bool:
    assert isinstance(rows, list)
    return any(abs(row.get("timestamp", 0)) > 2**63 - 1 for row in rows)


def _damage(dice: random.Random, body: bytearray) -> None:
    at = dice.randrange(len(body))
    match dice.randrange(5):
        case 0:
            body[at] ^= 1 << dice.randrange(8)
        case 1:
            body[at] = dice.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF))
        case 2:
            del body[at : at + dice.randrange(1, 9)]
        case 3:
            body[at:at] = dice.randbytes(dice.randrange(1, 9))
        case 4:
            body[at : at + 9] = b"\xff" * dice.randrange(4, 10)


def test_damaged_headers_of_batches() -> None:
    dice = random.Random(9)
    batch = some_batches(dice, (12,), codec=Codec.NONE)
    header = parse_header(batch)
    for field in ("records_count", "last_offset_delta"):
        good = getattr(header, field)
        for value in (-(2**31), -1, 0, good - 1, good + 1, 2**31 - 1):
            changed = with_header(batch, **{field: value})
            assert decoded(changed) == walked(changed), (field, value)
    for base in (-1, -(2**63), 2**63 - 5):
        assert decoded(with_header(batch, base_offset=base)) is None
    assert decoded(with_header(batch, attributes=5)) is None
    assert decoded(batch + with_header(batch, base_offset=0)) is None  # offsets decrease
    assert decoded(batch + batch) is None
    for flip in range(16, len(batch), 7):
        damaged = bytearray(batch)
        damaged[flip] ^= 4
        assert decoded(bytes(damaged)) is None, flip  # a false CRC, or not a batch


def _with_body(batch: bytes, body: bytes) -> bytes:
    def change(old: bytearray) -> None:
        old[:] = body

    return with_records(batch, change)


def test_a_batch_that_states_two_billion_records() -> None:
    batch = bytes(build_batch([(b"k", b"v")]))
    with pytest.raises(MqError, match="2147483647 records"):
        list(decode(with_header(batch, records_count=2**31 - 1), "t", 0))
    huge = with_header(batch, records_count=2**31 - 1, last_offset_delta=2**31 - 1)
    with pytest.raises(MqError, match="records"):
        list(decode(huge, "t", 0, columns=("topic",)))


def test_varints_longer_than_necessary() -> None:
    """Varints of five bytes are accepted, those of six are not, as by the record reader."""
    plain = b"\x00\x00\x00\x02k\x02v\x00"
    for length in (b"\x90\x00", b"\x90\x80\x80\x80\x00", b"\x90\x80\x80\x80\x80\x00", b"\x11"):
        batch = _with_body(bytes(build_batch([(b"k", b"v")])), length + plain)
        assert decoded(batch) == walked(batch), length
    assert decoded(_with_body(bytes(build_batch([(b"k", b"v")])), b"\x10" + plain)) is not None


def test_timestamps_at_the_edge() -> None:
    for base, delta in ((0, 2**63 - 1), (0, -(2**63)), (2**62, 2**62), (-1, -(2**63)), (5, -6)):
        body = bytearray(b"\x00")
        write_varint(body, delta)
        body += b"\x00\x01\x01\x00"
        record = bytearray()
        write_varint(record, len(body))
        batch = with_header(
            _with_body(bytes(build_batch([(b"k", b"v")])), bytes(record + body)),
            base_timestamp=base,
        )
        if abs(base + delta) > (2**63 - 1) // 1000:
            assert decoded(batch) is None
            want = walked(batch, columns=("offset", "value"))
            assert want is None or decoded(batch, columns=("offset", "value")) == want
        else:
            assert decoded(batch) == walked(batch)


def test_timestamps_that_only_seem_too_far_apart() -> None:
    """The largest base and the largest delta are in two different batches."""
    far = 2**63 // 1000 - 10
    data = build_batch([(0, far, b"k", b"v")])
    data += build_batch([(0, 0, b"k", b"v"), (1, 1000, b"k", b"v")], base_offset=1)
    assert decoded(bytes(data)) == walked(bytes(data))


def test_header_keys_must_be_text() -> None:
    good = build_batch([Record(0, 0, b"k", b"v", [("abc", b"v")])])
    for key in (b"\xff\xfea", b"\xc0\x80a", b"\xed\xa0\x80"):
        changed = with_records(
            bytes(good), lambda body, key=key: body.__setitem__(slice(10, 13), key)
        )
        with pytest.raises(MqError) as caught:
            list(decode(changed, "t", 0, columns=COLUMNS))
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert decoded(changed, columns=("key",)) == [{"key": b"k"}]
    assert walked(bytes(good)) == decoded(bytes(good))


def test_many_headers_of_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records with more headers than the others are finally read one by one."""
    many = [Record(i, 0, b"k", b"v", [("h", b"%d" % j) for j in range(3 * i)]) for i in range(60)]
    data = bytes(build_batch(many, keep_offsets=True))
    assert decoded(data) == walked(data)
    monkeypatch.setattr(columns_headers, "HEADERS_MAX", 100)
    with pytest.raises(MqError, match="177 headers"):
        list(decode(data, "t", 0, columns=COLUMNS))


def test_a_null_header_key_is_refused() -> None:
    good = bytes(build_batch([Record(0, 0, b"k", b"v", [("", b"v")])]))
    assert decoded(good) == walked(good)
    bad = with_records(good, lambda body: body.__setitem__(9, 1))
    with pytest.raises(MqError, match="header key is null"):
        list(decode(bad, "t", 0, columns=COLUMNS))


@pytest.mark.parametrize("count", [1, 40])
def test_header_lengths_below_zero(count: int) -> None:
    """A key may not be null, a value may; below -1, neither. For few records and for many."""
    records = [Record(i, 0, b"k", b"v", [("", b"v")]) for i in range(count)]
    good = bytes(build_batch(records))
    assert decoded(good) == walked(good)
    for at, byte, words in ((9, 1, "header key is null"), (9, 3, "negative"), (10, 3, "negative")):
        bad = with_records(good, lambda body, at=at, byte=byte: body.__setitem__(at, byte))
        assert walked(bad) is None
        with pytest.raises(MqError, match=words):
            list(decode(bad, "t", 0, columns=COLUMNS))


def test_rows_max_below_one() -> None:
    with pytest.raises(ValueError, match="rows_max is 0"):
        list(decode(b"", "t", 0, rows_max=0))


def test_without_numpy_the_error_names_the_package() -> None:
    code = (
        "import sys\nsys.modules['numpy'] = None\n"
        "try:\n    import mqd.client.columns\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'mqd[arrow]'" in run.stdout


def test_golden_batch_of_a_stock_client() -> None:
    """A batch of kafka-python's record builder."""
    builder = PythonBuilder(
        magic=2, compression_type=0, is_transactional=False,
        producer_id=5, producer_epoch=1, base_sequence=3, batch_size=1 << 20,
    )  # fmt: skip
    rows = [
        (0, 1_700_000_000_000, b"key-0", b"x" * 100, [("a", b"1"), ("b", None)]),
        (1, 1_700_000_000_003, None, b"", []),
        (2, 1_699_999_999_999, b"", None, [("", b"")]),
        (3, 1_700_000_000_900, b"k" * 200, b"v" * 20_000, []),
    ]
    for offset, stamp, key, value, headers in rows:
        builder.append(offset, stamp, key, value, headers)
    data = bytes(builder.build())
    got = decoded(data)
    assert got == walked(data)
    assert got is not None
    assert [
        (row["offset"], row["timestamp"] // 1000, row["key"], row["value"],
         [(pair["key"], pair["value"]) for pair in row["headers"] or []])
        for row in got
    ] == rows  # fmt: skip


def test_record_sizes_are_checked_before_arrow_reads_them() -> None:
    """A value that reaches into the next record, and one far beyond the buffer."""
    batch = bytes(build_batch([(b"k", b"v" * 20), (b"k", b"w" * 20)]))
    for size in (21, 30, 2_000, 2**30, 2**31 - 1, -1, -2):
        number = bytearray()
        write_varint(number, size)

        def change(body: bytearray, number: bytes = bytes(number)) -> None:
            body[6:7] = number

        changed = with_records(batch, change)
        assert decoded(changed) is None
        assert walked(changed) is None


def test_numbers_of_numpy_are_not_needed() -> None:
    """The columns own their data: the fetch buffer may be reused."""
    data = bytearray(build_batch([(b"key", b"value")] * 3))
    (batch,) = decode(data, "t", 0)
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    assert batch.to_pylist() == before
    assert struct.calcsize("q") == np.dtype(np.int64).itemsize


# -- finding the start of records


@pytest.fixture(params=["loop", "AwkwardForth"])
def finder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "AwkwardForth":
        pytest.importorskip("awkward_cpp")
        assert columns_starts.forth_machine() is not None
    records_min = 0 if request.param == "AwkwardForth" else 1 << 60
    monkeypatch.setattr(columns_starts, "FORTH_RECORDS_MIN", records_min)


@pytest.mark.usefixtures("finder")
def test_both_finders_equal_the_record_reader() -> None:
    data = some_batches(random.Random(6), (1, 300, 40), codec=Codec.NONE)
    for rows_max in (3, 64, 100_000):
        assert decoded(data, rows_max=rows_max) == walked(data)


@pytest.mark.usefixtures("finder")
@pytest.mark.parametrize("rows_max", [2, 100])
def test_both_finders_refuse_the_same_as_the_record_reader(rows_max: int) -> None:
    """Damaged lengths: longer, shorter, negative, unterminated."""
    dice = random.Random(7)
    batch = some_batches(dice, (6,), codec=Codec.NONE)
    starts = []
    header = parse_header(batch)
    array = np.frombuffer(batch, np.uint8)
    span = columns_starts.Span(61, len(batch), header.records_count)
    begins, ends = columns_starts.find_starts(batch, array, [span])
    starts = [0, *(ends[:-1] - 61).tolist()]
    refused = 0
    for _ in range(150):
        at = dice.choice(starts)
        new = dice.choice((b"\x00", b"\x01", b"\xff", b"\x03", b"\xff" * 10, b"\x80" * 5 + b"\x00"))
        new = dice.choice((new, dice.randbytes(1), dice.randbytes(2)))
        changed = with_records(
            batch, lambda body, at=at, new=new: body.__setitem__(slice(at, at + len(new)), new)
        )
        want = walked(changed)
        got = decoded(changed, rows_max=rows_max)
        assert got == want or (got is None and _far_timestamps(want)), changed.hex()
        if want is None:
            refused += decoded(changed, columns=("topic",)) is None
    assert refused > 50
    assert len(begins) == header.records_count


def test_both_finders_give_the_same_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("awkward_cpp")
    dice = random.Random(8)
    compared = 0
    for _ in range(300):
        body = dice.randbytes(dice.randrange(8, 60))
        if dice.random() < 0.7:
            body = bytes(byte & 0x1E for byte in body)
        array = np.frombuffer(body, np.uint8)
        spans = [columns_starts.Span(0, len(body), dice.randrange(1, 5), finished=False)]
        found: list[tuple[list[int], list[int]] | None] = []
        for records_min in (0, 1 << 60):
            monkeypatch.setattr(columns_starts, "FORTH_RECORDS_MIN", records_min)
            try:
                begins, ends = columns_starts.find_starts(body, array, spans)
                found.append((begins.tolist(), ends.tolist()))
            except MqError:
                found.append(None)
        assert found[0] == found[1], (body.hex(), spans)
        compared += found[0] is not None
    assert compared > 50


def test_runs_of_one_size_equal_single_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that end early, lengths of one to three bytes, damage inside a run."""
    dice = random.Random(9)
    long_runs = 0
    for _ in range(200):
        body = bytearray()
        records = 0
        for _ in range(dice.randrange(1, 5)):
            size = dice.choice((6, 40, 63, 64, 200, 9000))
            record = bytearray()
            write_varint(record, size)
            record += dice.randbytes(size)
            run = dice.choice((1, 15, 16, 40, 70)) if size < 9000 else 20
            body += record * run
            records += run
        if dice.random() < 0.3:
            body[dice.randrange(len(body))] = dice.randrange(256)
        if dice.random() < 0.2:
            del body[dice.randrange(len(body)) :]
        array = np.frombuffer(body, np.uint8)
        spans = [columns_starts.Span(0, len(body), records)]
        found: list[tuple[list[int], list[int]] | None] = []
        for run_min in (16, 1 << 60):
            monkeypatch.setattr(columns_starts, "RUN_RECORDS_MIN", run_min)
            try:
                begins, ends = columns_starts.find_starts(body, array, spans)
                found.append((begins.tolist(), ends.tolist()))
            except MqError:
                found.append(None)
        assert found[0] == found[1], records
        long_runs += found[0] is not None and records >= 32
    assert long_runs > 50
