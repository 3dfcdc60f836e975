"""Sizes, durations and the progress of moves."""

from __future__ import annotations

import pytest

from mqctl.moving import Meter, Progress, bytes_left
from mqctl.quantities import format_bytes, format_duration, parse_bytes
from mqd.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1500", 1500),
        ("1.5M", 1_500_000),
        ("10MB/s", 10_000_000),
        ("10MiB", 10 << 20),
        ("2 GiB/s", 2 << 30),
        ("3k", 3000),
        ("7b", 7),
    ],
)
def test_bytes_are_read(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "0", "-5", "M", "5 parsecs", "1e3", "0.1"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_bytes(text)


def test_sizes_and_durations_are_formatted() -> None:
    assert [
        format_bytes(amount)
        for amount in (0, 1023, 1024, 1.5 * 2**20, 3 * 2**40, 5000 * 2**40, None)
    ] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "3.0 TiB",
        "5000.0 TiB",
        None,
    ]
    assert [format_duration(seconds) for seconds in (-1, 0.44, 42.4, 185, 7380, 363_600)] == [
        "0.0s", "0.4s", "42s", "3m05s", "2h03m", "4d05h",
    ]  # fmt: skip


def test_bytes_left_are_the_missing_bytes_of_new_replicas() -> None:
    held = {1: {A0: 100, A1: 50}, 2: {A0: 90}, 3: {A0: 30}}
    assert bytes_left({A0: ((1, 2), (3,))}, held) == 70
    assert bytes_left({A0: ((1, 2), (3, 4)), A1: ((1,), ())}, held) == 170
    assert bytes_left({A1: ((2, 9), (3,))}, held) is None  # no replica that has it reports its size
    assert bytes_left({A0: ((3,), (1,))}, held) == 0


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    meter = Meter()
    assert meter.add(0.0, 1000) is None and meter.add(10.0, 900) == 10.0
    assert meter.add(40.0, 600) == 10.0 and meter.add(50.0, 100) == pytest.approx(50.0)
    assert Meter().add(5.0, 5) is None
    assert (
        str(Progress(1, 3, 2 << 20, 1 << 20))
        == "1 of 3 partitions moved, 2.0 MiB left at 1.0 MiB/s, about 2.0s"
    )
    assert str(Progress(1, 3, None, None)) == "1 of 3 partitions moved"
    assert str(Progress(0, 1, 0, None)) == "0 of 1 partitions moved, 0 B left"
