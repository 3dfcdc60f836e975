"""Compares the responses to clients with the final logs. A core. The names of anomalies follow
Jepsen's Kafka workload.

The offsets of a partition have no gaps here: no transactions, no compaction, no retention. Each
producer is idempotent with acks=all. A consumer that did not read everything is no anomaly, but all
its records must agree with the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from .history import ACKED_SOMEWHERE, NOT_ACKED, History, Key, Reads, number_of, producer_of

SHOWN_MAX = 5
"""The maximum number of examples of an anomaly."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken guarantee in one partition. `examples`: (producer, number) of the first records
    concerned.
    """

    kind: str
    key: Key
    count: int
    examples: tuple[tuple[int, int], ...]
    meaning: str

    def __str__(self) -> str:
        shown = ", ".join(f"{producer}:{number}" for producer, number in self.examples)
        return (
            f"{self.kind}: {self.key[0]}-{self.key[1]}, {self.count} record(s): "
            f"{self.meaning} (producer:number {shown})"
        )


MEANINGS = {
    "lost": "acknowledged, and not in the log",
    "doubled": "in the log more than once",
    "misplaced": "acknowledged at one offset, found at another",
    "disorder": "after a record that the same producer sent later",
    "gap": "offset does not follow the one before",
    "unknown": "in the log, and never sent",
    "acked-disorder": "acknowledged at an offset not above that of an earlier record",
    "unacknowledged": "sent, and not acknowledged, although the producer has no timeout",
    "inconsistent-offset": "read by a consumer, and the final log has another record at its offset",
    "vanished": "read by a consumer, and the final log has no record at its offset",
    "poll-skip": "read by a consumer without the records before it",
    "nonmonotonic-poll": "read by a consumer after a record at the same or a higher offset",
}


class _Found:
    """Collects the anomalies of one partition."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[int, int]]] = {}
        self.counts: dict[str, int] = {}

    def add(self, kind: str, producer: int, number: int) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        rows = self.values.setdefault(kind, [])
        if len(rows) < SHOWN_MAX:
            rows.append((producer, number))

    def value(self, kind: str, value: int) -> None:
        self.add(kind, producer_of(value), number_of(value))


def check(history: History, *, flushed: bool = True) -> list[Anomaly]:
    """Returns every anomaly. `flushed`: whether the producers flushed; then every sent record must
    be acknowledged.
    """
    anomalies: list[Anomaly] = []
    for key in sorted(_keys(history)):
        found = _Found()
        acked = {producer: keys[key] for producer, keys in history.sends.items() if key in keys}
        log = history.final.get(key, Reads())
        places = _check_log(acked, log, found)
        for producer, rows in acked.items():
            _check_acknowledgements(producer, rows, places[producer], flushed, found)
        by_offset = dict(zip(log.offsets, log.values)) if not _is_dense(log.offsets) else log.values
        for keys in history.reads.values():
            if key in keys:
                _check_reads(keys[key], by_offset, found)
        anomalies += [
            Anomaly(kind, key, found.counts[kind], tuple(found.values[kind]), MEANINGS[kind])
            for kind in MEANINGS
            if kind in found.counts
        ]
    return anomalies


def _keys(history: History) -> set[Key]:
    keys = set(history.final)
    parties: Iterable[Mapping[Key, object]] = [*history.sends.values(), *history.reads.values()]
    return keys.union(*parties)


def _is_dense(offsets: array[int]) -> bool:
    return offsets == array("q", range(len(offsets)))


def _check_log(acked: Mapping[int, array[int]], log: Reads, found: _Found) -> dict[int, array[int]]:
    """Check the log, and compare it with the sent records. Returns producer -> number -> the first
    offset of the record, or NOT_ACKED.
    """
    places = {producer: array("q", [NOT_ACKED]) * len(rows) for producer, rows in acked.items()}
    highest = dict.fromkeys(acked, -1)
    expected = 0
    for offset, value in zip(log.offsets, log.values):
        if offset != expected:
            found.value("gap", value)
        expected = offset + 1
        producer, number = producer_of(value), number_of(value)
        mine = places.get(producer)
        if mine is None or number >= len(mine):
            found.value("unknown", value)
            continue
        if mine[number] != NOT_ACKED:
            found.value("doubled", value)
            continue
        mine[number] = offset
        if number < highest[producer]:
            found.value("disorder", value)
        else:
            highest[producer] = number
    return places


def _check_acknowledgements(
    producer: int, rows: array[int], places: array[int], flushed: bool, found: _Found
) -> None:
    if rows == places and NOT_ACKED not in rows and all(a < b for a, b in pairwise(rows)):
        return  # the usual case, without a Python loop
    previous = -1
    for number, offset in enumerate(rows):
        if offset == NOT_ACKED:
            if flushed:
                found.add("unacknowledged", producer, number)
            continue
        if places[number] == NOT_ACKED:
            found.add("lost", producer, number)
        if offset == ACKED_SOMEWHERE:
            continue
        if offset <= previous:
            found.add("acked-disorder", producer, number)
        previous = max(previous, offset)
        if places[number] not in (NOT_ACKED, offset):
            found.add("misplaced", producer, number)


def _check_reads(reads: Reads, log: Mapping[int, int] | array[int], found: _Found) -> None:
    """Compare the records that a consumer got during the faults with the final log."""
    previous = -1
    for offset, value in zip(reads.offsets, reads.values):
        if offset > previous + 1:
            found.value("poll-skip", value)
        elif offset <= previous:
            found.value("nonmonotonic-poll", value)
        previous = max(previous, offset)
        there = (
            log.get(offset)
            if isinstance(log, Mapping)
            else log[offset]
            if offset < len(log)
            else None
        )
        if there is None:
            found.value("vanished", value)
        elif there != value:
            found.value("inconsistent-offset", value)
