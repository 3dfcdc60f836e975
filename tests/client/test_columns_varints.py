"""Varints by columns: equal to `mqd.protocol.batch.read_varint` and `write_varint`, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mqd.client.columns_varints import (
    read_varints,
    read_varlongs,
    skip_varints,
    varint_sizes,
    write_varints,
)
from mqd.errors import MqError
from mqd.protocol.batch_builder import write_varint
from mqd.protocol.record_reader import read_varint

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-70, 70) | st.integers(-9_000, 9_000)


def _packed(numbers: list[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    data, positions = bytearray(), []
    for number in numbers:
        positions.append(len(data))
        write_varint(data, number)
    return np.frombuffer(bytes(data), np.uint8), np.array(positions, np.int64)


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL, min_size=1) | st.lists(SMALL | INT32, min_size=1))
def test_read_32_bits(numbers: list[int]) -> None:
    data, positions = _packed(numbers)
    values, behind = read_varints(data, positions)
    assert values.tolist() == numbers
    assert behind.tolist() == [*positions[1:].tolist(), len(data)]
    assert skip_varints(data, positions, 5).tolist() == behind.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL | INT32 | INT64, min_size=1))
def test_read_and_write_64_bits(numbers: list[int]) -> None:
    data, positions = _packed(numbers)
    values, behind = read_varlongs(data, positions)
    assert values.tolist() == numbers
    assert behind.tolist() == [*positions[1:].tolist(), len(data)]
    assert skip_varints(data, positions, 10).tolist() == behind.tolist()
    signed = np.array(numbers, np.int64)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    out = np.zeros(len(data), np.uint8)
    write_varints(out, positions, zigzag, varint_sizes(zigzag))
    assert out.tobytes() == data.tobytes()


@pytest.mark.parametrize("bytes_max", [5, 10])
def test_varints_without_end_or_too_large(bytes_max: int) -> None:
    """Varints of every length, with every last byte, next to a valid one."""
    read = read_varints if bytes_max == 5 else read_varlongs
    for size in range(1, 13):
        for last in (0x00, 0x01, 0x02, 0x0F, 0x10, 0x7F):
            for fill in (0x80, 0xFF):
                data = bytes([fill] * (size - 1) + [last, 0x02])
                array, positions = np.frombuffer(data, np.uint8), np.array([0, size])
                try:
                    want = read_varint(data, 0, bytes_max)
                except MqError:
                    with pytest.raises(MqError):
                        read(array, positions)
                    if size > bytes_max:
                        with pytest.raises(MqError):
                            skip_varints(array, positions, bytes_max)
                    continue
                values, behind = read(array, positions)
                assert (values.tolist(), behind.tolist()) == ([want[0], 1], [want[1], size + 1])


def test_nothing_is_read_beyond_the_buffer() -> None:
    for data in (b"\x80", b"\x80\x80\x80", b"\x02"):
        array, positions = np.frombuffer(data, np.uint8), np.array([0, len(data)])
        with pytest.raises(IndexError):
            read_varints(array, positions)
        with pytest.raises(IndexError):
            read_varlongs(array, positions)
        with pytest.raises(IndexError):
            skip_varints(array, positions, 5)
