"""Server-side assignors of the consumer protocol (KIP-848).

`uniform` (uniform_assignor.py) assigns equal shares. `range` assigns one run of consecutive
partitions of each topic to each member, and the same run in topics with as many partitions and the
same subscribers. So equal keys of such topics meet in one member.

Invariant of both: every partition of a subscribed topic goes to exactly one member, and that member
subscribes to the topic. The same input has the same output on every node: nothing depends on the
order of a set or on chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from mqd.coordinator.group.assignment import Assignment, Assignor, Subscriber, Topic
from mqd.coordinator.group.uniform_assignor import assign_uniform


def assign_range(
    members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> dict[str, Assignment]:
    """A run of consecutive partitions in each topic. Racks do not count: they would split a run.

    Topics with the same subscribers have one order of members. First static members by instance id,
    so that a restarted member finds its partitions. Then the others in the order of their runs, so
    that these move little. Members without partitions are last.
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
        order = _ordered(subscribers, members, topic_ids, topics)
        for topic_id in topic_ids if order else ():
            share, extras = divmod(topics[topic_id].partitions, len(order))
            begin = 0
            for position, member_id in enumerate(order):
                end = begin + share + (position < extras)
                if end > begin:
                    assigned[member_id][topic_id] = tuple(range(begin, end))
                begin = end
    return assigned


def _ordered(
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


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By their names in `group.consumer.assignors`. The first name there is the default of groups."""
