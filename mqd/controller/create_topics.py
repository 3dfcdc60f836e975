"""Create topics. Codes, and where clients show their texts, are Apache Kafka 4.3's.

Decisions about topics read the committed image and change nothing. Each topic of a request has its
own result, and an invalid one does not affect the others. Configs that name other topics are
checked as if each topic had a request of its own (delay_topics.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from mqd.config import TOPIC_OPTIONS, NodeConfig
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
from mqd.controller.configs import check_overrides_fit
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delay_topics import Relays, check_delay_configs
from mqd.controller.image import MetadataImage, are_in_memory
from mqd.controller.placement import Load, default_replication_factor
from mqd.controller.records import CreateTopic, MetadataRecord
from mqd.controller.request_limits import check_config_bytes, check_topic_count
from mqd.controller.result import ControllerResult
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_CHANGES_MAX, CREATED_TOPICS_MAX, PARTITIONS_PER_REQUEST_MAX
from mqd.resource_configs import check_fixed_configs, validate_topic_configs, without_effect
from mqd.topic_names import RESERVED_TOPIC, validate_topic_name
from mqd.types import IN_MEMORY, INTERNAL_TOPICS, STORAGE, ZERO_UUID, NodeId

USE_DEFAULT = -1
"""Requests `num.partitions` or `default.replication.factor`."""


class NewTopic(NamedTuple):
    """One topic of a CreateTopics request.

    `assignments`: partition index and broker ids, not yet validated; empty = place them.
    """

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    assignments: tuple[tuple[int, tuple[NodeId, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """The caller chooses the topic ids: a decision is not random."""

    topics: tuple[NewTopic, ...]
    partitions_default: int
    replication_factor_default: int
    """Not lowered to the number of registered brokers. Otherwise a topic that is created while the
    cluster forms would have too few replicas for ever.
    """
    validate_only: bool = False

    @classmethod
    def of_request(
        cls, request: Mapping[str, Any], config: NodeConfig, new_id: Callable[[], UUID], nodes: int
    ) -> CreateTopics:
        """From the fields of Kafka's CreateTopics request; the cluster has `nodes` nodes.

        Raises POLICY_VIOLATION if it names too many topics.
        """
        check_topic_count(request["topics"], CREATED_TOPICS_MAX)
        return cls(
            tuple(
                NewTopic(
                    topic["name"],
                    new_id(),
                    topic["num_partitions"],
                    topic["replication_factor"],
                    tuple(
                        (row["partition_index"], tuple(row["broker_ids"]))
                        for row in topic["assignments"]
                    ),
                    tuple((row["name"], row["value"]) for row in topic["configs"]),
                )
                for topic in request["topics"]
            ),
            partitions_default=config.integer("num.partitions"),
            replication_factor_default=default_replication_factor(
                config.integer("default.replication.factor"), nodes
            ),
            validate_only=request["validate_only"],
        )


class TopicCreated(NamedTuple):
    """The result for one topic. On success: the counts and the overrides of the topic, and a text
    if some of them have no effect. Otherwise: a code and a text.
    """

    name: str
    topic_id: UUID = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[tuple[str, str], ...] = ()


def decide_create_topics(
    image: MetadataImage, op: CreateTopics, options: DecisionOptions
) -> ControllerResult:
    """Reply: one TopicCreated for each different name, in the order of the request."""
    check_topic_count(op.topics, CREATED_TOPICS_MAX)
    if sum(len(topic.configs) for topic in op.topics) > CONFIG_CHANGES_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request sets at most {CONFIG_CHANGES_MAX} configs: split the request.",
        )
    check_config_bytes(config for topic in op.topics for config in topic.configs)
    counts = Counter(topic.name for topic in op.topics)
    single = [topic for topic in op.topics if counts[topic.name] == 1]
    total = sum(_partitions_wanted(topic, op) for topic in single)
    load = load_of(image)
    in_memory = MemoryPartitions(image, options)
    room = Room(image, options.image_bytes_max)
    relays = Relays(image)
    records: list[MetadataRecord] = []
    results: dict[str, TopicCreated] = {}
    for topic in op.topics:
        try:
            if counts[topic.name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "The request names a topic more than once."
                )
            if total > PARTITIONS_PER_REQUEST_MAX:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    f"A request adds at most {PARTITIONS_PER_REQUEST_MAX} partitions.",
                )
            record = _create_topic(image, op, topic, load, relays)
            check_descriptors(options, load, record.partitions)
            is_in_memory = are_in_memory(dict(record.configs))
            if is_in_memory:
                in_memory.check(record.partitions)
            check_fits(record)
            room.take(record)
        except MqError as error:
            results[topic.name] = TopicCreated(
                topic.name, error_code=error.code, error_message=error.message
            )
            continue
        records.append(record)
        relays.take(record)
        add_load(load, record.partitions)
        if is_in_memory:
            in_memory.add(record.partitions)
        results[topic.name] = TopicCreated(
            topic.name,
            topic.topic_id,
            error_message=without_effect(TOPIC_OPTIONS, dict(record.configs)),
            partitions=len(record.partitions),
            replication_factor=len(record.partitions[0].replicas),
            configs=record.configs,
        )
    return ControllerResult(() if op.validate_only else tuple(records), tuple(results.values()))


def _partitions_wanted(topic: NewTopic, op: CreateTopics) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return op.partitions_default if topic.partitions == USE_DEFAULT else max(0, topic.partitions)


def _create_topic(
    image: MetadataImage,
    op: CreateTopics,
    topic: NewTopic,
    load: Mapping[NodeId, Load],
    relays: Relays,
) -> CreateTopic:
    if topic.name == RESERVED_TOPIC:
        raise MqError(ErrorCode.INVALID_REQUEST, f"The topic name {RESERVED_TOPIC!r} is reserved.")
    validate_topic_name(topic.name)
    if topic.name in image.topics:
        raise MqError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {topic.name!r} already exists.")
    collision = image.colliding_topic(topic.name)
    if collision is not None:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic {topic.name!r} collides with existing topic {collision!r}: the names differ "
            "only in '.' and '_'.",
        )
    configs = _checked_configs(relays, topic) if topic.configs else ()
    if topic.assignments:
        replica_lists = _assigned(image, topic)
    else:
        factor = topic.replication_factor
        if factor == USE_DEFAULT:
            factor = op.replication_factor_default
        check_factor(image, factor)
        partitions = op.partitions_default if topic.partitions == USE_DEFAULT else topic.partitions
        if partitions <= 0:
            raise MqError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions must be larger than 0, or -1 for the default.",
            )
        replica_lists = place_on(image, partitions, factor, load=load)
    return CreateTopic(topic.name, topic.topic_id, placements_of(image, replica_lists), configs)


def _checked_configs(relays: Relays, topic: NewTopic) -> tuple[tuple[str, str], ...]:
    """The last value of a name counts.

    Raises INVALID_CONFIG for a null, an unknown name or a bad value.
    """
    nulls = sorted(name for name, value in topic.configs if value is None)
    if nulls:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {', '.join(nulls)}",
        )
    checked = {name: value for name, value in topic.configs if value is not None}
    check_overrides_fit(checked)
    validate_topic_configs(checked)
    check_fixed_configs({}, checked, is_new=True)
    check_delay_configs(relays, topic.name, None, checked)
    if topic.name in INTERNAL_TOPICS and are_in_memory(checked):
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"The internal topic {topic.name!r} cannot have {STORAGE}={IN_MEMORY}.",
        )
    return tuple(sorted(checked.items()))


def _assigned(image: MetadataImage, topic: NewTopic) -> list[tuple[NodeId, ...]]:
    """The validated assignments of a request, in order of partition."""
    for value, what in (
        (topic.replication_factor, "replication factor"),
        (topic.partitions, "number of partitions"),
    ):
        if value != USE_DEFAULT:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"With assignments, the {what} must be -1.",
            )
    by_partition: dict[int, tuple[NodeId, ...]] = {}
    for partition, replicas in topic.assignments:
        if partition in by_partition:
            raise MqError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} is assigned more than once.",
            )
        by_partition[partition] = replicas
    factor = len(topic.assignments[0][1])
    check_assignments(image, (replicas for _, replicas in topic.assignments), factor)
    if sorted(by_partition) != list(range(len(by_partition))):
        raise MqError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Partitions must be a consecutive 0-based integer sequence.",
        )
    return [by_partition[partition] for partition in range(len(by_partition))]
