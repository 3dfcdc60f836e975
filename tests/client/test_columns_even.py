"""Records of one shape: the fast path writes the same bytes as the general one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mqd.client.columns import encode
from mqd.client.columns_even import EvenRecords
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import check_records


def _column(size: int | None, count: int, dice: random.Random) -> pa.Array:
    """A slice of a longer column."""
    if size is None:
        return pa.nulls(count, pa.binary())
    return pa.array([dice.randbytes(size) for _ in range(count + 2)], pa.binary()).slice(1, count)


def _general(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> list[bytes]:
    with monkeypatch.context() as patch:
        patch.setattr(EvenRecords, "of", lambda *_: None)
        return [bytes(batch.data) for batch in encode(**arguments)]


@pytest.mark.parametrize("key_size", [None, 0, 12, 64])
@pytest.mark.parametrize("value_size", [None, 0, 1, 100, 9_000])
@pytest.mark.parametrize("partition_count", [1, 3])
def test_the_fast_path_equals_the_general_path(
    monkeypatch: pytest.MonkeyPatch,
    key_size: int | None,
    value_size: int | None,
    partition_count: int,
) -> None:
    dice = random.Random(7)
    count = 20 if value_size == 9_000 else 9_000  # offsets of one, two and three bytes
    keys, values = _column(key_size, count, dice), _column(value_size, count, dice)
    assert EvenRecords.of(keys, values, count) is not None
    arguments = {
        "keys": keys,
        "values": values,
        "partitions": np.arange(count, dtype=np.int32) % partition_count,
        "timestamps_ms": 1_790_000_000_000,
        "batch_bytes": 2**30,
    }
    batches = encode(**arguments)
    assert [bytes(batch.data) for batch in batches] == _general(monkeypatch, **arguments)
    for batch in batches:
        batch.finish(4, 0, 9, transactional=True)
        assert check_records(batch.data).records_count == batch.records


@pytest.mark.parametrize("codec", list(Codec))
def test_many_batches_with_a_codec(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    dice = random.Random(8)
    arguments = {
        "keys": _column(8, 2_000, dice),
        "values": _column(50, 2_000, dice),
        "partitions": np.array([dice.randrange(4) for _ in range(2_000)], np.int32),
        "timestamps_ms": 5,
        "codec": codec,
        "batch_bytes": 10_000,
    }
    batches = [bytes(batch.data) for batch in encode(**arguments)]
    assert len(batches) > 10
    assert batches == _general(monkeypatch, **arguments)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ab"] * 40 + [b"a"]),
        pa.array([b"ab"] * 40 + [None], pa.binary()),
        pa.array([b"x" * 70_000] * 41),
    ],
    ids=["two sizes", "a null among values", "large values"],
)
def test_other_rows_take_the_general_path(column: pa.Array) -> None:
    assert EvenRecords.of(column, column, 41) is None
    assert EvenRecords.of(pa.nulls(41, pa.binary()), column, 41) is None
