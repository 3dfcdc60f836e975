"""Server-side assignors of the consumer protocol (KIP-848): who is to have which partition of what
the group subscribes to.

`uniform` gives every member as many partitions as any other, as far as subscriptions allow, moves
as few as that permits, and puts what moves near its replicas. `range` gives each member one run of
neighbours in each topic, and the same run in topics with as many partitions and the same
subscribers, so that equal keys of such topics meet in one member.

Invariant of both: every partition of a subscribed topic goes to exactly one member, and that member
subscribes to the topic. The same input gives the same output on every node: nothing here depends on
the order of a set or on chance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple
from uuid import UUID

from mqd.limits import ASSIGNOR_CHAINS_MAX

Partitions = Mapping[UUID, Collection[int]]
"""Partition numbers by topic id."""

Assignment = dict[UUID, tuple[int, ...]]
"""As `Partitions`: topics in order of their ids, numbers ascending, no topic without any."""

NOWHERE: frozenset[str] = frozenset()


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
    """Of the replicas of a partition; empty where they are not told."""


Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, Topic]], dict[str, Assignment]]
"""Members by id and topics by id in; an assignment for every member out."""

Place = tuple[UUID, int]


def assign_uniform(
    members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> dict[str, Assignment]:
    """Equal shares, few moves, near replicas; in this order of importance."""
    if not members:
        return {}
    ids = sorted(members)
    first = members[ids[0]].topics
    if all(members[member_id].topics == first for member_id in ids):
        shares = _equal_shares(
            ids, members, {topic_id: topics[topic_id] for topic_id in sorted(first)}
        )
    else:
        shares = _Balance(ids, members, topics).shares()
    return {member_id: _assignment(share) for member_id, share in zip(ids, shares)}


def assign_range(
    members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> dict[str, Assignment]:
    """A run of neighbours in each topic. Racks do not count here: to honour one would tear a run
    apart.

    Topics with the same subscribers have them in one order: static members by instance id, as one
    that restarts is to find what it had; then the others as their runs lie, so that these shift as
    little as they can; then who has none.
    """
    assigned: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in members}
    alike: dict[tuple[str, ...], list[UUID]] = {}
    for topic_id in sorted(topics):
        alike.setdefault(
            tuple(
                member_id for member_id in sorted(members) if topic_id in members[member_id].topics
            ),
            [],
        ).append(topic_id)
    for subscribers, topic_ids in alike.items():
        order = _in_line(subscribers, members, topic_ids, topics)
        for topic_id in topic_ids if order else ():
            share, extras = divmod(topics[topic_id].partitions, len(order))
            begin = 0
            for position, member_id in enumerate(order):
                end = begin + share + (position < extras)
                if end > begin:
                    assigned[member_id][topic_id] = tuple(range(begin, end))
                begin = end
    return assigned


def _in_line(
    subscribers: Iterable[str],
    members: Mapping[str, Subscriber],
    topic_ids: Sequence[UUID],
    topics: Mapping[UUID, Topic],
) -> list[str]:
    leading = [
        topic_id
        for topic_id in topic_ids
        if any(members[member_id].held.get(topic_id) for member_id in subscribers)
    ]
    leader = min(
        leading, key=lambda topic_id: (-topics[topic_id].partitions, topic_id), default=None
    )

    def place(member_id: str) -> tuple[bool, str, bool, int, str]:
        member = members[member_id]
        held = member.held.get(leader) if leader is not None else None
        return (
            member.instance_id is None,
            member.instance_id or "",
            not held,
            min(held) if held else 0,
            member_id,
        )

    return sorted(subscribers, key=place)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By their names in `group.consumer.assignors`.

The first that is configured there is a group's default.
"""


def _assignment(places: Iterable[Place]) -> Assignment:
    numbers: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        numbers.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(found) for topic_id, found in numbers.items()}


def _still_there(
    member: Subscriber, topics: Mapping[UUID, Topic], taken: set[Place]
) -> list[Place]:
    """What a member had and may keep."""
    places = []
    for topic_id in sorted(member.held):
        topic = topics.get(topic_id)
        if topic is None or topic_id not in member.topics:
            continue
        for partition in sorted(member.held[topic_id]):
            place = topic_id, partition
            if partition < topic.partitions and place not in taken:
                taken.add(place)
                places.append(place)
    return places


