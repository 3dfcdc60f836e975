"""The checks of delay topics and retry topics, by their logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from mqd.protocol.record_reader import Record
from mqd.relay.delay_headers import DelayOptions
from mqd.relay.delay_records import due_ms_of, outcome_of
from mqd.relay.delay_topic import DelayTopic as ProductTopic
from mqd.testing.delay_check import (
    Arrived,
    DelayCheck,
    DelayTopic,
    Outcome,
    due_ms,
    sent_twice_or_lost,
)
from mqd.types import TopicPartition

SOURCE, RETRY = TopicPartition("s", 0), TopicPartition("r", 0)
TARGET, DEAD = TopicPartition("t", 0), TopicPartition("d", 0)
TOPICS = {"s": DelayTopic(), "r": DelayTopic((100, 300))}
PRODUCT = {
    "s": ProductTopic("t", dead_letters="d"),
    "r": ProductTopic("t", dead_letters="d", times=DelayOptions(None, (100, 300))),
}
END_MS = 1_000_000


def record(offset: int, *headers: tuple[str, bytes], value: bytes | None = b"v") -> Record:
    return Record(offset, 10_000, b"k", value, headers)


def relayed(source: TopicPartition, *records: Record, now_ms: int = END_MS) -> Arrived:
    """What the product makes of the records."""
    arrived = Arrived()
    for one in records:
        for made in outcome_of(
            PRODUCT[source.topic], source, one, now_ms=now_ms, next_offset=99
        ).records:
            where = {"t": (Outcome.TARGET, TARGET), "d": (Outcome.DEAD, DEAD)}.get(made.topic)
            if where is not None:
                arrived.add(*where, [made.record])
    return arrived


def check(
    arrived: Arrived,
    source: TopicPartition,
    *records: Record,
    cancelled: Mapping[bytes, int] | None = None,
    topics: Mapping[str, DelayTopic] = TOPICS,
) -> set[str]:
    found = DelayCheck(topics, END_MS, END_MS)
    logs = {source: {one.offset: one for one in records}}
    found.check(logs, arrived, cancelled or {})
    anomalies = found.anomalies(TARGET)
    assert all(str(anomaly) for anomaly in anomalies)
    return {anomaly.kind for anomaly in anomalies}


DELAYED = record(0, ("mqd-deliver-at", b"20000"))
EXPIRED = record(0, ("mqd-deliver-at", b"20000"), ("mqd-ttl", b"10000"))
REPEATING = record(0, ("mqd-cron", b"* * * * *"))
FOLLOWING = record(
    1,
    ("mqd-cron", b"* * * * *"),
    ("mqd-deliver-at", b"%d" % (2 * END_MS)),
    ("mqd-cron-since", b"1"),
)._replace(timestamp=60_000)
TOMBSTONE = record(5, value=None)


def test_due_times_are_those_of_the_product() -> None:
    for one in (DELAYED, EXPIRED, REPEATING, FOLLOWING, record(0, ("mqd-delay", b"7"))):
        assert due_ms(TOPICS["s"], one) == due_ms_of(PRODUCT["s"], one)
    for attempts in (b"0", b"1", b"2", b"7"):
        one = record(0, ("mqd-attempts", attempts), ("mqd-deliver-at", b"20000"))
        assert due_ms(TOPICS["r"], one) == due_ms_of(PRODUCT["r"], one)
    at_a_minute = record(0, ("mqd-cron", b"* * * * *"), ("mqd-deliver-at", b"120000"))
    assert due_ms(TOPICS["s"], at_a_minute) == due_ms_of(PRODUCT["s"], at_a_minute) == 120_000


def test_a_record_has_one_outcome() -> None:
    arrived = relayed(SOURCE, DELAYED)
    assert check(arrived, SOURCE, DELAYED) == set()
    assert check(Arrived(), SOURCE, DELAYED) == {"not-relayed"}
    [[row]] = arrived.places.values()
    arrived.places[next(iter(arrived.places))].append(row)
    assert check(arrived, SOURCE, DELAYED) == {"relayed-twice"}


def test_a_record_that_is_not_due_has_no_outcome() -> None:
    late = record(0, ("mqd-deliver-at", b"%d" % (END_MS + 1)))
    assert check(Arrived(), SOURCE, late) == set()
    assert check(relayed(SOURCE, late), SOURCE, late) == {"wrongly-relayed"}


def test_an_expired_record_is_a_dead_letter() -> None:
    assert check(relayed(SOURCE, EXPIRED), SOURCE, EXPIRED) == set()
    assert check(relayed(SOURCE, EXPIRED, now_ms=0), SOURCE, EXPIRED) == {"wrongly-relayed"}
    lasting = record(0, ("mqd-deliver-at", b"20000"), ("mqd-ttl", b"10001"))
    for now_ms in (0, END_MS):
        assert check(relayed(SOURCE, lasting, now_ms=now_ms), SOURCE, lasting) == set()


def test_a_cancelled_record_has_no_outcome() -> None:
    both = relayed(SOURCE, DELAYED)
    assert check(both, SOURCE, DELAYED, TOMBSTONE) == set(), "it may have come too late"
    assert check(Arrived(), SOURCE, DELAYED, TOMBSTONE) == set()
    found = check(both, SOURCE, DELAYED, TOMBSTONE, cancelled={b"v": 19_999})
    assert found == {"wrongly-relayed"}
    assert check(both, SOURCE, DELAYED, TOMBSTONE, cancelled={b"v": 20_000}) == set()
    other = TOMBSTONE._replace(headers=(("mqd-cancels", b"3"),))
    assert check(Arrived(), SOURCE, DELAYED, other) == {"not-relayed"}


def test_a_later_record_may_replace() -> None:
    topics = {"s": DelayTopic(replaces=True)}
    later = DELAYED._replace(offset=3, value=b"w")
    arrived = relayed(SOURCE, later)
    assert check(arrived, SOURCE, DELAYED, later, topics=topics) == set()
    assert check(arrived, SOURCE, DELAYED, later) == {"not-relayed"}


def test_a_schedule_has_one_next_occurrence() -> None:
    arrived = relayed(SOURCE, REPEATING, now_ms=60_000)
    assert check(arrived, SOURCE, REPEATING, FOLLOWING) == set()
    assert check(arrived, SOURCE, REPEATING) == {"schedule"}
    again = FOLLOWING._replace(offset=2)
    assert check(arrived, SOURCE, REPEATING, FOLLOWING, again) == {"schedule"}


def test_a_tombstone_between_ends_a_schedule() -> None:
    due = FOLLOWING._replace(
        offset=9, headers=(*REPEATING.headers, ("mqd-cron-since", b"5")), timestamp=60_000
    )
    first = relayed(SOURCE, REPEATING, now_ms=60_000)
    assert check(first, SOURCE, REPEATING, TOMBSTONE, due) == set()
    unrelated = due._replace(headers=(*REPEATING.headers, ("mqd-cron-since", b"6")))
    assert check(first, SOURCE, REPEATING, TOMBSTONE, unrelated) == {"not-relayed"}


def test_attempts_go_up_by_one_until_a_dead_letter() -> None:
    for attempts in range(3):
        failed = record(0, ("mqd-attempts", b"%d" % attempts), ("mqd-first-failure", b"5"))
        arrived = relayed(RETRY, failed)
        assert check(arrived, RETRY, failed) == set()
        [[(outcome, where, made)]] = arrived.places.values()
        assert outcome is (Outcome.DEAD if attempts == 2 else Outcome.TARGET)
        fewer = Arrived()
        headers = [row for row in made.headers if row[0] != "mqd-attempts"]
        fewer.add(outcome, where, [made._replace(headers=headers)])
        expected = set() if outcome is Outcome.DEAD else {"not-the-record"}
        assert check(fewer, RETRY, failed) == expected
    tired = record(0, ("mqd-attempts", b"2"))
    arrived = Arrived()
    arrived.add(Outcome.TARGET, TARGET, [made for _, _, made in _rows(relayed(RETRY, tired))])
    assert arrived.strays, "a dead letter is no record of the target"


def _rows(arrived: Arrived) -> list[tuple[Outcome, TopicPartition, Record]]:
    return [row for rows in arrived.places.values() for row in rows]


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one._replace(key=b"other"),
        lambda one: one._replace(value=b"other"),
        lambda one: one._replace(timestamp=1),
        lambda one: one._replace(
            headers=[row if row[0] != "mqd-due" else ("mqd-due", b"1") for row in one.headers]
        ),
    ],
)
def test_the_content_stays(damage: Callable[[Record], Record]) -> None:
    [(outcome, where, made)] = _rows(relayed(SOURCE, DELAYED))
    arrived = Arrived()
    arrived.add(outcome, where, [damage(made)])
    assert check(arrived, SOURCE, DELAYED) == {"not-the-record"}


def test_what_has_no_origin_is_found() -> None:
    assert check(relayed(SOURCE, DELAYED._replace(offset=8)), SOURCE) == {"no-origin"}
    arrived = Arrived()
    arrived.add(Outcome.TARGET, TARGET, [DELAYED])
    assert check(arrived, SOURCE) == {"no-origin"}


def test_acknowledged_records_are_there_once() -> None:
    assert sent_twice_or_lost([DELAYED, TOMBSTONE], [(b"v", 0)]) == []
    assert len(sent_twice_or_lost([DELAYED, DELAYED], [(b"v", 0)])) == 1
    assert len(sent_twice_or_lost([TOMBSTONE], [(b"v", 0)])) == 1
