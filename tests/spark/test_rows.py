"""Rows of Arrow batches as record batches: topics, partitions, headers, limits and sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mqd.client.columns import decode, partition_for_keys
from pyspark_mqd.connection import Connection
from pyspark_mqd.markers import RowSum
from pyspark_mqd.row_hashes import field_hashes, row_sum
from pyspark_mqd.rows import (
    BYTES_MAX,
    ROWS_WANTED,
    RowEncoder,
    RowError,
    TaskHeaders,
    coalesced,
)
from pyspark_mqd.sink_options import Columns, SinkOptions, columns_of

NOW_MS = 1_700_000_000_123
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int32(): "int",
    HEADERS: "array<struct<key:string,value:binary>>",
    pa.timestamp("us", "UTC"): "timestamp",
}


def encoder(
    batch: pa.RecordBatch, *, counts: Any = 3, headers: TaskHeaders | None = None, **options: Any
) -> RowEncoder:
    chosen = SinkOptions(Connection("127.0.0.1:9092"), **options)
    fields = [(field.name, SPARK_TYPES[field.type]) for field in batch.schema]
    columns: Columns = columns_of(fields, chosen)
    return RowEncoder(
        chosen,
        columns,
        partition_count=lambda topic, fresh: counts if isinstance(counts, int) else counts[fresh],
        now_ms=lambda: NOW_MS,
        task_headers=headers,
        summed=True,
    )


def rows_of(encoded: Any, columns: tuple[str, ...] = ("key", "value")) -> dict[Any, list[Any]]:
    """(topic, partition) -> its rows, as tuples."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for topic, batch in encoded:
        batch.finish(1, 0, 0, transactional=False)
        for part in decode(bytes(batch.data), topic, batch.partition, columns=columns):
            found[topic, batch.partition] += [tuple(row.values()) for row in part.to_pylist()]
    return dict(found)


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_keys_choose_partitions_as_in_kafka() -> None:
    keys = pa.array([f"key-{number}" for number in range(100)])
    batch = batch_of(key=keys, value=keys)

    found = rows_of(encoder(batch, topic="t").encode(batch))

    numbers = partition_for_keys(keys.cast(pa.binary()), 3)
    for partition in range(3):
        expected = [row.as_py().encode() for row, at in zip(keys, numbers) if at == partition]
        assert found["t", partition] == [(key, key) for key in expected]


def test_rows_without_a_key_fill_one_batch_after_the_other() -> None:
    batch = batch_of(value=pa.array([b"x" * 30] * 30))
    sink = encoder(batch, topic="t", batch_bytes=1000)

    def rows() -> list[tuple[int, int]]:
        return [(each.partition, each.records) for _, each in sink.encode(batch)]

    assert rows() == [(0, 19), (0, 1), (1, 10)]
    assert rows() == [(0, 2), (1, 9), (2, 19)]  # partition 1 is filled before 2 and 0
    assert sink.rows == 60


def test_a_null_value_is_a_tombstone_and_strings_are_taken() -> None:
    batch = batch_of(key=pa.array(["a", None, "c"]), value=pa.array([None, "y", ""]))

    found = rows_of(encoder(batch, topic="t", counts=1).encode(batch))

    assert found["t", 0] == [(b"a", None), (None, b"y"), (b"c", b"")]


def test_the_topic_column_separates_rows_and_keeps_their_order() -> None:
    batch = batch_of(
        topic=pa.array(["b", "a", "b", "a"]),
        value=pa.array([b"1", b"2", b"3", b"4"]),
        partition=pa.array([0, 2, 0, 2], pa.int32()),
    )

    found = rows_of(encoder(batch).encode(batch))

    assert found == {("b", 0): [(None, b"1"), (None, b"3")], ("a", 2): [(None, b"2"), (None, b"4")]}
    assert rows_of(encoder(batch, topic="c").encode(batch)).keys() == {("c", 0), ("c", 2)}


def test_a_null_topic_gets_sparks_error_message() -> None:
    batch = batch_of(topic=pa.array(["b", None]), value=pa.array([b"1", b"2"]))

    with pytest.raises(RowError, match="contains a null topic"):
        list(encoder(batch).encode(batch))


def test_a_null_partition_leaves_the_choice_to_the_key() -> None:
    batch = batch_of(
        key=pa.array(["a", "a"]),
        value=pa.array([b"1", b"2"]),
        partition=pa.array([None, 0], pa.int32()),
    )
    by_key = int(partition_for_keys(pa.array([b"a"]), 5)[0])
    assert by_key != 0

    found = rows_of(encoder(batch, topic="t", counts=5).encode(batch))

    assert found == {("t", by_key): [(b"a", b"1")], ("t", 0): [(b"a", b"2")]}


def test_partitions_that_do_not_exist_are_refused() -> None:
    batch = batch_of(value=pa.array([b"1"]), partition=pa.array([3], pa.int32()))
    negative = batch_of(value=pa.array([b"1"]), partition=pa.array([-1], pa.int32()))

    with pytest.raises(RowError, match="Partition 3 of topic t with partition count 3"):
        list(encoder(batch, topic="t").encode(batch))
    with pytest.raises(RowError, match="Invalid partition: -1"):
        list(encoder(negative, topic="t").encode(negative))


def test_the_count_is_requested_again_when_a_partition_is_new() -> None:
    batch = batch_of(value=pa.array([b"1"]), partition=pa.array([3], pa.int32()))

    found = rows_of(encoder(batch, topic="t", counts={False: 3, True: 4}).encode(batch))

    assert found.keys() == {("t", 3)}


