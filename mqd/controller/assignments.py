"""The replicas of new partitions: placed by the controller, or assigned by a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from mqd.controller.decision_options import NOT_KNOWN, DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.placement import Load, check_replication_factor, place
from mqd.controller.records import Placement
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId


def place_on(
    image: MetadataImage,
    partitions: int,
    factor: int,
    start: int = 0,
    *,
    load: Mapping[NodeId, Load],
) -> list[tuple[NodeId, ...]]:
    """Replica lists on the brokers of the image (`placement.place`), alive ones first."""
    racks = {broker.node_id: broker.rack for broker in image.brokers.values()}
    unusable = frozenset(image.brokers) - image.may_lead()
    return place(racks, partitions, factor, start, load=load, fenced=unusable)


def check_assignment(image: MetadataImage, replicas: tuple[NodeId, ...], factor: int) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT or INVALID_REPLICATION_FACTOR."""
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


def check_factor(image: MetadataImage, factor: int) -> None:
    """Raise INVALID_REPLICATION_FACTOR if no partition can have this many replicas now."""
    check_replication_factor(factor, len(image.brokers))
    if not image.may_lead():
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are fenced or shut down now."
        )


def load_of(image: MetadataImage) -> dict[NodeId, Load]:
    """The load of each broker. Counts preferred leaders, not those that lead now."""
    leaders: Counter[NodeId] = Counter()
    replicas: Counter[NodeId] = Counter()
    for topic in image.topics.values():
        leaders.update([partition.replicas[0] for partition in topic.partitions])
        replicas.update(chain.from_iterable(partition.replicas for partition in topic.partitions))
    return {node_id: Load(leaders[node_id], replicas[node_id]) for node_id in replicas}


def add_load(load: dict[NodeId, Load], placements: Iterable[Placement]) -> None:
    for placement in placements:
        for node_id in placement.replicas:
            before = load.get(node_id, Load())
            load[node_id] = Load(
                before.leaders + (node_id == placement.replicas[0]), before.replicas + 1
            )


def check_descriptors(
    options: DecisionOptions, load: Mapping[NodeId, Load], placements: Iterable[Placement]
) -> None:
    """Raise POLICY_VIOLATION if a broker would have more partitions than file descriptors: it could
    not open them.
    """
    added = Counter(node_id for placement in placements for node_id in placement.replicas)
    for node_id, count in added.items():
        most = options.partitions_max.get(node_id, NOT_KNOWN)
        present = load.get(node_id, Load()).replicas
        if most != NOT_KNOWN and present + count > most:
            raise MqError(
                ErrorCode.POLICY_VIOLATION,
                f"Broker {node_id} has {present} partitions, and its limit of open files allows "
                f"{most}: it cannot open {count} more. Raise the limit (ulimit -n, or LimitNOFILE "
                "of the service) and restart the broker.",
            )


def placements_of(
    image: MetadataImage, replica_lists: Iterable[tuple[NodeId, ...]]
) -> tuple[Placement, ...]:
    """The first replica that is alive leads. All that are alive are in sync, because the partition
    is empty.
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
