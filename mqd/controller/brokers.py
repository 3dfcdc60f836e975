"""Nodes as brokers: registration, fencing, controlled shutdown, and the elections that follow.

A broker epoch is the index of the registration. The same node with a new incarnation replaces its
old registration at once, so a restarted process does not wait until its old session expires. A
broker is fenced from its registration until its first heartbeat after it has applied that
registration. It is fenced again when it misses heartbeats for a session or shuts down. A fenced
broker leaves the ISRs, and others lead its partitions (sweeps.py). A broker that returns names the
registration up to which it vouches for its logs (KIP-966, I25). If that is not the last one, the
broker leaves the ELRs too. Registrations of processes that ended before they were unfenced do not
count.

A change of many partitions comes in portions. A broker that loses partitions changes its own state
last; one that gains partitions changes it first. So if a controller fails in between, the next one
finds what is left to do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from mqd.controller.decision_options import NOT_KNOWN, DecisionOptions
from mqd.controller.endpoints import Endpoints
from mqd.controller.image import BrokerImage, MetadataImage, PartitionImage
from mqd.controller.records import (
    FormatCluster,
    MetadataRecord,
    NoteDiskSerial,
    RegisterBroker,
    SetBrokerEndpoints,
    SetBrokerFencing,
    SetScramCredential,
    ShutDownBroker,
    UnregisterBroker,
)
from mqd.controller.result import ControllerResult
from mqd.controller.sweeps import sweep
from mqd.errors import ErrorCode, MqError
from mqd.limits import BROKER_TEXT_BYTES_MAX
from mqd.raft import versions
from mqd.types import NO_EPOCH, NO_NODE, NodeId

FEATURES = (
    (versions.FEATURE, versions.NEWEST),
    ("group.version", 1),
    (versions.SHARE_FEATURE, 1),
    ("transaction.version", 2),
)
"""The features of a new cluster, at their newest levels. The first is the version of the records of
the metadata log.
"""


@dataclass(frozen=True, slots=True)
class Register:
    """A node has started with this incarnation. Clients connect to `host` and `port`."""

    node_id: NodeId
    cluster_id: str
    incarnation: UUID
    host: str
    port: int
    rack: str | None
    previous_broker_epoch: int = NO_EPOCH
    """The registration since which no record that this node wrote can be lost (I25)."""
    disk_serial: int = 0
    """The state of its disks at the start, from log/disk/log_end_checkpoint.py."""
    endpoints: Endpoints = ()
    """Its listeners, if they are not one PLAINTEXT. `host` and `port` are those of the first."""
    first_users: tuple[SetScramCredential, ...] = ()
    """Users that its operator has set before its first start (node/first_users.py)."""
    metadata_version_max: int = versions.NEWEST
    """The newest `mqd.metadata.version` that it supports. Releases before version 3 report 0."""


def decide_register(
    image: MetadataImage, op: Register, options: DecisionOptions
) -> ControllerResult:
    """Reply: none; the broker epoch is in the image afterwards. The same registration again changes
    nothing.

    The first registration of all gives an empty log its cluster id. Raises INCONSISTENT_CLUSTER_ID
    for a node of another cluster, and UNSUPPORTED_VERSION for one whose release cannot read the
    metadata. Raises INVALID_REGISTRATION for a name of a host, listener or rack that is too long.
    The peers file bounds the number of brokers, so the bound on the metadata does not apply.
    """
    texts = [("host name", op.host), ("rack", op.rack or "")]
    texts += [("listener name", endpoint.name) for endpoint in op.endpoints]
    texts += [("host name", endpoint.host) for endpoint in op.endpoints]
    for what, text in texts:
        if len(text.encode()) > BROKER_TEXT_BYTES_MAX:
            raise MqError(
                ErrorCode.INVALID_REGISTRATION,
                f"The {what} of broker {op.node_id} has more than {BROKER_TEXT_BYTES_MAX} bytes.",
            )
    if image.cluster_id not in ("", op.cluster_id):
        raise MqError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"The cluster id is {image.cluster_id!r}, but broker {op.node_id} has "
            f"{op.cluster_id!r}.",
        )
    finalized = image.features.get(versions.FEATURE, 0)
    # The handshake keeps out nodes that support only version 1.
    if versions.allows_security(finalized) and op.metadata_version_max < finalized:
        raise MqError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Unable to register broker {op.node_id}: its release does not support the finalized "
            f"version {finalized} of {versions.FEATURE}. Upgrade it.",
        )
    formatting = () if image.cluster_id else (FormatCluster(op.cluster_id, FEATURES),)
    record = RegisterBroker(op.node_id, op.incarnation, op.host, op.port, op.rack)
    known = image.brokers.get(op.node_id)
    if known is not None and record == RegisterBroker(
        known.node_id, known.incarnation, known.host, known.port, known.rack
    ):
        return ControllerResult(_endpoints_changed(image, op, known))
    named = op.previous_broker_epoch
    # Without this, its replicas leave ISR and ELR before they can lead (I25).
    vouches = known is not None and (
        known.incarnation == op.incarnation
        or (
            named != NO_EPOCH
            and named in (known.epoch, known.vouched_epoch)
            and op.disk_serial >= known.disk_serial
        )
    )
    if vouches:
        record = replace(record, vouched_epoch=named)
    return _without(
        image,
        options,
        (op.node_id,),
        (
            *formatting,
            record,
            *_endpoints_of(image, op, bool(formatting)),
            *_first_users_of(image, op, bool(formatting)),
        ),
        lost_replicas=() if vouches else (op.node_id,),
    )


def _endpoints_of(
    image: MetadataImage, op: Register, formats: bool
) -> tuple[SetBrokerEndpoints, ...]:
    """The endpoints of a new registration, whose epoch is not known yet."""
    version = versions.NEWEST if formats else image.features.get(versions.FEATURE, 0)
    if not op.endpoints or not versions.allows_endpoints(version):
        return ()
    return (SetBrokerEndpoints(op.node_id, 0, op.endpoints),)


def _first_users_of(
    image: MetadataImage, op: Register, formats: bool
) -> tuple[SetScramCredential, ...]:
    """The first users of a new node, if the cluster has no user yet."""
    version = versions.NEWEST if formats else image.features.get(versions.FEATURE, 0)
    known = image.brokers.get(op.node_id)
    is_new = known is None or known.incarnation == op.incarnation
    if image.scram_credentials or not is_new or not versions.allows_security(version):
        return ()
    return op.first_users


def _endpoints_changed(
    image: MetadataImage, op: Register, known: BrokerImage
) -> tuple[SetBrokerEndpoints, ...]:
    """The same registration again, after metadata version 3 was finalized."""
    allows = versions.allows_endpoints(image.features.get(versions.FEATURE, 0))
    if not allows or op.endpoints == known.endpoints:
        return ()
    return (SetBrokerEndpoints(op.node_id, known.epoch, op.endpoints),)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`metadata_index`: the last command that the broker has applied. It may lead if that includes
    its registration.
    """

    node_id: NodeId
    broker_epoch: int
    metadata_index: int
    want_fence: bool = False
    want_shut_down: bool = False
    disk_serial: int = 0
    """The present serial of all its disks."""
    partitions_max: int = NOT_KNOWN
    """The partitions that its limit of open files allows. Earlier releases do not report it."""
    metadata_version_max: int = 0
    """The newest `mqd.metadata.version` that it supports. Releases before version 3 report 0."""
    memory_partitions_max: int = NOT_KNOWN
    """The partitions in memory that its `memory.topics.max.bytes` allows."""


