"""Changes of many partitions in one decision: elections after brokers or options changed.

Any prefix of a sweep's records is a valid change. Sweeps over many partitions come in portions, and
the next portion is decided on the image that the previous one left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.controller.partition_state import ElectionConditions, next_partition_state
from mqd.controller.records import MetadataRecord, PartitionUpdate, UpdatePartitions
from mqd.controller.result import ControllerResult
from mqd.types import NodeId

PARTITIONS_PER_DECISION = 500
"""A decision about more partitions comes in portions, so that neither it nor its application blocks
a node for long.
"""
UPDATES_PER_RECORD = 1_000
"""Small enough for one command, however many replicas a partition has."""


class Sweep(NamedTuple):
    """A portion of the changes of all partitions together."""

    records: tuple[MetadataRecord, ...]
    complete: bool
    """False if partitions are left for another portion."""


def sweep(
    image: MetadataImage,
    options: DecisionOptions,
    may_lead: frozenset[NodeId],
    is_affected: Callable[[PartitionImage], bool],
    *,
    lost_replicas: Collection[NodeId] = (),
) -> Sweep:
    """Elect leaders from `may_lead` for every affected partition, up to PARTITIONS_PER_DECISION."""
    records: list[MetadataRecord] = []
    room = PARTITIONS_PER_DECISION
    for topic in image.topics.values():
        affected = [
            index for index, partition in enumerate(topic.partitions) if is_affected(partition)
        ]
        if not affected:
            continue
        min_insync_replicas = options.min_insync_replicas_of(image, topic.name)
        unclean = options.allows_unclean_election(image, topic.name)
        in_memory = image.is_in_memory(topic.name)
        updates: list[PartitionUpdate] = []
        for index in affected:
            with_log = without_lost_replicas(image, topic, index, may_lead)
            update = next_partition_state(
                topic.partitions[index],
                ElectionConditions(
                    with_log,
                    min_insync_replicas,
                    lost_replicas,
                    unclean,
                    may_begin_empty=may_lead - with_log if in_memory else (),
                ),
            )
            if update is None:
                continue
            if room == 0:
                return Sweep((*records, *update_records(topic, updates)), complete=False)
            room -= 1
            updates.append(update._replace(partition=index))
        records += update_records(topic, updates)
    return Sweep(tuple(records), complete=True)


def without_lost_replicas(
    image: MetadataImage, topic: TopicImage, partition: int, may_lead: frozenset[NodeId]
) -> frozenset[NodeId]:
    """The nodes of `may_lead` whose replica of this partition is not lost."""
    if not image.lost_replicas:
        return may_lead
    return may_lead - {
        node_id
        for node_id in topic.partitions[partition].replicas
        if (topic.topic_id, partition, node_id) in image.lost_replicas
    }


def update_records(
    topic: TopicImage, updates: Sequence[PartitionUpdate]
) -> Iterator[UpdatePartitions]:
    """Records of a size that always fits one command."""
    for start in range(0, len(updates), UPDATES_PER_RECORD):
        yield UpdatePartitions(topic.topic_id, tuple(updates[start : start + UPDATES_PER_RECORD]))


def all_update_records(
    image: MetadataImage, updates: Mapping[str, Mapping[int, PartitionUpdate]]
) -> Iterator[UpdatePartitions]:
    """The records of updates by topic name and partition index."""
    for name, by_index in updates.items():
        yield from update_records(
            image.topics[name], [by_index[index] for index in sorted(by_index)]
        )


@dataclass(frozen=True, slots=True)
class ReviewPartitions:
    """Look at every partition: after an election of the controller, or after a change of options
    that elections depend on.
    """


def decide_review_partitions(
    image: MetadataImage, op: ReviewPartitions, options: DecisionOptions
) -> ControllerResult:
    """Finish what another controller left incomplete, elect leaders where possible, clear ELRs that
    are not needed. No reply.
    """
    may_lead = image.may_lead()

    def is_affected(partition: PartitionImage) -> bool:
        is_reassigned = bool(partition.adding or partition.removing)
        return (
            is_reassigned
            or partition.leader not in may_lead
            or bool(partition.elr)
            or not may_lead.issuperset(partition.isr)
        )

    swept = sweep(image, options, may_lead, is_affected)
    return ControllerResult(swept.records, more=not swept.complete)
