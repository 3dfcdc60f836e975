"""Reassignments of partitions to other replicas (KIP-455): begin, list, cancel, complete.

During a reassignment, the replicas are the target, then those that leave; `adding` names the new
ones, `removing` those that leave. New replicas catch up like any follower. When all of them are in
sync, only the target is left. A reassignment that adds no replica is complete at once; a cancelled
one returns to the previous replicas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage, PartitionImage, TopicImage
from mqd.controller.partition_state import ElectionConditions, next_partition_state, with_replicas
from mqd.controller.records import PartitionUpdate, UpdatePartitions
from mqd.controller.request_limits import check_partition_count
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.controller.sweeps import all_update_records, without_lost_replicas
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId, TopicPartition


class Reassignment(NamedTuple):
    """One partition of an AlterPartitionReassignments request. `replicas` None: cancel its
    reassignment.
    """

    topic_partition: TopicPartition
    replicas: tuple[NodeId, ...] | None


@dataclass(frozen=True, slots=True)
class AlterReassignments:
    """Begin or cancel reassignments."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True


REASSIGNMENTS_AT_ONCE = 500
"""How many one decision includes. It takes some ten milliseconds."""


class Reassigned(NamedTuple):
    """The result for one partition."""

    topic_partition: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def in_portions(op: AlterReassignments) -> tuple[list[AlterReassignments], list[Reassigned]]:
    """A large request as several operations, and errors for partitions that it names twice.

    Reassignments are independent, so they can be split; other operations run in between. Raises
    POLICY_VIOLATION for too many partitions.
    """
    check_partition_count(len(op.reassignments))
    wanted: dict[TopicPartition, Reassignment] = {}
    refused = []
    for reassignment in op.reassignments:
        if reassignment.topic_partition in wanted:
            refused.append(
                Reassigned(reassignment.topic_partition, ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
            )
        else:
            wanted[reassignment.topic_partition] = reassignment
    single = tuple(wanted.values())
    portions = [
        AlterReassignments(
            single[start : start + REASSIGNMENTS_AT_ONCE], op.allow_replication_factor_change
        )
        for start in range(0, len(single), REASSIGNMENTS_AT_ONCE)
    ]
    return portions, refused


_NAMED_TWICE = "The request names a partition more than once."


def decide_alter_reassignments(
    image: MetadataImage, op: AlterReassignments, options: DecisionOptions
) -> ControllerResult:
    """Reply: one Reassigned for each partition, in the order of the request."""
    check_partition_count(len(op.reassignments))
    room = Room(image, options.image_bytes_max)
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    results = []
    for topic_partition, target in op.reassignments:
        try:
            topic = image.topics.get(topic_partition.topic)
            if topic is None:
                raise MqError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic_partition.topic!r} does not exist.",
                )
            index = topic_partition.partition
            if not 0 <= index < len(topic.partitions):
                raise MqError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Partition {topic_partition} does not exist.",
                )
            if index in updates.get(topic.name, ()):
                raise MqError(ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
            update = _alter(
                image, options, topic, index, target, op.allow_replication_factor_change
            )
            if update is not None:
                room.take(UpdatePartitions(topic.topic_id, (update._replace(partition=index),)))
        except MqError as error:
            results.append(Reassigned(topic_partition, error.code, error.message or None))
            continue
        if update is not None:
            updates.setdefault(topic.name, {})[index] = update._replace(partition=index)
        results.append(Reassigned(topic_partition))
    return ControllerResult(tuple(all_update_records(image, updates)), tuple(results))


def _alter(
    image: MetadataImage,
    options: DecisionOptions,
    topic: TopicImage,
    index: int,
    target: tuple[NodeId, ...] | None,
    allow_replication_factor_change: bool,
) -> PartitionUpdate | None:
    before = topic.partitions[index]
    conditions = ElectionConditions(
        without_lost_replicas(image, topic, index, image.may_lead()),
        options.min_insync_replicas_of(image, topic.name),
        unclean=options.allows_unclean_election(image, topic.name),
    )
    if target is None:
        reassigned = _cancelled(before)
    else:
        _check_target(image, target)
        if not allow_replication_factor_change and len(target) != len(_target_of(before)):
            raise MqError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(_target_of(before))} to "
                f"{len(target)}",
            )
        reassigned = _reassigned(before, target)
    if not conditions.unclean:
        _check_a_leader_stays(before, reassigned)
    return next_partition_state(before, conditions, isr=reassigned.isr, reassigned=reassigned)


def _check_a_leader_stays(before: PartitionImage, reassigned: PartitionImage) -> None:
    """One of the replicas that may lead stays, or else the last known leader (I21)."""
    if (before.isr and not reassigned.isr) or (
        before.elr and not reassigned.isr and not reassigned.elr
    ):
        raise MqError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All in-sync replicas would be removed: records would be lost.",
        )
    if before.last_known_elr and not (
        reassigned.isr or reassigned.elr or reassigned.last_known_elr
    ):
        raise MqError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Broker {before.last_known_elr[0]}, the last leader, would be removed: records "
            "would be lost. Restart it, or elect another leader (unclean).",
        )


def _check_target(image: MetadataImage, target: tuple[NodeId, ...]) -> None:
    problem = None
    if not target:
        problem = "The manual partition assignment includes an empty replica list."
    for node_id in sorted(set(target)):
        if node_id not in image.brokers:
            problem = (
                problem
                or f"The manual partition assignment includes broker {node_id}, but no such "
                "broker is registered."
            )
        elif target.count(node_id) > 1:
            problem = (
                problem
                or f"The manual partition assignment includes the broker {node_id} more than once."
            )
    if problem is not None:
        raise MqError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _target_of(partition: PartitionImage) -> tuple[NodeId, ...]:
    """The replicas, after a reassignment that is under way."""
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.removing)


def _reassigned(before: PartitionImage, target: tuple[NodeId, ...]) -> PartitionImage:
    """The partition with the replica set of a reassignment to `target`.

    A new target replaces a reassignment that is under way. Replicas that were added for the old one
    only are removed at once.
    """
    base = tuple(node_id for node_id in before.replicas if node_id not in before.adding)
    adding = tuple(node_id for node_id in target if node_id not in base)
    removing = tuple(node_id for node_id in base if node_id not in target)
    return with_replicas(before, target + removing, adding, removing)


def _cancelled(before: PartitionImage) -> PartitionImage:
    """The partition with the replica set before the reassignment. Raises
    NO_REASSIGNMENT_IN_PROGRESS.
    """
    if not before.adding and not before.removing:
        raise MqError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    return with_replicas(
        before,
        tuple(node_id for node_id in before.replicas if node_id not in before.adding),
        (),
        (),
    )


# -- listing


class PartitionReassignment(NamedTuple):
    """One reassignment that is under way."""

    topic_partition: TopicPartition
    replicas: tuple[NodeId, ...]
    adding: tuple[NodeId, ...]
    removing: tuple[NodeId, ...]


def list_reassignments(
    image: MetadataImage, partitions: Collection[TopicPartition] | None
) -> list[PartitionReassignment]:
    """The reassignments under way, of all partitions (None) or of some."""
    if partitions is None:
        partitions = [
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.adding or partition.removing
        ]
    found = []
    for topic_partition in dict.fromkeys(partitions):
        partition = image.partition(*topic_partition)
        if partition is not None and (partition.adding or partition.removing):
            found.append(
                PartitionReassignment(
                    topic_partition, partition.replicas, partition.adding, partition.removing
                )
            )
    return found