def test_headers_are_written_and_task_headers_follow() -> None:
    own = pa.array([[("a", b"1"), ("b", None)], None, []], HEADERS)
    batch = batch_of(value=pa.array([b"x", b"y", b"z"]), headers=own)
    task = TaskHeaders("q", "7", "2")

    plain = rows_of(encoder(batch, topic="t", counts=1).encode(batch), ("headers",))
    both = rows_of(encoder(batch, topic="t", counts=1, headers=task).encode(batch), ("headers",))

    def shown(found: Any) -> list[Any]:
        return [row and [(pair["key"], pair["value"]) for pair in row] for (row,) in found["t", 0]]

    assert shown(plain) == [[("a", b"1"), ("b", None)], None, None]
    fixed = [("spark.query", b"q"), ("spark.batch", b"7"), ("spark.task", b"2")]
    assert shown(both) == [
        [("a", b"1"), ("b", None), *fixed, ("spark.seq", b"0")],
        [*fixed, ("spark.seq", b"1")],
        [*fixed, ("spark.seq", b"2")],
    ]


def test_task_headers_count_on_in_the_next_batch() -> None:
    batch = batch_of(value=pa.array([b"x", b"y"]))
    sink = encoder(batch, topic="t", counts=1, headers=TaskHeaders("q", "7", "2"))

    found = rows_of([*sink.encode(batch), *sink.encode(batch)], ("headers",))

    assert [row[-1]["value"] for (row,) in found["t", 0]] == [b"0", b"1", b"2", b"3"]


def test_timestamps_are_now_or_of_the_column() -> None:
    stamps = pa.array([NOW_MS * 1000 + 999, None], pa.timestamp("us", "UTC"))
    batch = batch_of(value=pa.array([b"x", b"y"]), at=stamps)

    def stamped(**options: Any) -> list[int]:
        found = rows_of(
            encoder(batch, topic="t", counts=1, **options).encode(batch), ("timestamp",)
        )
        return [int(row.timestamp() * 1000) for (row,) in found["t", 0]]

    assert stamped() == [NOW_MS, NOW_MS]
    assert stamped(timestamp_column="at") == [NOW_MS, NOW_MS]


def test_a_message_that_is_too_large_gets_kafkas_error_message() -> None:
    batch = batch_of(value=pa.array([b"x", b"y" * 2000]))

    with pytest.raises(RowError, match=r"larger than 1000, which is the value of the max.request"):
        list(encoder(batch, topic="t", request_bytes_max=1000).encode(batch))


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    small = batch_of(value=pa.array([b"x"] * 1000))
    joined = list(coalesced([small] * 40 + [small.slice(0, 0)]))
    assert [each.num_rows for each in joined] == [33_000, 7_000]
    assert ROWS_WANTED <= 33_000

    large = batch_of(value=pa.array([b"x" * 100_000] * 400))
    cut = list(coalesced([large]))
    assert sum(each.num_rows for each in cut) == 400
    assert len(cut) == 3
    assert all(each.num_rows * 100_000 <= BYTES_MAX for each in cut)


def test_sums_do_not_depend_on_order_or_batches() -> None:
    dice = np.random.default_rng(5)
    rows = [(dice.bytes(5) if number % 3 else None, dice.bytes(40)) for number in range(50)]

    def summed(some: list[Any]) -> RowSum:
        keys, values = (pa.array([row[at] for row in some], pa.binary()) for at in (0, 1))
        return row_sum(keys, values)

    whole = summed(rows)
    assert whole == summed(rows[::-1]) == summed(rows[:20]) + summed(rows[20:])
    keys, values = (pa.array([row[at] for row in rows], pa.binary()) for at in (0, 1))
    assert row_sum(keys[7:], values[7:]) == summed(rows[7:])
    assert whole.hashes != summed([*rows[1:], (rows[0][0], b"x" * 40)]).hashes
    assert summed([]) == RowSum()


def test_the_encoder_sums_what_it_encodes() -> None:
    batch = batch_of(key=pa.array(["a", None]), value=pa.array([b"1", b"23"]))
    sink = encoder(batch, topic="t")
    list(sink.encode(batch))
    other = encoder(batch, topic="t")
    other.count_only(batch)

    assert sink.sum == other.sum == row_sum(pa.array([b"a", None]), pa.array([b"1", b"23"]))
    assert sink.rows == other.rows == 2


def test_hashes_distinguish_rows() -> None:
    """Every byte counts, its place counts, and so do lengths, nulls, and which key has a value."""
    fields = [None, b"", b"\0", b"\0\0", b"1", b"12", b"21", b"1234567", b"12345678", b"12345687"]
    fields += [
        b"123456789",
        b"1" * 16,
        b"1" * 17,
        b"1" * 15 + b"2",
        b"x" * 9000,
        b"x" * 8999 + b"y",
    ]
    hashes = field_hashes(pa.array(fields, pa.binary()))
    assert len(set(hashes.tolist())) == len(fields)
    for chosen in ([3, 7, 12], [12, 7, 3], [15, 0, 9]):
        some = pa.array([fields[place] for place in chosen], pa.binary())
        assert field_hashes(some).tolist() == [int(hashes[place]) for place in chosen]
    for length in range(1, 40):
        field = bytearray(b"a" * length)
        seen = {int(field_hashes(pa.array([bytes(field)]))[0])}
        for place in range(length):
            field[place] ^= 1
            seen.add(int(field_hashes(pa.array([bytes(field)]))[0]))
            field[place] ^= 1
        assert len(seen) == length + 1
    keys, values = pa.array([b"k1", b"k2"]), pa.array([b"v1", b"v2"])
    assert row_sum(keys, values) != row_sum(keys, values.take(pa.array([1, 0])))
