"""What producers were told, what the log holds in the end, and every way in which the two can quarrel.

A value is (partition, number): each partition's records are numbered 0, 1, 2 ... in the order in which one idempotent
producer sent them. `acked[partition][number]` is the offset that the acknowledgement of that record named, or NOT_ACKED.
The final log is `log[partition]`: (offset, number) of every record, in the order in which a consumer got them.
Pure: no client, no clock. The anomalies and their names follow Jepsen's Kafka workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOT_ACKED = -1
SHOWN_MAX = 5
"""Examples that one anomaly carries."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One promise broken in one partition. `numbers` are the first few records that show it."""

    kind: str
    partition: int
    count: int
    numbers: tuple[int, ...]
    meaning: str

    def __str__(self) -> str:
        shown = ", ".join(str(number) for number in self.numbers)
        return f"{self.kind}: partition {self.partition}, {self.count} record(s): {self.meaning} (first: {shown})"


MEANINGS = {
    "lost": "acknowledged, and not in the log",
    "doubled": "in the log more than once",
    "misplaced": "acknowledged at one offset, found at another",
    "disorder": "after a record that was sent later",
    "gap": "offset does not follow the one before",
    "unknown": "in the log, and never sent",
    "acked-disorder": "acknowledged at an offset not above that of an earlier record",
    "unsettled": "sent, and never acknowledged although the producer had all the time it wanted",
}


def check(acked: Mapping[int, Sequence[int]], log: Mapping[int, Sequence[tuple[int, int]]], *, settled: bool = True) -> list[Anomaly]:
    """Every anomaly of a history. `settled` says that the producer flushed: then what was sent must have been acknowledged."""
    found: list[Anomaly] = []
    for partition in sorted(acked.keys() | log.keys()):
        found += _check_partition(partition, acked.get(partition, ()), log.get(partition, ()), settled)
    return found


def _check_partition(partition: int, acked: Sequence[int], log: Sequence[tuple[int, int]], settled: bool) -> list[Anomaly]:
    bad: dict[str, list[int]] = {kind: [] for kind in MEANINGS}
    place: dict[int, int] = {}
    highest = -1
    expected_offset = 0
    for offset, number in log:
        if offset != expected_offset:
            bad["gap"].append(number)
        expected_offset = offset + 1
        if not 0 <= number < len(acked):
            bad["unknown"].append(number)
            continue
        if number in place:
            bad["doubled"].append(number)
            continue
        place[number] = offset
        if number < highest:
            bad["disorder"].append(number)
        highest = max(highest, number)
    previous = -1
    for number, told in enumerate(acked):
        if told == NOT_ACKED:
            if settled:
                bad["unsettled"].append(number)
            continue
        if told <= previous:
            bad["acked-disorder"].append(number)
        previous = max(previous, told)
        if number not in place:
            bad["lost"].append(number)
        elif place[number] != told:
            bad["misplaced"].append(number)
    return [Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind]) for kind, rows in bad.items() if rows]
