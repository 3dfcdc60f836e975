"""Times of a repeating schedule, in crontab's five fields: minute, hour, day of month, month, day
of week. Pure. All times are UTC, in milliseconds since 1970.

A field is `*` or a list (`1,15`) of values, ranges (`9-17`) and steps (`*/5`, `0-30/10`, `5/15`).
Months and days of the week have names of three letters. Sunday is 0 or 7. As in crontab(5): if
neither the day of month nor the day of week begins with `*`, a day needs to match one of the two.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

CRON_CHARS_MAX: Final = 256
"""Characters of an expression: to parse one takes at most 0.2 ms."""
_CACHED: Final = 256
"""Schedules that `cron_of` keeps, about 3 KB each."""
_MINUTE_MS: Final = 60_000
_DAY_MINUTES: Final = 24 * 60
_DAYS_TO_1970: Final = date(1970, 1, 1).toordinal()
_MONTH_DAYS_MAX: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_YEARS_SEARCHED: Final = 41
"""29 February on a given day of the week comes every 28 years, and 40 around the year 2100."""
_MONTHS: Final = "jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec"
_WEEKDAYS: Final = "sun,mon,tue,wed,thu,fri,sat"


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]


def _numbered(names: str, first: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(","), start=first)}


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _numbered(_MONTHS, 1)),
    _Field("day of week", 0, 7, _numbered(_WEEKDAYS, 0)),
)


class CronError(ValueError):
    """The expression is not one of crontab's. Its text is a sentence for users."""


class Cron:
    """One schedule. Raises CronError."""

    __slots__ = ("_days", "_either", "_hours", "_minutes", "_months", "_weekdays")

    def __init__(self, expression: str) -> None:
        if len(expression) > CRON_CHARS_MAX:
            raise CronError(f"it has more than {CRON_CHARS_MAX} characters")
        texts = expression.split()
        if len(texts) != len(_FIELDS):
            raise CronError(
                f"it needs five fields, not {len(texts)}: minute, hour, day of month, month, "
                "day of week"
            )
        self._minutes, self._hours, self._days, self._months, weekdays = map(
            _values, _FIELDS, texts
        )
        self._weekdays = {day % 7 for day in weekdays}
        self._either = not (texts[2].startswith("*") or texts[4].startswith("*"))
        longest = max(_MONTH_DAYS_MAX[month - 1] for month in self._months)
        if self._days[0] > longest and not self._either:
            raise CronError("no day of any year matches it")

    def next_after(self, ms: int) -> int | None:
        """The first time after `ms`; None if it would be after the year 9999. At most 0.2 ms."""
        days, minute = divmod(ms // _MINUTE_MS + 1, _DAY_MINUTES)
        ordinal = days + _DAYS_TO_1970
        if not 1 <= ordinal <= date.max.toordinal():
            return None
        first = date.fromordinal(ordinal)
        for day in self._matching_days(first):
            found = self._minute_from(minute if day == first else 0)
            if found is not None:
                since_1970 = day.toordinal() - _DAYS_TO_1970
                return (since_1970 * _DAY_MINUTES + found) * _MINUTE_MS
        return None

    def _matching_days(self, first: date) -> Iterator[date]:
        """The days from `first` on that match."""
        days = range(1, 32) if self._either else self._days
        for year in range(first.year, min(first.year + _YEARS_SEARCHED, date.max.year) + 1):
            for month in self._months:
                if (year, month) < (first.year, first.month):
                    continue
                last = monthrange(year, month)[1]
                for number in days:
                    if number > last:
                        break
                    day = date(year, month, number)
                    if day >= first and self._matches(day):
                        yield day

    def _matches(self, day: date) -> bool:
        in_month, in_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return (in_month or in_week) if self._either else (in_month and in_week)

    def _minute_from(self, minute: int) -> int | None:
        """The first minute of a day that matches, from this one on."""
        hour, minute = divmod(minute, 60)
        if hour in self._hours and minute <= self._minutes[-1]:
            return hour * 60 + self._minutes[bisect_left(self._minutes, minute)]
        index = bisect_left(self._hours, hour + 1)
        return self._hours[index] * 60 + self._minutes[0] if index < len(self._hours) else None


def cron_of(expression: str) -> Cron:
    """The schedule of an expression: many records have the same one. Raises CronError."""
    return Cron(expression) if len(expression) > CRON_CHARS_MAX else _cached(expression)


_cached = lru_cache(_CACHED)(Cron)


def _values(field: _Field, text: str) -> tuple[int, ...]:
    """The values that one field allows, ascending."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(field, step_text, {}) if slash else 1
        if not step:
            raise CronError(f"the {field.name} has a step of 0")
        if span == "*":
            low, high = field.low, field.high
        else:
            first, dash, last = span.partition("-")
            low = _number(field, first, field.names)
            high = _number(field, last, field.names) if dash else field.high if slash else low
        if not field.low <= low <= high <= field.high:
            raise CronError(
                f"the {field.name} {part!r} is not within {field.low} to {field.high}, ascending"
            )
        found.update(range(low, high + 1, step))
    return tuple(sorted(found))


def _number(field: _Field, text: str, names: dict[str, int]) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 4:
        return int(text)
    value = names.get(text.lower())
    if value is None:
        raise CronError(f"the {field.name} has {text!r}, which is no number")
    return value
