"""Invariants of the nodes' metadata images (I10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mqd.daemon import Daemon
from mqd.testing.probes.counts import Counts
from mqd.testing.probes.shadows import Key, Shadow
from mqd.testing.violation import Violation
from mqd.types import NO_NODE


class ImageProbe:
    """Every image of every partition that any node has applied."""

    def __init__(self, shadows: Mapping[Key, Mapping[int, Shadow]], counts: Counts) -> None:
        """`shadows`: replicas that the metadata removes from their nodes are marked there."""
        self._shadows = shadows
        self._counts = counts
        self._epoch_leaders: dict[tuple[UUID, int, int], int] = {}
        self._images: dict[tuple[UUID, int, int], Any] = {}
        self.newest: dict[Key, Any] = {}
        """The image of each partition with the highest partition epoch that any node has applied.
        """
        self._indexes: dict[int, int] = {}
        self._contents: dict[int, tuple[int, tuple[Any, ...]]] = {}
        """Index -> the first node that has applied it, and the content of its image without
        partitions.
        """

    def begin_life(self, node_id: int) -> None:
        """A new process of this node runs."""
        self._indexes.pop(node_id, None)

    def look(self, node_id: int, daemon: Daemon) -> None:
        """Check the image if the node has applied entries since the last call."""
        image = daemon.machine.image
        if image.index == self._indexes.get(node_id):
            return
        before = self._indexes.get(node_id, 0)
        if image.index < before:
            raise Violation(
                f"I10: the image of node {node_id} went back from {before} to {image.index}"
            )
        self._indexes[node_id] = image.index
        content = _content(image)
        other, expected = self._contents.setdefault(image.index, (node_id, content))
        if expected != content:
            differing = next(
                pair for pair in zip(expected, content, strict=True) if pair[0] != pair[1]
            )
            raise Violation(
                f"I10: at index {image.index} nodes {other} and {node_id} hold {differing[0]} "
                f"and {differing[1]}"
            )
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                place = (topic.topic_id, number, partition.partition_epoch)
                known = self._images.get(place)
                if known is partition:
                    continue
                where = f"{topic.name}-{number} at partition epoch {partition.partition_epoch}"
                if known is not None:
                    if known != partition:
                        raise Violation(
                            f"I10: two images of {where}: {known} and, on node {node_id}, "
                            f"{partition}"
                        )
                    continue
                self._images[place] = partition
                previous = self._images.get((*place[:2], partition.partition_epoch - 1))
                if previous is not None and (early := _moved_early(previous, partition)):
                    raise Violation(
                        f"a move of {where} leaves {early} as replicas, never in sync: "
                        f"{previous}, {partition}"
                    )
                newest = self.newest.get(place[:2])
                if newest is None or newest.partition_epoch < partition.partition_epoch:
                    self.newest[place[:2]] = partition
                for other, shadow in self._shadows.get(place[:2], {}).items():
                    shadow.unassigned = shadow.unassigned or other not in partition.replicas
                self._counts.isr_changes += 1
                if not set(partition.isr) <= set(partition.replicas) or len(
                    set(partition.replicas)
                ) != len(partition.replicas):
                    raise Violation(
                        f"I10: in-sync replicas beyond the replicas of {where}: {partition}"
                    )
                if partition.leader != NO_NODE and partition.leader not in partition.isr:
                    raise Violation(f"I10: a leader that is not in sync in {where}: {partition}")
                if set(partition.elr) & set(partition.isr):
                    raise Violation(f"I10: replicas in the ISR and the ELR of {where}: {partition}")
                if partition.leader != NO_NODE:
                    self.lead(
                        topic.topic_id, number, partition.leader_epoch, partition.leader, where
                    )

    def lead(
        self, topic_id: UUID, number: int, leader_epoch: int, node_id: int, where: str
    ) -> None:
        """Record that this node leads the partition in this leader epoch, by the metadata or by its
        own log.
        """
        known = self._epoch_leaders.setdefault((topic_id, number, leader_epoch), node_id)
        if known != node_id:
            raise Violation(
                f"two leaders in leader epoch {leader_epoch} of {where}: nodes {known} and "
                f"{node_id}"
            )


def _content(image: Any) -> tuple[Any, ...]:
    """The content of an image without partitions and brokers. Cheap, because changes replace
    values.
    """
    topics = frozenset((topic.name, topic_id) for topic_id, topic in image.topics_by_id.items())
    return (
        image.cluster_id,
        image.next_producer_id,
        dict(image.features),
        dict(image.configs),
        frozenset(image.lost_replicas),
        topics,
    )


def _moved_early(before: Any, after: Any) -> set[int]:
    """Replicas that a reassignment has added, and that count as final without having been in sync
    (KIP-455).
    """
    final = set(after.replicas) - set(after.adding)
    return final - (set(before.replicas) - set(before.adding)) - set(before.isr) - set(after.isr)
