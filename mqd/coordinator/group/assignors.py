"""Server-side assignors of the consumer protocol (KIP-848).

`uniform` (uniform_assignor.py) assigns equal shares. `range` assigns one run of consecutive
partitions of each topic to each member. Topics with the same number of partitions and the same
subscribers get the same runs. So equal keys of such topics meet in one member.

Invariant of both: every partition of a subscribed topic goes to exactly one member, and that member
subscribes to the topic. The same input has the same output on every node: nothing depends on the
order of a set or on chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mqd.coordinator.group.assignment import (
    Assignor,
    Share,
    Subscriber,
    Topic,
    Work,
    sorted_in_steps,
)
from mqd.coordinator.group.uniform_assignor import assign_uniform


def assign_range(
    members: Mapping[str, Subscriber], topics: Sequence[Topic]
) -> Work[dict[str, Share]]:
    """A run of consecutive partitions in each topic. Racks do not count: they would split a run.

    Topics with the same subscribers have one order of members. First static members by instance id,
    so that a restarted member finds its partitions. Then the others in the order of their runs, so
    that these move little. Members without partitions are last.
    """
    ids = yield from sorted_in_steps(list(members), key=str)
    subscribers: list[list[int]] = [[] for _ in topics]
    is_held = bytearray(len(topics))
    """Whether a subscriber holds any partition of the topic."""
    for index, member_id in enumerate(ids):
        member = members[member_id]
        for topic in member.topics:
            subscribers[topic].append(index)
            if member.held.get(topic):
                is_held[topic] = 1
        yield 1 + len(member.topics)
    alike: dict[tuple[int, ...], list[int]] = {}
    for topic, found in enumerate(subscribers):
        alike.setdefault(tuple(found), []).append(topic)
        yield 5 + len(found) // 4
    shares: list[Share] = [{} for _ in ids]
    for some, numbers in alike.items():
        leader = min(
            (topic for topic in numbers if is_held[topic]),
            key=lambda topic: (-topics[topic].partitions, topic),
            default=None,
        )
        yield 3 * len(numbers)
        order = yield from _ordered(some, ids, members, leader)
        for topic in numbers if order else ():
            yield from _divide(topic, topics[topic].partitions, order, shares)
    # topics with other subscribers may have come first
    assigned = {}
    for member_id, share in zip(ids, shares):
        assigned[member_id] = dict(sorted(share.items()))
        yield 1 + 3 * len(share)
    return assigned


def _ordered(
    subscribers: Sequence[int],
    ids: Sequence[str],
    members: Mapping[str, Subscriber],
    leader: int | None,
) -> Work[list[int]]:
    """`leader`: the topic whose runs have the order."""

    def place(index: int) -> tuple[bool, str, bool, int, int]:
        member = members[ids[index]]
        held = member.held.get(leader) if leader is not None else None
        return (
            member.instance_id is None,
            member.instance_id or "",
            not held,
            min(held) if held else 0,
            index,
        )

    return (yield from sorted_in_steps(subscribers, key=place))


def _divide(topic: int, partitions: int, order: Sequence[int], shares: list[Share]) -> Work[None]:
    """Divide one topic among the members in this order."""
    share, extras = divmod(partitions, len(order))
    begin = 0
    for position, index in enumerate(order if share else order[:extras]):
        end = begin + share + (position < extras)
        shares[index][topic] = tuple(range(begin, end))
        yield 5 + (end - begin) // 4
        begin = end


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By their names in `group.consumer.assignors`. The first name there is the default of groups."""


def most_voted(votes: Mapping[str | None, int]) -> str | None:
    """The name with most votes of members; None without votes. Some members have no name."""
    named = [(-count, name) for name, count in votes.items() if name]
    return min(named)[1] if named else None
