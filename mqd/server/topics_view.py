"""The topics, as coordinators see them (coordinator/shard.py, TopicsView).

Every group requests the racks of the replicas of each of its partitions, after each metadata
change. So they are computed once for each topic and cached until they change. Leaders and in-sync
replicas are not part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.coordinator.group.subscriptions import topic_digest
from mqd.types import NodeId

Racks = frozenset[str]


class ImageTopics:
    """Invariant: `_known` and `_digests` are of topics that exist, as they are."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self.version = 0
        self._known: dict[str, list[Racks]] = {}
        """Racks of each partition of a topic."""
        self._digests: dict[str, bytes] = {}
        self._racks: dict[tuple[NodeId, ...], Racks] = {}
        """Racks of replicas on these nodes."""
        self._rack_of: dict[NodeId, str | None] = {}
        """What was so when those were looked up."""

    def names(self) -> Mapping[str, Any]:
        return self._image().topics

    def topic_id(self, name: str) -> UUID | None:
        topic = self._image().topics.get(name)
        return topic.topic_id if topic is not None else None

    def topic_name(self, topic_id: UUID) -> str | None:
        topic = self._image().topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    def partitions(self, name: str) -> int:
        topic = self._image().topics.get(name)
        return len(topic.partitions) if topic is not None else 0

    def racks(self, name: str) -> Sequence[Racks]:
        known = self._known.get(name)
        if known is None:
            topic = self._image().topics.get(name)
            if topic is None:
                return ()
            known = self._known[name] = [
                self._racks_of(partition.replicas) for partition in topic.partitions
            ]
        return known

    def _racks_of(self, replicas: tuple[NodeId, ...]) -> Racks:
        found = self._racks.get(replicas)
        if found is None:
            brokers = [self._image().brokers.get(node_id) for node_id in replicas]
            found = self._racks[replicas] = frozenset(
                one.rack for one in brokers if one is not None and one.rack is not None
            )
        return found

    def digest(self, name: str) -> bytes:
        found = self._digests.get(name)
        if found is None:
            topic = self._image().topics.get(name)
            if topic is None:
                return b""
            found = self._digests[name] = topic_digest(topic.topic_id, name, self.racks(name))
        return found

    def is_internal(self, name: str) -> bool:
        topic = self._image().topics.get(name)
        return topic is not None and topic.internal

    def changed(self, delta: Delta) -> bool:
        """The metadata is another. Whether any of this may be."""
        if not (
            delta.topics_created
            or delta.topics_deleted
            or delta.partitions_changed
            or delta.brokers_changed
        ):
            return False
        self.version += 1
        image = self._image()
        if delta.brokers_changed:
            rack_of = {node_id: broker.rack for node_id, broker in image.brokers.items()}
            if rack_of != self._rack_of:
                self._rack_of = rack_of
                for kept in (self._known, self._digests, self._racks):
                    kept.clear()
        for topic in (*delta.topics_deleted, *delta.topics_created):
            self._forget(topic.name)
        for name, index in delta.partitions_changed:
            known = self._known.get(name)
            if known is not None:
                partition = image.partition(name, index)
                if (
                    partition is None
                    or index >= len(known)
                    or known[index] != self._racks_of(partition.replicas)
                ):
                    self._forget(name)
        return True

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._digests.pop(name, None)
