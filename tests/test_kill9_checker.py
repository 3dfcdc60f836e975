"""chaos/history.py: a clean history has no anomaly, and each planted one is found by its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from chaos.history import NOT_ACKED, check

Acked = list[int]
Log = list[tuple[int, int]]


def clean(count: int = 10) -> tuple[Acked, Log]:
    return list(range(count)), [(i, i) for i in range(count)]


def kinds(acked: Acked, log: Log, *, settled: bool = True) -> set[str]:
    return {anomaly.kind for anomaly in check({0: acked}, {0: log}, settled=settled)}


def test_clean_histories() -> None:
    assert kinds(*clean()) == set()
    assert kinds([], []) == set()
    assert check({}, {}) == []


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    acked, log = clean()
    acked[9] = NOT_ACKED
    assert kinds(acked, log, settled=False) == set()
    assert kinds(acked, log[:9], settled=False) == set()
    assert kinds(acked, log, settled=True) == {"unsettled"}


def lose_the_last(acked: Acked, log: Log) -> None:
    del log[9]


def lose_from_the_middle(acked: Acked, log: Log) -> None:
    """The records after it move up, so that offsets stay dense."""
    log[:] = [(i, number) for i, number in enumerate(n for _, n in log if n != 4)]


def leave_a_hole(acked: Acked, log: Log) -> None:
    del log[4]


def double_at_the_end(acked: Acked, log: Log) -> None:
    log.append((10, 9))


def double_in_the_middle(acked: Acked, log: Log) -> None:
    log[:] = [(i, number) for i, number in enumerate([0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9])]
    acked[4:] = range(5, 11)


def swap(acked: Acked, log: Log) -> None:
    log[3], log[4] = (3, 4), (4, 3)


def swap_and_say_so(acked: Acked, log: Log) -> None:
    swap(acked, log)
    acked[3], acked[4] = 4, 3


def acknowledge_the_wrong_offset(acked: Acked, log: Log) -> None:
    acked[9] = 12


def acknowledge_one_offset_twice(acked: Acked, log: Log) -> None:
    acked[5] = 4


def invent(acked: Acked, log: Log) -> None:
    log.append((10, 77))


def start_late(acked: Acked, log: Log) -> None:
    log[:] = [(offset + 1, number) for offset, number in log]
    acked[:] = [offset + 1 for offset in acked]


def repeat_an_offset(acked: Acked, log: Log) -> None:
    log[9] = (8, 9)
    acked[9] = 8


PLANTED: list[tuple[Callable[[Acked, Log], None], set[str]]] = [
    (lose_the_last, {"lost"}),
    (lose_from_the_middle, {"lost", "misplaced"}),
    (leave_a_hole, {"lost", "gap"}),
    (double_at_the_end, {"doubled"}),
    (double_in_the_middle, {"doubled"}),
    (swap, {"misplaced", "disorder"}),
    (swap_and_say_so, {"disorder", "acked-disorder"}),
    (acknowledge_the_wrong_offset, {"misplaced"}),
    (acknowledge_one_offset_twice, {"misplaced", "acked-disorder"}),
    (invent, {"unknown"}),
    (start_late, {"gap"}),
    (repeat_an_offset, {"gap", "acked-disorder"}),
]


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_planted_anomalies(plant: Callable[[Acked, Log], None], expected: set[str]) -> None:
    acked, log = clean()
    plant(acked, log)
    assert kinds(acked, log) == expected


def test_an_anomaly_names_partition_count_and_examples() -> None:
    acked, log = clean(20)
    del log[10:]
    (anomaly,) = check({0: list(range(5)), 3: acked}, {0: [(i, i) for i in range(5)], 3: log})
    assert (anomaly.kind, anomaly.partition, anomaly.count, anomaly.numbers) == ("lost", 3, 10, (10, 11, 12, 13, 14))
    assert "partition 3, 10 record(s): acknowledged, and not in the log" in str(anomaly)


def test_a_partition_that_vanished() -> None:
    assert [(a.kind, a.partition, a.count) for a in check({1: [0, 1]}, {})] == [("lost", 1, 2)]


@given(st.integers(1, 60), st.data())
def test_any_lost_or_doubled_record_is_found(count: int, data: st.DataObject) -> None:
    acked, log = clean(count)
    numbers = [number for _, number in log]
    position = data.draw(st.integers(0, count - 1))
    lose = data.draw(st.booleans())
    if lose:
        lost = numbers.pop(position)
        expected = ("lost", lost)
    else:
        numbers.insert(data.draw(st.integers(0, count)), numbers[position])
        expected = ("doubled", position)
    found = check({0: acked}, {0: list(enumerate(numbers))})
    assert expected in {(anomaly.kind, anomaly.numbers[0]) for anomaly in found}
