"""Whether an archive covers the logs of its topics, judged by offset ranges. Pure.

A range is `[start, end)` of a partition, from the name of a file. Ranges of one partition must
follow one another without a gap and without an overlap, from the log's start to its end. A range
may have fewer records than offsets: compaction, aborted transactions and markers leave gaps inside
ranges, and that is not loss. Offsets before the log's start have expired in the log. The archive
may have them, and they are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mqd.types import TopicPartition

GAP, OVERLAP, HEAD, BEHIND, BEYOND, EXTRA, DAMAGED = (
    "gap",
    "overlap",
    "head",
    "behind",
    "beyond",
    "no-topic",
    "damaged",
)
MEANINGS = {
    GAP: "no file covers these offsets, and files before and after them exist",
    OVERLAP: "more than one range covers these offsets: records are doubled",
    HEAD: "the log has these offsets, and the archive begins after them",
    BEHIND: "the log has these offsets, and the archive ends before them",
    BEYOND: "the archive has these offsets, and the log ends before them: was the topic recreated?",
    EXTRA: "the archive has these offsets, and the cluster has no such partition",
    DAMAGED: "a file cannot be read, or holds offsets outside of its range",
}


class Log(NamedTuple):
    """A partition at the brokers. Readers with read_committed see `[start, stable_end)`."""

    start: int
    stable_end: int
    end: int


class Problem(NamedTuple):
    """Offsets `[start, end)` of a partition that are not covered once. `detail` names a file."""

    kind: str
    tp: TopicPartition
    start: int
    end: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the archive has of one partition. `start` and `end` are None where it has nothing."""

    tp: TopicPartition
    log: Log | None
    start: int | None
    end: int | None
    ranges: int
    problems: tuple[Problem, ...]
    lag: int
    """Offsets at the end of the log that the archive does not have yet."""


def judge(
    tp: TopicPartition, ranges: Iterable[tuple[int, int]], log: Log | None, *, lag_max: int
) -> Coverage:
    """One partition. Without `log`, ranges are compared with one another only."""
    wanted = sorted(set(ranges))
    problems = []
    reached: int | None = None
    for start, end in wanted:
        if end < start:
            problems.append(Problem(DAMAGED, tp, start, end, "the range ends before it starts"))
            continue
        if reached is not None and start > reached:
            problems.append(Problem(GAP, tp, reached, start))
        if reached is not None and start < reached:
            problems.append(Problem(OVERLAP, tp, start, min(end, reached)))
        reached = end if reached is None else max(reached, end)
    first = wanted[0][0] if wanted else None
    lag = 0
    if log is not None:
        begun = first is not None and reached is not None
        missing = max(reached or 0, log.start) if begun else log.start
        lag = max(log.stable_end - missing, 0)
        if lag > lag_max:
            problems.append(Problem(BEHIND, tp, missing, log.stable_end))
        if first is not None and reached is not None:
            head = Problem(HEAD, tp, log.start, min(first, log.stable_end))
            beyond = Problem(BEYOND, tp, max(first, log.end), reached)
            problems += [each for each in (head, beyond) if each.start < each.end]
    return Coverage(tp, log, first, reached, len(wanted), tuple(problems), lag)


def judge_all(
    ranges: Mapping[tuple[str, int], Iterable[tuple[int, int]]],
    logs: Mapping[TopicPartition, Log] | None,
    *,
    lag_max: int = 0,
) -> list[Coverage]:
    """Every partition of the archive and of the logs. `logs` is None without brokers."""
    archived = {TopicPartition(*key): each for key, each in ranges.items()}
    found = []
    for tp in sorted(archived.keys() | (logs or {}).keys()):
        log = None if logs is None else logs.get(tp)
        coverage = judge(tp, archived.get(tp, ()), log, lag_max=lag_max)
        if logs is not None and log is None:
            assert coverage.start is not None and coverage.end is not None
            extra = Problem(EXTRA, tp, coverage.start, coverage.end)
            coverage = with_problems(coverage, [extra])
        found.append(coverage)
    return found


def with_problems(coverage: Coverage, more: Iterable[Problem]) -> Coverage:
    """The same with more problems."""
    return replace(coverage, problems=(*coverage.problems, *more))


def without(coverage: Coverage, kind: str) -> Coverage:
    """The same without the problems of this kind."""
    kept = tuple(each for each in coverage.problems if each.kind != kind)
    return replace(coverage, problems=kept)


def check_file(
    tp: TopicPartition, start: int, end: int, name: str, least: int | None, greatest: int | None
) -> Problem | None:
    """Whether the offsets inside a file, by its statistics, lie within its range."""
    if least is None or greatest is None or (start <= least and greatest < end):
        return None
    detail = f"'{name}' holds offsets {least} to {greatest}"
    return Problem(DAMAGED, tp, start, end, detail)


def coverage_rows(found: Iterable[Coverage]) -> list[dict[str, Any]]:
    """One row a partition."""
    return [
        {
            "topic": each.tp.topic,
            "partition": each.tp.partition,
            "log_start": None if each.log is None else each.log.start,
            "log_end": None if each.log is None else each.log.stable_end,
            "start": each.start,
            "end": each.end,
            "ranges": each.ranges,
            "lag": each.lag,
            "problems": len(each.problems),
        }
        for each in found
    ]


def problem_rows(found: Iterable[Coverage]) -> list[dict[str, Any]]:
    """One row a problem."""
    return [
        {
            "kind": problem.kind,
            "topic": problem.tp.topic,
            "partition": problem.tp.partition,
            "start": problem.start,
            "end": problem.end,
            "offsets": problem.end - problem.start,
            "meaning": problem.detail or MEANINGS[problem.kind],
        }
        for each in found
        for problem in each.problems
    ]
