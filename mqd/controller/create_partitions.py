"""Add partitions to topics. A topic never shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mqd.controller.assignments import (
    add_load,
    check_assignment,
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
from mqd.controller.records import AddPartitions, Record
from mqd.controller.request_limits import check_topic_count
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import CREATED_TOPICS_MAX, PARTITIONS_PER_REQUEST_MAX
from mqd.types import NodeId


class MorePartitions(NamedTuple):
    """One wish of CreatePartitions: the new total.

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
    """The result of one wish."""

    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_create_partitions(
    image: MetadataImage, op: CreatePartitions, options: DecisionOptions
) -> ControllerResult:
    """Reply: one PartitionsCreated for each different name, in the order of the request."""
    check_topic_count(op.topics, CREATED_TOPICS_MAX)
    counts = Counter(wish.name for wish in op.topics)
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    load = load_of(image)
    room = Room(image, options.image_bytes_max)
    records: list[Record] = []
    results: dict[str, PartitionsCreated] = {}
    for wish in op.topics:
        try:
            if counts[wish.name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "The request names a topic more than once."
                )
            record = _add_partitions(image, wish, partitions_left, load)
            check_descriptors(options, load, record.partitions)
            check_fits(record)
            room.take(record)
        except MqError as error:
            results[wish.name] = PartitionsCreated(wish.name, error.code, error.message or None)
            continue
        partitions_left -= len(record.partitions)
        records.append(record)
        add_load(load, record.partitions)
        results[wish.name] = PartitionsCreated(wish.name)
    return ControllerResult(() if op.validate_only else tuple(records), tuple(results.values()))


def _add_partitions(
    image: MetadataImage, wish: MorePartitions, partitions_left: int, load: Mapping[NodeId, Load]
) -> AddPartitions:
    topic = image.topics.get(wish.name)
    if topic is None:
        raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {wish.name!r} does not exist.")
    if topic.internal:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The internal topic {wish.name!r} cannot get more partitions: their number determines "
            "the coordinator of each key.",
        )
    present = len(topic.partitions)
    if wish.total == present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS, f"Topic {wish.name!r} already has {present} partition(s)."
        )
    if wish.total < present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {wish.name!r} has {present} partition(s), which cannot be reduced to "
            f"{wish.total}.",
        )
    added = wish.total - present
    if added > partitions_left:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request adds at most {PARTITIONS_PER_REQUEST_MAX} partitions.",
        )
    first = topic.partitions[0]
    factor = len(first.replicas) - len(first.removing)
    if wish.assignments is not None:
        if len(wish.assignments) != added:
            raise MqError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The request adds {added} partition(s), but has {len(wish.assignments)} "
                "assignments.",
            )
        for replicas in wish.assignments:
            check_assignment(image, replicas, factor)
        replica_lists = list(wish.assignments)
    else:
        check_factor(image, factor)
        replica_lists = place_on(image, added, factor, present, load=load)
    return AddPartitions(topic.topic_id, present, placements_of(image, replica_lists))
