"""The replicas of new partitions: placed by the controller, or assigned by a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

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


def check_assignments(
    image: MetadataImage, replica_lists: Iterable[tuple[NodeId, ...]], factor: int
) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT or INVALID_REPLICATION_FACTOR for the first bad list."""
    brokers, may_lead = image.brokers.keys(), image.may_lead()
    for replicas in dict.fromkeys(replica_lists):
        different = frozenset(replicas)
        if not (
            len(replicas) == len(different) == factor
            and brokers >= different
            and not may_lead.isdisjoint(different)
        ):
            raise _bad_assignment(image, replicas, factor)


def _bad_assignment(image: MetadataImage, replicas: tuple[NodeId, ...], factor: int) -> MqError:
    problem = "None of the brokers that a partition is assigned to is alive."
    if len(replicas) != factor:
        problem = (
            "All partitions of a topic have as many replicas: here one has "
            f"{len(replicas)} and another {factor}."
        )
    if not replicas:
        problem = "A partition is assigned to no broker at all."
    for node_id in sorted(set(replicas)):
        if node_id not in image.brokers:
            problem = f"Broker {node_id} is not registered."
        elif replicas.count(node_id) > 1:
            problem = f"Broker {node_id} is named more than once for one partition."
    return MqError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def check_factor(image: MetadataImage, factor: int) -> None:
    """Raise INVALID_REPLICATION_FACTOR if no partition can have this many replicas now."""
    check_replication_factor(factor, len(image.brokers))
    if not image.may_lead():
        raise MqError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are fenced or shut down now."
        )


def load_of(image: MetadataImage) -> dict[NodeId, Load]:
    """The load of each broker. Counts preferred leaders, not those that lead now."""
    leaders, replicas = _count(
        partition.replicas for topic in image.topics.values() for partition in topic.partitions
    )
    return {node_id: Load(leaders[node_id], replicas[node_id]) for node_id in replicas}


def _count(
    replica_lists: Iterable[tuple[NodeId, ...]],
) -> tuple[Counter[NodeId], Counter[NodeId]]:
    """The number of preferred leaders and of replicas on each broker. Equal lists are counted
    together: most partitions share a few.
    """
    leaders: Counter[NodeId] = Counter()
    replicas: Counter[NodeId] = Counter()
    for nodes, count in Counter(replica_lists).items():
        leaders[nodes[0]] += count
        for node_id in nodes:
            replicas[node_id] += count
    return leaders, replicas


def add_load(load: dict[NodeId, Load], placements: Iterable[Placement]) -> None:
    leaders, replicas = _count(placement.replicas for placement in placements)
    for node_id, count in replicas.items():
        before = load.get(node_id, Load())
        load[node_id] = Load(before.leaders + leaders[node_id], before.replicas + count)


def check_descriptors(
    options: DecisionOptions, load: Mapping[NodeId, Load], placements: Iterable[Placement]
) -> None:
    """Raise POLICY_VIOLATION if a broker would have more partitions than file descriptors: it could
    not open them.
    """
    _, added = _count(placement.replicas for placement in placements)
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


class MemoryPartitions:
    """The partitions in memory (`mqd.storage=memory`) of each broker, during one decision."""

    def __init__(self, image: MetadataImage, options: DecisionOptions) -> None:
        self._image = image
        self._most = options.memory_partitions_max
        self._counts: Counter[NodeId] | None = None
        """None until a topic in memory needs them."""

    def check(self, placements: Iterable[Placement]) -> None:
        """Raise POLICY_VIOLATION if a broker would have more than its memory allows."""
        counts = self._counted()
        _, added = _count(placement.replicas for placement in placements)
        for node_id, count in added.items():
            most = self._most.get(node_id, NOT_KNOWN)
            if most != NOT_KNOWN and counts[node_id] + count > most:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    f"Broker {node_id} has {counts[node_id]} partitions in memory, and its memory "
                    f"allows {most}: it cannot have {count} more. Delete unused topics with "
                    "mqd.storage=memory, or raise memory.topics.max.bytes of the broker.",
                )

    def add(self, placements: Iterable[Placement]) -> None:
        """They are created."""
        self._counted().update(_count(placement.replicas for placement in placements)[1])

    def _counted(self) -> Counter[NodeId]:
        if self._counts is None:
            image = self._image
            _, self._counts = _count(
                partition.replicas
                for name, topic in image.topics.items()
                if image.is_in_memory(name)
                for partition in topic.partitions
            )
        return self._counts


def placements_of(
    image: MetadataImage, replica_lists: Iterable[tuple[NodeId, ...]]
) -> tuple[Placement, ...]:
    """The first replica that is alive leads. All that are alive are in sync, because the partition
    is empty.
    """
    may_lead = image.may_lead()
    placements: dict[tuple[NodeId, ...], Placement] = {}
    lists = list(replica_lists)
    for replicas in dict.fromkeys(lists):
        alive = (
            replicas
            if may_lead.issuperset(replicas)
            else tuple(node_id for node_id in replicas if node_id in may_lead)
        )
        placements[replicas] = Placement(replicas, alive[0], alive)
    return tuple(map(placements.__getitem__, lists))
