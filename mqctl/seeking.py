"""Plans new committed offsets of a group. Pure.

Files have the format of kafka-consumer-groups.sh: lines of topic,partition,offset, or
group,topic,partition,offset.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from mqctl.places import Place
from mqd.types import TopicPartition

Target = Place | int | Literal["current"]
"""The new offset: a place in the log, a shift of the committed offset, or its present value."""


class Bounds(NamedTuple):
    """The log start, the log end, and the first offset at or after the target's time. None: the
    target has no time. -1: no record is that late.
    """

    start: int
    end: int
    at_time: int | None = None


class Step(NamedTuple):
    """The change of one partition.

    `before` is None without a committed offset; `note` is why `after` differs from the target.
    """

    tp: TopicPartition
    before: int | None
    after: int
    note: str | None = None


def plan_seek(
    target: Target, committed: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[Step]:
    """One step for each partition in `bounds`.

    Raises ValueError for a shift without a committed offset.
    """
    return [
        _step(tp, _new_offset(tp, target, committed.get(tp), each), committed.get(tp), each)
        for tp, each in sorted(bounds.items())
    ]


def plan_file(
    wanted: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
) -> list[Step]:
    """One step for each partition in `bounds`, to the offset of a file."""
    return [_step(tp, wanted[tp], committed.get(tp), each) for tp, each in sorted(bounds.items())]


def _new_offset(tp: TopicPartition, target: Target, before: int | None, bounds: Bounds) -> int:
    if target == "current":
        return bounds.end if before is None else before
    if isinstance(target, int):
        if before is None:
            raise ValueError(
                f"cannot shift the offset of {tp}: the group has no committed offset there"
            )
        return before + target
    assert isinstance(target, Place)
    if target.word is not None:
        return bounds.start if target.word == "beginning" else bounds.end
    if target.offset is not None:
        return target.offset
    if target.before_end is not None:
        return max(bounds.end - target.before_end, bounds.start)
    return bounds.end if bounds.at_time is None or bounds.at_time < 0 else bounds.at_time


def _step(tp: TopicPartition, wanted: int, before: int | None, bounds: Bounds) -> Step:
    if wanted < bounds.start:
        return Step(tp, before, bounds.start, f"{wanted} is before the log start")
    if wanted > bounds.end:
        return Step(tp, before, bounds.end, f"{wanted} is beyond the log end")
    return Step(tp, before, wanted)


def parse_file(text: str, group: str) -> dict[TopicPartition, int]:
    """The offsets of `group`; lines of other groups are skipped. Raises ValueError."""
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        if len(row) == 4:
            if row[0] != group:
                continue
            row = row[1:]
        if len(row) != 3 or not row[1].strip().isdecimal() or not row[2].strip().isdecimal():
            raise ValueError(f"line {number}: expected topic,partition,offset")
        tp = TopicPartition(row[0], int(row[1]))
        if tp in found:
            raise ValueError(f"line {number}: duplicate partition {tp}")
        found[tp] = int(row[2])
    if not found:
        raise ValueError(f"it contains no offsets of group {group!r}")
    return found


def write_file(offsets: Mapping[TopicPartition, int]) -> str:
    """The file that `parse_file` reads."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows((tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items()))
    return stream.getvalue()


def choose(
    named: Iterable[tuple[str, int | None]], counts: Mapping[str, int]
) -> list[TopicPartition]:
    """The partitions that `topic` and `topic:partition` name, once each.

    `counts`: the number of partitions of each topic. Raises ValueError if one does not exist.
    """
    found: dict[TopicPartition, None] = {}
    for topic, index in named:
        if topic not in counts:
            raise ValueError(f"Topic {topic!r} does not exist.")
        if index is not None and index >= counts[topic]:
            raise ValueError(f"topic {topic!r} has no partition {index}")
        found.update(
            dict.fromkeys(
                TopicPartition(topic, each)
                for each in (range(counts[topic]) if index is None else (index,))
            )
        )
    return sorted(found)
