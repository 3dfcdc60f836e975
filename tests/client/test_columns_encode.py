"""Arrow columns to record batches: reading record by record returns the input, in order."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from mqd.client import columns_encode, columns_hash
from mqd.client.columns import EncodedBatch, decode, encode, partition_for_keys, schema
from mqd.client.errors import ClientError
from mqd.client.partitioner import murmur2, partition_for_key
from mqd.errors import ErrorCode
from mqd.protocol.batch import parse_header, validate
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import check_records, iterate_records
from tests.client.columns_reference import PythonBatch, rows_of

HEADERS = schema(["headers"]).field(0).type
FIELDS = st.none() | st.binary(max_size=70) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 9000])
PAIRS = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=5)}),
    max_size=3,
)
ROWS = st.lists(
    st.tuples(
        FIELDS,
        FIELDS,
        st.integers(0, 4),
        st.integers(-1, 2**42),
        st.none() | PAIRS,
    ),
    max_size=20,
)


def _column(values: list[Any], kind: pa.DataType, ahead: int = 0) -> pa.Array:
    """With `ahead`, a slice of a longer array."""
    return pa.array([*values[:1] * ahead, *values, *values[:1] * ahead], kind).slice(
        ahead if values else 0, len(values)
    )


def _read(batches: list[EncodedBatch]) -> dict[int, list[tuple[Any, ...]]]:
    """(key, value, timestamp, headers) of the records of each partition, read record by record;
    every batch is checked completely.
    """
    found: dict[int, list[tuple[Any, ...]]] = {}
    for batch in batches:
        batch.finish(1, 2, 3, transactional=False)
        assert check_records(batch.data).records_count == batch.records
        rows = found.setdefault(batch.partition, [])
        rows += [
            (r.key, r.value, r.timestamp, list(r.headers)) for r in iterate_records(batch.data)
        ]
    return found


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from(Codec), st.integers(1, 400), st.integers(0, 2), st.booleans())
def test_read_back(
    rows: list[Any], codec: Codec, batch_bytes: int, ahead: int, plain: bool
) -> None:
    batches = encode(
        _column([row[0] for row in rows], pa.binary(), ahead),
        _column([row[1] for row in rows], pa.binary(), ahead),
        np.array([row[2] for row in rows], np.int32),
        timestamps_ms=77 if plain else _column([row[3] for row in rows], pa.int64(), ahead),
        headers=None if plain else _column([row[4] for row in rows], HEADERS, ahead),
        codec=codec,
        batch_bytes=batch_bytes,
    )
    want: dict[int, list[tuple[Any, ...]]] = {}
    for key, value, partition, stamp, headers in rows:
        pairs = [] if plain else [(pair["key"], pair["value"]) for pair in headers or ()]
        want.setdefault(partition, []).append((key, value, 77 if plain else stamp, pairs))
    assert _read(batches) == want
    for batch in batches:
        stamps = [record.timestamp for record in iterate_records(batch.data)]
        header = parse_header(batch.data)
        assert (header.base_timestamp, header.max_timestamp) == (stamps[0], max(stamps))
        assert header.codec == codec


def test_both_directions() -> None:
    dice = random.Random(3)
    keys = pa.array([dice.choice((None, dice.randbytes(9))) for _ in range(900)], pa.binary())
    values = pa.array([dice.randbytes(dice.randrange(200)) for _ in range(900)], pa.binary())
    batches = encode(keys, values, np.zeros(900, np.int32), timestamps_ms=5, batch_bytes=10_000)
    data, offset = bytearray(), 0
    for batch in batches:
        batch.finish(-1, -1, -1, transactional=False)
        batch.data[:8] = offset.to_bytes(8, "big")
        offset += batch.records
        data += batch.data
    rows = rows_of(decode(data, "t", 0))
    assert [row["key"] for row in rows] == keys.to_pylist()
    assert [row["value"] for row in rows] == values.to_pylist()
    assert [row["offset"] for row in rows] == list(range(900))
    assert len(batches) > 5


def test_equal_to_a_batch_built_record_by_record() -> None:
    dice = random.Random(4)
    rows = [
        (dice.randbytes(dice.randrange(90)), dice.randbytes(dice.randrange(9000)))
        for _ in range(300)
    ]
    keys, values = (pa.array(list(column), pa.binary()) for column in zip(*rows, strict=True))
    (batch,) = encode(keys, values, np.zeros(300, np.int32), timestamps_ms=9, batch_bytes=1 << 30)
    batch.finish(8, 1, 4, transactional=True)
    assert batch.data == build_batch(
        rows, timestamp=9, producer_id=8, producer_epoch=1, base_sequence=4, transactional=True
    )


def test_a_stock_client_reads_it() -> None:
    """kafka-python's reader."""
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []]
    batches = encode(
        pa.array([b"k", None, b""]),
        pa.array([b"v" * 100, b"", None], pa.binary()),
        np.zeros(3, np.int32),
        timestamps_ms=pa.array([1_700_000_000_000, 1_700_000_000_500, 1_699_999_999_999]),
        headers=pa.array(headers, HEADERS),
        codec=Codec.GZIP,
    )
    (batch,) = batches
    batch.finish(-1, -1, -1, transactional=False)
    reader = PythonBatch(bytes(batch.data))
    assert reader.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in reader] == [
        (0, 1_700_000_000_000, b"k", b"v" * 100, [("a", b"1"), ("b", None)]),
        (1, 1_700_000_000_500, None, b"", []),
        (2, 1_699_999_999_999, b"", None, []),
    ]


