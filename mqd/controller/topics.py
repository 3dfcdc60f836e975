"""Topics: create, delete, grow. Codes, and where clients show them the texts, are Apache Kafka
4.3's.

The decisions look at the committed image and change nothing. A list in a request is a list of
independent wishes: each gets its own answer, and one bad wish spoils no other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from mqd.config import TOPIC_OPTIONS, NodeConfig, validate_topic_configs, without_effect
from mqd.controller.image import MetadataImage, TopicImage
from mqd.controller.placement import (
    Load,
    check_replication_factor,
    default_replication_factor,
    place,
)
from mqd.controller.records import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    Placement,
    Record,
    check_fits,
    check_overrides_fit,
)
from mqd.controller.rules import Rules
from mqd.controller.size import Room
from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    CREATED_TOPICS_MAX,
    DELETED_TOPICS_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    TOPIC_NAME_CHARS_MAX,
)
from mqd.types import GROUPS_TOPIC, TRANSACTIONS_TOPIC, ZERO_UUID, Decision, NodeId

USE_DEFAULT = -1
"""Asks for `num.partitions` or `default.replication.factor`."""

RESERVED_TOPIC = "__cluster_metadata"
"""Kafka's Raft log; never a topic."""

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless `name` is 1 to 249 of [a-zA-Z0-9._-] and neither
    "." nor "..".
    """
    problem = None
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = f"{name!r} is reserved"
    elif len(name) > TOPIC_NAME_CHARS_MAX:
        problem = f"it has {len(name)} characters, {TOPIC_NAME_CHARS_MAX} are allowed"
    elif not _LEGAL_NAME.match(name):
        problem = f"{name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    if problem is not None:
        raise MqError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Invalid topic name: {problem}.")


def check_number(wishes: Sized, most: int) -> None:
    """Refuse a request whose decision alone would keep everybody else waiting."""
    if len(wishes) > most:
        raise MqError(
            ErrorCode.POLICY_VIOLATION, f"A request names at most {most} topics here: send several."
        )


# -- create


class NewTopic(NamedTuple):
    """One wish of CreateTopics.

    `assignments`: partition index and broker ids, as they came; empty = place them.
    """

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    assignments: tuple[tuple[int, tuple[NodeId, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """Topic ids are drawn by whoever asks: a decision throws no dice."""

    topics: tuple[NewTopic, ...]
    partitions_default: int
    replication_factor_default: int
    """Not lowered to the brokers that are registered by now: a topic that is made while a
    cluster forms would have fewer for good.
    """
    validate_only: bool = False

    @classmethod
    def of_request(
        cls, request: Mapping[str, Any], config: NodeConfig, new_id: Callable[[], UUID], nodes: int
    ) -> CreateTopics:
        """From the fields of Kafka's CreateTopics request; the cluster has `nodes` nodes.

        MqError POLICY_VIOLATION: it names too many.
        """
        check_number(request["topics"], CREATED_TOPICS_MAX)
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
    """Answer to one wish. On success the counts and the overrides that the topic has, and a text
    where some of them have no effect; else a code and a text.
    """

    name: str
    topic_id: UUID = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[tuple[str, str], ...] = ()


def decide_create_topics(image: MetadataImage, op: CreateTopics, rules: Rules) -> Decision[Record]:
    """Reply: one TopicCreated for each different name, in the order of the request."""
    check_number(op.topics, CREATED_TOPICS_MAX)
    counts = Counter(topic.name for topic in op.topics)
    single = [topic for topic in op.topics if counts[topic.name] == 1]
    total = sum(_partitions_wanted(topic, op) for topic in single)
    load = _load(image)
    room = Room(image, rules.image_bytes_max)
    records: list[Record] = []
    results: dict[str, TopicCreated] = {}
    for topic in op.topics:
        try:
            if counts[topic.name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "A topic is named at most once in a request."
                )
            if total > PARTITIONS_PER_REQUEST_MAX:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    f"A request adds at most {PARTITIONS_PER_REQUEST_MAX} partitions.",
                )
            record = _create_topic(image, op, topic, load)
            check_fits(record)
            room.take(record)
        except MqError as error:
            results[topic.name] = TopicCreated(
                topic.name, error_code=error.code, error_message=error.message
            )
            continue
        records.append(record)
        _add_load(load, record.partitions)
        results[topic.name] = TopicCreated(
            topic.name,
            topic.topic_id,
            error_message=without_effect(TOPIC_OPTIONS, dict(record.configs)),
            partitions=len(record.partitions),
            replication_factor=len(record.partitions[0].replicas),
            configs=record.configs,
        )
    return Decision(() if op.validate_only else tuple(records), tuple(results.values()))


def _partitions_wanted(topic: NewTopic, op: CreateTopics) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return op.partitions_default if topic.partitions == USE_DEFAULT else max(0, topic.partitions)


def _create_topic(
    image: MetadataImage, op: CreateTopics, topic: NewTopic, load: Mapping[NodeId, Load]
) -> CreateTopic:
    if topic.name == RESERVED_TOPIC:
        raise MqError(ErrorCode.INVALID_REQUEST, f"{RESERVED_TOPIC} is reserved.")
    validate_topic_name(topic.name)
    if topic.name in image.topics:
        raise MqError(ErrorCode.TOPIC_ALREADY_EXISTS, f"There is a topic {topic.name} already.")
    collision = image.colliding_topic(topic.name)
    if collision is not None:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} differs from the topic {collision} only in '.' and '_'.",
        )
    configs = _checked_configs(topic.configs)
    if topic.assignments:
        replica_lists = _manual(image, topic)
    else:
        factor = topic.replication_factor
        if factor == USE_DEFAULT:
            factor = op.replication_factor_default
        _check_factor(image, factor)
        partitions = op.partitions_default if topic.partitions == USE_DEFAULT else topic.partitions
        if partitions <= 0:
            raise MqError(
                ErrorCode.INVALID_PARTITIONS,
                "A topic has at least one partition; -1 asks for the default.",
            )
        replica_lists = place(_racks(image), partitions, factor, load=load, fenced=_unusable(image))
    return CreateTopic(topic.name, topic.topic_id, _placements(image, replica_lists), configs)


def _checked_configs(configs: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str], ...]:
    """The last value of a name counts.

    Raises INVALID_CONFIG for a null, an unknown name or a bad value.
    """
    nulls = sorted(name for name, value in configs if value is None)
    if nulls:
        raise MqError(ErrorCode.INVALID_CONFIG, f"These configs need a value: {', '.join(nulls)}.")
    checked = {name: value for name, value in configs if value is not None}
    check_overrides_fit(checked)
    validate_topic_configs(checked)
    return tuple(sorted(checked.items()))


def _manual(image: MetadataImage, topic: NewTopic) -> list[tuple[NodeId, ...]]:
    """The assignments of a request in order of partition."""
    for value, what in (
        (topic.replication_factor, "replication factor"),
        (topic.partitions, "number of partitions"),
    ):
        if value != USE_DEFAULT:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"With assignments, the {what} must be -1: the assignments say it.",
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
    for _, replicas in topic.assignments:
        _check_assignment(image, replicas, factor)
    if sorted(by_partition) != list(range(len(by_partition))):
        raise MqError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Assigned partitions must be numbered 0, 1, 2 and so on without a gap.",
        )
    return [by_partition[partition] for partition in range(len(by_partition))]


def _check_assignment(image: MetadataImage, replicas: tuple[NodeId, ...], factor: int) -> None:
    problem = None
    if not replicas:
        problem = "A partition is assigned to no broker at all."
    for node_id in sorted(set(replicas)):
        if node_id not in image.brokers:
            problem = f"Broker {node_id} is not registered."
        elif replicas.count(node_id) > 1:
            problem = f"Broker {node_id} is named more than once for one partition."
    if problem is None and len(replicas) != factor:
        problem = (
            "All partitions of a topic have as many replicas: here one has "
            f"{len(replicas)} and another {factor}."
        )
    if problem is None and image.may_lead().isdisjoint(replicas):
        problem = "None of the brokers that a partition is assigned to is alive."
    if problem is not None:
        raise MqError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    check_replication_factor(len(replicas), len(image.brokers))


def _racks(image: MetadataImage) -> Mapping[NodeId, str | None]:
    return {broker.node_id: broker.rack for broker in image.brokers.values()}


def _unusable(image: MetadataImage) -> frozenset[NodeId]:
    """Brokers that are registered and not there now."""
    return frozenset(image.brokers) - image.may_lead()


def _check_factor(image: MetadataImage, factor: int) -> None:
    check_replication_factor(factor, len(image.brokers))
    if not image.may_lead():
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are fenced or shut down now."
        )


def _load(image: MetadataImage) -> dict[NodeId, Load]:
    """Leaders as they are preferred: who leads now by accident is not the measure."""
    leaders: Counter[NodeId] = Counter()
    replicas: Counter[NodeId] = Counter()
    for topic in image.topics.values():
        leaders.update([partition.replicas[0] for partition in topic.partitions])
        replicas.update(chain.from_iterable(partition.replicas for partition in topic.partitions))
    return {node_id: Load(leaders[node_id], replicas[node_id]) for node_id in replicas}


def _add_load(load: dict[NodeId, Load], placements: Iterable[Placement]) -> None:
    for placement in placements:
        for node_id in placement.replicas:
            before = load.get(node_id, Load())
            load[node_id] = Load(
                before.leaders + (node_id == placement.replicas[0]), before.replicas + 1
            )


def _placements(
    image: MetadataImage, replica_lists: Iterable[tuple[NodeId, ...]]
) -> tuple[Placement, ...]:
    """Led by the first replica that is alive; those alive are in sync, for there is nothing
    to copy yet.
    """
    may_lead = image.may_lead()
    placements = []
    for replicas in replica_lists:
        alive = (
            replicas
            if may_lead.issuperset(replicas)
            else tuple(node_id for node_id in replicas if node_id in may_lead)
        )
        placements.append(Placement(replicas, alive[0], alive))
    return tuple(placements)


class _InternalOptions(NamedTuple):
    """The options that an internal topic is made with."""

    partitions: str
    replication_factor: str
    segment_bytes: str
    min_isr: str | None = None


_INTERNAL_OPTIONS = {
    GROUPS_TOPIC: _InternalOptions(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
    ),
    TRANSACTIONS_TOPIC: _InternalOptions(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
        "transaction.state.log.min.isr",
    ),
    "__share_group_state": _InternalOptions(
        *(
            f"share.coordinator.state.topic.{key}"
            for key in ("num.partitions", "replication.factor", "segment.bytes", "min.isr")
        )
    ),
}


def new_topic_request(name: str, config: NodeConfig, nodes: int) -> dict[str, Any]:
    """The row of a CreateTopics request for a topic that is created because someone asked about it.

    Internal topics have options of their own; their replication factor is what a cluster of `nodes`
    nodes allows, and they need no more replicas in sync than that. Until so many are registered,
    they are not made.
    """
    row: dict[str, Any] = {
        "name": name,
        "num_partitions": USE_DEFAULT,
        "replication_factor": USE_DEFAULT,
        "assignments": [],
        "configs": [],
    }
    options = _INTERNAL_OPTIONS.get(name)
    if options is not None:
        row["num_partitions"] = config.integer(options.partitions)
        factor = row["replication_factor"] = default_replication_factor(
            config.integer(options.replication_factor), nodes
        )
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": config.integer(options.segment_bytes),
        }
        if options.min_isr is not None:
            configs["min.insync.replicas"] = min(config.integer(options.min_isr), factor)
            configs["unclean.leader.election.enable"] = "false"
        row["configs"] = [{"name": key, "value": str(value)} for key, value in configs.items()]
    return row


def new_topic_requests(
    names: Iterable[str], config: NodeConfig, nodes: int
) -> Iterator[list[dict[str, Any]]]:
    """Such rows in portions, each of no more partitions than a request may add: of a larger
    one nothing would be made, ever.
    """
    portion: list[dict[str, Any]] = []
    room = PARTITIONS_PER_REQUEST_MAX
    for name in names:
        row = new_topic_request(name, config, nodes)
        partitions = (
            config.integer("num.partitions")
            if row["num_partitions"] == USE_DEFAULT
            else row["num_partitions"]
        )
        if portion and partitions > room:
            yield portion
            portion, room = [], PARTITIONS_PER_REQUEST_MAX
        portion.append(row)
        room -= partitions
    if portion:
        yield portion


# -- delete


class TopicName(NamedTuple):
    """One wish of DeleteTopics: by name, or (version 6) by id."""

    name: str | None
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Removal is by id: what a name means is settled here, once."""

    topics: tuple[TopicName, ...]


