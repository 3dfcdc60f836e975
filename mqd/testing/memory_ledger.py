"""Checks topics in memory (`mqd.storage=memory`) by what their clients sent and received. Pure.

All records are lost if all in-sync replicas restart. Then the log begins again, at the offsets of a
later leader epoch: another *incarnation*. An offset shows its incarnation. Within one incarnation,
a topic in memory has the guarantees of every other topic: acknowledged records are not lost, no
record is there twice or before an earlier one of its producer, and nothing is read that is not
committed. An offset never has two records (I59).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqd.testing.checker import SHOWN_MAX, Anomaly
from mqd.types import TopicPartition

_EPOCH_BITS = 40
MEANINGS = {
    "memory-lost": "an acknowledged record is not in the log, which did not begin again",
    "memory-lost-read": "a record was read, and is not in the log, which did not begin again",
    "memory-two-records": "an offset has two records",
    "memory-twice": "a record is twice in the log, which did not begin again in between",
    "memory-reordered": "a record is before an earlier one of its producer",
    "memory-uncommitted": "a record was read or acknowledged before it was committed",
    "memory-unknown": "a record was read that nobody sent",
}


class FinalLog(NamedTuple):
    """A partition at the end of the run."""

    start: int
    records: Mapping[int, bytes]


def incarnation(offset: int) -> int:
    return offset >> _EPOCH_BITS


class MemoryLedger:
    """The topics in memory of one run."""

    def __init__(self, committed_end: Callable[[TopicPartition, int], int]) -> None:
        """`committed_end(partition, incarnation)`: the highest high watermark of any leader."""
        self.reads = self.acknowledgements = 0
        self._committed_end = committed_end
        self._sent: dict[bytes, tuple[str, int]] = {}
        """Value -> its producer, and its place in the order of the producer."""
        self._acknowledged: list[tuple[TopicPartition, int, bytes]] = []
        self._seen: dict[TopicPartition, dict[int, set[bytes]]] = {}
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    def sent(self, producer: str, value: bytes) -> None:
        self._sent[value] = producer, len(self._sent)

    def acknowledged(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        self.acknowledgements += 1
        self._acknowledged.append((partition, offset, value))
        self._see(partition, offset, value)

    def read(
        self,
        partition: TopicPartition,
        offset: int,
        value: bytes,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark`: that of the same response, if the client knows it."""
        self.reads += 1
        self._see(partition, offset, value)
        if high_watermark is not None and offset >= high_watermark:
            text = f"{value!r} at {offset}, high watermark {high_watermark}"
            self._note("memory-uncommitted", partition, text)

    def _see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        self._seen.setdefault(partition, {}).setdefault(offset, set()).add(value)
        if offset >= self._committed_end(partition, incarnation(offset)):
            self._note("memory-uncommitted", partition, f"{value!r} at {offset}")

    def check(self, final: Mapping[TopicPartition, FinalLog]) -> list[Anomaly]:
        """Returns every anomaly."""
        for partition, log in final.items():
            for offset, value in log.records.items():
                self._seen.setdefault(partition, {}).setdefault(offset, set()).add(value)
        for partition, offset, value in self._acknowledged:
            log = final[partition]
            is_gone = incarnation(offset) < incarnation(log.start)
            if not is_gone and log.records.get(offset) != value:
                self._note("memory-lost", partition, f"{value!r} at {offset}, {log.start=}")
        for partition, seen in self._seen.items():
            self._check_offsets(partition, seen, final[partition])
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_offsets(
        self, partition: TopicPartition, seen: Mapping[int, set[bytes]], log: FinalLog
    ) -> None:
        offsets: dict[tuple[int, bytes], int] = {}
        newest: defaultdict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (-1, -1))
        for offset, values in sorted(seen.items()):
            if len(values) > 1:
                self._note("memory-two-records", partition, f"{offset}: {sorted(values)}")
            elif incarnation(offset) >= incarnation(log.start) and offset not in log.records:
                self._note("memory-lost-read", partition, f"{offset}: {min(values)!r}")
            for value in sorted(values):
                before = offsets.setdefault((incarnation(offset), value), offset)
                if before != offset:
                    self._note("memory-twice", partition, f"{value!r} at {before} and {offset}")
                if value not in self._sent:
                    self._note("memory-unknown", partition, f"{value!r} at {offset}")
                    continue
                producer, number = self._sent[value]
                key = incarnation(offset), producer
                if number < newest[key][0]:
                    text = f"{value!r} at {offset}, a later one at {newest[key][1]}"
                    self._note("memory-reordered", partition, text)
                newest[key] = max(newest[key], (number, offset))

    def _note(self, kind: str, partition: TopicPartition, example: str) -> None:
        self._found.setdefault((kind, partition), []).append(example)
