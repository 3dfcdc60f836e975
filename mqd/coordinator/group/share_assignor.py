"""The assignor of share groups, by Kafka's name `simple`: several members may share a partition.

With more partitions than members, each partition has one member. With more members, each member has
one partition, and partitions have about equally many members. Members keep the partitions that they
have as far as that allows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from math import ceil
from uuid import UUID

from mqd.coordinator.group.assignment import Assignment

Place = tuple[UUID, int]
"""A topic and a partition."""


def assign(
    subscribed: Mapping[str, Iterable[Place]], held: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """The partitions of each member.

    `subscribed`: by member, the partitions that it may get. `held`: the last assignment.
    """
    wanted = {member: dict.fromkeys(places) for member, places in sorted(subscribed.items())}
    candidates: dict[Place, list[str]] = {}
    for member, places in wanted.items():
        for place in places:
            candidates.setdefault(place, []).append(member)
    work = _Work(wanted, candidates)
    for member in wanted:
        for topic_id, partitions in held.get(member, {}).items():
            for partition in partitions:
                work.keep(member, (topic_id, partition))
    work.give_partitions_to_members()
    work.give_members_partitions()
    return {member: _by_topic(places) for member, places in work.of_member.items()}


class _Work:
    def __init__(
        self, wanted: Mapping[str, Mapping[Place, None]], candidates: Mapping[Place, list[str]]
    ) -> None:
        self._wanted = wanted
        self._candidates = candidates
        self.of_member: dict[str, dict[Place, None]] = {member: {} for member in wanted}
        self._members_of: dict[Place, int] = dict.fromkeys(candidates, 0)
        partitions, members = len(candidates), len(wanted)
        self._most_partitions = ceil(partitions / members) if members else 0
        self._most_members = ceil(members / partitions) if partitions else 0

    def keep(self, member: str, place: Place) -> None:
        """The member keeps the partition if neither has too many of the other."""
        if (
            place in self._wanted[member]
            and len(self.of_member[member]) < self._most_partitions
            and self._members_of[place] < self._most_members
        ):
            self._give(member, place)

    def give_partitions_to_members(self) -> None:
        """Every partition has a member: the one with the fewest partitions."""
        heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        for place, members in sorted(self._candidates.items()):
            if self._members_of[place]:
                continue
            key = tuple(members)
            if key not in heaps:
                heaps[key] = [(len(self.of_member[one]), one) for one in members]
                heapify(heaps[key])
            heap = heaps[key]
            while True:
                count, member = heappop(heap)
                current = len(self.of_member[member])
                if count == current:
                    break
                heappush(heap, (current, member))
            self._give(member, place)
            heappush(heap, (current + 1, member))

    def give_members_partitions(self) -> None:
        """Every member has a partition: the one with the fewest members."""
        heap = [(count, place) for place, count in self._members_of.items()]
        heapify(heap)
        for member, owned in self.of_member.items():
            if owned or not self._wanted[member]:
                continue
            passed = []
            while heap:
                count, place = heappop(heap)
                if count != self._members_of[place]:
                    heappush(heap, (self._members_of[place], place))
                elif place in self._wanted[member]:
                    self._give(member, place)
                    passed.append((count + 1, place))
                    break
                else:
                    passed.append((count, place))
            for entry in passed:
                heappush(heap, entry)

    def _give(self, member: str, place: Place) -> None:
        self.of_member[member][place] = None
        self._members_of[place] += 1


def _by_topic(places: Iterable[Place]) -> Assignment:
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in found.items()}
