"""The checks of share groups: locks, acknowledgements, delivery counts and start offsets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mqd.share.values import AcknowledgeType
from mqd.testing.share_ledger import Hold, Place, ShareLedger
from mqd.types import TopicPartition

A = TopicPartition("a", 0)
PLACE = Place("g", A)
LOCK = 1.0
FINAL = {A: [(0, b"0")]}
TERM, LATER_TERM = (1, 1), (2, 1)


def kinds(ledger: ShareLedger, final: Any = FINAL) -> set[str]:
    found = ledger.check(["g"], final)
    assert all(str(anomaly) for anomaly in found)
    return {anomaly.kind for anomaly in found}


def delivered(
    ledger: ShareLedger,
    at: float,
    *,
    count: int = 1,
    term: Any = TERM,
    member: str = "m",
    offset: int = 0,
) -> Hold:
    hold = Hold(member, offset, b"k", b"0", count, term, at, at + 0.1, at + LOCK)
    ledger.delivered(PLACE, hold)
    return hold


def acknowledge(ledger: ShareLedger, hold: Hold, kind: AcknowledgeType, at: float) -> None:
    until = hold.until
    ledger.acknowledging(hold, kind, at)
    ledger.acknowledged(hold, kind, sent=at, now=at + 0.1, until=until, lock_seconds=LOCK)


def accepted(ledger: ShareLedger, at: float = 10.0, **more: Any) -> Hold:
    hold = delivered(ledger, at - 0.5, **more)
    acknowledge(ledger, hold, AcknowledgeType.ACCEPT, at)
    return hold


def test_a_record_is_delivered_again_after_its_lock_ended_or_it_was_released() -> None:
    ledger = ShareLedger()
    delivered(ledger, 0.0)
    released = delivered(ledger, 2.0, count=2)
    acknowledge(ledger, released, AcknowledgeType.RELEASE, 2.2)
    accepted(ledger, count=3)
    assert kinds(ledger) == set()


def test_two_members_never_hold_a_record_in_one_term() -> None:
    for term, expected in ((TERM, {"two-locks"}), (LATER_TERM, set()), (None, set())):
        ledger = ShareLedger()
        delivered(ledger, 0.0)
        delivered(ledger, 0.5, count=2, term=term)
        accepted(ledger, count=3)
        assert kinds(ledger) == expected


def test_an_ended_session_ends_its_locks() -> None:
    ledger = ShareLedger()
    ledger.session_ended([delivered(ledger, 0.0)], 0.3)
    delivered(ledger, 0.5)
    accepted(ledger, count=2)
    assert kinds(ledger) == set()


def test_a_renewed_lock_lasts_longer() -> None:
    ledger = ShareLedger()
    renewed = delivered(ledger, 0.0)
    acknowledge(ledger, renewed, AcknowledgeType.RENEW, 0.8)
    delivered(ledger, 1.5, count=2)
    accepted(ledger, count=3)
    assert kinds(ledger) == {"two-locks"}


@pytest.mark.parametrize("kind", [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT])
def test_a_confirmed_record_is_never_delivered_again(kind: AcknowledgeType) -> None:
    ledger = ShareLedger()
    acknowledge(ledger, delivered(ledger, 0.0), kind, 0.5)
    delivered(ledger, 3.0, term=LATER_TERM)
    assert kinds(ledger) == {"delivered-again"}


def test_an_acceptance_without_a_response_may_be_lost() -> None:
    ledger = ShareLedger()
    ledger.acknowledging(delivered(ledger, 0.0), AcknowledgeType.ACCEPT, 0.5)
    accepted(ledger)
    assert kinds(ledger) == set()


def test_a_late_acceptance_of_a_finished_record_is_confirmed() -> None:
    for sent, expected in ((1.5, set()), (0.4, {"delivered-again"})):
        ledger = ShareLedger()
        late = delivered(ledger, 0.0)
        delivered(ledger, 1.2, count=2)
        acknowledge(ledger, late, AcknowledgeType.ACCEPT, sent)
        assert kinds(ledger) == expected


def test_counts_never_go_back() -> None:
    ledger = ShareLedger()
    delivered(ledger, 0.0, count=2)
    accepted(ledger, count=1)
    assert "count-back" in kinds(ledger)
    ledger = ShareLedger()
    acknowledge(ledger, delivered(ledger, 0.0), AcknowledgeType.RELEASE, 0.5)
    accepted(ledger, count=1, term=LATER_TERM)
    assert kinds(ledger) == {"count-back"}, "the release was stored"
    ledger = ShareLedger()
    delivered(ledger, 0.0, count=2)
    accepted(ledger, count=1, term=LATER_TERM)
    assert kinds(ledger) == set(), "a count is stored with the end of the delivery"


def test_counts_never_exceed_the_limit() -> None:
    ledger = ShareLedger()
    accepted(ledger, count=ledger.limit)
    assert kinds(ledger) == set()
    accepted(ledger, 20.0, count=ledger.limit + 1)
    assert "count-beyond-limit" in kinds(ledger)


def test_every_record_ends() -> None:
    assert kinds(ShareLedger()) == {"record-lost"}
    ledger = ShareLedger()
    delivered(ledger, 0.0, count=ledger.limit - 1)
    assert kinds(ledger) == {"record-lost"}
    ledger.response_lost([PLACE])
    assert kinds(ledger) == {"record-lost"}, "the finding of the first check stays"
    ledger = ShareLedger()
    delivered(ledger, 0.0, count=ledger.limit)
    assert kinds(ledger) == set()


def test_a_lock_is_not_lost_before_its_end() -> None:
    for now, term, expected in ((0.5, TERM, {"lock-lost"}), (1.5, TERM, set()), (0.5, None, set())):
        ledger = ShareLedger()
        hold = delivered(ledger, 0.0)
        ledger.refused_state(PLACE, [(hold, hold.until)], term, now)
        accepted(ledger, count=2)
        assert kinds(ledger) == expected


def test_a_start_offset_never_goes_back() -> None:
    ledger = ShareLedger()
    accepted(ledger)
    ledger.start_offset(PLACE, 5, sent=0.0, now=1.0)
    ledger.start_offset(PLACE, 4, sent=0.5, now=1.5)
    assert kinds(ledger) == set()
    ledger.start_offset(PLACE, 4, sent=1.5, now=2.0)
    assert kinds(ledger) == {"start-back"}


def test_records_are_those_of_the_log() -> None:
    ledger = ShareLedger()
    accepted(ledger)
    assert kinds(ledger, {A: [(0, b"other")]}) == {"other-record"}


def test_records_of_a_key_are_delivered_in_order() -> None:
    for second_at, expected in ((0.7, set()), (0.3, {"key-order"})):
        ledger = ShareLedger()
        ledger.ordered = frozenset({"g"})
        acknowledge(ledger, delivered(ledger, 0.0), AcknowledgeType.ACCEPT, 0.5)
        second = delivered(ledger, second_at, offset=1)
        acknowledge(ledger, second, AcknowledgeType.ACCEPT, 2.0)
        assert kinds(ledger, {A: [(0, b"0"), (1, b"0")]}) == expected


def test_a_returned_record_of_a_key_comes_before_later_ones() -> None:
    ledger = ShareLedger()
    ledger.ordered = frozenset({"g"})
    acknowledge(ledger, delivered(ledger, 0.0), AcknowledgeType.RELEASE, 0.2)
    acknowledge(ledger, delivered(ledger, 0.5, offset=1), AcknowledgeType.ACCEPT, 0.7)
    acknowledge(ledger, delivered(ledger, 0.9, count=2), AcknowledgeType.ACCEPT, 1.2)
    assert kinds(ledger, {A: [(0, b"0"), (1, b"0")]}) == {"key-order"}


def test_a_released_record_waits_for_the_end_of_its_delay() -> None:
    for wall_ms, expected in ((1999, {"early"}), (2000, set())):
        ledger = ShareLedger(partial(max, wall_ms))  # later than both virtual times
        released = delivered(ledger, 0.0)
        released.delay_ms = 1000
        ledger.acknowledging(released, AcknowledgeType.RELEASE, 0.5)
        ledger.acknowledged(
            released,
            AcknowledgeType.RELEASE,
            sent=0.5,
            now=0.6,
            until=1.0,
            lock_seconds=LOCK,
            wall_ms=1000,
        )
        accepted(ledger, 1.4, count=2)
        assert kinds(ledger) == expected


def test_an_expired_record_is_not_delivered_and_is_done() -> None:
    for expires_ms, expected in ((999, {"expired"}), (1000, {"expired"}), (1001, set())):
        ledger = ShareLedger()
        hold = Hold("m", 0, b"k", b"0", 1, TERM, 0.0, 0.1, LOCK, (1000, 1100), expires_ms)
        ledger.delivered(PLACE, hold)
        found = ledger.check(["g"], FINAL, {A: {0}})
        assert {anomaly.kind for anomaly in found} == expected
