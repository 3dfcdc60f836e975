"""Elections that a client requests (ElectLeaders), and the regular return of partitions to their
preferred leaders.

Other elections follow from what happens to brokers: brokers.py, isr.py, reassignments.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.partition_state import ElectionConditions, next_partition_state
from mqd.controller.records import PartitionUpdate
from mqd.controller.request_limits import check_partition_count
from mqd.controller.result import ControllerResult
from mqd.controller.sweeps import all_update_records, without_lost_replicas
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_NODE, NodeId, TopicPartition

REBALANCED_AT_ONCE = 1_000
"""Kafka's limit of elections for one check of the balance."""


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """`partitions` None: every partition that needs an election of this type."""

    election_type: int
    partitions: tuple[TopicPartition, ...] | None


class Elected(NamedTuple):
    """The result for one partition."""

    topic_partition: TopicPartition
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_elect_leaders(
    image: MetadataImage, op: ElectLeaders, options: DecisionOptions
) -> ControllerResult:
    """Reply: one Elected for each requested partition; with None, for each attempted election."""
    try:
        kind = ElectionType(op.election_type)
    except ValueError:
        raise MqError(
            ErrorCode.INVALID_REQUEST, f"Unknown election type {op.election_type}."
        ) from None
    check_partition_count(len(op.partitions or ()))
    may_lead = image.may_lead()
    results: list[Elected] = []
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    for topic_partition in (
        _all_partitions(image) if op.partitions is None else dict.fromkeys(op.partitions)
    ):
        try:
            update = _elect(image, topic_partition, kind, may_lead, options)
        except MqError as error:
            if op.partitions is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(Elected(topic_partition, error.code, error.message or None))
            continue
        updates.setdefault(topic_partition.topic, {})[topic_partition.partition] = update
        results.append(Elected(topic_partition))
    return ControllerResult(tuple(all_update_records(image, updates)), tuple(results))


def _all_partitions(image: MetadataImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            yield TopicPartition(topic.name, index)


def _elect(
    image: MetadataImage,
    topic_partition: TopicPartition,
    kind: ElectionType,
    may_lead: frozenset[NodeId],
    options: DecisionOptions,
) -> PartitionUpdate:
    topic = image.topics.get(topic_partition.topic)
    if topic is None:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic_partition.topic!r} does not exist."
        )
    partition = image.partition(*topic_partition)
    if partition is None:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic_partition} does not exist."
        )
    preferred = kind is ElectionType.PREFERRED
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_NODE:
        raise MqError(ErrorCode.ELECTION_NOT_NEEDED)
    conditions = ElectionConditions(
        without_lost_replicas(image, topic, topic_partition.partition, may_lead),
        options.min_insync_replicas_of(image, topic.name),
        unclean=not preferred or options.allows_unclean_election(image, topic.name),
        preferred=preferred,
    )
    update = next_partition_state(partition, conditions)
    if update is None or update.leader is None:
        if preferred:
            raise MqError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                "The preferred replica is not alive and in sync.",
            )
        raise MqError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is alive.")
    return update._replace(partition=topic_partition.partition)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Return partitions to their preferred leaders."""


def decide_rebalance(
    image: MetadataImage, op: Rebalance, options: DecisionOptions
) -> ControllerResult:
    """Reply: how many partitions get another leader; at most REBALANCED_AT_ONCE."""
    may_lead = image.may_lead()
    updates: dict[str, dict[int, PartitionUpdate]] = {}
    count = 0
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            if (
                partition.leader == first
                or first not in partition.isr
                or partition.leader == NO_NODE
                or count == REBALANCED_AT_ONCE
            ):
                continue
            try:
                update = _elect(
                    image,
                    TopicPartition(topic.name, index),
                    ElectionType.PREFERRED,
                    may_lead,
                    options,
                )
            except MqError:
                continue
            updates.setdefault(topic.name, {})[index] = update
            count += 1
    return ControllerResult(tuple(all_update_records(image, updates)), count)
