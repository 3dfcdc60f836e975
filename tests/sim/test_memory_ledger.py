"""The checks of topics in memory."""

from __future__ import annotations

from mqd.log.memory_logs import first_offset
from mqd.testing.memory_ledger import FinalLog, MemoryLedger, incarnation
from mqd.types import TopicPartition

A = TopicPartition("a", 0)
LATER = first_offset(3)


def ledger_of(*values: bytes, end: int = 100) -> MemoryLedger:
    ledger = MemoryLedger(lambda partition, number: end if number == 0 else LATER + end)
    for value in values:
        ledger.sent("p", value)
    return ledger


def kinds(ledger: MemoryLedger, start: int, *values: bytes) -> set[str]:
    """The anomalies, with these values in the log from `start` on."""
    found = ledger.check({A: FinalLog(start, dict(enumerate(values, start=start)))})
    assert all(str(anomaly) for anomaly in found)
    return {anomaly.kind for anomaly in found}


def test_an_offset_shows_its_incarnation() -> None:
    assert [incarnation(offset) for offset in (0, LATER - 1, LATER)] == [0, 2, 3]


def test_records_are_lost_only_if_the_log_begins_again() -> None:
    ledger = ledger_of(b"0", b"1")
    ledger.acknowledged(A, 0, b"0")
    assert kinds(ledger, 0, b"0", b"1") == set()
    assert kinds(ledger, LATER) == set()
    assert kinds(ledger, 1, b"1") == {"memory-lost", "memory-lost-read"}


def test_an_offset_never_has_two_records() -> None:
    ledger = ledger_of(b"0", b"1")
    ledger.read(A, 0, b"1")
    assert kinds(ledger, 0, b"0") == {"memory-two-records"}


def test_what_was_read_stays() -> None:
    ledger = ledger_of(b"0", b"1")
    ledger.read(A, 1, b"1")
    assert kinds(ledger, 0, b"0") == {"memory-lost-read"}


def test_a_record_is_once_and_in_order_in_each_incarnation() -> None:
    assert kinds(ledger_of(b"0"), 0, b"0", b"0") == {"memory-twice"}
    assert kinds(ledger_of(b"0", b"1"), 0, b"1", b"0") == {"memory-reordered"}
    ledger = ledger_of(b"0", b"1")
    ledger.read(A, 4, b"0")
    ledger.read(A, 5, b"1")
    assert kinds(ledger, LATER, b"0") == set()


def test_nothing_uncommitted_is_read() -> None:
    ledger = ledger_of(b"0", end=0)
    ledger.read(A, 0, b"0")
    assert kinds(ledger, 0, b"0") == {"memory-uncommitted"}
    ledger = ledger_of(b"0", b"1")
    ledger.read(A, 0, b"0", 1)
    assert kinds(ledger, 0, b"0") == set()
    ledger.read(A, 0, b"0", 0)
    assert kinds(ledger, 0, b"0") == {"memory-uncommitted"}


def test_what_nobody_sent_is_found() -> None:
    assert kinds(ledger_of(), 0, b"0") == {"memory-unknown"}
