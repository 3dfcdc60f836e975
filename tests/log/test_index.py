from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from mqd.log.index import OffsetIndex, TimeIndex
from mqd.protocol.files import FileFormatError

PAIRS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=40)


def filled(
    steps: list[tuple[int, int]], base: int = 1000
) -> tuple[OffsetIndex, list[tuple[int, int]]]:
    index, offset, position = OffsetIndex(base), base, 0
    entries = []
    for offset_step, position_step in steps:
        offset += offset_step
        position += position_step
        index.append(offset, position)
        entries.append((offset, position))
    return index, entries


@given(PAIRS, st.integers(900, 3500))
def test_the_position_of_an_offset_is_the_last_entry_at_or_before_it(
    steps: list[tuple[int, int]], offset: int
) -> None:
    index, entries = filled(steps)
    assert index.position_of(offset) == max((p for o, p in entries if o <= offset), default=0)


@given(PAIRS, st.integers(0, 400_000))
def test_border_before_a_position(steps: list[tuple[int, int]], position: int) -> None:
    index, entries = filled(steps)
    assert index.batch_start_before(position) == max(
        (p for _, p in entries if p <= position), default=0
    )


@given(PAIRS, st.integers(900, 3500))
def test_file_and_memory_agree_also_after_truncation(
    steps: list[tuple[int, int]], end: int
) -> None:
    index, entries = filled(steps)
    data = index.take_unwritten()
    assert index.unwritten == 0 and index.take_unwritten() == b""
    again = OffsetIndex.load(1000, data, 1 << 30)
    assert again.encode() == data
    again.truncate(end, 1 << 30)
    assert len(again) == sum(o < end for o, _ in entries)
    assert again.unwritten == 0
    assert again.encode() == b"".join(
        OffsetIndex.load(1000, data, 1 << 30).encode()[i * 8 : i * 8 + 8] for i in range(len(again))
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        b"\0\0\0\5\0\0\0\5\0\0\0\5\0\0\0\6",
        b"\0\0\0\5\0\0\0\5\0\0\0\6\0\0\0\5",
        b"\0\0\0\5\0\0\0\5" + b"\0" * 8,
        b"\xff\xff\xff\xff\0\0\0\5",
        b"\0\0\0\5\0\0\1\0",
    ],
    ids=["cut", "offset-repeats", "position-repeats", "zero-filled", "negative", "beyond-the-log"],
)
def test_impossible_offset_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(FileFormatError):
        OffsetIndex.load(0, data, 256)


def test_time_index_keeps_ascending_timestamps_only() -> None:
    index = TimeIndex(100)
    for timestamp, offset in [(-1, 100), (5, 101), (5, 102), (4, 103), (9, 110)]:
        index.append(timestamp, offset)
    assert index.last() == (9, 110) and len(index) == 2
    assert [index.offset_before(t) for t in (0, 5, 6, 9, 10)] == [100, 100, 101, 101, 110]
    again = TimeIndex.load(100, index.take_unwritten())
    assert again.last() == (9, 110) and index.unwritten == 0
    again.truncate(110)
    assert again.last() == (5, 101)
    again.truncate(0)
    assert again.last() == (-1, 100)


BACKWARDS = b"\0" * 7 + b"\5\0\0\0\5" + b"\0" * 7 + b"\6\0\0\0\4"


@pytest.mark.parametrize("data", [b"\0" * 11, b"\0" * 24, BACKWARDS], ids=["cut", "zeros", "back"])
def test_impossible_time_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(FileFormatError):
        TimeIndex.load(0, data)
