"""When a record of a delay topic is due: what its `mqd-*` headers and the options of its topic
mean. Pure.

All times are in milliseconds. If a header occurs several times, the last one counts. A record
without any of these headers is due at its own time stamp, which means at once.

    mqd-deliver-at  when the record is due, since 1970
    mqd-delay       the same, after the record's time stamp; mqd-deliver-at takes precedence
    mqd-ttl         when the record expires, after its time stamp, or with mqd-cron after each
                    occurrence; the topic's TTL may be earlier
    mqd-attempts    attempts of a retry topic so far, which choose its next back-off
    mqd-cron        a schedule (cron.py): the record is relayed at each of its times. The first one
                    is after its time stamp, or not before mqd-deliver-at or mqd-delay
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqd.delay_names import ATTEMPTS, CRON, DELAY, DELIVER_AT, TTL
from mqd.header_numbers import INT64_MAX, number_of
from mqd.relay.cron import CRON_CHARS_MAX, Cron, CronError, cron_of

_READ: Final = frozenset({DELIVER_AT, DELAY, TTL, ATTEMPTS, CRON})
_SHOWN_CHARS_MAX: Final = 64

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class DelayOptions:
    """Options of a delay topic."""

    message_ttl_ms: int | None = None
    """`mqd.message.ttl.ms`; None: records do not expire."""
    retry_backoff_ms: tuple[int, ...] = ()
    """`mqd.retry.backoff`: the delay before the first attempt of the topic, the second, and so on.
    Empty: not a retry topic."""


class RecordTimes(NamedTuple):
    """When a record is due and expires."""

    due_ms: int
    expires_ms: int | None
    """From then on the record is expired. None: never."""
    attempts: int
    """Attempts of a retry topic so far: 0 for a record that failed for the first time."""
    cron: Cron | None
    """The schedule of a repeating record; `due_ms` is its first time."""

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


class BadHeader(NamedTuple):
    """Why the times of a record are unknown. The record cannot be relayed."""

    header: str
    problem: str
    """Sentences: what happened, and what to do."""


def times_of(headers: Headers, timestamp_ms: int, options: DelayOptions) -> RecordTimes | BadHeader:
    """The times of one record with these headers and this time stamp."""
    found = {name: content for name, content in headers if name in _READ}
    numbers: dict[str, int] = {}
    for name in (DELIVER_AT, DELAY, TTL, ATTEMPTS):
        if name in found:
            number = number_of(found[name])
            if number is None:
                return _not_a_number(name, found[name])
            numbers[name] = number
    if timestamp_ms < 0:
        if not numbers.keys().isdisjoint({DELAY, TTL}):
            name = DELAY if DELAY in numbers else TTL
            return BadHeader(
                name,
                f"The header '{name}' counts from the record's time stamp, and the record has "
                f"none. Set the time stamp, or use '{DELIVER_AT}'.",
            )
        timestamp_ms = 0
    attempts = numbers.get(ATTEMPTS, 0)
    due_ms = _first_due(numbers, timestamp_ms, attempts, options)
    cron = None
    if CRON in found:
        parsed = _schedule(found[CRON])
        if isinstance(parsed, BadHeader):
            return parsed
        cron = parsed
        # A time of the schedule itself may be the first one if the record names it.
        not_before = due_ms - 1 if {DELIVER_AT, DELAY} & numbers.keys() else due_ms
        first = cron.next_after(not_before)
        if first is None:
            return BadHeader(
                CRON,
                f"The schedule in the header '{CRON}' begins after the year 9999. Choose an "
                f"earlier '{DELIVER_AT}'.",
            )
        due_ms = first
    # The time stamp of an occurrence is the time of the one before.
    since_ms = timestamp_ms if cron is None else due_ms
    return RecordTimes(due_ms, _expiry(numbers, since_ms, options), attempts, cron)


def next_occurrence(cron: Cron, due_ms: int, now_ms: int) -> int | None:
    """When a repeating record that was due at `due_ms` is due again. Times that have passed by
    `now_ms` are left out, so at most one occurrence is late. None: never again.
    """
    return cron.next_after(max(due_ms, now_ms))


def _first_due(
    numbers: dict[str, int], timestamp_ms: int, attempts: int, options: DelayOptions
) -> int:
    if DELIVER_AT in numbers:
        return numbers[DELIVER_AT]
    if DELAY in numbers:
        return min(timestamp_ms + numbers[DELAY], INT64_MAX)
    backoff = options.retry_backoff_ms
    if not backoff:
        return timestamp_ms
    return min(timestamp_ms + backoff[min(attempts, len(backoff) - 1)], INT64_MAX)


def _expiry(numbers: dict[str, int], since_ms: int, options: DelayOptions) -> int | None:
    lifetimes = [ms for ms in (numbers.get(TTL), options.message_ttl_ms) if ms is not None]
    return min(since_ms + min(lifetimes), INT64_MAX) if lifetimes else None


def _not_a_number(name: str, content: bytes | None) -> BadHeader:
    unit = "failed deliveries" if name == ATTEMPTS else "milliseconds"
    return BadHeader(
        name,
        f"The header '{name}' has {_shown(content)}, which is not a number of {unit} from 0 to "
        f"{INT64_MAX}. Send it as decimal digits in ASCII, such as '1500'.",
    )


def _schedule(content: bytes | None) -> Cron | BadHeader:
    try:
        return cron_of((content or b"")[: CRON_CHARS_MAX + 1].decode("ascii"))
    except UnicodeDecodeError:
        reason = "it is not ASCII"
    except CronError as error:
        reason = str(error)
    return BadHeader(
        CRON,
        f"The header '{CRON}' has {_shown(content)}, which is not a schedule: {reason}. Send the "
        "five fields of crontab, such as '*/5 9-17 * * mon-fri'; times are UTC.",
    )


def _shown(content: bytes | None) -> str:
    """The content of a header for a sentence, shortened."""
    if content is None:
        return "no value"
    text = content[:_SHOWN_CHARS_MAX].decode("utf-8", "replace")
    return ascii(text) + ("..." if len(content) > _SHOWN_CHARS_MAX else "")
