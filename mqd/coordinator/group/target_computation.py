"""The computation of a group's target assignment, in counted steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from mqd.coordinator.group.assignment import (
    Assignment,
    Share,
    Subscriber,
    Topic,
    Work,
    sorted_in_steps,
)
from mqd.coordinator.group.assignors import ASSIGNORS, most_voted
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.shard import TopicsView

_Subscription: TypeAlias = tuple[tuple[str, ...], str]
"""Names and expression."""

_MEMBER_BYTES: Final = 500
_SUBSCRIBED_BYTES: Final = 16
"""Memory of a topic in a subscription: in that of the members, and in that of the topic."""
_PARTITION_BYTES: Final = 150
"""Memory of a partition in the old and the new shares."""


class TargetComputation:
    """Computes the target of a group as it was at the start. It reads the metadata of topics on the
    way: if they change, the group gets another target later.
    """

    def __init__(
        self,
        members: Mapping[str, ConsumerGroupMember],
        targets: Mapping[str, Assignment],
        resolved: Mapping[str, frozenset[str]],
        default_assignor: str,
        topics: TopicsView,
    ) -> None:
        """`targets`: the last target assignment. `resolved`: the topics of each expression."""
        self.members = members
        self.assigned: dict[str, Assignment] = {}
        """The result: a part for every member."""
        self.bytes = 0
        """About the memory of the computation."""
        self._targets = targets
        self._resolved = resolved
        self._default_assignor = default_assignor
        self._view = topics
        self._found: dict[str, tuple[UUID, Topic]] = {}
        """Subscribed topics that exist, by name."""
        self._work = self._compute()

    def advance(self, steps: int) -> bool:
        """Take about so many steps. True when `assigned` is complete."""
        while steps > 0:
            try:
                steps -= next(self._work)
            except StopIteration:
                return True
        return False

    def _compute(self) -> Work[None]:
        subscriptions = yield from self._read_subscriptions()
        names = yield from sorted_in_steps(
            list(self._found), key=lambda name: self._found[name][0].int
        )
        ids = [self._found[name][0] for name in names]
        topics = [self._found[name][1] for name in names]
        self.bytes += _PARTITION_BYTES * sum(topic.partitions for topic in topics)
        yield 10 * len(names)
        subscribers = yield from self._subscribers(subscriptions, names, ids)
        name = yield from self._assignor()
        shares = yield from ASSIGNORS[name](subscribers, topics)
        for member_id, share in shares.items():
            self.assigned[member_id] = self._with_ids(share, ids)
            yield 5 + 5 * len(share)

    def _read_subscriptions(self) -> Work[dict[_Subscription, None]]:
        """All different subscriptions. Finds their topics."""
        racks = any(member.rack_id for member in self.members.values())
        subscriptions: dict[_Subscription, None] = {}
        known = self._view.names()
        for member in self.members.values():
            subscription = member.topic_names, member.topic_regex
            yield 5 + len(member.topic_names) // 2
            if subscription in subscriptions:
                continue
            subscriptions[subscription] = None
            names = self._names(subscription)
            for name in names:
                if name in known and name not in self._found:
                    topic_id = self._view.topic_id(name)
                    if topic_id is not None:
                        self._found[name] = topic_id, self._topic(name, racks=racks)
                        yield 20
            yield len(names)
        return subscriptions

    def _names(self, subscription: _Subscription) -> Sequence[str]:
        """May have a name twice. An unresolved expression has none."""
        names, expression = subscription
        return (*names, *self._resolved.get(expression, ())) if expression else names

    def _topic(self, name: str, *, racks: bool) -> Topic:
        partitions = self._view.partitions(name)
        return Topic(partitions, self._view.racks(name).__getitem__) if racks else Topic(partitions)

    def _subscribers(
        self, subscriptions: Iterable[_Subscription], names: Iterable[str], ids: Iterable[UUID]
    ) -> Work[dict[str, Subscriber]]:
        by_name: dict[str, int] = {}
        by_id: dict[UUID, int] = {}
        for number, (name, topic_id) in enumerate(zip(names, ids)):
            by_name[name] = by_id[topic_id] = number
            yield 5
        wanted: dict[_Subscription, tuple[int, ...]] = {}
        for subscription in subscriptions:
            subscribed = self._names(subscription)
            numbers = {by_name[name] for name in subscribed if name in by_name}
            wanted[subscription] = tuple(sorted(numbers))
            self.bytes += _SUBSCRIBED_BYTES * len(numbers)
            yield len(subscribed) + 2 * len(numbers)
        subscribers = {}
        for member_id, member in self.members.items():
            target = self._targets.get(member_id, {})
            subscribers[member_id] = Subscriber(
                wanted[member.topic_names, member.topic_regex],
                {by_id[topic_id]: held for topic_id, held in target.items() if topic_id in by_id},
                member.rack_id,
                member.instance_id,
            )
            self.bytes += _MEMBER_BYTES + _SUBSCRIBED_BYTES * len(subscribers[member_id].topics)
            yield 20 + len(member.topic_names) // 2 + 5 * len(target)
        return subscribers

    def _assignor(self) -> Work[str]:
        """The assignor with most votes."""
        votes: Counter[str | None] = Counter()
        for member in self.members.values():
            votes[member.server_assignor] += 1
            yield 3
        name = most_voted(votes)
        return name if name is not None and name in ASSIGNORS else self._default_assignor

    @staticmethod
    def _with_ids(share: Share, ids: list[UUID]) -> Assignment:
        return {ids[number]: partitions for number, partitions in share.items()}
