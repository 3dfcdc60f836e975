"""Offsets as JSON: Spark's own shape, and the one key that this source adds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqd.types import TopicPartition
from pyspark_mqd.errors import OptionError
from pyspark_mqd.offsets import (
    CommitTarget,
    StreamOffset,
    TopicState,
    by_topic,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    show,
    show_partitions,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_partitions() -> None:
    assert parse_partitions('{"b":[0],"a":[1,0]}') == (A0, A1, B0)
    for bad in ("[]", '{"a":[true]}', '{"a":[-1]}', '{"a":["0"]}', "{"):
        with pytest.raises(OptionError, match=r"Expected e\.g\."):
            parse_partitions(bad)


def test_offsets_and_timestamps() -> None:
    assert parse_offsets('{"a":{"0":23,"1":-1},"b":{"0":-2}}') == {A0: 23, A1: -1, B0: -2}
    assert parse_timestamps('{"a":{"0":123456789}}') == {A0: 123456789}
    for bad in ("x", "1.5", "true", '"5"', "-3", "null"):
        with pytest.raises(OptionError, match=r"Expected e\.g\."):
            parse_offsets(f'{{"a":{{"0":{bad}}}}}')
    for bad in ('{"a":{"x":1}}', '{"a":5}', "[]", "{"):
        with pytest.raises(OptionError, match=r"Expected e\.g\."):
            parse_offsets(bad)


@pytest.mark.parametrize(
    "bad",
    [
        '{"a":{"0":1},"a":{"0":2}}',
        '{"a":{"0":1,"0":2}}',
        '{"a":{"0":1,"00":2}}',
        '{"a":{"1_0":1}}',
        '{"a":{"\u0663":1}}',
        '{"a":{"2147483648":1}}',
        '{"a":{"0":NaN}}',
        '{"a":{"0":9223372036854775808}}',
        '{"a":' * 100_000,
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_hostile_json(bad: str) -> None:
    """Keys that are there twice, digits that only Python reads, numbers out of range, depth."""
    for parse in (parse_offsets, parse_timestamps, parse_partitions):
        with pytest.raises(OptionError, match=r"Expected e\.g\.") as error:
            parse(bad)
        assert len(str(error.value)) < 500


def test_long_values_are_shown_in_part() -> None:
    with pytest.raises(OptionError, match=r"x\.\.\. \(10000000 characters\)$") as error:
        parse_offsets("x" * 10_000_000)
    assert len(str(error.value)) < 500
    many = [TopicPartition("a", index) for index in range(100_000)]
    assert show_partitions(many).endswith("a-19 and 99980 more")


def test_negative_timestamps_are_refused() -> None:
    """ListOffsets would take them as names: -1 is the latest offset, -2 the earliest."""
    for bad in (-1, -2, -(2**62)):
        with pytest.raises(OptionError, match=r"Expected e\.g\."):
            parse_timestamps(f'{{"a":{{"0":{bad}}}}}')


def test_an_offset_of_sparks_kafka_source() -> None:
    """Without our key; as the JVM writes it."""
    offset = StreamOffset.from_json(json.loads('{"a":{"1":5,"0":3},"b":{"0":0}}'))
    assert offset.ends == {A0: 3, A1: 5, B0: 0} and offset.commit is None
    assert offset.topic_id("a") == "" and offset.epoch(A0) is None and offset.begins() == {}
    assert offset.to_json() == {"a": {"0": 3, "1": 5}, "b": {"0": 0}}


def test_the_extra_key_survives_a_round_trip() -> None:
    offset = StreamOffset(
        {A0: 3, A1: 5},
        {"a": TopicState("id-1", {0: 4}, {1: 2})},
        CommitTarget("g", "h:1"),
    )
    written = offset.to_json()
    assert written["a"] == {"0": 3, "1": 5}
    assert written["__mqd"] == {
        "version": 1,
        "topics": {"a": {"id": "id-1", "epochs": {"0": 4}, "begins": {"1": 2}}},
        "commit": {"group": "g", "bootstrap": "h:1"},
    }
    read = StreamOffset.from_json(json.loads(json.dumps(written)))
    assert read == offset
    assert (read.epoch(A0), read.epoch(A1)) == (4, None) and read.begins() == {A1: 2}


def test_equal_offsets_are_equal_text() -> None:
    """Spark compares text: equal offsets in any order must not look like new data."""
    one = json.dumps(StreamOffset({A1: 5, B0: 1, A0: 3}).to_json())
    assert one == json.dumps(StreamOffset({A0: 3, A1: 5, B0: 1}).to_json())
    assert json.dumps(StreamOffset.from_json(json.loads(one)).to_json()) == one


def test_a_key_of_a_later_version_is_left_aside() -> None:
    offset = StreamOffset.from_json({"a": {"0": 3}, "__mqd": {"version": 2, "topics": 5}})
    assert offset == StreamOffset({A0: 3})


@pytest.mark.parametrize(
    "value",
    [
        {"offset": 5},
        {"a": {"0": "3"}},
        {"logOffset": 1, "reservoirId": "x"},
        {"a": {"0": 3}, "__mqd": {"version": 1, "topics": {"a": {"epochs": [1]}}}},
        {"a": {"0": 3}, "__mqd": 7},
        {"__mqd": {"version": 1, "topics": {"a": None}}},
        {"__mqd": {"version": 1, "topics": {"a": {"begins": {"1_0": 1}}}}},
        {"__mqd": {"version": 1, "commit": 5}},
        {"__mqd": {"version": 1, "commit": {"group": 5, "bootstrap": "h:1"}}},
        {"a": {"0": 2**70}},
        [1],
        5,
        {"a": "x" * 10_000_000},
    ],
    ids=lambda value: str(value)[:40],
)
def test_offsets_of_other_sources_are_refused(value: Any) -> None:
    sentence = "holds an offset that is not of this source"
    with pytest.raises(OptionError, match=sentence) as error:
        StreamOffset.from_json(value)
    assert len(str(error.value)) < 600


def test_a_topic_is_replaced_only_where_both_ids_are_known() -> None:
    old, new = StreamOffset({}, {"a": TopicState("1")}), StreamOffset({}, {"a": TopicState("2")})
    plain = StreamOffset({})
    assert old.is_replaced("a", new) and not old.is_replaced("a", old)
    assert not old.is_replaced("a", plain) and not plain.is_replaced("a", new)


def test_first_offsets_are_added_where_there_are_none() -> None:
    offset = StreamOffset({A0: 3, A1: 5, B0: 1}, {"a": TopicState("1", {}, {1: 2})})
    assert offset.with_begins({A0: 0, A1: 9, B0: 1}).begins() == {A0: 0, A1: 2, B0: 1}
    assert offset.with_begins({A0: 0}).topic_id("a") == "1"


def test_labels() -> None:
    assert show({A1: 2, A0: 1}) == '{"a":{"0":1,"1":2}}'
    assert by_topic({B0: 1, A1: 2}) == {"a": {"1": 2}, "b": {"0": 1}}
    assert show_partitions([B0, A0]) == "a-0, b-0" and show_partitions([]) == "none"