class HeartbeatReply(NamedTuple):
    caught_up: bool
    fenced: bool
    should_shut_down: bool
    metadata_index: int = NO_EPOCH
    """The index of the controller's image when it responds."""


def decide_heartbeat(
    image: MetadataImage, op: Heartbeat, options: DecisionOptions
) -> ControllerResult:
    """Reply: HeartbeatReply. Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH: the node must
    register again.

    A broker that wants to shut down first hands over its partitions and leaves the ISRs. The next
    heartbeat fences it and permits the shutdown. In between it still responds to clients, which
    learn the new leaders (KIP-841).
    """
    broker = registered_broker(image, op.node_id, op.broker_epoch)
    caught_up = op.metadata_index >= broker.epoch
    fencing = SetBrokerFencing(broker.node_id, broker.epoch, True)
    if op.want_shut_down:
        if broker.fenced:
            return ControllerResult((), HeartbeatReply(caught_up, True, True))
        if broker.in_controlled_shutdown:
            return _without(
                image, options, (broker.node_id,), (fencing,), HeartbeatReply(caught_up, True, True)
            )
        record = ShutDownBroker(broker.node_id, broker.epoch)
        return _without(
            image, options, (broker.node_id,), (record,), HeartbeatReply(caught_up, False, False)
        )
    if op.want_fence or not caught_up:
        reply = HeartbeatReply(caught_up, True, False)
        return (
            ControllerResult((), reply)
            if broker.fenced
            else _without(image, options, (broker.node_id,), (fencing,), reply)
        )
    reply = HeartbeatReply(caught_up, False, False)
    if broker.fenced:
        return _unfence(image, options, broker, reply)
    if op.disk_serial > broker.disk_serial and versions.allows_disk_serials(
        image.features.get(versions.FEATURE, 0)
    ):
        return ControllerResult(
            (NoteDiskSerial(broker.node_id, broker.epoch, op.disk_serial),), reply
        )
    return ControllerResult((), reply)


