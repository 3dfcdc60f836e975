"""Plans of `mqctl group seek`, and its files."""

from __future__ import annotations

import pytest

from mqctl.places import Place
from mqctl.seeking import Bounds, Step, Target, choose, parse_file, plan_file, plan_seek, write_file
from mqd.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("target", "after", "note"),
    [
        (Place(word="beginning"), 10, None),
        (Place(word="end"), 90, None),
        (Place(offset=33), 33, None),
        (Place(offset=3), 10, "3 is before the log start"),
        (Place(offset=91), 90, "91 is beyond the log end"),
        (Place(before_end=5), 85, None),
        (Place(before_end=500), 10, None),
        (Place(timestamp_ms=7), 44, None),
        ("current", 50, None),
        (-7, 43, None),
        (-70, 10, "-20 is before the log start"),
        (100, 90, "150 is beyond the log end"),
    ],
)
def test_places_and_shifts_within_the_log(target: Target, after: int, note: str | None) -> None:
    assert plan_seek(target, {A0: 50}, {A0: Bounds(10, 90, 44)}) == [Step(A0, 50, after, note)]


def test_without_a_committed_offset_shift_fails_and_current_is_the_log_end() -> None:
    with pytest.raises(ValueError, match="cannot shift the offset of a-0"):
        plan_seek(5, {}, {A0: Bounds(10, 90)})
    assert plan_seek("current", {}, {A0: Bounds(10, 90)}) == [Step(A0, None, 90)]
    assert plan_seek(Place(timestamp_ms=7), {}, {A0: Bounds(10, 90, -1)}) == [Step(A0, None, 90)]


def test_offset_files_round_trip_and_may_name_groups() -> None:
    offsets = {B0: 7, A1: 5, A0: 0, TopicPartition('c,"d', 0): 1}
    assert parse_file(write_file(offsets), "g") == offsets
    assert write_file({B0: 7, A0: 0}) == "a,0,0\nb,0,7\n"
    assert parse_file('"g","a",0,5\nother,a,0,6\n\n', "g") == {A0: 5}
    assert plan_file({A0: 5}, {A0: 1}, {A0: Bounds(0, 9)}) == [Step(A0, 1, 5)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,0", "line 1"),
        ("a,0,1\na,x,1", "line 2"),
        ("a,0,-1", "line 1"),
        ("a,0,1\na,0,2", "duplicate"),
        ("h,a,0,1", "no offsets of"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_file(text, "g")


def test_partitions_are_chosen_by_name() -> None:
    counts = {"a": 2, "b": 1}
    assert choose([("b", 0), ("a", None), ("a", 1)], counts) == [A0, A1, B0]
    for named, words in (([("c", None)], "'c' does not exist"), ([("b", 1)], "no partition 1")):
        with pytest.raises(ValueError, match=words):
            choose(named, counts)
