"""Checks delay topics by their final logs: what became of each of their records. Pure.

A record is relayed to the target, is a dead letter, or is cancelled. What must happen depends on
its headers, on the topic, and on later records of its key. Where that depends on when the relay
read it, several outcomes are right. No record has two outcomes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mqd.delay_names import (
    ATTEMPTS,
    CANCELS,
    CRON,
    DELAY,
    DELIVER_AT,
    DLQ_COUNT,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_TIMESTAMP,
    DLQ_TOPIC,
    DUE,
    FIRST_FAILURE,
    FROM_OFFSET,
    FROM_PARTITION,
    FROM_TOPIC,
    REPEATS,
    TTL,
)
from mqd.protocol.record_reader import Record
from mqd.testing.checker import SHOWN_MAX, Anomaly
from mqd.types import TopicPartition

_MINUTE_MS = 60_000
_ORIGIN = (FROM_TOPIC, FROM_PARTITION, FROM_OFFSET)
_DEAD_ORIGIN = (DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET)
EVERY_MINUTE = b"* * * * *"

MEANINGS = {
    "relayed-twice": "a record of a delay topic has more than one outcome",
    "not-relayed": "a record of a delay topic has no outcome",
    "wrongly-relayed": "a record was relayed that is cancelled, expired or without attempts",
    "wrongly-dead": "a record is a dead letter, and nothing prevented its relay",
    "not-the-record": "a relayed record or dead letter has another content, place or header",
    "no-origin": "a relayed record or dead letter names no record of a delay topic",
    "early": "a record arrived before it was due",
    "schedule": "a schedule does not have exactly one next occurrence",
    "lost": "an acknowledged record is not in the delay topic, or is there twice",
}


class Outcome(Enum):
    """What became of a record."""

    TARGET = "target"
    DEAD = "dead"
    NONE = "none"
    """Cancelled, or not yet due."""


class Place(NamedTuple):
    """A record of a delay topic."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DelayTopic:
    """The configs of one delay topic."""

    back_off_ms: tuple[int, ...] = ()
    """Not empty: a retry topic."""
    replaces: bool = False
    """`mqd.delay.replace`"""


@dataclass(slots=True)
class Arrived:
    """What the relays wrote."""

    places: dict[Place, list[tuple[Outcome, TopicPartition, Record]]] = field(default_factory=dict)
    strays: list[Record] = field(default_factory=list)
    """Records without a place of origin."""

    def add(self, outcome: Outcome, where: TopicPartition, records: Iterable[Record]) -> None:
        names = _ORIGIN if outcome is Outcome.TARGET else _DEAD_ORIGIN
        for record in records:
            found = dict(record.headers)
            try:
                topic, partition, offset = (found[name] or b"" for name in names)
                place = Place(topic.decode(), int(partition), int(offset))
            except (KeyError, ValueError):
                self.strays.append(record)
                continue
            self.places.setdefault(place, []).append((outcome, where, record))


def number_in(record: Record, name: str) -> int | None:
    """The number in a header."""
    content = dict(record.headers).get(name)
    return None if content is None else int(content)


def due_ms(topic: DelayTopic, record: Record) -> int:
    """When a record is due."""
    at, delay = number_in(record, DELIVER_AT), number_in(record, DELAY)
    if topic.back_off_ms:
        attempts = number_in(record, ATTEMPTS) or 0
        is_exhausted = attempts >= len(topic.back_off_ms)
        return record.timestamp + (0 if is_exhausted else topic.back_off_ms[attempts])
    due = at if at is not None else record.timestamp + (delay or 0)
    if dict(record.headers).get(CRON) == EVERY_MINUTE:
        named = at is not None or delay is not None
        minutes = due // _MINUTE_MS
        due = due if named and due % _MINUTE_MS == 0 else (minutes + 1) * _MINUTE_MS
    return due


