"""Checks the copy of a streaming query: it must have every row of the source once, in order. Pure.

A row of the copy is `<partition>-<offset>:<value>` of its source row. In each micro-batch, one task
writes the rows of a source partition, so they keep their order within a partition of the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EXAMPLES_MAX = 5

MEANINGS = {
    "lost": "in the source, and not in the copy",
    "doubled": "in the copy more than once",
    "invented": "in the copy, and not in the source",
    "changed": "in the copy with another value than in the source",
    "disorder": "in the copy after a row that follows it in the source",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken guarantee."""

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.examples)
        return f"{self.kind}: {self.count} row(s) {MEANINGS[self.kind]} ({shown})"


def check_rows(
    source: Mapping[int, Sequence[bytes]], copy: Mapping[int, Sequence[bytes]]
) -> list[Violation]:
    """Returns all violations. `source`: partition -> values by offset, without gaps. `copy`:
    partition -> its rows.
    """
    wrong: dict[str, list[str]] = {kind: [] for kind in MEANINGS}
    seen = {partition: bytearray(len(values)) for partition, values in source.items()}
    for rows in copy.values():
        latest: dict[int, int] = {}
        for row in rows:
            name, _, value = row.partition(b":")
            partition, offset = _place(name)
            marks = seen.get(partition, bytearray())
            if not 0 <= offset < len(marks):
                wrong["invented"].append(name.decode(errors="replace"))
                continue
            if marks[offset]:
                wrong["doubled"].append(name.decode())
            elif offset < latest.get(partition, -1):
                wrong["disorder"].append(name.decode())
            if source[partition][offset] != value:
                wrong["changed"].append(name.decode())
            marks[offset] = 1
            latest[partition] = max(offset, latest.get(partition, -1))
    for partition, marks in seen.items():
        wrong["lost"] += [f"{partition}-{offset}" for offset, mark in enumerate(marks) if not mark]
    return [
        Violation(kind, len(names), tuple(names[:EXAMPLES_MAX]))
        for kind, names in wrong.items()
        if names
    ]


def _place(name: bytes) -> tuple[int, int]:
    partition, _, offset = name.partition(b"-")
    if partition.isdigit() and offset.isdigit():
        return int(partition), int(offset)
    return -1, -1
