"""The size of the metadata, and the bound on it: what every node must be able to load again (I45).

`growth` is the one definition: the image adds it up while it applies records, and a decision
calculates it before it adds a record. `part_sizes.py` has the bytes of each part.

What may grow: topics, partitions, replica sets, overrides, brokers, SCRAM credentials, ACLs, client
quotas. Bounded by themselves: features
(a fixed set of names), producer ids (one number), lost replicas (counted with the replica). Voters
are not here: raft/voters.py bounds their number. Observers are in the peers file.

Invariants: the size of an image is `recount` of it, and its snapshot's text is never longer. Only a
change that makes the image larger is rejected. Restoring a snapshot rejects nothing for its size.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from mqd.controller.image import CLIENT_METRICS, GROUP, NODE, MetadataImage
from mqd.controller.part_sizes import (
    REPLICA_BYTES,
    acl_size,
    broker_size,
    credential_size,
    empty_size,
    endpoints_size,
    feature_size,
    override_size,
    overrides_size,
    partition_size,
    quotas_size,
    resource_size,
    text_size,
    topic_size,
)
from mqd.controller.records import (
    AddPartitions,
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteScramCredential,
    DeleteTopic,
    FormatCluster,
    MetadataRecord,
    RegisterBroker,
    SetBrokerEndpoints,
    SetClientQuotas,
    SetConfigs,
    SetFeature,
    SetScramCredential,
    UnregisterBroker,
    UpdatePartitions,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import INTERNAL_TOPICS
from mqd.usage import Usage, UsageWatch

logger = logging.getLogger(__name__)

GROUPS_SHARE: Final = 4
"""Overrides of groups, which need not exist, and subscriptions of client metrics take at most this
part of the bound. So they do not take the space of topics.
"""
ACCESS_SHARE: Final = 4
"""The same for SCRAM credentials, ACLs and client quotas: their users and resources need not exist.
"""
_LIKE_GROUPS: Final = (GROUP, CLIENT_METRICS)
RESERVED_SHARE: Final = 16
"""This part of the bound is reserved for what a full cluster needs to keep working: internal
topics, reassignments, and the few options of nodes.
"""


class Room:
    """The number of bytes that one decision may still add to the metadata."""

    def __init__(self, image: MetadataImage, bytes_max: int) -> None:
        self._image = image
        self._bytes_max = bytes_max
        self._left = bytes_max - image.size
        self._left_to_groups = bytes_max // GROUPS_SHARE - image.groups_size
        self._left_to_access = bytes_max // ACCESS_SHARE - image.access_size

    def take(self, record: MetadataRecord) -> None:
        """Count a record. Raises POLICY_VIOLATION if the metadata would exceed its bound; then
        the record counts for nothing.
        """
        more = growth(self._image, record)
        reserved = 0 if _may_use_reserve(record) else self._bytes_max // RESERVED_SHARE
        if is_of_group(record):
            if more > 0 and more > self._left_to_groups:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    "Config overrides of groups, and subscriptions of client metrics, take "
                    f"{self._image.groups_size} bytes, and this change needs {more} more. Together "
                    f"they may take at most a quarter of metadata.image.max.bytes="
                    f"{self._bytes_max}. Delete those that are not used.",
                )
            self._left_to_groups -= more
        if is_of_access(record):
            if more > 0 and more > self._left_to_access:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    f"SCRAM credentials, ACLs and client quotas take {self._image.access_size} "
                    f"bytes, and this change needs {more} more. Together they may take at most a "
                    f"quarter of metadata.image.max.bytes={self._bytes_max}. Delete those that are "
                    "not used.",
                )
            self._left_to_access -= more
        # Only decisions are bounded, never a replay (I45).
        if more > 0 and more > self._left - reserved:
            raise MqError(
                ErrorCode.POLICY_VIOLATION,
                f"The cluster's metadata is full: it takes {self._image.size} of "
                f"{self._bytes_max} bytes, and this change needs {more}"
                " more. Delete topics or config overrides, or raise metadata.image.max.bytes "
                "on every node.",
            )
        self._left -= more


class SizeWatch:
    """Writes a warning to the log when the metadata passes a threshold (usage.py)."""

    def __init__(self) -> None:
        self._watch = UsageWatch()

    def observe(self, usage: Usage) -> None:
        """Call it after each change of the metadata."""
        if self._watch.passed(usage) is not None:
            logger.warning(
                "the cluster's metadata is near its bound share=%.0f%% bytes=%d "
                "metadata.image.max.bytes=%d effect='above it no topic, partition or config "
                "override is created' remedy='delete some, or raise the bound on every node'",
                100 * usage.share,
                usage.used,
                usage.most,
            )


def is_of_group(record: MetadataRecord) -> bool:
    """Whether a record changes overrides of a group, or a subscription of client metrics."""
    return isinstance(record, SetConfigs) and record.resource_type in _LIKE_GROUPS


def is_of_access(record: MetadataRecord) -> bool:
    """Whether a record changes SCRAM credentials, ACLs or client quotas."""
    return isinstance(record, _OF_ACCESS)


def _may_use_reserve(record: MetadataRecord) -> bool:
    match record:
        case CreateTopic():
            return record.name in INTERNAL_TOPICS
        case SetConfigs():
            return record.resource_type == NODE
        case _:
            return isinstance(record, UpdatePartitions)


def growth(image: MetadataImage, record: MetadataRecord) -> int:
    """Bytes by which the image grows when `record` is applied; negative if it shrinks."""
    match record:
        case CreateTopic():
            return (
                topic_size(record.name)
                + _partitions_size(record)
                + overrides_size(record.name, dict(record.configs))
            )
        case DeleteTopic():
            topic = image.topics_by_id[record.topic_id]
            partitions = sum(
                partition_size(len(partition.replicas)) for partition in topic.partitions
            )
            return -(
                topic_size(topic.name)
                + partitions
                + overrides_size(topic.name, image.topic_configs(topic.name))
            )
        case AddPartitions():
            return _partitions_size(record)
        case UpdatePartitions():
            partitions_before = image.topics_by_id[record.topic_id].partitions
            return sum(
                REPLICA_BYTES
                * (len(update.replicas) - len(partitions_before[update.partition].replicas))
                for update in record.updates
                if update.replicas is not None
            )
        case SetConfigs():
            return _config_growth(image, record)
        case RegisterBroker():
            known = image.brokers.get(record.node_id)
            before = (
                0
                if known is None
                else broker_size(known.host, known.rack) + endpoints_size(known.endpoints)
            )
            return broker_size(record.host, record.rack) - before
        case SetBrokerEndpoints():
            known = image.brokers.get(record.node_id)
            before = 0 if known is None else endpoints_size(known.endpoints)
            return endpoints_size(record.endpoints) - before
        case UnregisterBroker():
            broker = image.brokers[record.node_id]
            return -broker_size(broker.host, broker.rack) - endpoints_size(broker.endpoints)
        case SetFeature():
            present, wanted = record.name in image.features, record.level > 0
            return (wanted - present) * feature_size(record.name)
        case FormatCluster():
            added = {name for name, _ in record.features} - image.features.keys()
            return (
                text_size(record.cluster_id)
                - text_size(image.cluster_id)
                + sum(map(feature_size, added))
            )
        case SetScramCredential():
            replaced = image.scram_credentials.get((record.user, record.mechanism))
            return credential_size(record.user, record.credential) - (
                0 if replaced is None else credential_size(record.user, replaced)
            )
        case DeleteScramCredential():
            return -credential_size(
                record.user, image.scram_credentials[record.user, record.mechanism]
            )
        case CreateAcl():
            return acl_size(record.acl)
        case DeleteAcl():
            return -acl_size(image.acls[record.acl_id])
        case SetClientQuotas():
            return _quotas_growth(image, record)
        case _:
            return 0


def _partitions_size(record: CreateTopic | AddPartitions) -> int:
    sizes = Counter(len(placement.replicas) for placement in record.partitions)
    return sum(count * partition_size(replicas) for replicas, count in sizes.items())


_OF_ACCESS: Final = (
    SetScramCredential,
    DeleteScramCredential,
    CreateAcl,
    DeleteAcl,
    SetClientQuotas,
)


def recount(image: MetadataImage) -> int:
    """The size, calculated from the content: for restored images and for tests."""
    topics = sum(
        topic_size(topic.name)
        + sum(partition_size(len(partition.replicas)) for partition in topic.partitions)
        for topic in image.topics.values()
    )
    configs = sum(overrides_size(name, overrides) for (_, name), overrides in image.configs.items())
    brokers = sum(
        broker_size(broker.host, broker.rack) + endpoints_size(broker.endpoints)
        for broker in image.brokers.values()
    )
    return (
        empty_size()
        + text_size(image.cluster_id)
        - text_size("")
        + topics
        + configs
        + brokers
        + sum(map(feature_size, image.features))
        + recount_access(image)
    )


def recount_access(image: MetadataImage) -> int:
    """The size of SCRAM credentials, ACLs and client quotas, calculated from the content."""
    return (
        sum(
            credential_size(user, credential)
            for (user, _), credential in image.scram_credentials.items()
        )
        + sum(map(acl_size, image.acls.values()))
        + sum(quotas_size(entity, quotas) for entity, quotas in image.client_quotas.items())
    )


def recount_groups(image: MetadataImage) -> int:
    """The size of overrides of groups and of subscriptions of client metrics, calculated from the
    content.
    """
    return sum(
        overrides_size(name, overrides)
        for (kind, name), overrides in image.configs.items()
        if kind in _LIKE_GROUPS
    )


def _quotas_growth(image: MetadataImage, record: SetClientQuotas) -> int:
    before = image.client_quotas.get(record.entity, {})
    changed = {**before, **dict(record.changes)}
    after = {key: value for key, value in changed.items() if value is not None}
    return quotas_size(record.entity, after) - quotas_size(record.entity, before)


def _config_growth(image: MetadataImage, record: SetConfigs) -> int:
    before = image.configs.get((record.resource_type, record.resource_name), {})
    after = len(before)
    more = 0
    for name, value in record.changes:
        if name in before:
            more -= override_size(name, before[name])
            after -= 1
        if value is not None:
            more += override_size(name, value)
            after += 1
    return more + ((after > 0) - bool(before)) * resource_size(record.resource_name)