def _equal_shares(
    ids: Sequence[str], members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> list[list[Place]]:
    """Where all subscribe to the same: so many each, and one more for as many members as
    there are partitions left over.
    """
    quota, extras = divmod(sum(topic.partitions for topic in topics.values()), len(ids))
    taken: set[Place] = set()
    shares: list[list[Place]] = []
    for member_id in ids:
        member = members[member_id]
        share = _still_there(member, topics, taken)
        keeps = quota + (len(share) > quota and extras > 0)
        extras -= keeps > quota
        if len(share) > keeps and member.rack is not None:
            share.sort(
                key=lambda place: (member.rack not in topics[place[0]].racks(place[1]), place)
            )
        taken.difference_update(share[keeps:])
        shares.append(share[:keeps])
    free = [
        (topic_id, p)
        for topic_id, topic in topics.items()
        for p in range(topic.partitions)
        if (topic_id, p) not in taken
    ]
    if free:
        _fill(free, [members[member_id].rack for member_id in ids], shares, topics, quota, extras)
    return shares


def _fill(
    free: Sequence[Place],
    racks: Sequence[str | None],
    shares: list[list[Place]],
    topics: Mapping[UUID, Topic],
    quota: int,
    extras: int,
) -> None:
    """Deal out what is free: first near replicas, then what is left; each time to whoever
    has least.
    """
    everybody = [(len(share), index) for index, share in enumerate(shares)]
    heapify(everybody)
    nearby: dict[str, list[tuple[int, int]]] = {}
    for entry in everybody:
        rack = racks[entry[1]]
        if rack is not None:
            nearby.setdefault(rack, []).append(entry)
    for heap in nearby.values():
        heapify(heap)

    def least(heap: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Who has least, and room. Entries that others made old are dropped or corrected."""
        while heap:
            size, index = heap[0]
            now = len(shares[index])
            if now > quota or (now == quota and not extras):
                heappop(heap)
            elif size != now:
                heappop(heap)
                heappush(heap, (now, index))
            else:
                return heap[0]
        return None

    def give(place: Place, index: int) -> None:
        nonlocal extras
        extras -= len(shares[index]) == quota
        shares[index].append(place)

    far = []
    for topic_id, partition in free:
        heaps = (
            [nearby[rack] for rack in sorted(topics[topic_id].racks(partition)) if rack in nearby]
            if nearby
            else []
        )
        found = [best for heap in heaps if (best := least(heap)) is not None]
        if found:
            give((topic_id, partition), min(found)[1])
        else:
            far.append((topic_id, partition))
    for place in far:
        emptiest = least(everybody)
        assert emptiest is not None, "there are as many places as partitions"
        give(place, emptiest[1])


class _Balance:
    """Shares where subscriptions differ: keep what may be kept, deal out the rest, then
    move while a move makes two shares more equal.
    """

    def __init__(
        self, ids: Sequence[str], members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
    ) -> None:
        self._topics = topics
        self._racks = [members[member_id].rack for member_id in ids]
        self._subscribers: dict[UUID, list[int]] = {topic_id: [] for topic_id in sorted(topics)}
        self._held: list[dict[UUID, dict[int, None]]] = []
        self._orders: dict[tuple[int, UUID], dict[str | None, list[int]]] = {}
        """Of a member's partitions of a topic, by the rack that they would move to: the
        best to move last. Some may be gone since.
        """
        self._sizes: list[int] = []
        self._wants = [members[member_id].topics for member_id in ids]
        self._smallest: dict[UUID, int] = {}
        """Of some topics the subscriber with the smallest share, the first of several: kept
        until that changes, to be found once.
        """
        taken: set[Place] = set()
        for index, member_id in enumerate(ids):
            member = members[member_id]
            for topic_id in sorted(member.topics):
                self._subscribers[topic_id].append(index)
            held: dict[UUID, dict[int, None]] = {}
            for topic_id, partition in _still_there(member, topics, taken):
                held.setdefault(topic_id, {})[partition] = None
            self._held.append(held)
            self._sizes.append(sum(len(partitions) for partitions in held.values()))
        self._deal(taken)

    def shares(self) -> list[list[Place]]:
        self._level()
        self._level_by_chains()
        return [
            [(topic_id, p) for topic_id, partitions in held.items() for p in partitions]
            for held in self._held
        ]

    def _deal(self, taken: set[Place]) -> None:
        """What nobody has: topics with the fewest subscribers first, as they leave the
        least choice.
        """
        for topic_id in sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        ):
            subscribers = self._subscribers[topic_id]
            topic = self._topics[topic_id]
            # by rack: shares and who has them, the smallest first
            waiting: dict[str | None, list[tuple[int, int]]] = {}
            for index in subscribers:
                waiting.setdefault(self._racks[index], []).append((self._sizes[index], index))
            for heap in waiting.values():
                heapify(heap)
            for partition in range(topic.partitions) if subscribers else ():
                if (topic_id, partition) not in taken:
                    near = topic.racks(partition)
                    size, _, index, rack = min(
                        (heap[0][0], rack not in near, heap[0][1], rack)
                        for rack, heap in waiting.items()
                    )
                    self._held[index].setdefault(topic_id, {})[partition] = None
                    self._sizes[index] += 1
                    heapreplace(waiting[rack], (size + 1, index))

    def _with_smallest_share(self, topic_id: UUID) -> int:
        index = self._smallest.get(topic_id)
        if index is None:
            index = self._smallest[topic_id] = min(
                self._subscribers[topic_id], key=lambda index: (self._sizes[index], index)
            )
        return index

    def _move(self, topic_id: UUID, source: int, target: int) -> None:
        """Of one topic's partitions that `source` has, the one that stands best with
        `target`, or least well where it is.
        """
        held = self._held[source][topic_id]
        partition = self._best_to_move(topic_id, source, self._racks[target])
        del held[partition]
        if not held:
            del self._held[source][topic_id]
        self._held[target].setdefault(topic_id, {})[partition] = None
        self._orders.pop((target, topic_id), None)
        self._sizes[source] -= 1
        self._sizes[target] += 1
        for other in self._wants[target]:
            if self._smallest.get(other) == target:
                del self._smallest[other]
        for other in self._wants[source]:
            index = self._smallest.get(other)
            if index is not None and (self._sizes[source], source) < (self._sizes[index], index):
                self._smallest[other] = source

    def _best_to_move(self, topic_id: UUID, source: int, rack: str | None) -> int:
        """Sorted once for many moves: a member may have thousands of partitions to give."""
        held = self._held[source][topic_id]
        own = self._racks[source]
        if len(held) == 1 or (own is None and rack is None):
            return next(reversed(held))
        orders = self._orders.setdefault((source, topic_id), {})
        if rack not in orders:
            racks = self._topics[topic_id].racks
            orders[rack] = sorted(held, key=lambda p: ((rack in racks(p)) - (own in racks(p)), -p))
        order = orders[rack]
        while order[-1] not in held:
            order.pop()
        return order.pop()

    def _level(self) -> None:
        """Move from the largest shares straight to smaller ones, while the difference is
        two or more.
        """
        moved = True
        while moved:
            moved = False
            for source in sorted(
                range(len(self._sizes)), key=lambda index: (-self._sizes[index], index)
            ):
                for topic_id in sorted(self._held[source]):
                    while topic_id in self._held[source]:
                        target = self._with_smallest_share(topic_id)
                        if self._sizes[source] - self._sizes[target] < 2:
                            break
                        self._move(topic_id, source, target)
                        moved = True

    def _level_by_chains(self) -> None:
        """Where no single move helps, a chain may: one gives to a second, who gives to a third.

        No chain left: no fairer shares exist.
        """
        for _ in range(ASSIGNOR_CHAINS_MAX):
            by_size = sorted(
                range(len(self._sizes)), key=lambda index: (-self._sizes[index], index)
            )
            hopeless: set[int] = set()
            chain = next(
                (chain for source in by_size if (chain := self._chain(source, hopeless))), None
            )
            if chain is None:
                return
            for giver, topic_id, taker in reversed(chain):
                self._move(topic_id, giver, taker)

    def _chain(self, source: int, hopeless: set[int]) -> list[tuple[int, UUID, int]]:
        """The shortest chain from a member to one with at least two less, or nothing.

        `hopeless`: members from whom no chain helps one that has as much as the source. Larger
        shares are tried first: whoever was reached in vain from one of those is no way for a
        smaller one.
        """
        if source in hopeless:
            return []
        came: dict[int, tuple[int, UUID]] = {}
        seen: set[UUID] = set()
        wave = deque([source])
        while wave:
            giver = wave.popleft()
            for topic_id in sorted(self._held[giver]):
                if topic_id in seen:
                    continue
                seen.add(topic_id)
                for taker in self._subscribers[topic_id]:
                    if taker == source or taker in came or taker in hopeless:
                        continue
                    came[taker] = giver, topic_id
                    if self._sizes[source] - self._sizes[taker] >= 2:
                        return self._path(came, source, taker)
                    wave.append(taker)
        hopeless.update(came, (source,))
        return []

    @staticmethod
    def _path(
        came: Mapping[int, tuple[int, UUID]], source: int, end: int
    ) -> list[tuple[int, UUID, int]]:
        path = []
        while end != source:
            giver, topic_id = came[end]
            path.append((giver, topic_id, end))
            end = giver
        return path[::-1]