def registered_broker(image: MetadataImage, node_id: NodeId, broker_epoch: int) -> BrokerImage:
    """The registration with this epoch (I24).

    Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise MqError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {node_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise MqError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"The broker epoch of broker {node_id} is now {broker.epoch}, not {broker_epoch}.",
        )
    return broker


@dataclass(frozen=True, slots=True)
class ExpireSessions:
    """These brokers, by id and epoch, were silent for a session."""

    brokers: tuple[tuple[NodeId, int], ...]


def decide_expire(
    image: MetadataImage, op: ExpireSessions, options: DecisionOptions
) -> ControllerResult:
    """Fence brokers whose registration is still the same. Reply: their ids."""
    silent = [
        broker
        for node_id, epoch in op.brokers
        if (broker := image.brokers.get(node_id)) is not None
        and broker.epoch == epoch
        and not broker.fenced
    ]
    ids = tuple(broker.node_id for broker in silent)
    if not silent:
        return ControllerResult((), ids)
    return _without(
        image,
        options,
        ids,
        tuple(SetBrokerFencing(broker.node_id, broker.epoch, True) for broker in silent),
        ids,
    )


@dataclass(frozen=True, slots=True)
class Unregister:
    """An operator removes a broker that will not return. A running one registers again."""

    node_id: NodeId


def decide_unregister(
    image: MetadataImage, op: Unregister, options: DecisionOptions
) -> ControllerResult:
    """Reply: none. Raises BROKER_ID_NOT_REGISTERED."""
    broker = image.brokers.get(op.node_id)
    if broker is None:
        raise MqError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {op.node_id} is not currently registered.",
        )
    return _without(
        image, options, (op.node_id,), (UnregisterBroker(broker.node_id, broker.epoch),)
    )


def _without(
    image: MetadataImage,
    options: DecisionOptions,
    gone: Collection[NodeId],
    then: tuple[MetadataRecord, ...],
    reply: object = None,
    *,
    lost_replicas: Collection[NodeId] = (),
) -> ControllerResult:
    """The brokers `gone` leave the ISRs and lead no partition, then the records `then` follow.
    Brokers whose replicas are lost leave the ELRs too.
    """
    leaving, lost_replicas = frozenset(gone), frozenset(lost_replicas)

    def is_affected(partition: PartitionImage) -> bool:
        return (
            partition.leader in leaving
            or not leaving.isdisjoint(partition.isr)
            or not lost_replicas.isdisjoint(partition.elr)
        )

    swept = sweep(
        image, options, image.may_lead() - leaving, is_affected, lost_replicas=lost_replicas
    )
    if not swept.complete:
        return ControllerResult(swept.records, reply, more=True)
    return ControllerResult((*swept.records, *then), reply)


def _unfence(
    image: MetadataImage, options: DecisionOptions, broker: BrokerImage, reply: object
) -> ControllerResult:
    """Partitions without a leader may get one now.

    `ReviewPartitions` finds portions that a failure left out.
    """

    def is_affected(partition: PartitionImage) -> bool:
        return partition.leader == NO_NODE and broker.node_id in partition.replicas

    swept = sweep(image, options, image.may_lead() | {broker.node_id}, is_affected)
    return ControllerResult(
        (SetBrokerFencing(broker.node_id, broker.epoch, False), *swept.records), reply
    )
