"""The options that decisions of the controller depend on: min.insync.replicas, unclean elections,
and the bounds on the metadata and on the partitions of each broker.

Overrides of topics are in the image; for topics without them, the options of the controller's node
apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqd.config import NodeConfig
from mqd.controller.image import TOPIC, MetadataImage
from mqd.limits import METADATA_IMAGE_BYTES_MAX
from mqd.types import NodeId

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
IMAGE_BYTES_MAX = "metadata.image.max.bytes"
NOT_KNOWN = -1
"""Instead of the number of partitions that a broker can open."""


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """The defaults of topics, and the bounds on the metadata and on the partitions of brokers."""

    min_insync_replicas: int = 1
    unclean_election: bool = False
    image_bytes_max: int = METADATA_IMAGE_BYTES_MAX
    """The bound on the whole metadata (size.py)."""
    partitions_max: Mapping[NodeId, int] = field(default_factory=dict)
    """The number of partitions that the file descriptors of each broker allow, by its last
    heartbeat to this node, or NOT_KNOWN.
    """
    memory_partitions_max: Mapping[NodeId, int] = field(default_factory=dict)
    """The same for partitions in memory, which `memory.topics.max.bytes` allows."""

    @classmethod
    def of_config(
        cls,
        config: NodeConfig,
        partitions_max: Mapping[NodeId, int],
        memory_partitions_max: Mapping[NodeId, int],
    ) -> DecisionOptions:
        return cls(
            config.integer(MIN_INSYNC_REPLICAS),
            config.boolean(UNCLEAN_ELECTION),
            config.integer(IMAGE_BYTES_MAX),
            partitions_max,
            memory_partitions_max,
        )

    def min_insync_replicas_of(self, image: MetadataImage, topic: str) -> int:
        """The `min.insync.replicas` of a topic."""
        overrides = image.configs.get((TOPIC, topic))
        text = overrides.get(MIN_INSYNC_REPLICAS) if overrides else None
        return self.min_insync_replicas if text is None else int(text)

    def allows_unclean_election(self, image: MetadataImage, topic: str) -> bool:
        """Whether a topic prefers a leader that may lack records to no leader at all."""
        overrides = image.configs.get((TOPIC, topic))
        text = overrides.get(UNCLEAN_ELECTION) if overrides else None
        return self.unclean_election if text is None else text.strip().lower() == "true"
