"""When a record of a delay topic is due and expires."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from mqd.relay.cron import Cron
from mqd.relay.delay_headers import (
    BadHeader,
    DelayOptions,
    RecordTimes,
    next_occurrence,
    times_of,
)

AT = 1_760_000_000_000
PLAIN = DelayOptions()
RETRY = DelayOptions(retry_backoff_ms=(1_000, 10_000, 60_000))
TTL = DelayOptions(message_ttl_ms=5_000)


def times(options: DelayOptions = PLAIN, at: int = AT, **headers: bytes | None) -> RecordTimes:
    named = [(f"mqd-{name.replace('_', '-')}", content) for name, content in headers.items()]
    found = times_of(named, at, options)
    assert isinstance(found, RecordTimes), found
    return found


def test_due_times() -> None:
    assert times().due_ms == AT
    assert times(delay=b"250").due_ms == AT + 250
    assert times(deliver_at=b"17").due_ms == 17
    assert times(deliver_at=b"17", delay=b"250").due_ms == 17
    assert times(delay=b"%d" % (2**63 - 1)).due_ms == 2**63 - 1


def test_a_retry_topic_chooses_the_back_off_by_attempts() -> None:
    due = [times(RETRY, attempts=b"%d" % count).due_ms - AT for count in range(6)]
    assert due == [1_000, 10_000, 60_000, 60_000, 60_000, 60_000]
    assert times(RETRY).due_ms == AT + 1_000
    assert times(RETRY, attempts=b"3", delay=b"5").due_ms == AT + 5
    assert times(RETRY, attempts=b"3").attempts == 3


def test_the_shorter_ttl_counts() -> None:
    assert times().expires_ms is None
    assert times(ttl=b"100").expires_ms == AT + 100
    assert times(TTL).expires_ms == AT + 5_000
    assert times(TTL, ttl=b"100").expires_ms == AT + 100
    assert times(TTL, ttl=b"9000").expires_ms == AT + 5_000
    assert not times(ttl=b"100").is_expired(AT + 99)
    assert times(ttl=b"100").is_expired(AT + 100)
    assert not times().is_expired(2**63)


def test_schedules() -> None:
    hourly = times(cron=b"0 * * * *")
    first = AT - AT % 3_600_000 + 3_600_000
    assert hourly.due_ms == first and hourly.cron is not None
    assert times(cron=b"0 * * * *", deliver_at=b"%d" % first).due_ms == first
    assert times(cron=b"0 * * * *", delay=b"3600000").due_ms == first + 3_600_000
    assert times(cron=b"0 * * * *", at=first).due_ms == first + 3_600_000
    assert next_occurrence(hourly.cron, first, first) == first + 3_600_000
    assert next_occurrence(Cron("0 * * * *"), first, first + 8_000_000) == first + 3 * 3_600_000


def test_the_last_header_of_a_name_counts() -> None:
    found = times_of([("mqd-delay", b"bad"), ("mqd-delay", b"7")], AT, PLAIN)
    assert isinstance(found, RecordTimes) and found.due_ms == AT + 7


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("mqd-delay", b"-1", "'-1', which is not a number of milliseconds"),
        ("mqd-delay", b"", "''"),
        ("mqd-delay", None, "no value"),
        ("mqd-deliver-at", b"9223372036854775808", "from 0 to 9223372036854775807"),
        ("mqd-ttl", "٣".encode(), "decimal digits"),
        ("mqd-attempts", b"1.5", "number of failed deliveries"),
        ("mqd-cron", b"* * *", "it needs five fields, not 3"),
        ("mqd-cron", b"\xff", "not ASCII"),
        ("mqd-cron", None, "has no value, which is not a schedule"),
        ("mqd-delay", b"x" * 10_000, r"xxx'\.\.\., which"),
    ],
)
def test_bad_headers_give_a_sentence(name: str, content: bytes | None, problem: str) -> None:
    found = times_of([(name, content)], AT, PLAIN)
    assert isinstance(found, BadHeader) and found.header == name
    assert len(found.problem) < 500
    with pytest.raises(ValueError, match=problem):
        raise ValueError(found.problem)


def test_a_record_without_a_time_stamp() -> None:
    assert times(at=-1).due_ms == 0
    assert times(at=-1, deliver_at=b"5").due_ms == 5
    for name in ("mqd-delay", "mqd-ttl"):
        found = times_of([(name, b"5")], -1, PLAIN)
        assert isinstance(found, BadHeader) and "time stamp" in found.problem


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mqd-deliver-at", "mqd-delay", "mqd-ttl", "mqd-attempts", "mqd-cron"]),
            st.one_of(
                st.none(),
                st.binary(max_size=20),
                st.integers(0, 2**64).map(lambda number: b"%d" % number),
                st.just(b"* * * * *"),
            ),
        ),
        max_size=5,
    ),
    st.integers(-1, 2**63 - 1),
)
def test_no_header_raises(headers: list[tuple[str, bytes | None]], at: int) -> None:
    found = times_of(headers, at, DelayOptions(1_000, (1, 2)))
    if isinstance(found, RecordTimes):
        assert 0 <= found.due_ms < 2**63
        assert found.expires_ms is not None and 0 <= found.expires_ms < 2**63