class TopicDeleted(NamedTuple):
    """Answer to one wish; both name and id where they are known."""

    name: str | None
    topic_id: UUID = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_delete_topics(image: MetadataImage, op: DeleteTopics, rules: Rules) -> Decision[Record]:
    """Reply: one TopicDeleted for each different wish, in the order of the request."""
    check_number(op.topics, DELETED_TOPICS_MAX)
    counts = Counter(op.topics)
    ids = {wish.topic_id for wish in op.topics if wish.name is None}
    twice = {
        topic.topic_id
        for wish in op.topics
        if (topic := image.topics.get(wish.name or "")) and topic.topic_id in ids
    }
    records: list[Record] = []
    results: list[TopicDeleted] = []
    for wish in counts:
        if wish.name is None and wish.topic_id in twice:
            continue  # refused under its name
        try:
            topic = _topic_to_delete(image, wish, counts[wish])
        except MqError as error:
            results.append(TopicDeleted(wish.name, wish.topic_id, error.code, error.message))
            continue
        if topic.topic_id in twice:
            text = (
                "A topic is named at most once in a request, and here once by name and once by id."
            )
            results.append(
                TopicDeleted(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, text)
            )
            continue
        records.append(DeleteTopic(topic.topic_id))
        results.append(TopicDeleted(topic.name, topic.topic_id))
    return Decision(tuple(records), tuple(results))


