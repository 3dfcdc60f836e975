"""The arguments and results of assignors.

Assignors count topics from 0, in the order of their ids: numbers are faster than UUIDs. They work
in counted steps, so that a large assignment does not block the node. No clock counts: the same
input takes the same steps and has the same output on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from heapq import merge
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

T = TypeVar("T")

Partitions: TypeAlias = Mapping[UUID, Collection[int]]
"""Partition numbers by topic id."""

Assignment: TypeAlias = dict[UUID, tuple[int, ...]]
"""As `Partitions`: topics in the order of their ids, ascending partitions, no empty topic."""

Share: TypeAlias = dict[int, tuple[int, ...]]
"""An `Assignment` with the numbers of topics."""

Work: TypeAlias = Generator[int, None, T]
"""Yields how many steps it has taken since it last yielded, of about 0.1 us each. Then it returns
its result."""

NOWHERE: Final[frozenset[str]] = frozenset()
_SORTED_AT_ONCE: Final = 2_000
_SORT_STEPS: Final = 20
"""To sort one item."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: tuple[int, ...]
    """Ascending. Members with equal subscriptions may share one tuple."""
    held: Mapping[int, Collection[int]]
    """Its part of the last target assignment, without deleted topics."""
    rack: str | None = None
    instance_id: str | None = None


class Topic(NamedTuple):
    """A subscribed topic."""

    partitions: int
    racks: Callable[[int], frozenset[str]] = lambda partition: NOWHERE
    """The racks of the replicas of a partition; empty if unknown."""


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Sequence[Topic]], Work[dict[str, Share]]]
"""From members by id and topics by number to a share for every member."""


def sorted_in_steps(items: Sequence[T], key: Callable[[T], Any]) -> Work[list[T]]:
    """As `sorted`."""
    runs = []
    for begin in range(0, len(items), _SORTED_AT_ONCE):
        runs.append(sorted(items[begin : begin + _SORTED_AT_ONCE], key=key))
        yield _SORT_STEPS * len(runs[-1])
    if len(runs) <= 1:
        return runs[0] if runs else []
    merged = []
    for item in merge(*runs, key=key):
        merged.append(item)
        if len(merged) % _SORTED_AT_ONCE == 0:
            yield _SORT_STEPS * _SORTED_AT_ONCE
    return merged
