"""What the rest of the node provides to the shard of groups, for tests: topics, options and ids
that a test sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any
from uuid import UUID

from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.group.subscriptions import topic_digest
from mqd.option_table import NODE_OPTIONS
from tests.coordinator.harness import Harness


class Topics:
    """A TopicsView."""

    def __init__(self, partitions: Mapping[str, int] | None = None) -> None:
        self.version = 0
        self._ids = count(1)
        self._topics: dict[str, tuple[UUID, int]] = {}
        self._racks: dict[tuple[str, int], frozenset[str]] = {}
        for name, number in (partitions or {}).items():
            self.create(name, number)

    def create(self, name: str, partitions: int) -> UUID:
        """Create a topic, also in place of an existing one of that name."""
        topic_id = UUID(int=next(self._ids))
        self._topics[name] = topic_id, partitions
        self.version += 1
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        """The same topic with more partitions."""
        self._topics[name] = self._topics[name][0], partitions
        self.version += 1

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def names(self) -> Mapping[str, Any]:
        return self._topics

    def topic_id(self, name: str) -> UUID | None:
        found = self._topics.get(name)
        return None if found is None else found[0]

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, (known, _) in self._topics.items() if known == topic_id), None)

    def partitions(self, name: str) -> int:
        found = self._topics.get(name)
        return 0 if found is None else found[1]

    def racks(self, name: str) -> list[frozenset[str]]:
        return [
            self._racks.get((name, partition), frozenset())
            for partition in range(self.partitions(name))
        ]

    def digest(self, name: str) -> bytes:
        topic_id = self.topic_id(name)
        return b"" if topic_id is None else topic_digest(topic_id, name, self.racks(name))

    def is_internal(self, name: str) -> bool:
        return name.startswith("__")


class Options:
    """GroupOptions: the defaults, except what a test sets."""

    def __init__(self, **own: Any) -> None:
        self.own: dict[str, Any] = {name.replace("_", "."): value for name, value in own.items()}

    def node(self, name: str) -> Any:
        return self.own[name] if name in self.own else NODE_OPTIONS[name].default

    def group(self, group_id: str, name: str) -> Any:
        return self.own[name] if name in self.own else self.node(f"group.{name}")


def group_harness(topics: Topics, options: Options | None = None) -> Harness[GroupShard]:
    """A shard of groups, and its successors after each failover."""
    ids = count(1)
    chosen = options or Options()
    return Harness(lambda: GroupShard(topics, chosen, lambda: f"id-{next(ids)}"))
