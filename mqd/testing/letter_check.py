"""Checks the dead letters of share groups (KIP-1191) by what members sent and received. Pure.

A record that a group gave up has one letter, and no other record has one. It is given up if a
member rejected it, if it was delivered as often as allowed, or if it has expired. A record whose
acceptance was confirmed has no letter. If a response was lost, both may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from mqd.delay_names import (
    DLQ_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_PREFIX,
    DLQ_TIMESTAMP,
    DLQ_TOPIC,
)
from mqd.protocol.record_reader import Record
from mqd.share.values import AcknowledgeType
from mqd.testing.checker import SHOWN_MAX, Anomaly
from mqd.testing.share_features import ShareFeatures
from mqd.testing.share_ledger import Hold, Place, ShareLedger
from mqd.types import TopicPartition

MEANINGS = {
    "letter-twice": "a record has more than one dead letter",
    "letter-lost": "a record that a group gave up has no dead letter",
    "letter-of-accepted": "a record that a member accepted has a dead letter",
    "letter-early": "a record has a dead letter, and nothing made its group give it up",
    "letter-wrong": "a dead letter has wrong headers or another record",
}
_NAMES = (DLQ_TOPIC, DLQ_PARTITION, DLQ_OFFSET, DLQ_GROUP, DLQ_COUNT, DLQ_MESSAGE)


class Cause(StrEnum):
    """The texts in `__dlq.errors.message`."""

    REJECTED = "Offset rejected by client."
    TOO_OFTEN = "Offset delivery count exceeded the threshold."
    EXPIRED = "Record expired before it was acknowledged."


class Letter(NamedTuple):
    """A dead letter, as its headers describe it."""

    place: Place
    offset: int
    delivery_count: int
    cause: str
    record: Record


def letter_of(record: Record) -> Letter | None:
    """None if a header is missing or is no number."""
    found = {name: (value or b"").decode() for name, value in record.headers}
    try:
        topic, partition, offset, group, count, cause = (found[name] for name in _NAMES)
        place = Place(group, TopicPartition(topic, int(partition)))
        return Letter(place, int(offset), int(count), cause, record)
    except (KeyError, ValueError):
        return None


class LetterCheck:
    """The check at the end of one run."""

    def __init__(
        self,
        ledger: ShareLedger,
        features: ShareFeatures,
        records: Mapping[TopicPartition, Mapping[int, Record]],
        latest_wall_ms: int,
    ) -> None:
        """`records`: all records that the groups read, by offset. All of them are finished.
        `latest_wall_ms`: the latest wall time that any node has had.
        """
        self._ledger = ledger
        self._features = features
        self._records = records
        self._expired = {
            partition: features.expired(rows, latest_wall_ms) for partition, rows in records.items()
        }
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    def check(self, groups: Sequence[str], written: Iterable[Record]) -> list[Anomaly]:
        """Returns every anomaly. `written`: the records of the topic of the letters."""
        letters: dict[tuple[Place, int], list[Letter]] = {}
        for record in written:
            one = letter_of(record)
            if one is None or one.place.group not in groups:
                self._note("letter-wrong", next(iter(self._records)), f"{record}")
            else:
                letters.setdefault((one.place, one.offset), []).append(one)
        for group in groups:
            for partition, rows in self._records.items():
                place = Place(group, partition)
                for offset, record in rows.items():
                    self._check_record(place, record, letters.pop((place, offset), []))
        for (place, offset), _ in letters.items():
            self._note("letter-wrong", place.partition, f"{place.group}: no record at {offset}")
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_record(self, place: Place, record: Record, letters: Sequence[Letter]) -> None:
        holds = self._ledger.holds(place, record.offset)
        where = f"{place.group}: {record.offset}"
        if len(letters) > 1:
            self._note("letter-twice", place.partition, f"{where}: {len(letters)} letters")
        if not letters:
            may_be_accepted = any(one.sent_kind is AcknowledgeType.ACCEPT for one in holds)
            is_rejected = any(_is_certain(one, AcknowledgeType.REJECT) for one in holds)
            if is_rejected or not may_be_accepted:
                self._note("letter-lost", place.partition, where)
            return
        if any(_is_certain(one, AcknowledgeType.ACCEPT) for one in holds):
            self._note("letter-of-accepted", place.partition, where)
        for one in letters:
            if (problem := self._problem(one, holds)) is not None:
                self._note("letter-early", place.partition, f"{where}: {problem}")
            if not self._is_copy(one, record):
                self._note("letter-wrong", place.partition, f"{where}: {one.record}")

    def _problem(self, one: Letter, holds: Sequence[Hold]) -> str | None:
        """Why the cause in the letter cannot be right."""
        limit, lost = self._ledger.limit, self._ledger.lost_responses(one.place)
        may_be_expired = one.offset in self._expired[one.place.partition]
        text = f"{one.cause!r} with {one.delivery_count} deliveries"
        if not 0 <= one.delivery_count <= limit:
            return text
        rejections = [hold for hold in holds if hold.sent_kind is AcknowledgeType.REJECT]
        delivered = max((hold.count for hold in holds), default=0)
        match one.cause:
            case Cause.REJECTED:
                is_right = any(hold.count == one.delivery_count for hold in rejections)
            case Cause.TOO_OFTEN:
                is_right = one.delivery_count == limit and delivered + lost >= limit
            case Cause.EXPIRED:
                is_right = may_be_expired
            case _:
                is_right = False
        return None if is_right else text

    def _is_copy(self, one: Letter, record: Record) -> bool:
        """Whether the letter has the content of the record, if it must."""
        letter = one.record
        if not self._features.has_copies:
            return letter.key is None and letter.value is None
        headers = [row for row in letter.headers if not row[0].startswith(DLQ_PREFIX)]
        timestamp = dict(letter.headers).get(DLQ_TIMESTAMP)
        return (letter.key, letter.value, headers, timestamp) == (
            record.key,
            record.value,
            list(record.headers),
            b"%d" % record.timestamp,
        )

    def _note(self, kind: str, partition: TopicPartition, example: str) -> None:
        self._found.setdefault((kind, partition), []).append(example)


def _is_certain(hold: Hold, kind: AcknowledgeType) -> bool:
    """Whether this acknowledgement has certainly ended the record. After the end of the lock,
    another member may have finished it: leaders ignore records before the start offset.
    """
    return hold.sent_kind is kind and hold.confirmed < float("inf") and hold.was_locked
