"""What an assignor gets and returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, Collection[int]]
"""Partition numbers by topic id."""

Assignment: TypeAlias = dict[UUID, tuple[int, ...]]
"""As `Partitions`: topics in the order of their ids, ascending partitions, no empty topic."""

Place: TypeAlias = tuple[UUID, int]

NOWHERE: Final[frozenset[str]] = frozenset()


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """Only topics that exist."""
    held: Partitions
    """Its part of the last target assignment."""
    rack: str | None = None
    instance_id: str | None = None


class Topic(NamedTuple):
    """A subscribed topic."""

    partitions: int
    racks: Callable[[int], frozenset[str]] = lambda partition: NOWHERE
    """The racks of the replicas of a partition; empty if unknown."""


Assignor: TypeAlias = Callable[
    [Mapping[str, Subscriber], Mapping[UUID, Topic]], dict[str, Assignment]
]
"""From members by id and topics by id to an assignment for every member."""


def assignment_of(places: Iterable[Place]) -> Assignment:
    numbers: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        numbers.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(found) for topic_id, found in numbers.items()}
