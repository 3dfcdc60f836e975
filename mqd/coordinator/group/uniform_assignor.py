"""The `uniform` assignor (KIP-848): equal shares, as far as subscriptions allow, with as few moves
as possible, and near the replicas.

    here                 members with the same subscription
    balanced_shares.py   members with different subscriptions
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

from mqd.coordinator.group.assignment import Share, Subscriber, Topic, Work, sorted_in_steps
from mqd.coordinator.group.balanced_shares import BalancedShares

_PARTITIONS_AT_ONCE = 500


def assign_uniform(
    members: Mapping[str, Subscriber], topics: Sequence[Topic]
) -> Work[dict[str, Share]]:
    """Equal shares, then few moves, then near replicas."""
    ids = yield from sorted_in_steps(list(members), key=str)
    present = [members[member_id] for member_id in ids]
    are_alike = True
    for member in present:
        are_alike = are_alike and member.topics == present[0].topics
        yield 1 + len(member.topics) // 10
    if are_alike:
        shares = yield from _EqualShares(present, topics).shares()
    else:
        shares = yield from BalancedShares(present, topics).shares()
    return dict(zip(ids, shares))


class _EqualShares:
    """All members subscribe to the same topics: each gets `quota` partitions, and `extras` members
    one more.

    A place is one partition of one topic: places are counted from 0, in the order of the topics.
    """

    def __init__(self, members: Sequence[Subscriber], topics: Sequence[Topic]) -> None:
        self._members = members
        self._topics = topics
        numbers = members[0].topics if members else ()
        counts = [topics[number].partitions for number in numbers]
        self._numbers = numbers
        self._begins = [0, *accumulate(counts)]
        """The first place of each of these topics, and the end of all."""
        self._begin_of = dict(zip(numbers, self._begins))
        """The same by the topic's number."""
        self._quota, self._extras = divmod(self._begins[-1], len(members)) if members else (0, 0)
        self._taken = bytearray(self._begins[-1])
        self._shares: list[list[int]] = []

    def shares(self) -> Work[list[Share]]:
        yield from self._retain()
        free: list[int] = []
        for begin in range(0, len(self._taken), _PARTITIONS_AT_ONCE):
            some = self._taken[begin : begin + _PARTITIONS_AT_ONCE]
            free.extend(begin + place for place, taken in enumerate(some) if not taken)
            yield len(some)
        if free:
            yield from self._fill(free)
        found: list[Share] = []
        for places in self._shares:
            found.append(self._by_topic(sorted(places)))
            yield 5 + 5 * len(places)
        return found

    def _topic_of(self, place: int) -> tuple[int, int]:
        """The number of the topic, and of the partition."""
        position = bisect_right(self._begins, place) - 1
        return self._numbers[position], place - self._begins[position]

    def _racks(self, place: int) -> frozenset[str]:
        number, partition = self._topic_of(place)
        return self._topics[number].racks(partition)

    def _by_topic(self, places: Sequence[int]) -> Share:
        """`places`: ascending."""
        share: Share = {}
        index = 0
        while index < len(places):
            number, _ = self._topic_of(places[index])
            begin = self._begin_of[number]
            end = bisect_left(places, begin + self._topics[number].partitions, index)
            share[number] = tuple(place - begin for place in places[index:end])
            index = end
        return share

    def _retain(self) -> Work[None]:
        """Each member retains what it holds, up to the size of its share."""
        for member in self._members:
            share = self._still_there(member)
            size = self._quota + (len(share) > self._quota and self._extras > 0)
            self._extras -= size > self._quota
            if len(share) > size and member.rack is not None:
                share.sort(key=lambda place: (member.rack not in self._racks(place), place))
                yield 15 * len(share)
            for place in share[size:]:
                self._taken[place] = 0
            self._shares.append(share[:size])
            yield 5 + 3 * len(member.held) + 3 * len(share)

    def _still_there(self, member: Subscriber) -> list[int]:
        """The places that a member had and may retain."""
        places = []
        for number in sorted(member.held):
            begin = self._begin_of.get(number)
            if begin is None:
                continue
            for partition in sorted(member.held[number]):
                place = begin + partition
                if partition < self._topics[number].partitions and not self._taken[place]:
                    self._taken[place] = 1
                    places.append(place)
        return places

    def _fill(self, free: Sequence[int]) -> Work[None]:
        """Assign the free places: first near replicas, then the others, each to the member with the
        smallest share."""
        sizes = [(len(share), index) for index, share in enumerate(self._shares)]
        heapify(sizes)
        nearby: dict[str, list[tuple[int, int]]] = {}
        for entry in sizes:
            rack = self._members[entry[1]].rack
            if rack is not None:
                nearby.setdefault(rack, []).append(entry)
        for heap in nearby.values():
            heapify(heap)
        yield 5 * len(sizes)
        far = []
        for place in free:
            heaps = (
                [nearby[rack] for rack in sorted(self._racks(place)) if rack in nearby]
                if nearby
                else []
            )
            found = [best for heap in heaps if (best := self._least(heap)) is not None]
            if found:
                self._assign(place, min(found)[1])
            else:
                far.append(place)
            yield 20 if nearby else 5
        for place in far:
            smallest = self._least(sizes)
            assert smallest is not None, "there are as many places as partitions"
            self._assign(place, smallest[1])
            yield 10

    def _least(self, heap: list[tuple[int, int]]) -> tuple[int, int] | None:
        """The smallest share with room. Outdated entries are dropped or corrected."""
        while heap:
            size, index = heap[0]
            now = len(self._shares[index])
            if now > self._quota or (now == self._quota and not self._extras):
                heappop(heap)
            elif size != now:
                heapreplace(heap, (now, index))
            else:
                return heap[0]
        return None

    def _assign(self, place: int, index: int) -> None:
        self._extras -= len(self._shares[index]) == self._quota
        self._shares[index].append(place)
