"""What changed in the metadata image: by one command, or between two images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from mqd.controller.image import MetadataImage, TopicImage
from mqd.raft.snapshots import Work
from mqd.security.acls import Acl
from mqd.security.quotas import QuotaEntity
from mqd.security.scram_credentials import ScramMechanism
from mqd.types import NodeId, TopicPartition

_PARTITIONS_PER_STEP = 1_000
"""A step of `difference` compares about so many partitions: some milliseconds."""


@dataclass(slots=True)
class Delta:
    """The changes by one command (or one snapshot).

    Deletions come before creations: a name may be in both lists.
    """

    index: int
    topics_deleted: list[TopicImage] = field(default_factory=list)
    topics_created: list[TopicImage] = field(default_factory=list)
    partitions_changed: set[TopicPartition] = field(default_factory=set)
    """New partitions, also those of created topics, and partitions with another leader, epoch, ISR
    or replica set.
    """
    configs_changed: set[tuple[str, str]] = field(default_factory=set)
    """Keys of `MetadataImage.configs`.

    Overrides of created and of deleted topics are in it too.
    """
    brokers_changed: set[NodeId] = field(default_factory=set)
    scram_credentials_changed: set[tuple[str, ScramMechanism]] = field(default_factory=set)
    acls_deleted: dict[UUID, Acl] = field(default_factory=dict)
    """Without those that the same command created."""
    acls_created: dict[UUID, Acl] = field(default_factory=dict)
    client_quotas_changed: set[QuotaEntity] = field(default_factory=set)
    _in_order: list[TopicPartition] | None = None

    def partitions_in_order(self) -> list[TopicPartition]:
        """`partitions_changed`, sorted."""
        return sorted(self.partitions_changed) if self._in_order is None else self._in_order


Subscriber = Callable[[Delta, MetadataImage], None]
"""Called with a change and the image after it; it must not block."""
Restoring = Callable[[Delta, MetadataImage], Work[Callable[[], None]]]
"""What a subscriber with an index of its own does for a snapshot. Called with the change and the
image after it. The steps may run in any thread, and change nothing. The call that they return
applies the change.
"""


def difference(old: MetadataImage, new: MetadataImage) -> Work[Delta]:
    """Compare two images, in steps. `new` takes over the partitions of `old` that are equal."""
    delta = Delta(new.index)
    delta.topics_deleted = [
        topic for topic_id, topic in old.topics_by_id.items() if topic_id not in new.topics_by_id
    ]
    delta.topics_created = [
        topic for topic_id, topic in new.topics_by_id.items() if topic_id not in old.topics_by_id
    ]
    in_order: list[TopicPartition] = []
    for name in sorted(new.topics):
        topic = new.topics[name]
        before = (
            old.topics_by_id[topic.topic_id].partitions
            if topic.topic_id in old.topics_by_id
            else []
        )
        for partition, image in enumerate(topic.partitions):
            if partition < len(before) and before[partition] == image:
                topic.partitions[partition] = before[partition]
            else:
                in_order.append(TopicPartition(name, partition))
            if not (partition + 1) % _PARTITIONS_PER_STEP:
                yield
        yield
    delta.partitions_changed.update(in_order)
    delta._in_order = in_order
    delta.configs_changed = {
        key
        for key in old.configs.keys() | new.configs.keys()
        if old.configs.get(key) != new.configs.get(key)
    }
    delta.brokers_changed = {
        node_id
        for node_id in old.brokers.keys() | new.brokers.keys()
        if old.brokers.get(node_id) != new.brokers.get(node_id)
    }
    yield
    delta.scram_credentials_changed = {
        key
        for key in old.scram_credentials.keys() | new.scram_credentials.keys()
        if old.scram_credentials.get(key) != new.scram_credentials.get(key)
    }
    yield
    # an ACL never changes under its id
    delta.acls_deleted = {acl_id: old.acls[acl_id] for acl_id in old.acls.keys() - new.acls.keys()}
    delta.acls_created = {acl_id: new.acls[acl_id] for acl_id in new.acls.keys() - old.acls.keys()}
    yield
    delta.client_quotas_changed = {
        entity
        for entity in old.client_quotas.keys() | new.client_quotas.keys()
        if old.client_quotas.get(entity) != new.client_quotas.get(entity)
    }
    return delta
