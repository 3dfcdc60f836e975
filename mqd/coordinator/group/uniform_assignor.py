"""The `uniform` assignor (KIP-848): equal shares, as far as subscriptions allow, with as few moves
as possible, and near the replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from uuid import UUID

from mqd.coordinator.group.assignment import Assignment, Place, Subscriber, Topic, assignment_of
from mqd.limits import ASSIGNOR_BALANCE_STEPS_MAX


def assign_uniform(
    members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> dict[str, Assignment]:
    """Equal shares, then few moves, then near replicas."""
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
    return {member_id: assignment_of(share) for member_id, share in zip(ids, shares)}


def _still_there(
    member: Subscriber, topics: Mapping[UUID, Topic], taken: set[Place]
) -> list[Place]:
    """The partitions that a member had and may retain."""
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
    """All members subscribe to the same topics: each gets `quota` partitions, and `extras` members
    one more."""
    quota, extras = divmod(sum(topic.partitions for topic in topics.values()), len(ids))
    taken: set[Place] = set()
    shares: list[list[Place]] = []
    for member_id in ids:
        member = members[member_id]
        share = _still_there(member, topics, taken)
        size = quota + (len(share) > quota and extras > 0)
        extras -= size > quota
        if len(share) > size and member.rack is not None:
            share.sort(
                key=lambda place: (member.rack not in topics[place[0]].racks(place[1]), place)
            )
        taken.difference_update(share[size:])
        shares.append(share[:size])
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
    """Assign the free partitions: first near replicas, then the others, each to the member with the
    smallest share."""
    sizes = [(len(share), index) for index, share in enumerate(shares)]
    heapify(sizes)
    nearby: dict[str, list[tuple[int, int]]] = {}
    for entry in sizes:
        rack = racks[entry[1]]
        if rack is not None:
            nearby.setdefault(rack, []).append(entry)
    for heap in nearby.values():
        heapify(heap)

    def least(heap: list[tuple[int, int]]) -> tuple[int, int] | None:
        """The smallest share with room. Outdated entries are dropped or corrected."""
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

    def assign(place: Place, index: int) -> None:
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
            assign((topic_id, partition), min(found)[1])
        else:
            far.append((topic_id, partition))
    for place in far:
        smallest = least(sizes)
        assert smallest is not None, "there are as many places as partitions"
        assign(place, smallest[1])


class _Balance:
    """Shares with different subscriptions: members retain partitions, get the free ones, and move
    them while a move makes two shares more equal."""

    def __init__(
        self, ids: Sequence[str], members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
    ) -> None:
        self._topics = topics
        self._racks = [members[member_id].rack for member_id in ids]
        self._subscribers: dict[UUID, list[int]] = {topic_id: [] for topic_id in sorted(topics)}
        self._held: list[dict[UUID, dict[int, None]]] = []
        self._orders: dict[tuple[int, UUID], dict[str | None, list[int]]] = {}
        """By (member, topic) and target rack: the member's partitions, the best to move last. Some
        may have moved since."""
        self._sizes: list[int] = []
        self._wants = [members[member_id].topics for member_id in ids]
        self._smallest: dict[UUID, tuple[int, int]] = {}
        """A cache by topic: the smallest share, and the first subscriber with such a share. An
        entry is outdated if that share has grown since."""
        self._steps_left = ASSIGNOR_BALANCE_STEPS_MAX
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
        """Assign the free partitions: topics with the fewest subscribers first."""
        for topic_id in sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        ):
            subscribers = self._subscribers[topic_id]
            topic = self._topics[topic_id]
            # by rack: shares with their members, the smallest first
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
        size, index = self._smallest.get(topic_id, (-1, 0))
        if self._sizes[index] != size:
            subscribers = self._subscribers[topic_id]
            self._steps_left -= len(subscribers)
            size, index = min((self._sizes[index], index) for index in subscribers)
            self._smallest[topic_id] = size, index
        return index

    def _move(self, topic_id: UUID, source: int, target: int) -> None:
        """Move a partition of the topic from `source` to `target`: the one with the best racks for
        that."""
        held = self._held[source][topic_id]
        partition = self._best_to_move(topic_id, source, self._racks[target])
        del held[partition]
        if not held:
            del self._held[source][topic_id]
        self._held[target].setdefault(topic_id, {})[partition] = None
        self._orders.pop((target, topic_id), None)
        self._sizes[source] -= 1
        self._sizes[target] += 1
        self._steps_left -= 1

    def _note_smaller(self, source: int) -> None:
        """The share of `source` has shrunk, and may be the smallest one of its topics now."""
        entry = self._sizes[source], source
        self._steps_left -= len(self._wants[source])
        for topic_id in self._wants[source]:
            if topic_id in self._smallest and entry < self._smallest[topic_id]:
                self._smallest[topic_id] = entry

    def _best_to_move(self, topic_id: UUID, source: int, rack: str | None) -> int:
        """Sorted once for many moves: a member may have thousands of partitions."""
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
        """Move partitions from the largest shares to smaller ones, while they differ by two or
        more."""
        moved = True
        while moved:
            moved = False
            for source in sorted(
                range(len(self._sizes)), key=lambda index: (-self._sizes[index], index)
            ):
                size = self._sizes[source]
                self._steps_left -= len(self._held[source])
                for topic_id in sorted(self._held[source]):
                    self._level_topic(topic_id, source)
                if self._sizes[source] < size:
                    self._note_smaller(source)
                    moved = True
                if self._steps_left <= 0:
                    return

    def _level_topic(self, topic_id: UUID, source: int) -> None:
        """Move partitions of one topic from `source`, each to the smallest share."""
        while topic_id in self._held[source] and self._steps_left > 0:
            target = self._with_smallest_share(topic_id)
            if self._sizes[source] - self._sizes[target] < 2:
                return
            self._move(topic_id, source, target)

    def _level_by_chains(self) -> None:
        """Move partitions along chains: from one member to a second, from the second to a third.

        Without a chain, no more equal shares exist. When the steps are used up, the shares stay as
        they are.
        """
        while self._steps_left > 0:
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
        """The shortest chain from a member to one with at least two partitions fewer, or nothing.

        `hopeless`: members from which no chain leads to a share that is small enough. Larger shares
        are tried first: a member that did not help them does not help a smaller one.
        """
        if source in hopeless:
            return []
        reached: dict[int, tuple[int, UUID]] = {}
        seen: set[UUID] = set()
        wave = deque([source])
        while wave:
            giver = wave.popleft()
            for topic_id in sorted(self._held[giver]):
                if topic_id in seen:
                    continue
                seen.add(topic_id)
                self._steps_left -= len(self._subscribers[topic_id])
                for taker in self._subscribers[topic_id]:
                    if taker == source or taker in reached or taker in hopeless:
                        continue
                    reached[taker] = giver, topic_id
                    if self._sizes[source] - self._sizes[taker] >= 2:
                        return self._path(reached, source, taker)
                    wave.append(taker)
        hopeless.update(reached, (source,))
        return []

    @staticmethod
    def _path(
        reached: Mapping[int, tuple[int, UUID]], source: int, end: int
    ) -> list[tuple[int, UUID, int]]:
        path = []
        while end != source:
            giver, topic_id = reached[end]
            path.append((giver, topic_id, end))
            end = giver
        return path[::-1]
