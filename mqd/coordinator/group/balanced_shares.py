"""Shares of members with different subscriptions, for the `uniform` assignor."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import TypeAlias

from mqd.coordinator.group.assignment import Share, Subscriber, Topic, Work, sorted_in_steps
from mqd.limits import ASSIGNOR_BALANCE_STEPS_MAX

_Move: TypeAlias = tuple[int, int, int]
"""Giver, topic, taker."""


class BalancedShares:
    """Members retain partitions, get the free ones, and move them while a move makes two shares
    more equal.

    Members are counted from 0, in the order of their ids.
    """

    def __init__(self, members: Sequence[Subscriber], topics: Sequence[Topic]) -> None:
        self._members = members
        self._topics = topics
        self._racks = [member.rack for member in members]
        self._subscribers: list[list[int]] = [[] for _ in topics]
        self._held: list[dict[int, dict[int, None]]] = []
        """By member and topic: its partitions."""
        self._begins = [0, *accumulate(topic.partitions for topic in topics)]
        self._taken = bytearray(self._begins[-1])
        """Whether a member holds a partition. All are counted through, in the order of the topics,
        from `_begins`."""
        self._orders: dict[tuple[int, int], dict[str | None, list[int]]] = {}
        """By (member, topic) and target rack: the member's partitions, the best to move last. Some
        may have moved since."""
        self._sizes: list[int] = []
        self._smallest: dict[int, tuple[int, int]] = {}
        """A cache by topic: the smallest share, and the first subscriber with such a share. An
        entry is outdated if that share has grown since."""
        self._efforts_left = ASSIGNOR_BALANCE_STEPS_MAX

    def shares(self) -> Work[list[Share]]:
        yield from self._retain()
        yield from self._deal()
        yield from self._level()
        yield from self._level_by_chains()
        shares: list[Share] = []
        for held, size in zip(self._held, self._sizes):
            shares.append({topic: tuple(sorted(held[topic])) for topic in sorted(held)})
            yield 5 + 3 * len(held) + size
        return shares

    def _retain(self) -> Work[None]:
        for index, member in enumerate(self._members):
            for topic in member.topics:
                self._subscribers[topic].append(index)
            yield 1 + len(member.topics)
            wanted = set(member.topics)
            held: dict[int, dict[int, None]] = {}
            size = 0
            for topic in sorted(member.held):
                if topic not in wanted:
                    continue
                begin, end = self._begins[topic : topic + 2]
                for partition in sorted(member.held[topic]):
                    place = begin + partition
                    if place < end and not self._taken[place]:
                        self._taken[place] = 1
                        held.setdefault(topic, {})[partition] = None
                        size += 1
            self._held.append(held)
            self._sizes.append(size)
            yield 5 + 5 * len(member.held) + 3 * size

    def _deal(self) -> Work[None]:
        """Assign the free partitions: topics with the fewest subscribers first."""
        order = yield from sorted_in_steps(
            range(len(self._topics)), key=lambda topic: (len(self._subscribers[topic]), topic)
        )
        for topic in order:
            begin, end = self._begins[topic : topic + 2]
            free = self._taken.count(0, begin, end)
            subscribers = self._subscribers[topic]
            yield 5
            if not free or not subscribers:
                continue
            # by rack: shares with their members, the smallest first
            waiting: dict[str | None, list[tuple[int, int]]] = {}
            for index in subscribers:
                waiting.setdefault(self._racks[index], []).append((self._sizes[index], index))
            for heap in waiting.values():
                heapify(heap)
            yield 3 * len(subscribers)
            racks = self._topics[topic].racks
            for partition in range(end - begin):
                if self._taken[begin + partition]:
                    continue
                near = racks(partition)
                size, _, index, rack = min(
                    (heap[0][0], rack not in near, heap[0][1], rack)
                    for rack, heap in waiting.items()
                )
                self._held[index].setdefault(topic, {})[partition] = None
                self._sizes[index] += 1
                heapreplace(waiting[rack], (size + 1, index))
                yield 15 + 3 * len(waiting)

    def _with_smallest_share(self, topic: int) -> int:
        size, index = self._smallest.get(topic, (-1, 0))
        if self._sizes[index] != size:
            subscribers = self._subscribers[topic]
            self._efforts_left -= len(subscribers)
            size, index = min((self._sizes[index], index) for index in subscribers)
            self._smallest[topic] = size, index
        return index

    def _move(self, topic: int, source: int, target: int) -> Work[None]:
        """Move a partition of the topic from `source` to `target`: the one with the best racks for
        that."""
        held = self._held[source][topic]
        partition = yield from self._best_to_move(topic, source, self._racks[target])
        del held[partition]
        if not held:
            del self._held[source][topic]
        self._held[target].setdefault(topic, {})[partition] = None
        self._orders.pop((target, topic), None)
        self._sizes[source] -= 1
        self._sizes[target] += 1
        self._efforts_left -= 1
        yield 15

    def _note_smaller(self, source: int) -> None:
        """The share of `source` has shrunk, and may be the smallest one of its topics now."""
        entry = self._sizes[source], source
        wanted = self._members[source].topics
        self._efforts_left -= len(wanted)
        for topic in wanted:
            if topic in self._smallest and entry < self._smallest[topic]:
                self._smallest[topic] = entry

    def _best_to_move(self, topic: int, source: int, rack: str | None) -> Work[int]:
        """Sorted once for many moves: a member may have thousands of partitions."""
        held = self._held[source][topic]
        own = self._racks[source]
        if len(held) == 1 or (own is None and rack is None):
            return next(reversed(held))
        orders = self._orders.setdefault((source, topic), {})
        if rack not in orders:
            racks = self._topics[topic].racks
            orders[rack] = yield from sorted_in_steps(
                list(held), key=lambda p: ((rack in racks(p)) - (own in racks(p)), -p)
            )
        order = orders[rack]
        while order[-1] not in held:
            order.pop()
        return order.pop()

    def _by_size(self) -> Work[list[int]]:
        """The members with the largest shares first."""
        return (
            yield from sorted_in_steps(
                range(len(self._sizes)), key=lambda index: (-self._sizes[index], index)
            )
        )

    def _level(self) -> Work[None]:
        """Move partitions from the largest shares to smaller ones, while they differ by two or
        more."""
        moved = True
        while moved:
            moved = False
            for source in (yield from self._by_size()):
                size = self._sizes[source]
                self._efforts_left -= len(self._held[source])
                for topic in sorted(self._held[source]):
                    yield from self._level_topic(topic, source)
                if self._sizes[source] < size:
                    self._note_smaller(source)
                    moved = True
                    yield 1 + len(self._members[source].topics)
                if self._efforts_left <= 0:
                    return

    def _level_topic(self, topic: int, source: int) -> Work[None]:
        """Move partitions of one topic from `source`, each to the smallest share."""
        while topic in self._held[source] and self._efforts_left > 0:
            before = self._efforts_left
            target = self._with_smallest_share(topic)
            yield 5 + before - self._efforts_left
            if self._sizes[source] - self._sizes[target] < 2:
                return
            yield from self._move(topic, source, target)

    def _level_by_chains(self) -> Work[None]:
        """Move partitions along chains: from one member to a second, from the second to a third.

        Without a chain, no more equal shares exist. When the efforts are used up, the shares stay
        as they are.
        """
        while self._efforts_left > 0:
            hopeless: set[int] = set()
            chain: list[_Move] = []
            for source in (yield from self._by_size()):
                chain = yield from self._chain(source, hopeless)
                if chain:
                    break
            if not chain:
                return
            for giver, topic, taker in reversed(chain):
                yield from self._move(topic, giver, taker)

    def _chain(self, source: int, hopeless: set[int]) -> Work[list[_Move]]:
        """The shortest chain from a member to one with at least two partitions fewer, or nothing.

        `hopeless`: members from which no chain leads to a share that is small enough. Larger shares
        are tried first: a member that did not help them does not help a smaller one.
        """
        yield 1
        if source in hopeless:
            return []
        reached: dict[int, tuple[int, int]] = {}
        seen: set[int] = set()
        wave = deque([source])
        while wave:
            giver = wave.popleft()
            for topic in sorted(self._held[giver]):
                if topic in seen:
                    yield 1
                    continue
                seen.add(topic)
                self._efforts_left -= len(self._subscribers[topic])
                yield 5 + len(self._subscribers[topic])
                for taker in self._subscribers[topic]:
                    if taker == source or taker in reached or taker in hopeless:
                        continue
                    reached[taker] = giver, topic
                    if self._sizes[source] - self._sizes[taker] >= 2:
                        return self._path(reached, source, taker)
                    wave.append(taker)
        hopeless.update(reached, (source,))
        return []

    @staticmethod
    def _path(reached: Mapping[int, tuple[int, int]], source: int, end: int) -> list[_Move]:
        path = []
        while end != source:
            giver, topic = reached[end]
            path.append((giver, topic, end))
            end = giver
        return path[::-1]
