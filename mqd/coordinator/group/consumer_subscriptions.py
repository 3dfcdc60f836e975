"""What the members of one consumer group are subscribed to: topic names, and regular expressions
with the topics that they match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.records import RegularExpression
from mqd.coordinator.group.subscriptions import Resolution, count_names, subscribed_names

MATCHED_TOPIC_BYTES: Final = 256
"""Memory of a topic that an expression matches, without its name."""


class GroupSubscriptions:
    """Changed by the replay of records only, but for the soft state, which the next coordinator
    finds out again."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        """Members that subscribe to a topic by its name."""
        self.regexes: Counter[str] = Counter()
        """Members that subscribe by an expression."""
        self.expressions: dict[str, RegularExpression] = {}
        """The topics that expressions match, as records have them."""
        self._resolved: dict[str, frozenset[str]] = {}
        self._matched: dict[str, int] = {}
        """How many expressions match a topic."""
        # Soft state:
        self.checked_version: int | None = None
        """Version of the metadata at which the group's `metadata_hash` was found to be right."""
        self.resolved_at: dict[str, int] = {}
        """Versions of the metadata at which this node resolved expressions."""
        self.assigned_later = 0
        """Partitions of the next target assignment. Several members may join before it is written,
        but it takes memory once."""
        self.resolution: Resolution | None = None
        """A search that takes more than one slice of time."""

    def replay_expression(self, text: str, value: RegularExpression | None) -> None:
        for topic in self._resolved.pop(text, ()):
            self._matched[topic] -= 1
            if not self._matched[topic]:
                del self._matched[topic]
        if value is None:
            self.expressions.pop(text, None)
            self.resolved_at.pop(text, None)
        else:
            self.expressions[text] = value
            self._resolved[text] = frozenset(value.topics)
            for topic in self._resolved[text]:
                self._matched[topic] = self._matched.get(topic, 0) + 1

    def replay_member(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> None:
        """A member changes, joins or leaves."""
        if old is None or new is None or not old.has_same_subscription(new):
            count_names(self.names, () if old is None else old.topic_names, -1)
            count_names(self.names, () if new is None else new.topic_names, 1)
        count_names(
            self.regexes, (old.topic_regex,) if old is not None and old.topic_regex else (), -1
        )
        count_names(
            self.regexes, (new.topic_regex,) if new is not None and new.topic_regex else (), 1
        )

    def resolved(self) -> dict[str, frozenset[str]]:
        """The topics of each resolved expression."""
        return dict(self._resolved)

    def subscribed_names(
        self,
        known: Collection[str],
        leaving: Iterable[ConsumerGroupMember] = (),
        joining: ConsumerGroupMember | None = None,
    ) -> set[str]:
        """The `known` topics that a member subscribes to by name, as if some members had left and
        one had joined. Members may name many other topics.
        """
        return subscribed_names(self.names, known, leaving, joining)

    def includes(self, topic: str) -> bool:
        return topic in self.names or topic in self._matched

    @property
    def matched_bytes(self) -> int:
        """Memory of the topics that expressions match."""
        return sum(
            MATCHED_TOPIC_BYTES * len(one.topics) + sum(map(len, one.topics))
            for one in self.expressions.values()
        )
