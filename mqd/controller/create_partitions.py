"""Add partitions to topics. A topic never shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.assignments import (
    MemoryPartitions,
    add_load,
    check_assignments,
    check_descriptors,
    check_factor,
    load_of,
    place_on,
    placements_of,
)
from mqd.controller.commands import check_fits
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.placement import Load
from mqd.controller.records import AddPartitions, MetadataRecord
from mqd.controller.request_limits import check_topic_count
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import CREATED_TOPICS_MAX, PARTITIONS_PER_REQUEST_MAX
from mqd.types import NodeId


class MorePartitions(NamedTuple):
    """One topic of a CreatePartitions request: the new total.

    `assignments` are those of the added partitions, None = place them.
    """

    name: str
    total: int
    assignments: tuple[tuple[NodeId, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Add partitions to these topics."""

    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


class PartitionsCreated(NamedTuple):
    """The result for one topic."""

    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_create_partitions(
    image: MetadataImage, op: CreatePartitions, options: DecisionOptions
) -> ControllerResult:
    """Reply: one PartitionsCreated for each different name, in the order of the request."""
    check_topic_count(op.topics, CREATED_TOPICS_MAX)
    counts = Counter(growth.name for growth in op.topics)
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    load = load_of(image)
    in_memory = MemoryPartitions(image, options)
    room = Room(image, options.image_bytes_max)
    records: list[MetadataRecord] = []
    results: dict[str, PartitionsCreated] = {}
    for growth in op.topics:
        try:
            if counts[growth.name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "The request names a topic more than once."
                )
            record = _add_partitions(image, growth, partitions_left, load)
            check_descriptors(options, load, record.partitions)
            if image.is_in_memory(growth.name):
                in_memory.check(record.partitions)
            check_fits(record)
            room.take(record)
        except MqError as error:
            results[growth.name] = PartitionsCreated(growth.name, error.code, error.message or None)
            continue
        partitions_left -= len(record.partitions)
        records.append(record)
        add_load(load, record.partitions)
        if image.is_in_memory(growth.name):
            in_memory.add(record.partitions)
        results[growth.name] = PartitionsCreated(growth.name)
    return ControllerResult(() if op.validate_only else tuple(records), tuple(results.values()))


def _add_partitions(
    image: MetadataImage, growth: MorePartitions, partitions_left: int, load: Mapping[NodeId, Load]
) -> AddPartitions:
    topic = image.topics.get(growth.name)
    if topic is None:
        raise MqError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {growth.name!r} does not exist."
        )
    if topic.internal:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The internal topic {growth.name!r} cannot get more partitions: their number "
            "determines the coordinator of each key.",
        )
    present = len(topic.partitions)
    if growth.total == present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {growth.name!r} already has {present} partition(s).",
        )
    if growth.total < present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {growth.name!r} has {present} partition(s), which cannot be reduced to "
            f"{growth.total}.",
        )
    added = growth.total - present
    if added > partitions_left:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request adds at most {PARTITIONS_PER_REQUEST_MAX} partitions.",
        )
    first = topic.partitions[0]
    factor = len(first.replicas) - len(first.removing)
    if growth.assignments is not None:
        if len(growth.assignments) != added:
            raise MqError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The request adds {added} partition(s), but has {len(growth.assignments)} "
                "assignments.",
            )
        check_assignments(image, growth.assignments, factor)
        replica_lists = list(growth.assignments)
    else:
        check_factor(image, factor)
        replica_lists = place_on(image, added, factor, present, load=load)
    return AddPartitions(topic.topic_id, present, placements_of(image, replica_lists))
