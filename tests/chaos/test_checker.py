"""chaos/checker.py: a clean history has no anomaly, and each planted one is found by its name."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from chaos.checker import MEANINGS, check
from chaos.history import ACKED_SOMEWHERE, NOT_ACKED, History, Reads, value_of

Acked = list[int]
Log = list[tuple[int, int]]


def clean(count: int = 10) -> tuple[Acked, Log]:
    return list(range(count)), [(i, i) for i in range(count)]


KEY = ("topic", 3)
ME = 7


def history(acked: Acked, log: Log, reads: Log | None = None) -> History:
    """One producer, one partition, and a consumer that read `reads`."""
    made = History(sends={ME: {KEY: array("q", acked)}}, final={KEY: of(log)})
    if reads is not None:
        made.reads[0] = {KEY: of(reads)}
    return made


def of(rows: Log, producer: int = ME) -> Reads:
    return Reads(
        array("q", [offset for offset, _ in rows]),
        array("q", [value_of(producer, number) for _, number in rows]),
    )


def kinds(acked: Acked, log: Log, *, flushed: bool = True) -> set[str]:
    return {anomaly.kind for anomaly in check(history(acked, log), flushed=flushed)}


def test_clean_histories() -> None:
    assert kinds(*clean()) == set()
    assert kinds([], []) == set()
    assert check(History()) == []


def test_unacknowledged_records_may_be_stored_or_not() -> None:
    acked, log = clean()
    acked[9] = NOT_ACKED
    assert kinds(acked, log, flushed=False) == set()
    assert kinds(acked, log[:9], flushed=False) == set()
    assert kinds(acked, log, flushed=True) == {"unacknowledged"}


def test_records_acknowledged_without_an_offset_must_be_stored() -> None:
    acked, log = clean()
    acked[4] = acked[9] = ACKED_SOMEWHERE
    assert kinds(acked, log) == set()
    assert kinds(acked, log[:9]) == {"lost"}


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


def swap_with_offsets(acked: Acked, log: Log) -> None:
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
    (swap_with_offsets, {"disorder", "acked-disorder"}),
    (acknowledge_the_wrong_offset, {"misplaced"}),
    (acknowledge_one_offset_twice, {"misplaced", "acked-disorder"}),
    (invent, {"unknown"}),
    (start_late, {"gap"}),
    (repeat_an_offset, {"gap", "acked-disorder"}),
]


@pytest.mark.parametrize(
    ("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_planted_anomalies(plant: Callable[[Acked, Log], None], expected: set[str]) -> None:
    acked, log = clean()
    plant(acked, log)
    assert kinds(acked, log) == expected


def test_an_anomaly_names_partition_count_and_examples() -> None:
    acked, log = clean(20)
    del log[10:]
    (anomaly,) = check(history(acked, log))
    assert (anomaly.kind, anomaly.key, anomaly.count) == ("lost", KEY, 10)
    assert anomaly.examples == tuple((ME, number) for number in range(10, 15))
    assert "topic-3, 10 record(s): acknowledged, and not in the log" in str(anomaly)


def test_a_partition_that_vanished() -> None:
    made = History(sends={ME: {KEY: array("q", [0, 1])}})
    assert [(a.kind, a.key, a.count) for a in check(made)] == [("lost", KEY, 2)]


def two_producers() -> History:
    """Two that share a partition: their records alternate."""
    made = History(
        sends={1: {KEY: array("q", range(0, 20, 2))}, 2: {KEY: array("q", range(1, 20, 2))}}
    )
    made.final[KEY] = Reads(
        array("q", range(20)), array("q", [value_of(1 + i % 2, i // 2) for i in range(20)])
    )
    return made


def test_producers_that_share_a_partition_are_distinguished() -> None:
    made = two_producers()
    assert check(made) == []
    values = made.final[KEY].values
    # of different producers: both in order still, and not at their acknowledged offsets
    values[4], values[5] = values[5], values[4]
    assert {(a.kind, a.count) for a in check(made)} == {("misplaced", 2)}
    values[:] = two_producers().final[KEY].values
    values[4] = value_of(3, 2)  # relabelled
    assert {(a.kind, a.examples) for a in check(made)} == {
        ("unknown", ((3, 2),)),
        ("lost", ((1, 2),)),
    }


READS: list[tuple[Log, set[str]]] = [
    ([(i, i) for i in range(10)], set()),
    ([(i, i) for i in range(6)], set()),
    ([(0, 0), (1, 1), (3, 3)], {"poll-skip"}),
    ([(1, 1)], {"poll-skip"}),
    ([(0, 0), (1, 1), (1, 1), (2, 2)], {"nonmonotonic-poll"}),
    ([(0, 0), (1, 1), (0, 0)], {"nonmonotonic-poll"}),
    ([(0, 0), (1, 4), (2, 2)], {"inconsistent-offset"}),
    ([(i, i) for i in range(11)], {"vanished"}),
]


@pytest.mark.parametrize(("reads", "expected"), READS)
def test_records_that_a_consumer_read_during_faults(reads: Log, expected: set[str]) -> None:
    assert {anomaly.kind for anomaly in check(history(*clean(), reads))} == expected


def test_a_read_is_checked_with_a_log_that_has_a_gap() -> None:
    acked, log = clean()
    del log[4]
    assert {a.kind for a in check(history(acked, log, [(i, i) for i in range(10)]))} == {
        "lost",
        "gap",
        "vanished",
    }


def test_every_kind_is_planted_somewhere() -> None:
    planted = set[str]().union(
        *(expected for _, expected in PLANTED),
        *(expected for _, expected in READS),
        {"unacknowledged"},
    )
    assert planted == set(MEANINGS)


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
    found = check(history(acked, list(enumerate(numbers))))
    assert expected in {(anomaly.kind, anomaly.examples[0][1]) for anomaly in found}
