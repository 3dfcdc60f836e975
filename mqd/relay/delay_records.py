"""What becomes of one record of a delay topic that is due: the record for the target or for the
dead-letter topic, and the next occurrence of a repeating one. Pure.

Key and value stay. The time stamp of a relayed record is its due time, so that retention and TTL of
the target begin then; that of a dead letter is now. Neither is later than now: a topic may refuse
that. These headers are added, and replace earlier ones of the same name:

    mqd-delay-topic, mqd-delay-partition, mqd-delay-offset   where the record waited
    mqd-delay-timestamp                                      its time stamp there
    mqd-due                                                  when it was due
    mqd-attempts, mqd-first-failure                          relayed by a retry topic
    __dlq.errors.*                                           in a dead-letter topic (KIP-1191)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mqd.client.partitioner import partition_for_key
from mqd.delay_names import (
    ATTEMPTS,
    CANCELS,
    CRON,
    DELAY,
    DELIVER_AT,
    DLQ_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_TARGET,
    DLQ_TIMESTAMP,
    DLQ_TOPIC,
    DUE,
    ERROR,
    FIRST_FAILURE,
    FROM_OFFSET,
    FROM_PARTITION,
    FROM_TIMESTAMP,
    FROM_TOPIC,
    ORIGIN_GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    REPEATS,
    is_of_letter,
)
from mqd.header_numbers import last_number
from mqd.protocol.record_reader import Record
from mqd.relay.delay_headers import BadHeader, Headers, RecordTimes, next_occurrence, times_of
from mqd.relay.delay_topic import DelayTopic
from mqd.types import Offset, TopicPartition

EXPIRED: Final = "expired"
EXHAUSTED: Final = "no attempts left"


class Outgoing(NamedTuple):
    """One record to write. `partitions` of its topic decide the partition."""

    topic: str
    record: Record
    partition: int | None = None
    """None: by key, or that of the source."""


class Refusal(NamedTuple):
    """A topic never accepts what was to be written for a record."""

    topic: str
    reason: str


class Outcome(NamedTuple):
    """What becomes of a record that is due. `cause`: why it is not relayed; empty if it is."""

    records: tuple[Outgoing, ...]
    cause: str = ""


def times_in(topic: DelayTopic, record: Record) -> RecordTimes | BadHeader:
    """When the record is due. A retry topic counts its back-off only: the consumer that failed has
    returned the record with the headers that it had."""
    headers: Headers = record.headers
    if topic.is_retry:
        ignored = (DELIVER_AT, DELAY, CRON)
        headers = [header for header in headers if header[0] not in ignored]
    elif not begins_schedule(headers):
        headers = [header for header in headers if header[0] != CRON]
    times = times_of(headers, record.timestamp, topic.times)
    if isinstance(times, RecordTimes) and times.cron is not None and record.key is None:
        return BadHeader(
            CRON,
            f"A record with the header '{CRON}' needs a key: only a tombstone of its key ends the "
            "schedule. Send it with a key.",
        )
    return times


def begins_schedule(headers: Headers) -> bool:
    """Whether these are the headers of a schedule. A copy of an occurrence that was relayed, or its
    dead letter, has them, too, but is one record. In a chain of delay topics, each copy would begin
    a schedule at each hop."""
    names = {name for name, _ in headers}
    return CRON in names and names.isdisjoint((FROM_TOPIC, DLQ_TOPIC))


def due_ms_of(topic: DelayTopic, record: Record) -> int:
    """The due time in the index: a function of the record and of configs that never change, so
    that each leader computes the same one (I57)."""
    times = times_in(topic, record)
    if isinstance(times, BadHeader) or is_exhausted(topic, times):
        return max(0, record.timestamp)
    return times.due_ms


def is_exhausted(topic: DelayTopic, times: RecordTimes) -> bool:
    return topic.is_retry and times.attempts >= len(topic.times.retry_backoff_ms)


def outcome_of(
    topic: DelayTopic,
    source: TopicPartition,
    record: Record,
    *,
    now_ms: int,
    next_offset: Offset,
    refused: Sequence[Refusal] = (),
) -> Outcome:
    """The record is due, and nothing has cancelled it. `next_offset`: the end of the known log.
    `refused`: earlier outcomes of this record that a topic never accepts."""
    times = times_in(topic, record)
    cause = f"refused by {refused[0].topic!r}: {refused[0].reason}" if refused else ""
    letters = [one.topic for one in refused].count(topic.dead_letters)
    if isinstance(times, BadHeader):
        if topic.dead_letters or refused:
            return _dead(topic, source, record, 0, cause or times.problem, letters, now_ms)
        added = {**_origin(source, record, max(0, record.timestamp)), ERROR: times.problem}
        return Outcome((_to_target(topic, record, added),))
    again: tuple[Outgoing, ...] = ()
    if times.cron is not None:
        following = next_occurrence(times.cron, times.due_ms, now_ms)
        if following is not None and all(one.topic != source.topic for one in refused):
            again = (_repeated(source, record, times.due_ms, following, next_offset),)
    if is_exhausted(topic, times):
        cause = EXHAUSTED
    elif times.is_expired(now_ms):
        cause = EXPIRED
    if cause:
        dead = _dead(topic, source, record, times.attempts, cause, letters, now_ms)
        return Outcome((*dead.records, *again), cause)
    added = _origin(source, record, times.due_ms)
    if topic.is_retry:
        added[ATTEMPTS] = str(times.attempts + 1)
        if not any(name == FIRST_FAILURE for name, _ in record.headers):
            added[FIRST_FAILURE] = str(max(0, record.timestamp))
    relayed = record._replace(timestamp=max(min(record.timestamp, now_ms), times.due_ms))
    return Outcome((_to_target(topic, relayed, added), *again))


def partition_of(outgoing: Outgoing, source: TopicPartition, partitions: int) -> int:
    """As the default partitioner of Kafka's clients; without a key, the number of the source."""
    if outgoing.partition is not None:
        return outgoing.partition
    key = outgoing.record.key
    return source.partition % partitions if key is None else partition_for_key(key, partitions)


