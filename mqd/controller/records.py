"""The records of the metadata log.

A record is the unit of atomicity: one fact that holds as a whole or not at all. A command
(commands.py) carries records in one Raft entry; record_codec.py encodes and decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from mqd.controller.endpoints import Endpoints
from mqd.security.acls import Acl
from mqd.security.quotas import QuotaEntity
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.types import NO_EPOCH, NodeId


@dataclass(frozen=True, slots=True)
class FormatCluster:
    """The first record of a cluster: its id, and the feature levels that it starts with."""

    cluster_id: str
    features: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A node registers as a broker.

    It is fenced until it sends a heartbeat; its broker epoch is the index of this command.
    """

    node_id: NodeId
    incarnation: UUID
    host: str
    port: int
    rack: str | None
    vouched_epoch: int = NO_EPOCH
    """The previous registration, if that one vouches for the logs; see `BrokerImage`."""


@dataclass(frozen=True, slots=True)
class SetBrokerFencing:
    """A fenced broker leads no partition, and no response to clients names it."""

    node_id: NodeId
    broker_epoch: int
    fenced: bool


class Placement(NamedTuple):
    """One new partition. Its ISR is the replicas that were alive at its creation."""

    replicas: tuple[NodeId, ...]
    leader: NodeId
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A complete topic: partitions 0..n-1 and overrides."""

    name: str
    topic_id: UUID
    partitions: tuple[Placement, ...]
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Deletes by id: a topic created later with the same name is another topic."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """More partitions, from index `first`, which is the previous count."""

    topic_id: UUID
    first: int
    partitions: tuple[Placement, ...]


class PartitionChange(NamedTuple):
    """A new leader and new in-sync replicas of one partition; its leader epoch and partition epoch
    rise by one.

    The first release wrote it; `PartitionUpdate` has replaced it.
    """

    partition: int
    leader: NodeId
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ChangePartitions:
    """New leaders of partitions of one topic, whose indexes ascend."""

    topic_id: UUID
    changes: tuple[PartitionChange, ...]


class PartitionUpdate(NamedTuple):
    """The changed fields of one partition; None is unchanged. The partition epoch rises by one.

    The leader epoch rises by one if the leader changes or a replica leaves the replica set.
    """

    partition: int
    leader: NodeId | None = None
    isr: tuple[NodeId, ...] | None = None
    elr: tuple[NodeId, ...] | None = None
    last_known_elr: tuple[NodeId, ...] | None = None
    replicas: tuple[NodeId, ...] | None = None
    adding: tuple[NodeId, ...] | None = None
    removing: tuple[NodeId, ...] | None = None


@dataclass(frozen=True, slots=True)
class UpdatePartitions:
    """Changes of partitions of one topic, whose indexes ascend."""

    topic_id: UUID
    updates: tuple[PartitionUpdate, ...]


@dataclass(frozen=True, slots=True)
class SetFeature:
    """The new level of one feature; 0: it is no longer finalized."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ShutDownBroker:
    """A broker is about to stop: it leads no partition and joins no ISR, but still responds."""

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class NoteDiskSerial:
    """The disks of a broker have at least this serial (log/disk/log_end_checkpoint.py). An older
    copy of a disk has a lower one. Metadata version 2.
    """

    node_id: NodeId
    broker_epoch: int
    serial: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """The cluster no longer knows this broker. Its replicas stay where they are assigned."""

    node_id: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class LoseReplicas:
    """The logs of these replicas of a broker are unusable, until the replicas are in sync again or
    the broker registers again.
    """

    node_id: NodeId
    broker_epoch: int
    topic_id: UUID
    partitions: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class SetConfigs:
    """Overrides of one resource; a value of None removes the key.

    Types: "topic", "group" and "node" ("" = every node).
    """

    resource_type: str
    resource_name: str
    changes: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class SetNextProducerId:
    """Producer ids below this one are never assigned again (I17)."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class SetScramCredential:
    """A new or another credential of one user and mechanism. Metadata version 3."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential


@dataclass(frozen=True, slots=True)
class DeleteScramCredential:
    """The user can no longer log in with this mechanism. Metadata version 3."""

    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True)
class CreateAcl:
    """A new rule. Its id is unique in the cluster. Metadata version 3."""

    acl_id: UUID
    acl: Acl


@dataclass(frozen=True, slots=True)
class DeleteAcl:
    """Metadata version 3."""

    acl_id: UUID


@dataclass(frozen=True, slots=True)
class SetBrokerEndpoints:
    """The listeners of a broker, other than one PLAINTEXT. Metadata version 3."""

    node_id: NodeId
    broker_epoch: int
    """0: the registration is in the same command."""
    endpoints: Endpoints


@dataclass(frozen=True, slots=True)
class SetClientQuotas:
    """Quotas of one entity; a value of None removes the key. Metadata version 3."""

    entity: QuotaEntity
    changes: tuple[tuple[str, float | None], ...]


MetadataRecord = (
    FormatCluster
    | RegisterBroker
    | SetBrokerFencing
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | ChangePartitions
    | SetConfigs
    | SetNextProducerId
    | UpdatePartitions
    | ShutDownBroker
    | UnregisterBroker
    | LoseReplicas
    | SetFeature
    | NoteDiskSerial
    | SetScramCredential
    | DeleteScramCredential
    | CreateAcl
    | DeleteAcl
    | SetClientQuotas
    | SetBrokerEndpoints
)
