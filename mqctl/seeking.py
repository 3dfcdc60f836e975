"""Where a group shall go on, as people say it, into an offset for each partition. Pure.

The files are those of kafka-consumer-groups.sh: lines of topic,partition,offset, or
group,topic,partition,offset.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from mqctl.places import Place
from mqd.types import TopicPartition

Wish = Place | int | Literal["current"]
"""A place in the log, so many records on (or back) from where it is, or where it is already."""


class Bounds(NamedTuple):
    """What is in a log: the first offset, the end, and the first one at or after the wanted
    time (None: not asked, -1: nothing so late).
    """

    start: int
    end: int
    at_time: int | None = None


class Step(NamedTuple):
    """What is to happen to one partition.

    `before` is None where nothing is committed; `note` says what is not as it was asked for.
    """

    tp: TopicPartition
    before: int | None
    after: int
    note: str | None = None


def plan_seek(
    wish: Wish, committed: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[Step]:
    """One step for each partition in `bounds`.

    Raises ValueError where there is nothing to go from.
    """
    return [
        _step(tp, _wanted(tp, wish, committed.get(tp), each), committed.get(tp), each)
        for tp, each in sorted(bounds.items())
    ]


def plan_file(
    wanted: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
) -> list[Step]:
    """One step for each partition in `bounds`, to where a file says."""
    return [_step(tp, wanted[tp], committed.get(tp), each) for tp, each in sorted(bounds.items())]


def _wanted(tp: TopicPartition, wish: Wish, before: int | None, bounds: Bounds) -> int:
    if wish == "current":
        return bounds.end if before is None else before
    if isinstance(wish, int):
        if before is None:
            raise ValueError(
                f"cannot shift the offset of {tp}: the group has no committed offset there"
            )
        return before + wish
    assert isinstance(wish, Place)
    if wish.word is not None:
        return bounds.start if wish.word == "beginning" else bounds.end
    if wish.offset is not None:
        return wish.offset
    if wish.before_end is not None:
        return max(bounds.end - wish.before_end, bounds.start)
    return bounds.end if bounds.at_time is None or bounds.at_time < 0 else bounds.at_time


def _step(tp: TopicPartition, wanted: int, before: int | None, bounds: Bounds) -> Step:
    if wanted < bounds.start:
        return Step(tp, before, bounds.start, f"{wanted} is before the log start")
    if wanted > bounds.end:
        return Step(tp, before, bounds.end, f"{wanted} is beyond the log end")
    return Step(tp, before, wanted)


def parse_file(text: str, group: str) -> dict[TopicPartition, int]:
    """Raises ValueError that names the line; lines of other groups are passed over."""
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
    """The reverse, for one group."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows((tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items()))
    return stream.getvalue()


def choose(
    named: Iterable[tuple[str, int | None]], counts: Mapping[str, int]
) -> list[TopicPartition]:
    """`topic` and `topic:partition` as partitions, once each.

    Raises ValueError for what does not exist.
    """
    found: dict[TopicPartition, None] = {}
    for topic, index in named:
        if topic not in counts:
            raise ValueError(f"topic {topic!r} does not exist")
        if index is not None and index >= counts[topic]:
            raise ValueError(f"topic {topic!r} has no partition {index}")
        found.update(
            dict.fromkeys(
                TopicPartition(topic, each)
                for each in (range(counts[topic]) if index is None else (index,))
            )
        )
    return sorted(found)
