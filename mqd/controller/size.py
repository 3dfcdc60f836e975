"""The size of the metadata, and the bound on it: what every node must be able to load again.

`growth` is the one definition: the image adds it up while it applies records, and a decision asks
for it before it makes one. A part counts as the most that it can ever take in a snapshot's text,
about what it takes in memory. A replica counts for all the lists that may name it. So elections,
changes of the ISR and lost replicas change no size, and are never refused.

What may grow: topics, partitions, replica sets, overrides, brokers. Finite by themselves: features
(a fixed set of names), producer ids (one number), losses (counted with the replica). Voters are not
here: raft/voters.py bounds their number. Observers are in the peers file.

Invariants: the size of an image is `recount` of it; its snapshot's text is never longer; only a
change that makes the image larger is refused; `restore` refuses nothing for its size.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mqd.controller.records import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    FormatCluster,
    Record,
    RegisterBroker,
    SetConfigs,
    SetFeature,
    UnregisterBroker,
    UpdatePartitions,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import INTERNAL_TOPICS
from mqd.usage import Usage, UsageWatch

if TYPE_CHECKING:
    from mqd.controller.image import MetadataImage

logger = logging.getLogger(__name__)

TOPIC: Final = "topic"
NODE: Final = "node"
GROUP: Final = "group"
"""Types of configured resources: the first half of a key of `MetadataImage.configs`."""

_EMPTY: Final = 1_024
"""An image without anything in it."""
_TOPIC: Final = 512
_PARTITION: Final = 256
_REPLICA: Final = 112
"""A node id in four lists of its partition, and in the list of losses."""
_RESOURCE: Final = 256
_OVERRIDE: Final = 128
_BROKER: Final = 512
_FEATURE: Final = 128
_ESCAPED_MAX: Final = 6
"""Bytes of JSON for one byte of UTF-8: a control character is \\u0001."""


GROUPS_SHARE: Final = 4
"""Overrides of groups, which need not exist, take no more than this part of the bound: topics are
not crowded out.
"""
RESERVED_SHARE: Final = 16
"""This part of the bound is left to what keeps a full cluster at work: internal topics, moves of
partitions, and options of nodes, which are few.
"""


class Room:
    """What one decision may add. Take each record before it is decided; what is refused takes
    nothing.
    """

    def __init__(self, image: MetadataImage, bytes_max: int) -> None:
        self._image = image
        self._bytes_max = bytes_max
        self._left = bytes_max - image.size
        self._left_to_groups = bytes_max // GROUPS_SHARE - image.groups_size

    def take(self, record: Record) -> None:
        """Raise POLICY_VIOLATION where the record makes the metadata larger than it may be."""
        more = growth(self._image, record)
        reserved = 0 if _may_use_reserve(record) else self._bytes_max // RESERVED_SHARE
        if is_of_group(record):
            if more > 0 and more > self._left_to_groups:
                raise MqError(
                    ErrorCode.POLICY_VIOLATION,
                    f"Config overrides of groups take {self._image.groups_size} bytes, and "
                    f"this change needs {more} more: together they"
                    f" take at most a quarter of metadata.image.max.bytes={self._bytes_max}. "
                    "Delete those of groups that are not used.",
                )
            self._left_to_groups -= more
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

    def look(self, usage: Usage) -> None:
        """After a change of the metadata."""
        if self._watch.passed(usage) is not None:
            logger.warning(
                "the cluster's metadata is near its bound share=%.0f%% bytes=%d "
                "metadata.image.max.bytes=%d: above it no topic, partition or config override is "
                "created; delete some, or raise the bound on every node",
                100 * usage.share,
                usage.used,
                usage.most,
            )


def is_of_group(record: Record) -> bool:
    """Whether it changes overrides of a group."""
    return isinstance(record, SetConfigs) and record.resource_type == GROUP


def _may_use_reserve(record: Record) -> bool:
    match record:
        case CreateTopic():
            return record.name in INTERNAL_TOPICS
        case SetConfigs():
            return record.resource_type == NODE
        case _:
            return isinstance(record, UpdatePartitions)


def growth(image: MetadataImage, record: Record) -> int:
    """Bytes by which the image grows when `record` is applied; negative where it shrinks."""
    match record:
        case CreateTopic():
            partitions = sum(_partition(len(placement.replicas)) for placement in record.partitions)
            return _topic(record.name) + partitions + _overrides(record.name, dict(record.configs))
        case DeleteTopic():
            topic = image.topics_by_id[record.topic_id]
            partitions = sum(_partition(len(partition.replicas)) for partition in topic.partitions)
            return -(
                _topic(topic.name)
                + partitions
                + _overrides(topic.name, image.topic_configs(topic.name))
            )
        case AddPartitions():
            return sum(_partition(len(placement.replicas)) for placement in record.partitions)
        case UpdatePartitions():
            partitions_before = image.topics_by_id[record.topic_id].partitions
            return sum(
                _REPLICA
                * (len(update.replicas) - len(partitions_before[update.partition].replicas))
                for update in record.updates
                if update.replicas is not None
            )
        case SetConfigs():
            return _config_growth(image, record)
        case RegisterBroker():
            known = image.brokers.get(record.node_id)
            before = 0 if known is None else _broker(known.host, known.rack)
            return _broker(record.host, record.rack) - before
        case UnregisterBroker():
            broker = image.brokers[record.node_id]
            return -_broker(broker.host, broker.rack)
        case SetFeature():
            present, wanted = record.name in image.features, record.level > 0
            return (wanted - present) * _feature(record.name)
        case FormatCluster():
            added = {name for name, _ in record.features} - image.features.keys()
            return _text(record.cluster_id) - _text(image.cluster_id) + sum(map(_feature, added))
        case _:
            return 0


def recount(image: MetadataImage) -> int:
    """The size from scratch: of an image that was restored, and for tests."""
    topics = sum(
        _topic(topic.name)
        + sum(_partition(len(partition.replicas)) for partition in topic.partitions)
        for topic in image.topics.values()
    )
    configs = sum(_overrides(name, overrides) for (_, name), overrides in image.configs.items())
    brokers = sum(_broker(broker.host, broker.rack) for broker in image.brokers.values())
    return (
        empty_size()
        + _text(image.cluster_id)
        - _text("")
        + topics
        + configs
        + brokers
        + sum(map(_feature, image.features))
    )


def recount_groups(image: MetadataImage) -> int:
    """What the overrides of groups count for, from scratch."""
    return sum(
        _overrides(name, overrides)
        for (kind, name), overrides in image.configs.items()
        if kind == GROUP
    )


def empty_size() -> int:
    """Of an image without anything in it."""
    return _EMPTY + _text("")


def _config_growth(image: MetadataImage, record: SetConfigs) -> int:
    before = image.configs.get((record.resource_type, record.resource_name), {})
    after = len(before)
    more = 0
    for name, value in record.changes:
        if name in before:
            more -= _override(name, before[name])
            after -= 1
        if value is not None:
            more += _override(name, value)
            after += 1
    return more + ((after > 0) - bool(before)) * _named(record.resource_name)


def _topic(name: str) -> int:
    return _TOPIC + _text(name)


def _partition(replicas: int) -> int:
    return _PARTITION + _REPLICA * replicas


def _named(resource: str) -> int:
    return _RESOURCE + _text(resource)


def _overrides(resource: str, overrides: Mapping[str, str]) -> int:
    return (
        _named(resource) + sum(_override(*pair) for pair in overrides.items()) if overrides else 0
    )


def _override(name: str, value: str) -> int:
    return _OVERRIDE + _text(name) + _text(value)


def _broker(host: str, rack: str | None) -> int:
    return _BROKER + _text(host) + _text(rack or "")


def _feature(name: str) -> int:
    return _FEATURE + _text(name)


def _text(value: str) -> int:
    """A quote and a backslash take two bytes, what cannot be printed takes six."""
    if value.isascii() and value.isprintable():
        return 2 + len(value) + value.count('"') + value.count("\\")
    return 2 + _ESCAPED_MAX * len(value.encode())
