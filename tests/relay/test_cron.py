"""Schedules: `next_after` against a slow model that tries every minute, and examples."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings, strategies as st

from mqd.relay.cron import CRON_CHARS_MAX, Cron, CronError, cron_of

MINUTE = 60_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def spans(low: int, high: int, *, names: dict[int, str] | None = None) -> st.SearchStrategy[str]:
    """One field of the expression."""
    number = st.integers(low, high)
    named = number.map(lambda value: (names or {}).get(value, str(value)))
    ranges = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    part = st.one_of(
        named,
        ranges,
        st.integers(1, 20).map("*/{}".format),
        st.tuples(ranges, st.integers(1, 9)).map("/".join(("{0[0]}", "{0[1]}")).format),
        st.tuples(number, st.integers(1, 9)).map("/".join(("{0[0]}", "{0[1]}")).format),
    )
    return st.one_of(st.just("*"), st.lists(part, min_size=1, max_size=3).map(",".join))


expressions = st.tuples(
    spans(0, 59),
    spans(0, 23),
    spans(1, 31),
    spans(1, 12, names={1: "JAN", 12: "dec"}),
    spans(0, 7, names={0: "Sun", 6: "sat"}),
)


def slow_values(text: str, low: int, high: int, names: str) -> set[int]:
    found = set()
    for part in text.lower().split(","):
        for number, name in enumerate(filter(None, names.split()), start=low):
            part = part.replace(name, str(number))
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        end = int(last or (high if step else first))
        found |= {v for v in range(int(first), end + 1) if (v - int(first)) % int(step or 1) == 0}
    return found


def slow_next(fields: tuple[str, ...], after: int, minutes: int) -> int | None:
    """Try every minute."""
    minute, hour, day, month, weekday = (
        slow_values(fields[0], 0, 59, ""),
        slow_values(fields[1], 0, 23, ""),
        slow_values(fields[2], 1, 31, ""),
        slow_values(fields[3], 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
        slow_values(fields[4], 0, 7, "sun mon tue wed thu fri sat"),
    )
    start = after // MINUTE + 1
    for since_1970 in range(start, start + minutes):
        at = datetime.fromtimestamp(since_1970 * 60, UTC)
        if at.minute not in minute or at.hour not in hour or at.month not in month:
            continue
        in_week = bool({at.isoweekday(), at.isoweekday() % 7} & weekday)
        stars = fields[2][0] == "*" or fields[4][0] == "*"
        if (at.day in day and in_week) if stars else (at.day in day or in_week):
            return since_1970 * MINUTE
    return None


@settings(max_examples=25, deadline=None)
@given(expressions, st.integers(0, 4_000_000_000_000))
def test_the_next_time_is_that_of_a_model_that_tries_every_minute(
    fields: tuple[str, ...], after: int
) -> None:
    minutes = 24 * 60
    try:
        found = Cron(" ".join(fields)).next_after(after)
    except CronError as error:
        assert "no day" in str(error)
        assert slow_next(fields, after, minutes) is None
        return
    expected = slow_next(fields, after, minutes)
    if expected is not None:
        assert found == expected
    else:
        assert found is None or found > after + minutes * MINUTE
        # A later minute of the model is the result, if there is one.
        assert found is None or slow_next(fields, found - MINUTE, 1) == found


@pytest.mark.parametrize(
    ("expression", "after", "following"),
    [
        ("*/5 * * * *", "2026-01-01T00:00:00", "2026-01-01T00:05:00"),
        ("0 0 1 jan *", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("0 12 29 2 *", "2097-01-01T00:00:00", "2104-02-29T12:00:00"),
        ("30 9 * * mon-fri", "2026-11-27T09:30:00", "2026-11-30T09:30:00"),
        ("0 0 13 * fri", "2026-11-10T00:00:00", "2026-11-13T00:00:00"),
        ("0 0 * * 7", "2026-11-27T00:00:00", "2026-11-29T00:00:00"),
        ("5/20 3 * * *", "2026-11-27T03:05:59", "2026-11-27T03:25:00"),
    ],
)
def test_examples(expression: str, after: str, following: str) -> None:
    assert Cron(expression).next_after(ms(after)) == ms(following)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "not 0"),
        ("* * * * * *", "not 6"),
        ("60 * * * *", "minute '60' is not within 0 to 59"),
        ("* 20-4 * * *", "hour '20-4'"),
        ("* * 0 * *", "day of month"),
        ("* * * foo *", "month has 'foo'"),
        ("* * * * 8", "day of week"),
        ("*/0 * * * *", "step of 0"),
        ("1,,2 * * * *", "minute has ''"),
        ("-1 * * * *", "minute has ''"),
        ("\N{ARABIC-INDIC DIGIT FIVE} * * * *", "no number"),
        ("0 0 31 feb,apr *", "no day of any year"),
        ("1" * (CRON_CHARS_MAX + 1), "256 characters"),
    ],
)
def test_what_is_no_schedule(expression: str, problem: str) -> None:
    with pytest.raises(CronError, match=problem):
        Cron(expression)


def test_schedules_end_with_the_year_9999() -> None:
    assert Cron("0 0 1 1 *").next_after(ms("9998-06-01T00:00:00")) == ms("9999-01-01T00:00:00")
    assert Cron("0 0 1 1 *").next_after(ms("9999-06-01T00:00:00")) is None
    assert Cron("* * * * *").next_after(2**63 - 1) is None


@pytest.mark.parametrize(
    "expression", ["0 0 29 2 1", "0 0 31 2,4,6,9,11 *", "0 0 31 12 7", "0 0 30 2,11 sat"]
)
def test_rare_days_are_found_in_few_steps(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 5 KB may have 20,000 schedules."""
    matches, compared = Cron._matches, list[date]()

    def counted(cron: Cron, day: date) -> bool:
        compared.append(day)
        return matches(cron, day)

    monkeypatch.setattr(Cron, "_matches", counted)
    with suppress(CronError):
        Cron(expression).next_after(ms("2072-03-01T00:00:00"))
    assert len(compared) <= 90


def test_one_expression_is_parsed_once() -> None:
    assert cron_of("5 4 * * *") is cron_of("5 4 * * *")
    with pytest.raises(CronError, match="256 characters"):
        cron_of("1" * 1_000_000)
