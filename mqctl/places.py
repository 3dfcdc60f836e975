"""Parses positions in a log: beginning, end, an offset, a number of records before the end, or a
time. Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d)")
_WORDS: dict[str, Literal["beginning", "end"]] = {
    "beginning": "beginning",
    "start": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
    "now": "end",
}

PLACE_FORMS = (
    "beginning (or earliest), end (or latest), an offset, -N (N before the log end) or @TIME"
)
TIME_FORMS = (
    "TIME is 2026-01-31T12:00:00Z, ms since 1970, or -15m (15 minutes ago; also s, h or d)."
)
"""The one notation for times, in the help of every command that has one."""


class Place(NamedTuple):
    """Exactly one is set: a word, an offset, a number of records before the end, or a time
    in ms since the epoch.
    """

    word: Literal["beginning", "end"] | None = None
    offset: int | None = None
    before_end: int | None = None
    timestamp_ms: int | None = None


def parse_place(text: str, now_ms: int) -> Place:
    """Parse a position. Raises ValueError that lists the valid forms."""
    if text in _WORDS:
        return Place(word=_WORDS[text])
    if text.isdecimal():
        return Place(offset=int(text))
    if text.startswith("-") and text[1:].isdecimal():
        return Place(before_end=int(text[1:]))
    if text.startswith("@"):
        return Place(timestamp_ms=parse_time(text[1:], now_ms))
    raise ValueError(f"invalid position {text!r}: expected {PLACE_FORMS}")


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 (UTC), ISO 8601 (local time unless it names a zone), or -15m.

    A leading @, as in places, is permitted. Raises ValueError.
    """
    text = text.removeprefix("@")
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"invalid time {text!r}: expected 1700000000000, 2026-01-31T12:00:00Z or -15m"
        ) from None


def format_time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; the number itself if it is out of range for dates."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def parse_partitions(text: str) -> list[int]:
    """The numbers in `0,2,5-7`, in this order, once each. Raises ValueError."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or int(last or first) - int(first) > 100_000
        ):
            raise ValueError(f"invalid partitions {text!r}: expected 0 or 0,2,5-7")
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    return list(found)
