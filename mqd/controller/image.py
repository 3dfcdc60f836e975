"""The metadata of the whole cluster as this node knows it.

An image is data and reads. Only `replay.py` changes it, one committed record at a time (I10);
`snapshot.py` converts it to bytes and back; `machine.py` connects it to Raft.

Invariants: a partition's leader is -1 or an unfenced member of its ISR. With a leader, the ISR is
not empty. ISR and ELR are within the replicas and have no member in common (I21). Epochs never
decrease. `topics` and `topics_by_id` hold the same topics. Producer ids below `next_producer_id`
are never assigned again (I17).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mqd.controller.endpoints import Endpoints, address_on
from mqd.controller.part_sizes import empty_size
from mqd.raft import versions
from mqd.security.acls import Acl
from mqd.security.quotas import QuotaEntity
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import ScramShapes
from mqd.types import (
    IN_MEMORY,
    INTERNAL_TOPICS,
    NO_EPOCH,
    PRODUCER_ACCESS,
    SHARED,
    STORAGE,
    NodeId,
)

TOPIC: Final = "topic"
NODE: Final = "node"
GROUP: Final = "group"
CLIENT_METRICS: Final = "client-metrics"
"""Types of configured resources: the first half of a key of `MetadataImage.configs`."""
_VERSIONS: Final = ("scram_version", "acls_version")


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. Lists of replicas are in order of preference; `isr` is in the order in which
    its members joined.
    """

    leader: NodeId
    """-1 while no replica that may lead is alive."""
    leader_epoch: int
    """Rises when the leader changes, also to and from -1, and when a replica leaves `replicas`."""
    partition_epoch: int
    """Rises with every change; AlterPartition compares it."""
    replicas: tuple[NodeId, ...]
    """During a reassignment, `adding` and `removing` are part of it."""
    isr: tuple[NodeId, ...]
    """In-sync replicas; may be empty while there is no leader."""
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas (KIP-966): out of the ISR, but with every committed record."""
    last_known_elr: tuple[NodeId, ...] = ()
    """Members of the ELR that restarted after an unclean shutdown; the last leader, if ISR and ELR
    are empty.
    """
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()


@dataclass(slots=True)
class TopicImage:
    """One topic; `partitions[i]` is partition i. Only `replay.py` changes the list."""

    name: str
    topic_id: UUID
    partitions: list[PartitionImage]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered node.

    `epoch` is the index of its registration; clients connect to `host` and `port`.
    """

    node_id: NodeId
    host: str
    port: int
    rack: str | None
    epoch: int
    incarnation: UUID
    fenced: bool
    in_controlled_shutdown: bool = False
    """It is about to stop: it leads no partition and joins no ISR, but is not fenced yet (KIP-841).
    """
    vouched_epoch: int = NO_EPOCH
    """The earlier registration that vouched for its logs, until this one is unfenced for the first
    time. A fenced broker acknowledges nothing. So if its process is killed before it stores this
    registration, the next one may name the earlier registration again (I25).
    """
    disk_serial: int = 0
    """The disk serial that it has reported (log/disk/log_end_checkpoint.py). A registration with a
    lower one has an older copy of a disk, and vouches for nothing.
    """
    endpoints: Endpoints = ()
    """Its listeners for clients; empty for one PLAINTEXT (endpoints.py)."""


def are_in_memory(configs: Mapping[str, str]) -> bool:
    """Whether these overrides of a topic have `mqd.storage=memory`."""
    return configs.get(STORAGE, "").strip() == IN_MEMORY


