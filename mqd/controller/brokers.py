"""Nodes as brokers: registration, fencing, and who leads what is theirs.

A broker epoch is the index of the registration. The same node with a new incarnation replaces its old registration at
once: a restarted process need not wait for its own ghost to time out. A broker is fenced from its registration until its
first heartbeat after it has applied that registration, and again when it misses heartbeats for a session or says that it
goes. Fencing moves the leadership of its partitions to other in-sync replicas, or to nobody; unfencing gives leaderless
partitions back.

Sessions are soft: they live in the memory of the controller only, and a new controller starts them all afresh.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from mqd.controller.image import BrokerImage, MetadataImage, PartitionImage
from mqd.controller.records import (
    ChangePartitions,
    FormatCluster,
    PartitionChange,
    Record,
    RegisterBroker,
    SetBrokerFencing,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_NODE, Decision, NodeId

FEATURES = (("mqd.metadata.version", 1),)
"""What a new cluster starts with: the records of its log are those of this version."""


@dataclass(frozen=True, slots=True)
class Register:
    """A node came up with this incarnation; `host` and `port` are what it wants clients to be told."""

    node_id: NodeId
    cluster_id: str
    incarnation: UUID
    host: str
    port: int
    rack: str | None


def decide_register(image: MetadataImage, op: Register, now: float) -> Decision[Record]:
    """Reply: none; the broker epoch is in the image afterwards. The same registration again changes nothing.

    The first registration of all gives an empty log its cluster id. Raises INCONSISTENT_CLUSTER_ID for a stranger.
    """
    if image.cluster_id not in ("", op.cluster_id):
        raise MqError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"This cluster is {image.cluster_id}, the node belongs to {op.cluster_id}.")
    formatting = () if image.cluster_id else (FormatCluster(op.cluster_id, FEATURES),)
    record = RegisterBroker(op.node_id, op.incarnation, op.host, op.port, op.rack)
    known = image.brokers.get(op.node_id)
    if known is not None and record == RegisterBroker(known.node_id, known.incarnation, known.host, known.port, known.rack):
        return Decision()
    return Decision((*formatting, record, *_leadership(image, _alive(image) - {op.node_id})))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker lives. `metadata_index`: how far it has applied; it may lead when that covers its registration."""

    node_id: NodeId
    broker_epoch: int
    metadata_index: int
    want_fence: bool = False
    want_shut_down: bool = False


class HeartbeatReply(NamedTuple):
    caught_up: bool
    fenced: bool
    should_shut_down: bool


def decide_heartbeat(image: MetadataImage, op: Heartbeat, now: float) -> Decision[Record]:
    """Reply: HeartbeatReply. Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH: the node must register again."""
    broker = registered_broker(image, op.node_id, op.broker_epoch)
    caught_up = op.metadata_index >= broker.epoch
    fenced = op.want_fence or op.want_shut_down or not caught_up
    reply = HeartbeatReply(caught_up, fenced, op.want_shut_down)
    return Decision(() if fenced == broker.fenced else _set_fencing(image, [broker], fenced), reply)


def registered_broker(image: MetadataImage, node_id: NodeId, broker_epoch: int) -> BrokerImage:
    """The registration with this epoch, or BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise MqError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {node_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise MqError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {node_id} has epoch {broker.epoch} now, not {broker_epoch}.")
    return broker


@dataclass(frozen=True, slots=True)
class ExpireSessions:
    """These brokers, by id and epoch, were silent for a session."""

    brokers: tuple[tuple[NodeId, int], ...]


def decide_expire(image: MetadataImage, op: ExpireSessions, now: float) -> Decision[Record]:
    """Fence those that are still registered as they were. Reply: their ids."""
    silent = [
        broker
        for node_id, epoch in op.brokers
        if (broker := image.brokers.get(node_id)) is not None and broker.epoch == epoch and not broker.fenced
    ]
    return Decision(_set_fencing(image, silent, True), tuple(broker.node_id for broker in silent))


def _set_fencing(image: MetadataImage, brokers: Collection[BrokerImage], fenced: bool) -> tuple[Record, ...]:
    ids = {broker.node_id for broker in brokers}
    alive = _alive(image) - ids if fenced else _alive(image) | ids
    fencing = tuple(SetBrokerFencing(broker.node_id, broker.epoch, fenced) for broker in brokers)
    return (*fencing, *_leadership(image, alive)) if brokers else ()


def _alive(image: MetadataImage) -> set[NodeId]:
    return {broker.node_id for broker in image.alive_brokers()}


_CHANGES_PER_RECORD = 1_000
"""Small enough for one command, however many replicas a partition has."""


def _leadership(image: MetadataImage, alive: set[NodeId]) -> list[Record]:
    """What must change so that every partition is led by an in-sync replica out of `alive`, or by nobody."""
    records: list[Record] = []
    for topic in image.topics.values():
        changes = []
        for index, partition in enumerate(topic.partitions):
            leader, isr = elect(partition, alive)
            if leader != partition.leader or isr != partition.isr:
                changes.append(PartitionChange(index, leader, isr))
        for start in range(0, len(changes), _CHANGES_PER_RECORD):
            records.append(ChangePartitions(topic.topic_id, tuple(changes[start : start + _CHANGES_PER_RECORD])))
    return records


def elect(partition: PartitionImage, alive: set[NodeId]) -> tuple[NodeId, tuple[NodeId, ...]]:
    """Leader and in-sync replicas when only `alive` are.

    The leader stays while it lives; else the first living in-sync replica in order of preference; never one that is
    not in sync. The last in-sync replicas stay in the ISR when they go: they alone may lead again.
    """
    isr = tuple(node_id for node_id in partition.isr if node_id in alive)
    if not isr:
        return NO_NODE, partition.isr
    if partition.leader in isr:
        return partition.leader, isr
    return next(node_id for node_id in partition.replicas if node_id in isr), isr


class Sessions:
    """When each broker was last heard of, as the controller remembers it. Times are monotonic seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._heard: dict[NodeId, float] = {}

    def restart(self, image: MetadataImage, now: float) -> None:
        """Everybody gets a whole session from now: after an election, or when this process itself was not running."""
        self._heard = {broker.node_id: now for broker in image.alive_brokers()}

    def touch(self, node_id: NodeId, now: float) -> None:
        self._heard[node_id] = now

    def silent(self, image: MetadataImage, now: float) -> tuple[tuple[NodeId, int], ...]:
        """Unfenced brokers that were not heard of for a session, by id and epoch."""
        return tuple(
            (broker.node_id, broker.epoch)
            for broker in image.alive_brokers()
            if now - self._heard.setdefault(broker.node_id, now) >= self.timeout
        )
