"""Key filters: no key is ever missing, few others are found, and the format is checked."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings, strategies as st

from mqd.protocol import key_filter
from mqd.protocol.batch import parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.files import FileFormatError
from mqd.protocol.key_filter import (
    KeyFilter,
    KeyFilterBuilder,
    Section,
    SegmentState,
    hash_of,
    section_bytes,
)
from mqd.protocol.key_scan import Bounds, Place, add_hashes, places_with_key, record_at
from mqd.protocol.record_reader import Record, record_bytes


def built(sections: list[set[bytes]], keys_max: int | None = None) -> bytes:
    most = max(map(len, sections)) if keys_max is None else keys_max
    builder = KeyFilterBuilder(len(sections), most)
    for number, keys in enumerate(sections):
        builder.add(number, map(hash_of, keys))
    rows = [Section(at * 10, at * 5, -at, at) for at in range(len(sections))]
    state = SegmentState(0, len(sections) * 5, len(sections) * 10, 0, 7)
    return b"".join(builder.encode(state, rows))


def opened(data: bytes) -> KeyFilter:
    return KeyFilter(lambda position, size: data[position : position + size])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sets(st.binary(max_size=12), max_size=30), min_size=1, max_size=20))
def test_each_key_is_found_in_its_sections(sections: list[set[bytes]]) -> None:
    data = built(sections)
    found = opened(data)
    assert found.size == len(data)
    assert [section.position for section in found.sections] == list(range(0, len(data), 10))[
        : len(sections)
    ]
    for key in set().union(*sections):
        wanted = {number for number, keys in enumerate(sections) if key in keys}
        assert wanted <= set(found.candidates(hash_of(key)))


@pytest.mark.parametrize("keys_max", (1000, 50_000))
def test_few_other_keys_are_found(keys_max: int) -> None:
    """With room for more keys than there are, too: then the filter is halved."""
    sections = [{b"%d-%d" % (number, at) for at in range(1000)} for number in range(9)]
    data = built(sections, keys_max)
    found = opened(data)
    others = sum(len(found.candidates(hash_of(b"other-%d" % at))) for at in range(2000))
    assert others < 2000 * 9 * 0.01
    assert len(data) < 9 * 1000 * 2 * 3


def test_a_large_segment_has_a_bounded_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "KEY_FILTER_BYTES_MAX", 1 << 16)
    sections = [{b"%d-%d" % (number, at) for at in range(3000)} for number in range(64)]
    data = built(sections)
    assert len(data) <= (1 << 16) + 10_000
    found = opened(data)
    assert all(5 in found.candidates(hash_of(key)) for key in sections[5])


def test_a_section_may_have_any_key() -> None:
    builder = KeyFilterBuilder(3, 10)
    builder.add_all(1)
    data = b"".join(builder.encode(SegmentState(0, 3, 30, 20, 7), [Section(0, 0, 0, 0)] * 3))
    assert opened(data).candidates(hash_of(b"k")) == [1]


def test_each_damage_is_found() -> None:
    data = built([{b"a", b"b"}, {b"c"}])
    whole = opened(data)
    whole.check()
    for position in range(0, len(data), 7):
        damaged = data[:position] + bytes([data[position] ^ 0x20]) + data[position + 1 :]
        with pytest.raises(FileFormatError):
            opened(damaged).check()
    for size in range(0, len(data) - 1, 13):
        with pytest.raises(FileFormatError):
            opened(data[:size]).check()


def test_sections_of_segments() -> None:
    assert section_bytes(100) == 1 << 14
    assert section_bytes(32 << 20) == 1 << 19
    assert section_bytes(1 << 30) == 1 << 20


EVERYTHING = Bounds(0, 1 << 60, -(1 << 60), 1 << 60)
keys = st.one_of(st.none(), st.sampled_from((b"", b"k", b"key" * 50)), st.binary(max_size=3))
rows = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-(2**40), 2**40),
        keys,
        st.one_of(st.none(), st.binary(max_size=200)),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=50)
@given(rows, st.booleans())
def test_scans_find_each_key(records: list[Record], fixed: bool) -> None:
    data = build_batch(records, log_append_time=77 if fixed else None, base_offset=5)
    header = parse_header(data)
    content = record_bytes(data, header, 1 << 20)
    hashes: set[int] = set()
    smallest, largest = add_hashes(content, header, hash_of, hashes)
    assert hashes == {hash_of(one.key) for one in records if one.key is not None}
    times = [77] if fixed else [one.timestamp for one in records]
    assert (smallest, largest) == (min(times), max(times))
    for key in (b"", b"k", b"key" * 50, b"absent"):
        places: deque[Place] = deque()
        for _ in places_with_key(
            content, header, key, Bounds(0, 1 << 60, -(1 << 60), 1 << 60), places
        ):
            pass
        found = [record_at(content, place, 100) for place in places]
        assert [(one.offset, one.value) for one in found] == [
            (5 + at, one.value) for at, one in enumerate(records) if one.key == key
        ]