def test_batches_are_bounded_and_large_rows_are_sent_alone() -> None:
    sizes = [10, 10, 5_000, 10, 900, 900, 10]
    values = pa.array([b"v" * size for size in sizes], pa.binary())
    keys = pa.nulls(7, pa.binary())
    batches = encode(keys, values, np.zeros(7, np.int32), timestamps_ms=0, batch_bytes=1_000)
    assert [batch.records for batch in batches] == [2, 1, 2, 2]
    assert all(len(batch.data) <= 1_000 + 61 for batch in batches if batch.records > 1)
    one = encode(keys, values, np.zeros(7, np.int32), timestamps_ms=0, batch_bytes=1)
    assert [batch.records for batch in one] == [1] * 7


def test_rows_are_joined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's 32-bit offsets bound what one call may join."""
    monkeypatch.setattr(columns_encode, "JOINED_BYTES_MAX", 700)
    values = pa.array([b"%d" % i * 30 for i in range(100)], pa.binary())
    stamps = pa.array(range(100), pa.int64())
    headers = pa.array([[{"key": "h", "value": b"%d" % i}] for i in range(100)], HEADERS)
    partitions = np.arange(100, dtype=np.int32) % 3
    found = _read(encode(values, values, partitions, timestamps_ms=stamps, headers=headers))
    for partition, rows in found.items():
        own = range(partition, 100, 3)
        assert rows == [(values[i].as_py(), values[i].as_py(), i, [("h", b"%d" % i)]) for i in own]