class MetadataImage:
    """See the head of the file. Reads are consistent between two awaits."""

    def __init__(self) -> None:
        self.index = 0
        """Raft index of the last command that took effect."""
        self.cluster_id = ""
        self.features: dict[str, int] = {}
        self.brokers: dict[NodeId, BrokerImage] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topics_by_id: dict[UUID, TopicImage] = {}
        self.configs: dict[tuple[str, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self.lost_replicas: set[tuple[UUID, int, NodeId]] = set()
        """Replicas (topic id, partition, broker) whose log their broker has reported as unusable
        under its present registration.
        """
        self.scram_credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        """By user and mechanism."""
        self.scram_shapes = ScramShapes()
        """The shapes of `scram_credentials`."""
        self.acls: dict[UUID, Acl] = {}
        self.client_quotas: dict[QuotaEntity, dict[str, float]] = {}
        """By entity: quota key to value. No dict is empty, and none is ever changed."""
        self.scram_version = 0
        self.acls_version = 0
        """Each rises with every change of its part, also by a snapshot: for caches. They are not
        part of a snapshot, and differ between nodes.
        """
        self.size = empty_size()
        """Bytes that the whole image counts for (size.py). `Room` compares them with the bound."""
        self.groups_size = 0
        """The part of `size` that overrides of groups, and subscriptions of client metrics, count
        for.
        """
        self.access_size = 0
        """The part of `size` that SCRAM credentials, ACLs and client quotas count for."""
        self._acl_ids: dict[Acl, UUID] = {}
        """The inverse of `acls`."""
        self._names: dict[str, set[str]] = {}
        """Topic names by their form with '_' for '.'."""

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        image = self.topics.get(topic)
        if image is None or not 0 <= partition < len(image.partitions):
            return None
        return image.partitions[partition]

    def topic_configs(self, topic: str) -> dict[str, str]:
        """The overrides of a topic: option name to value as text."""
        return self.configs.get((TOPIC, topic), {})

    def is_in_memory(self, topic: str) -> bool:
        """Whether the topic has `mqd.storage=memory`."""
        return are_in_memory(self.topic_configs(topic))

    def producer_access(self, topic: str) -> str:
        """The `mqd.producer.access` of a topic."""
        configs = self.configs.get((TOPIC, topic))
        return SHARED if configs is None else configs.get(PRODUCER_ACCESS, SHARED).strip()

    def group_configs(self, group_id: str) -> dict[str, str]:
        """The overrides of a consumer group (KIP-848), which need not exist."""
        return self.configs.get((GROUP, group_id), {})

    def client_metrics_configs(self, subscription: str) -> dict[str, str]:
        """The keys of a subscription of client metrics (KIP-714) that are set."""
        return self.configs.get((CLIENT_METRICS, subscription), {})

    def node_configs(self, node_id: NodeId | None) -> dict[str, str]:
        """The dynamic options of one node; with None, those of every node."""
        return self.configs.get((NODE, "" if node_id is None else str(node_id)), {})

    def address_on(self, listener: str | None, broker: BrokerImage) -> tuple[str, int] | None:
        """The host and port of a broker for the clients of a listener, see endpoints.py."""
        return address_on(
            listener,
            broker.endpoints,
            (broker.host, broker.port),
            has_endpoints=versions.allows_endpoints(self.features.get(versions.FEATURE, 0)),
        )

    def alive_brokers(self) -> list[BrokerImage]:
        """The unfenced brokers, by id."""
        return [
            self.brokers[node_id]
            for node_id in sorted(self.brokers)
            if not self.brokers[node_id].fenced
        ]

    def is_alive(self, node_id: NodeId) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def may_lead(self) -> frozenset[NodeId]:
        """Brokers that may lead and be in sync: unfenced, and not about to stop.

        The caller excludes lost replicas.
        """
        return frozenset(
            node_id
            for node_id, broker in self.brokers.items()
            if not broker.fenced and not broker.in_controlled_shutdown
        )

    def is_offline(self, topic: TopicImage, partition: int, node_id: NodeId) -> bool:
        """Whether a replica is offline: its broker is fenced or gone, or its log is lost."""
        return (
            not self.is_alive(node_id) or (topic.topic_id, partition, node_id) in self.lost_replicas
        )

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs only in '.' against '_' (they share a metric name in
        Apache Kafka), or None.
        """
        others = self._names.get(name.replace(".", "_"), set()) - {name}
        return min(others) if others else None

    def acl_id(self, acl: Acl) -> UUID | None:
        """The id of an ACL; None if there is no such ACL."""
        return self._acl_ids.get(acl)

    # -- for replay.py and snapshot.py only

    def insert_acl(self, acl_id: UUID, acl: Acl) -> None:
        self.acls[acl_id] = acl
        self._acl_ids[acl] = acl_id

    def remove_acl(self, acl_id: UUID) -> Acl:
        acl = self.acls.pop(acl_id)
        del self._acl_ids[acl]
        return acl

    def insert_topic(self, topic: TopicImage) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic
        self._names.setdefault(topic.name.replace(".", "_"), set()).add(topic.name)

    def remove_topic(self, topic: TopicImage) -> None:
        del self.topics_by_id[topic.topic_id]
        del self.topics[topic.name]
        self._names[topic.name.replace(".", "_")].remove(topic.name)

    def become(self, fresh: MetadataImage) -> None:
        """Take over all content of `fresh`."""
        versions = {name: getattr(self, name) + 1 for name in _VERSIONS}
        for name in vars(fresh):
            setattr(self, name, getattr(fresh, name))
        for name, version in versions.items():
            setattr(self, name, version)
