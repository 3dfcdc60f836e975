"""The assignor of share groups, by Kafka's name `simple`: several members may share a partition.

With more partitions than members, each partition has one member. With more members, each member has
one partition, and partitions have about equally many members. Members keep the partitions that they
have as far as that allows. Works in counted steps, as all assignors (assignment.py). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Final
from uuid import UUID

from mqd.coordinator.group.assignment import Assignment, Work, sorted_in_steps

_Place = tuple[int, int]
"""The number of a topic, and a partition."""
_HEAP_STEPS: Final = 10
"""To take an item from a heap and to put another one there."""


def assign(
    subscribed: Mapping[str, Collection[UUID]],
    partitions: Mapping[UUID, Collection[int]],
    held: Mapping[str, Assignment],
) -> Work[dict[str, Assignment]]:
    """The partitions of each member.

    `subscribed`: the topics of each member. Members with equal subscriptions share one object.
    `partitions`: those that may be assigned, of each topic. `held`: the last assignment.
    """
    work = _Work(partitions)
    yield from work.read(subscribed)
    yield from work.keep(held)
    yield from work.give_partitions_to_members()
    yield from work.give_members_partitions()
    return (yield from work.result())


class _Work:
    def __init__(self, partitions: Mapping[UUID, Collection[int]]) -> None:
        self._partitions = partitions
        self._ids: Sequence[UUID] = ()
        """Ascending. The place of a topic here is its number."""
        self._numbers: dict[UUID, int] = {}
        self._subscriptions: list[frozenset[int]] = []
        """Different subscriptions: numbers of topics."""
        self._subscribers: list[list[str]] = []
        """The members with each subscription."""
        self._by_topic: list[list[int]] = []
        """The subscriptions with each topic."""
        self._subscription_of: dict[str, int] = {}
        self.of_member: dict[str, dict[_Place, None]] = {}
        self._members_of: dict[_Place, int] = {}
        self._most_partitions = 0
        self._most_members = 0

    def read(self, subscribed: Mapping[str, Collection[UUID]]) -> Work[None]:
        known: dict[int, int] = {}
        topics: list[Collection[UUID]] = []
        members = yield from sorted_in_steps(list(subscribed), key=str)
        for member in members:
            wanted = subscribed[member]
            if id(wanted) not in known:
                known[id(wanted)] = len(topics)
                topics.append(wanted)
                self._subscribers.append([])
            number = self._subscription_of[member] = known[id(wanted)]
            self._subscribers[number].append(member)
            self.of_member[member] = {}
            yield 10
        found: set[UUID] = set()
        for wanted in topics:
            found.update(one for one in wanted if self._partitions.get(one))
            yield 10 * len(wanted)
        self._ids = yield from sorted_in_steps(list(found), key=lambda one: one.int)
        self._numbers = {one: number for number, one in enumerate(self._ids)}
        self._by_topic = [[] for _ in self._ids]
        yield 10 * len(self._ids)
        for subscription, wanted in enumerate(topics):
            numbers = [self._numbers[one] for one in wanted if one in self._numbers]
            self._subscriptions.append(frozenset(numbers))
            for number in numbers:
                self._by_topic[number].append(subscription)
            yield 20 * len(wanted)
        for number, topic_id in enumerate(self._ids):
            for partition in sorted(self._partitions[topic_id]):
                self._members_of[number, partition] = 0
            yield 5 * len(self._partitions[topic_id])
        places, count = len(self._members_of), len(members)
        self._most_partitions = ceil(places / count) if count else 0
        self._most_members = ceil(count / places) if places else 0

    def keep(self, held: Mapping[str, Assignment]) -> Work[None]:
        """Members keep partitions, if neither has too many of the other."""
        for member, owned in self.of_member.items():
            topics = self._topics_of(member)
            for topic_id, partitions in held.get(member, {}).items():
                yield 5 * (1 + len(partitions))
                number = self._numbers.get(topic_id)
                if number is None or number not in topics:
                    continue
                for partition in partitions:
                    count = self._members_of.get((number, partition))
                    if (
                        count is not None
                        and count < self._most_members
                        and len(owned) < self._most_partitions
                    ):
                        self._give(member, (number, partition))
            yield 5

    def give_partitions_to_members(self) -> Work[None]:
        """Every partition has a member: the one with the fewest partitions."""
        alike: dict[tuple[int, ...], list[int]] = {}
        """Topics with the same members, which share one heap."""
        for number, subscriptions in enumerate(self._by_topic):
            alike.setdefault(tuple(subscriptions), []).append(number)
            yield 5 + len(subscriptions)
        for key, numbers in alike.items():
            heap: list[tuple[int, str]] = []
            for number in numbers:
                for partition in sorted(self._partitions[self._ids[number]]):
                    yield 5
                    if self._members_of[number, partition]:
                        continue
                    if not heap:
                        heap = yield from self._by_partitions(key)
                    while True:
                        count, member = heappop(heap)
                        current = len(self.of_member[member])
                        yield _HEAP_STEPS
                        if count == current:
                            break
                        heappush(heap, (current, member))
                    self._give(member, (number, partition))
                    heappush(heap, (current + 1, member))

    def _by_partitions(self, subscriptions: Iterable[int]) -> Work[list[tuple[int, str]]]:
        """A heap of all members with these subscriptions."""
        heap = []
        for subscription in subscriptions:
            for member in self._subscribers[subscription]:
                heap.append((len(self.of_member[member]), member))
                yield 5
        heapify(heap)
        return heap

    def give_members_partitions(self) -> Work[None]:
        """Every member has a partition: the one with the fewest members."""
        heap: list[tuple[int, _Place]] = []
        for member, owned in self.of_member.items():
            topics = self._topics_of(member)
            yield 5
            if owned or not topics:
                continue
            if not heap:
                heap = [(count, place) for place, count in self._members_of.items()]
                heapify(heap)
                yield 5 * len(heap)
            passed = []
            while heap:
                count, place = heappop(heap)
                yield _HEAP_STEPS
                if count != self._members_of[place]:
                    heappush(heap, (self._members_of[place], place))
                elif place[0] in topics:
                    self._give(member, place)
                    passed.append((count + 1, place))
                    break
                else:
                    passed.append((count, place))
            for entry in passed:
                heappush(heap, entry)
                yield _HEAP_STEPS

    def result(self) -> Work[dict[str, Assignment]]:
        assigned: dict[str, Assignment] = {}
        for member, places in self.of_member.items():
            found: dict[UUID, list[int]] = {}
            for number, partition in (yield from sorted_in_steps(list(places), key=_itself)):
                found.setdefault(self._ids[number], []).append(partition)
            assigned[member] = {one: tuple(partitions) for one, partitions in found.items()}
            yield 10 + 5 * len(places)
        return assigned

    def _topics_of(self, member: str) -> frozenset[int]:
        return self._subscriptions[self._subscription_of[member]]

    def _give(self, member: str, place: _Place) -> None:
        self.of_member[member][place] = None
        self._members_of[place] += 1


def _itself(place: _Place) -> _Place:
    return place