def test_a_record_larger_than_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_encode, "RECORD_BYTES_MAX", 1_000)
    values = pa.array([b"v", b"v" * 990])
    with pytest.raises(ClientError, match="a record takes 1012 bytes") as caught:
        encode(pa.nulls(2, pa.binary()), values, np.zeros(2, np.int32), timestamps_ms=0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_headers_of_a_null_list_are_not_sent() -> None:
    """Nor are those of rows outside a slice."""
    pairs = pa.array([{"key": f"h{i}", "value": b"x"} for i in range(6)], HEADERS.value_type)
    offsets = pa.py_buffer(np.array([0, 1, 3, 4, 6], np.int32))
    column = pa.Array.from_buffers(
        HEADERS, 4, [pa.py_buffer(b"\x0d"), offsets], children=[pairs]
    ).slice(1)
    keys = pa.array([b"a", b"b", b"c"])
    found = _read(encode(keys, keys, np.zeros(3, np.int32), timestamps_ms=0, headers=column))
    assert [row[3] for row in found[0]] == [[], [("h3", b"x")], [("h4", b"x"), ("h5", b"x")]]


def test_nulls_that_have_bytes_below_them() -> None:
    """Arrow allows a null to have bytes in the data; they must not be sent."""
    data, offsets = pa.py_buffer(b"aabbcc"), pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert column.to_pylist() == [b"aa", None, b"cc"]
    found = _read(encode(column, column, np.zeros(3, np.int32), timestamps_ms=0))
    assert found == {0: [(b"aa", b"aa", 0, []), (None, None, 0, []), (b"cc", b"cc", 0, [])]}


def test_finish_again_with_other_producer_numbers() -> None:
    (batch,) = encode(
        pa.array([b"k"]), pa.array([b"v"]), np.array([4]), timestamps_ms=0, codec=Codec.ZSTD
    )
    for numbers in ((5, 1, 9), (6, 0, 0), (-1, -1, -1)):
        for transactional in (True, False):
            batch.finish(*numbers, transactional=transactional)
            header = validate(batch.data)
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == numbers
            assert header.is_transactional == transactional
            assert (header.codec, batch.partition, batch.records) == (Codec.ZSTD, 4, 1)


def test_no_rows_no_batches() -> None:
    empty = pa.array([], pa.binary())
    nobody = np.zeros(0, np.int32)
    assert encode(empty, empty, nobody, timestamps_ms=pa.array([], pa.int64())) == []
    assert encode(empty, empty, nobody, timestamps_ms=0, headers=pa.array([], HEADERS)) == []
    assert partition_for_keys(empty, 3).tolist() == []


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("'keys' has type string", {"keys": pa.array(["k"])}),
    ("'values' has type large_binary", {"values": pa.array([b"v"], pa.large_binary())}),
    ("'keys' has 2 rows", {"keys": pa.array([b"k", b"k"])}),
    ("'partitions' has 0 rows", {"partitions": np.zeros(0, np.int32)}),
    ("'partitions' has a negative", {"partitions": np.array([-1])}),
    ("'timestamps_ms' has a null", {"timestamps_ms": pa.array([None], pa.int64())}),
    ("'timestamps_ms' has type", {"timestamps_ms": pa.array([1.5])}),
    ("'timestamps_ms' has", {"timestamps_ms": pa.array([2**63 - 1])}),
    ("'timestamps_ms' has", {"timestamps_ms": -(2**63)}),
    ("'headers' has type", {"headers": pa.array([["h"]])}),
    ("'headers' has 0 rows", {"headers": pa.array([], HEADERS)}),
    ("header without a key", {"headers": pa.array([[{"key": None, "value": b""}]], HEADERS)}),
    ("header without a key", {"headers": pa.array([[None]], HEADERS)}),
    ("'batch_bytes' is 0", {"batch_bytes": 0}),
]


@pytest.mark.parametrize(("words", "changed"), REFUSED)
def test_invalid_arguments(words: str, changed: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "keys": pa.array([b"k"]),
        "values": pa.array([b"v"]),
        "partitions": np.zeros(1, np.int32),
        "timestamps_ms": 0,
    }
    assert len(encode(**arguments)) == 1
    with pytest.raises(ClientError, match=words) as caught:
        encode(**{**arguments, **changed})
    assert caught.value.remedy


# -- murmur2


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=40), max_size=60),
    st.integers(1, 999),
    st.integers(0, 3),
)
def test_partitions_are_those_of_java(keys: list[bytes | None], count: int, ahead: int) -> None:
    got = partition_for_keys(_column(keys, pa.binary(), ahead), count)
    assert got.dtype == np.int32
    assert got.tolist() == [-1 if key is None else partition_for_key(key, count) for key in keys]


def test_hash_of_many_keys_of_one_length_and_of_all_lengths() -> None:
    dice = random.Random(5)
    for sizes in (
        [12] * 500,
        [7] * 40,
        [0] * 40,
        [dice.randrange(9) for _ in range(700)],
        [3_000, 5],
    ):
        keys = [dice.randbytes(size) for size in sizes]
        assert columns_hash.hash_keys(pa.array(keys, pa.binary())).tolist() == list(
            map(murmur2, keys)
        )


def test_a_topic_without_partitions() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        partition_for_keys(pa.array([b"k"]), 0)
