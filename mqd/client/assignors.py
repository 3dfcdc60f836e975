"""The assignors of a classic group's leader: `range`, `roundrobin`, `cooperative-sticky`. Pure.

The other members may be clients of any kind, so names and results are those of Kafka. An assignor
gives each partition of the subscribed topics to exactly one subscribed member. Only
`cooperative-sticky` leaves a moving partition unassigned for one round, until its owner revokes it
(KIP-429). The same input always gives the same assignment: members and partitions have a fixed
order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mqd.protocol.consumer_protocol import Subscription
from mqd.types import TopicPartition

_GENERATION = struct.Struct(">i")

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its leader sees it. `instance_id` is that of a static member (KIP-345)."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members come first, in the order of their names, so that they get the same
        partitions after a restart.
        """
        return (
            self.instance_id is None,
            self.instance_id if self.instance_id is not None else self.member_id,
        )


@dataclass(frozen=True, slots=True)
class Assignor:
    """A strategy by its name in the protocol.

    `cooperative`: members keep their partitions until the group revokes them.
    """

    name: str
    cooperative: bool
    assign: Callable[[Sequence[Member], Mapping[str, int]], Assignment]
    """(members, topic -> number of partitions; topics that do not exist are left out) ->
    member id -> partitions
    """

    def user_data(self, generation: int) -> bytes | None:
        """A subscription's user data: the generation, for leaders that do not read version 2 of the
        subscription.
        """
        return _GENERATION.pack(generation) if self.cooperative else None


def assign_range(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """For each topic, each member gets consecutive partitions; the first members get one more if
    there is a remainder. Topics with the same members and partition count are split equally.
    """
    made: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(counts):
        takers = [
            member
            for member in sorted(members, key=lambda each: each.rank)
            if topic in member.subscription.topics
        ]
        first = 0
        for index, member in enumerate(takers):
            share = counts[topic] // len(takers) + (index < counts[topic] % len(takers))
            made[member.member_id] += [
                TopicPartition(topic, each) for each in range(first, first + share)
            ]
            first += share
    return made


def assign_round_robin(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """Assign the partitions in order, one to each member in turn. Members that do not subscribe to
    the topic are skipped.
    """
    made: Assignment = {member.member_id: [] for member in members}
    ring = sorted(members, key=lambda each: each.rank)
    position = 0
    for tp in _partitions(counts):
        for step in range(len(ring)):
            member = ring[(position + step) % len(ring)]
            if tp.topic in member.subscription.topics:
                made[member.member_id].append(tp)
                position += step + 1
                break
    return made


def assign_cooperative_sticky(members: Sequence[Member], counts: Mapping[str, int]) -> Assignment:
    """As balanced as possible with as few moves as possible. A partition that moves has no owner
    until the next rebalance.
    """
    owners = _owners(members, counts)
    made = _balanced(members, counts, owners)
    claimed: dict[TopicPartition, set[str]] = {}
    for member in members:
        for tp in member.subscription.owned:
            claimed.setdefault(tp, set()).add(member.member_id)
    return {
        member_id: sorted(tp for tp in given if claimed.get(tp, set()) <= {member_id})
        for member_id, given in made.items()
    }


def leaves_some(made: Assignment, members: Sequence[Member], counts: Mapping[str, int]) -> bool:
    """Whether a subscribed partition was assigned to no member."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    return sum(map(len, made.values())) < sum(
        number for topic, number in counts.items() if topic in wanted
    )


def _generation_of(subscription: Subscription) -> int:
    """The generation of the member's owned partitions; older clients write it as user data."""
    data = subscription.user_data
    if subscription.generation < 0 and data is not None and len(data) >= _GENERATION.size:
        return int(_GENERATION.unpack_from(data)[0])
    return subscription.generation


def _owners(members: Sequence[Member], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """The owner of each partition.

    If two members claim one, the later generation wins; with equal generations neither does
    (KIP-792).
    """
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in sorted(members, key=lambda each: each.rank):
        generation = _generation_of(member.subscription)
        for tp in member.subscription.owned:
            if (
                tp.partition >= counts.get(tp.topic, 0)
                or tp.topic not in member.subscription.topics
            ):
                continue
            latest, owner = claims.get(tp, (-2, None))
            if generation > latest:
                claims[tp] = generation, member.member_id
            elif generation == latest and owner != member.member_id:
                claims[tp] = generation, None
    return {tp: owner for tp, (_, owner) in claims.items() if owner is not None}


def _balanced(
    members: Sequence[Member], counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Keep each owner, assign the rest to the members with the fewest partitions, then move
    partitions while that improves the balance.
    """
    order = [member.member_id for member in sorted(members, key=lambda each: each.rank)]
    wants = {member.member_id: frozenset(member.subscription.topics) for member in members}
    takers = {topic: [each for each in order if topic in wants[each]] for topic in counts}
    made: dict[str, set[TopicPartition]] = {member_id: set() for member_id in order}
    free = []
    for tp in _partitions(counts):
        owner = owners.get(tp)
        if owner is not None:
            made[owner].add(tp)
        elif takers[tp.topic]:
            free.append(tp)
    for tp in sorted(free, key=lambda each: (len(takers[each.topic]), each)):
        made[min(takers[tp.topic], key=lambda each: len(made[each]))].add(tp)
    while (move := _a_move(order, takers, made)) is not None:
        tp, rich, poor = move
        made[rich].discard(tp)
        made[poor].add(tp)
    return made


def _a_move(
    order: Sequence[str],
    takers: Mapping[str, Sequence[str]],
    made: Mapping[str, set[TopicPartition]],
) -> tuple[TopicPartition, str, str] | None:
    """A partition to move: its owner has at least two more than another subscribed member."""
    for rich in sorted(order, key=lambda each: -len(made[each])):
        topics = sorted({tp.topic for tp in made[rich]})
        best: tuple[int, str, str] | None = None
        for topic in topics:
            poor = min(takers[topic], key=lambda each: len(made[each]))
            if len(made[rich]) >= len(made[poor]) + 2 and (
                best is None or len(made[poor]) < best[0]
            ):
                best = len(made[poor]), poor, topic
        if best is not None:
            _, poor, topic = best
            return max(tp for tp in made[rich] if tp.topic == topic), rich, poor
    return None


def _partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, index) for topic in sorted(counts) for index in range(counts[topic])
    ]


ASSIGNORS: dict[str, Assignor] = {
    each.name: each
    for each in (
        Assignor("range", False, assign_range),
        Assignor("roundrobin", False, assign_round_robin),
        Assignor("cooperative-sticky", True, assign_cooperative_sticky),
    )
}
