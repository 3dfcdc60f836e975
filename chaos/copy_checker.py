"""Checks that a copy has every record of its source, once and in order, and no aborted record. A
core.

The source is a topic without transactions. Each record of a copy has the value of the source
record, and its partition and offset. `history.value_of` encodes these, with the partition in place
of the producer. Records of one source partition go to one partition of the copy, so an exactly-once
copy must keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .checker import SHOWN_MAX
from .history import Key, Reads, number_of, producer_of


@dataclass(slots=True)
class Copy(Reads):
    """The records of one partition of a copy: `values` identify the source records, `found` are the
    values that were read from them.
    """

    found: Reads = field(default_factory=Reads)

    def add_copy(self, offset: int, source: int, found: int) -> None:
        """The next record."""
        self.add(offset, source)
        self.found.add(offset, found)


MEANINGS = {
    "missing": "in the input, and not in the copy",
    "doubled": "in the copy more than once",
    "invented": "in the copy, and not in the input",
    "changed": "in the copy with another value than in the input",
    "disorder": "in the copy after a record that follows it in the input",
    "taken-back": "read as committed during the faults, and not in the final copy",
    "read-twice": "read as committed more than once, or out of order, by one consumer",
    "unseen": "skipped by a consumer that read later records",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One broken guarantee of a copy. `examples`: (source partition, source offset)."""

    kind: str
    copy: str
    count: int
    examples: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{partition}@{offset}" for partition, offset in self.examples)
        return (
            f"{self.kind}: {self.copy}, {self.count} record(s): {MEANINGS[self.kind]} "
            f"(source partition@offset {shown})"
        )


def check_copy(
    name: str, source: Mapping[int, Reads], copy: Mapping[Key, Copy], along: Mapping[Key, Reads]
) -> list[Difference]:
    """Returns all differences. `source`: partition -> all its records. `copy`: the committed
    records at the end. `along`: the records that a `read_committed` consumer received during the
    faults.
    """
    wrong: dict[str, list[tuple[int, int]]] = {kind: [] for kind in MEANINGS}

    def note(kind: str, value: int) -> None:
        wrong[kind].append((producer_of(value), number_of(value)))

    seen = {partition: bytearray(len(reads.offsets)) for partition, reads in source.items()}
    for rows in copy.values():
        latest: dict[int, int] = {}
        for value, found in zip(rows.values, rows.found.values):
            partition, offset = producer_of(value), number_of(value)
            marks = seen.get(partition, b"")
            if not offset < len(marks):
                note("invented", value)
                continue
            if marks[offset]:
                note("doubled", value)
            elif offset < latest.get(partition, -1):
                note("disorder", value)
            if source[partition].values[offset] != found:
                note("changed", value)
            seen[partition][offset] = 1
            latest[partition] = max(offset, latest.get(partition, -1))
    for partition, marks in seen.items():
        wrong["missing"] += [(partition, offset) for offset, mark in enumerate(marks) if not mark]
    for key, reads in along.items():
        _check_along(reads, copy.get(key, Copy()), note)
    return [
        Difference(kind, name, len(rows), tuple(rows[:SHOWN_MAX]))
        for kind, rows in wrong.items()
        if rows
    ]


def _check_along(reads: Reads, copy: Reads, note: Callable[[str, int], None]) -> None:
    there = dict(zip(copy.offsets, copy.values))
    previous = -1
    for offset, value in zip(reads.offsets, reads.values):
        if there.get(offset) != value:
            note("taken-back", value)
        if offset <= previous:
            note("read-twice", value)
        previous = max(previous, offset)
    got = set(reads.offsets)
    for offset, value in there.items():
        if offset <= previous and offset not in got:
            note("unseen", value)