def _to_target(topic: DelayTopic, record: Record, added: Mapping[str, str]) -> Outgoing:
    return Outgoing(topic.target, _with_headers(record, added, without=(REPEATS,)))


def _dead(
    topic: DelayTopic,
    source: TopicPartition,
    record: Record,
    attempts: int,
    cause: str,
    refused_letters: int,
    now_ms: int,
) -> Outcome:
    """A letter with a copy of the record; without one if that was refused, else none."""
    if not topic.dead_letters or refused_letters > 1:
        return Outcome((), cause)
    if refused_letters:
        record = record._replace(key=None, value=None, headers=())
    added = {
        DLQ_TOPIC: source.topic,
        DLQ_PARTITION: str(source.partition),
        DLQ_OFFSET: str(record.offset),
        DLQ_TIMESTAMP: str(record.timestamp),
        DLQ_COUNT: str(attempts + topic.is_retry),
        DLQ_MESSAGE: cause,
        DLQ_TARGET: topic.target,
    }
    if topic.is_retry:
        added |= _first_failure(source, record)
    others = [name for name, _ in record.headers if is_of_letter(name)]
    letter = _with_headers(record, added, others)._replace(timestamp=now_ms)
    return Outcome((Outgoing(topic.dead_letters, letter),), cause)


def _first_failure(source: TopicPartition, record: Record) -> dict[str, str]:
    """Where the record failed first, if its consumer has sent that, and where it waited. Not of a
    record without key and value: `mqctl dlq redrive` reads it where its letter says that it is, so
    its producer must not choose that place."""
    if record.key is None and record.value is None:
        return {}
    found = {name: (content or b"").decode("utf-8", "replace") for name, content in record.headers}
    numbers = (ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP)
    read = [last_number(record.headers, name) for name in numbers]
    if not found.get(ORIGIN_TOPIC) or None in read:
        return {}
    added = {
        DLQ_TOPIC: found[ORIGIN_TOPIC],
        DLQ_PARTITION: found[ORIGIN_PARTITION],
        DLQ_OFFSET: found[ORIGIN_OFFSET],
        DLQ_TIMESTAMP: found[ORIGIN_TIMESTAMP],
        **_origin(source, record, max(0, record.timestamp)),
    }
    if found.get(ORIGIN_GROUP):
        added[DLQ_GROUP] = found[ORIGIN_GROUP]
    return added


def _repeated(
    source: TopicPartition, record: Record, due_ms: int, following: int, next_offset: Offset
) -> Outgoing:
    """The next occurrence, a record of the delay topic itself: written in the same transaction, so
    that a schedule neither ends nor doubles with a failover."""
    added = {DELIVER_AT: str(following), REPEATS: str(next_offset)}
    repeated = _with_headers(record, added, without=(DELAY,))
    return Outgoing(source.topic, repeated._replace(timestamp=due_ms), source.partition)


def _origin(source: TopicPartition, record: Record, due_ms: int) -> dict[str, str]:
    return {
        FROM_TOPIC: source.topic,
        FROM_PARTITION: str(source.partition),
        FROM_OFFSET: str(record.offset),
        FROM_TIMESTAMP: str(record.timestamp),
        DUE: str(due_ms),
    }


def _with_headers(record: Record, added: Mapping[str, str], without: Iterable[str] = ()) -> Record:
    dropped = {*added, *without}
    kept = [header for header in record.headers if header[0] not in dropped]
    new = [(name, text.encode()) for name, text in added.items()]
    return record._replace(headers=[*kept, *new])


def repeats_since(topic: DelayTopic, record: Record) -> Offset | None:
    """For the next occurrence of a repeating record: the offset in `REPEATS`. Records from there to
    the occurrence may cancel it; those before it were known when the occurrence was written."""
    if topic.is_retry or record.key is None or record.value is None:
        return None
    if not begins_schedule(record.headers):
        return None
    return last_number(record.headers, REPEATS)


def ends(topic: DelayTopic, other: Record, offset: Offset) -> bool:
    """Whether a later record with the same key cancels or replaces the record at `offset`. An
    occurrence replaces nothing: the record before it did."""
    if other.value is None:
        cancelled = cancelled_only(other)
        return cancelled is None or cancelled == offset
    return topic.replaces and repeats_since(topic, other) is None


def cancelled_only(tombstone: Record) -> Offset | None:
    """The only record that a tombstone cancels; None if it cancels all earlier ones of its key."""
    return last_number(tombstone.headers, CANCELS)


def cancellation_of(source: TopicPartition, occurrence: Record, now_ms: int) -> Outgoing:
    """A tombstone after an occurrence that was cancelled while it was written. The log keeps it as
    long as the occurrence; retention may delete what is before it (I58)."""
    headers = [(CANCELS, b"%d" % occurrence.offset)]
    record = Record(0, now_ms, occurrence.key, None, headers)
    return Outgoing(source.topic, record, source.partition)


def size_of(record: Record) -> int:
    """Memory of a record, about. A header takes 100 bytes more than its content."""
    headers = sum(len(name) + len(content or b"") + 100 for name, content in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 24