def _topic_to_delete(image: MetadataImage, wish: TopicName, times: int) -> TopicImage:
    name, topic_id = wish
    if name is None:
        if topic_id == ZERO_UUID:
            raise MqError(ErrorCode.INVALID_REQUEST, "Neither a topic's name nor its id was given.")
        if times > 1:
            raise MqError(ErrorCode.INVALID_REQUEST, "A topic is named at most once in a request.")
        if topic_id not in image.topics_by_id:
            raise MqError(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
        return image.topics_by_id[topic_id]
    if topic_id != ZERO_UUID:
        raise MqError(ErrorCode.INVALID_REQUEST, "Give a topic's name or its id, not both.")
    if times > 1:
        raise MqError(ErrorCode.INVALID_REQUEST, "A topic is named at most once in a request.")
    if name not in image.topics:
        raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic.")
    return image.topics[name]


# -- grow


class MorePartitions(NamedTuple):
    """One wish of CreatePartitions: the new total.

    `assignments` are those of the added partitions, None = place them.
    """

    name: str
    total: int
    assignments: tuple[tuple[NodeId, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Let topics grow; none ever shrinks."""

    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


class TopicGrown(NamedTuple):
    """Answer to one wish."""

    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def decide_create_partitions(
    image: MetadataImage, op: CreatePartitions, rules: Rules
) -> Decision[Record]:
    """Reply: one TopicGrown for each different name, in the order of the request."""
    check_number(op.topics, CREATED_TOPICS_MAX)
    counts = Counter(wish.name for wish in op.topics)
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    load = _load(image)
    room = Room(image, rules.image_bytes_max)
    records: list[Record] = []
    results: dict[str, TopicGrown] = {}
    for wish in op.topics:
        try:
            if counts[wish.name] > 1:
                raise MqError(
                    ErrorCode.INVALID_REQUEST, "A topic is named at most once in a request."
                )
            record = _add_partitions(image, wish, partitions_left, load)
            check_fits(record)
            room.take(record)
        except MqError as error:
            results[wish.name] = TopicGrown(wish.name, error.code, error.message or None)
            continue
        partitions_left -= len(record.partitions)
        records.append(record)
        _add_load(load, record.partitions)
        results[wish.name] = TopicGrown(wish.name)
    return Decision(() if op.validate_only else tuple(records), tuple(results.values()))


def _add_partitions(
    image: MetadataImage, wish: MorePartitions, partitions_left: int, load: Mapping[NodeId, Load]
) -> AddPartitions:
    topic = image.topics.get(wish.name)
    if topic is None:
        raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic.")
    if topic.internal:
        raise MqError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{wish.name} keeps its partitions: which of them keeps a group or a "
            "transactional id goes by how many there are.",
        )
    present = len(topic.partitions)
    if wish.total == present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS, f"The topic has {present} partition(s) already."
        )
    if wish.total < present:
        raise MqError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic has {present} partition(s); a topic never shrinks to {wish.total}.",
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
                f"{added} partition(s) are added, but {len(wish.assignments)} are assigned.",
            )
        for replicas in wish.assignments:
            _check_assignment(image, replicas, factor)
        replica_lists = list(wish.assignments)
    else:
        _check_factor(image, factor)
        replica_lists = place(
            _racks(image), added, factor, present, load=load, fenced=_unusable(image)
        )
    return AddPartitions(topic.topic_id, present, _placements(image, replica_lists))