class DelayCheck:
    """The check at the end of one run."""

    def __init__(self, topics: Mapping[str, DelayTopic], latest_wall_ms: int, wall_ms: int) -> None:
        """`latest_wall_ms`: the latest wall time that any node has had. `wall_ms`: what is due by
        then has an outcome.
        """
        self._topics = topics
        self._latest_ms = latest_wall_ms
        self._wall_ms = wall_ms
        self._found: defaultdict[str, list[str]] = defaultdict(list)

    def note(self, kind: str, example: str) -> None:
        self._found[kind].append(example)

    def missing(
        self, logs: Mapping[TopicPartition, Mapping[int, Record]], arrived: Arrived
    ) -> list[Place]:
        """The records that must still get an outcome."""
        return [
            place
            for place, record, others in _records(logs)
            if place not in arrived.places
            and Outcome.NONE not in self._allowed(place, record, others)
        ]

    def check(
        self,
        logs: Mapping[TopicPartition, Mapping[int, Record]],
        arrived: Arrived,
        cancelled: Mapping[bytes, int],
    ) -> None:
        """`logs`: the delay topics. `cancelled`: value -> the wall time in ms at which something
        that cancels the record was acknowledged, for records of the delay topic.
        """
        left = dict(arrived.places)
        for place, record, others in _records(logs):
            outcomes = left.pop(place, [])
            if len(outcomes) > 1:
                self.note("relayed-twice", f"{place}: {[one for one, _, _ in outcomes]}")
            allowed, topic = self._allowed(place, record, others), self._topics[place.topic]
            ended_ms = cancelled.get(record.value or b"")
            if not topic.back_off_ms and ended_ms is not None and ended_ms < due_ms(topic, record):
                allowed = {Outcome.NONE}
            if not outcomes and Outcome.NONE not in allowed:
                self.note("not-relayed", f"{place}: {record}")
            for outcome, where, made in outcomes:
                if outcome not in allowed:
                    kind = "wrongly-relayed" if outcome is Outcome.TARGET else "wrongly-dead"
                    self.note(kind, f"{place}: {record}")
                self._check_content(place, record, outcome, where, made)
            if not topic.back_off_ms and dict(record.headers).get(CRON) == EVERY_MINUTE:
                self._check_schedule(place, record, others, is_relayed=bool(outcomes))
        for place in left:
            self.note("no-origin", f"{place}")
        for record in arrived.strays:
            self.note("no-origin", f"{record}")

    def anomalies(self, partition: TopicPartition) -> list[Anomaly]:
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for kind, rows in sorted(self._found.items())
        ]

    def _allowed(self, place: Place, record: Record, others: Sequence[Record]) -> set[Outcome]:
        topic, due = self._topics[place.topic], due_ms(self._topics[place.topic], record)
        if record.key is not None and record.value is None:
            return {Outcome.NONE}
        if topic.back_off_ms and (number_in(record, ATTEMPTS) or 0) >= len(topic.back_off_ms):
            return {Outcome.DEAD}
        allowed = {Outcome.TARGET}
        ttl = number_in(record, TTL)
        if ttl is not None and record.timestamp + ttl <= due:
            allowed = {Outcome.DEAD}
        elif ttl is not None and record.timestamp + ttl <= self._latest_ms:
            allowed.add(Outcome.DEAD)
        if due > self._wall_ms:
            allowed = {Outcome.NONE} | (allowed if due <= self._latest_ms else set())
        if any(self._may_cancel(topic, record, other) for other in others):
            allowed.add(Outcome.NONE)
        return allowed

    @staticmethod
    def _may_cancel(topic: DelayTopic, record: Record, other: Record) -> bool:
        if record.key is None or other.key != record.key:
            return False
        since = number_in(record, REPEATS)
        is_later = other.offset > record.offset
        is_between = since is not None and since <= other.offset < record.offset
        if other.value is None:
            ends = number_in(other, CANCELS) in (None, record.offset)
        else:
            ends = topic.replaces and number_in(other, REPEATS) is None
        return ends and (is_later or is_between)

    def _check_content(
        self, place: Place, record: Record, outcome: Outcome, where: TopicPartition, made: Record
    ) -> None:
        topic = self._topics[place.topic]
        kept = [row for row in record.headers if row[0] not in (ATTEMPTS, REPEATS)]
        due = due_ms(topic, record)
        # In the future for a relay whose clock was behind, the time stamp becomes the relay's time.
        latest = max(record.timestamp, due) if outcome is Outcome.TARGET else self._latest_ms
        content = (made.key, made.value) == (record.key, record.value)
        content &= due <= made.timestamp <= latest
        attempts = number_in(record, ATTEMPTS) or 0
        is_right = content and all(
            row in made.headers for row in kept if row[0] in (CRON, TTL, DELIVER_AT)
        )
        if outcome is Outcome.TARGET:
            is_right &= number_in(made, DUE) == due_ms(topic, record)
            if topic.back_off_ms:
                is_right &= number_in(made, ATTEMPTS) == attempts + 1
                first = number_in(record, FIRST_FAILURE)
                first = record.timestamp if first is None else first
                is_right &= number_in(made, FIRST_FAILURE) == first
        else:
            is_exhausted = bool(topic.back_off_ms) and attempts >= len(topic.back_off_ms)
            cause = b"no attempts left" if is_exhausted else b"expired"
            is_right &= dict(made.headers).get(DLQ_MESSAGE) == cause
            is_right &= number_in(made, DLQ_COUNT) == attempts + bool(topic.back_off_ms)
            is_right &= number_in(made, DLQ_TIMESTAMP) == record.timestamp
        if not is_right:
            self.note("not-the-record", f"{place} in {where}: {record}, {made}")

    def _check_schedule(
        self, place: Place, record: Record, others: Sequence[Record], *, is_relayed: bool
    ) -> None:
        """A relayed occurrence has one next occurrence, whose time stamp is its time."""
        due = due_ms(self._topics[place.topic], record)
        following = [
            one
            for one in others
            if one.key == record.key
            and number_in(one, REPEATS) is not None
            and one.timestamp == due
        ]
        if len(following) != int(is_relayed):
            self.note("schedule", f"{place}: {len(following)} after the one at {due}")


def _records(
    logs: Mapping[TopicPartition, Mapping[int, Record]],
) -> Iterable[tuple[Place, Record, list[Record]]]:
    """Each record, and the records of its key in its partition."""
    for where, rows in logs.items():
        by_key: defaultdict[bytes | None, list[Record]] = defaultdict(list)
        for record in rows.values():
            by_key[record.key].append(record)
        for offset, record in rows.items():
            others = by_key[record.key]
            yield Place(where.topic, where.partition, offset), record, others


def sent_twice_or_lost(
    records: Iterable[Record], acknowledged: Iterable[tuple[bytes, int]]
) -> list[str]:
    """Examples of (value, attempts) that are not exactly once in a delay topic, or more than once
    without an acknowledgement.
    """
    counts = Counter(
        (record.value or b"", number_in(record, ATTEMPTS) or 0)
        for record in records
        if record.value is not None and number_in(record, REPEATS) is None
    )
    twice = [f"{sent} {count} times" for sent, count in counts.items() if count > 1]
    return twice + [f"{sent} is missing" for sent in acknowledged if not counts[sent]]
