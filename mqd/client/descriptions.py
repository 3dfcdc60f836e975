"""Values that administrative calls return: topics, configurations, offsets, brokers, disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple
from uuid import UUID

from mqd.client.errors import ClientError
from mqd.client.metadata import BrokerInfo
from mqd.types import NO_EPOCH, NO_TIMESTAMP, ZERO_UUID, TopicPartition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
"""Special timestamps of ListOffsets (KIP-79, KIP-734, KIP-405, KIP-1005)."""

Place = Literal["beginning", "earliest", "end", "latest"]
PLACES: Mapping[str, int] = {
    "beginning": EARLIEST,
    "earliest": EARLIEST,
    "end": LATEST,
    "latest": LATEST,
}
"""The ends of a log by their names: ours and Kafka's."""
END_OF_LOG = -1
"""DeleteRecords: everything up to the high watermark."""


class ResourceType(IntEnum):
    """The type of a resource that has a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """A topic by its name, a broker by its id in decimal ("" for the default of all brokers)."""

    type: ResourceType
    name: str


class ConfigSource(IntEnum):
    """The source of an effective value (KIP-226)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigOperation(IntEnum):
    """The operation on a key (KIP-339). APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


ConfigValue = str | int | float | bool
"""A value to set. True is sent as "true", 1000 as "1000"."""


class ConfigChange(NamedTuple):
    """One change of one key; DELETE takes no value. A number or a bool is sent as Kafka's text."""

    name: str
    operation: ConfigOperation
    value: ConfigValue | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One effective configuration value. A sensitive one has None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source not in (
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigSource.DYNAMIC_BROKER_CONFIG,
            ConfigSource.DYNAMIC_GROUP_CONFIG,
        )


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    -1 takes the cluster's default; `assignments` (partition -> broker ids) replaces both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The created topic. A field that the broker's version lacks is -1, the id is zero."""

    name: str
    topic_id: UUID = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster.

    `controller_id` is -1 when the response names none; `fenced` lists brokers that are known but
    not serving.
    """

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]
    fenced: frozenset[int] = frozenset()


class Feature(NamedTuple):
    """A feature (KIP-584).

    `finalized`: the level in force, 0 for none; `lowest` to `newest`: the levels that the
    responding broker supports.
    """

    name: str
    finalized: int
    lowest: int
    newest: int


class BoundUsage(NamedTuple):
    """The use of a bound on what clients can make a broker remember: of the metadata, or of the
    fullest shard of a coordinator.
    """

    bound: str
    """"metadata", or the name of the shard's partition."""
    used_bytes: int
    bytes_max: int

    @property
    def share(self) -> float:
        """1.0 is full."""
        return self.used_bytes / self.bytes_max if self.bytes_max > 0 else 1.0


class ListedOffset(NamedTuple):
    """An offset with the timestamp and leader epoch of its record; -1 each if there is none."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class ReplicaOnDisk(NamedTuple):
    """One partition in a log directory: bytes, and how many offsets it lags behind."""

    tp: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One log directory of one broker.

    Sizes are in bytes, -1 where unknown; `error` is set if it is offline.
    """

    path: str
    replicas: tuple[ReplicaOnDisk, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    error: ClientError | None = None


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers. Times in milliseconds; -1 if there is none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


# -- replicas and the quorum


class ElectionType(IntEnum):
    """PREFERRED: the first replica, if it is in sync.

    UNCLEAN: if none is in sync, any live one; records may be lost (KIP-460).
    """

    PREFERRED = 0
    UNCLEAN = 1


class PartitionState(NamedTuple):
    """The replicas of one partition, by broker id. `leader` is -1 while there is none; `replicas`
    begins with the preferred leader.

    `elr` (KIP-966): replicas outside of the ISR that have every committed record. `last_known_elr`:
    those that had been in it before an unclean shutdown. Both are empty if the broker does not
    report them. `offline`: replicas on brokers or disks that are gone.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    internal: bool = False


class Reassignment(NamedTuple):
    """A move under way: all replicas, those to add and those to remove."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when the move is done."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas if the move is cancelled."""
        return tuple(node for node in self.replicas if node not in self.adding)


class QuorumReplica(NamedTuple):
    """A node that follows the metadata log. Times in ms since 1970 by the leader's clock.

    -1: not known.
    """

    node_id: int
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    no_connection_reason: str = ""
    """Why the leader has no connection to it; empty if it has one. Of mqd only."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """The metadata log. `leader_id` is -1 while there is none."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...] = ()
