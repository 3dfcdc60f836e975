"""What the configuration tells the controller's decisions: how many replicas make an
acknowledgement, who may lead, how much fits.

Topic overrides are in the image; what holds for topics without them comes from the controller's own
node.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqd.config import NodeConfig
from mqd.controller.image import TOPIC, MetadataImage
from mqd.limits import METADATA_IMAGE_BYTES_MAX

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
IMAGE_BYTES_MAX = "metadata.image.max.bytes"


@dataclass(frozen=True, slots=True)
class Rules:
    """The defaults of topics, as options of nodes that they are synonyms of."""

    min_insync_replicas: int = 1
    unclean_election: bool = False
    image_bytes_max: int = METADATA_IMAGE_BYTES_MAX
    """Of the whole metadata (size.py)."""

    @classmethod
    def of_config(cls, config: NodeConfig) -> Rules:
        return cls(
            config.integer(MIN_INSYNC_REPLICAS),
            config.boolean(UNCLEAN_ELECTION),
            config.integer(IMAGE_BYTES_MAX),
        )

    def least_of(self, image: MetadataImage, topic: str) -> int:
        """`min.insync.replicas` in force for a topic."""
        overrides = image.configs.get((TOPIC, topic))
        text = overrides.get(MIN_INSYNC_REPLICAS) if overrides else None
        return self.min_insync_replicas if text is None else int(text)

    def allows_unclean(self, image: MetadataImage, topic: str) -> bool:
        """Whether a topic would rather lose records than wait for a replica that has them."""
        overrides = image.configs.get((TOPIC, topic))
        text = overrides.get(UNCLEAN_ELECTION) if overrides else None
        return self.unclean_election if text is None else text.strip().lower() == "true"
