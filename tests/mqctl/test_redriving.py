"""Progress of `mqctl dlq redrive`, and what dead letters contain."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from mqctl.committed import first_runs
from mqctl.redriving import (
    METADATA_CHARACTERS_MAX,
    PartitionProgress,
    decode_progress,
    encode_left,
    has_copy,
    origin_of,
    plan_of,
    restored_headers,
    target_of,
)
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

ORIGIN = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"17"),
]
TIME = ("__dlq.errors.timestamp", b"1700000000000")


@given(st.sets(st.integers(0, 60)))
def test_left_offsets_survive_the_metadata(left: set[int]) -> None:
    assert decode_progress(61, encode_left(left)) == PartitionProgress(61, left)


@pytest.mark.parametrize("metadata", ["", "host-1", "left:", "left:a-b", "left:1,,2"])
def test_other_metadata_counts_as_none(metadata: str) -> None:
    assert decode_progress(5, metadata) == PartitionProgress(5)


def test_a_left_letter_is_read_again_and_a_redriven_one_is_not() -> None:
    progress = PartitionProgress()
    progress.redriven(0)
    assert progress.leave(1)
    progress.redriven(2)
    again = decode_progress(progress.next_offset, encode_left(progress.left))
    assert again.start == 1
    assert [offset for offset in range(5) if again.wants(offset)] == [1, 3, 4]
    again.redriven(1)
    again.finish(0, 5)
    assert again == PartitionProgress(5)


def test_deleted_letters_are_not_left() -> None:
    progress = PartitionProgress(8, {2, 6})
    progress.finish(5, 9)
    assert progress == PartitionProgress(9, {6})


def test_the_metadata_is_bounded() -> None:
    progress = PartitionProgress()
    offset = 10**15
    while progress.leave(offset):
        offset += 2
    assert len(encode_left(progress.left)) <= METADATA_CHARACTERS_MAX
    assert progress.next_offset == offset - 1 and not progress.left & {offset}


def test_a_letter_names_its_original() -> None:
    bare = Record(0, 0, None, None, [*ORIGIN, TIME])
    assert not has_copy(bare)
    assert target_of(bare) == "orders"
    found = origin_of(bare)
    assert found == (TopicPartition("orders", 3), 17, 1_700_000_000_000)
    assert origin_of(Record(0, 0, None, None, ORIGIN)) is None
    assert origin_of(Record(0, 0, None, None, [("__dlq.errors.partition", b"x"), TIME])) is None
    relayed = bare._replace(headers=[*bare.headers, ("mqd-dlq-target", b"first")])
    assert target_of(relayed) == "first" and origin_of(relayed) == found


def test_only_what_the_original_had_is_a_copy() -> None:
    """A letter of a relay has headers of the relay, with or without a copy of the record."""
    bare = Record(0, 0, None, None, [*ORIGIN, TIME, ("mqd-dlq-target", b"first"), ("mqd-due", b"")])
    assert not has_copy(bare)
    assert has_copy(bare._replace(key=b""))
    assert has_copy(bare._replace(value=b""))
    assert has_copy(bare._replace(headers=[*bare.headers, ("own", None)]))


def test_originals_are_read_without_long_gaps() -> None:
    a, b = TopicPartition("orders", 0), TopicPartition("orders", 1)
    wanted = {(a, 5), (a, 7), (a, 1007), (a, 2008), (b, 3)}
    assert first_runs(wanted) == {a: (5, 1007), b: (3, 3)}
    assert first_runs({(a, 2008)}) == {a: (2008, 2008)}


def test_the_plan_names_each_topic_with_its_count() -> None:
    assert plan_of("dead", {"orders": 3, None: 2, "a\x1b[2J": 1}).splitlines() == [
        "Write the dead letters of 'dead' to these topics:",
        "  'a\\x1b[2J': 1",
        "  'orders': 3",
        "  none, so they are left: 2",
    ]
    assert plan_of("dead", {}) == "All dead letters of 'dead' are redriven."


def test_headers_of_delays_and_letters_are_removed() -> None:
    assert restored_headers([*ORIGIN, ("mqd-delay", b"1"), ("own", None)]) == [("own", None)]
