"""The replication throttle of a reassignment: which options are set on which topics and brokers,
and how they are removed.

As in kafka-reassign-partitions (KIP-73), each involved broker limits the bytes per second that it
sends as a leader and fetches as a follower. The limit applies to the replicas in the topic's
options: the old replicas on the leader's side, the new ones on the follower's side. Other in-sync
replicas are not throttled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mqd.client.admin import Admin
from mqd.client.descriptions import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigSource,
    Resource,
    ResourceType,
)
from mqd.client.errors import ClientError
from mqd.types import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

Errors = dict[Resource, ClientError]
Changes = dict[Resource, list[ConfigChange]]


class Throttled(NamedTuple):
    """The topics and brokers that have one of the options."""

    topics: tuple[str, ...]
    brokers: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.topics or self.brokers)


def throttle_changes(
    moves: Mapping[TopicPartition, tuple[Collection[int], Collection[int]]],
    brokers: Collection[int],
    bytes_per_second: int,
) -> Changes:
    """The changes for moves (replicas before and after) between the reachable `brokers`. Pure."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    taking_part: set[int] = set()
    for tp, (before, after) in moves.items():
        adding = [broker for broker in after if broker not in before]
        if not adding:
            continue
        taking_part.update(before, adding)
        leaders.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in before)
        followers.setdefault(tp.topic, []).extend(f"{tp.partition}:{broker}" for broker in adding)
    append, put = ConfigOperation.APPEND, ConfigOperation.SET
    changes: Changes = {
        Resource(ResourceType.TOPIC, topic): [
            ConfigChange(LEADER_REPLICAS, append, ",".join(replicas)),
            ConfigChange(FOLLOWER_REPLICAS, append, ",".join(followers[topic])),
        ]
        for topic, replicas in leaders.items()
    }
    rates = [
        ConfigChange(name, put, str(bytes_per_second)) for name in (LEADER_RATE, FOLLOWER_RATE)
    ]
    changes.update(
        {
            Resource(ResourceType.BROKER, str(broker)): rates
            for broker in sorted(taking_part)
            if broker in brokers
        }
    )
    return changes


async def set_throttle(
    admin: Admin,
    moves: Mapping[TopicPartition, tuple[Collection[int], Collection[int]]],
    brokers: Collection[int],
    bytes_per_second: int,
) -> Errors:
    """Limit the traffic of these moves; returns what went wrong, by topic and broker."""
    return _errors(await admin.alter_configs(throttle_changes(moves, brokers, bytes_per_second)))


async def find_throttle(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> Throttled:
    """Which of these have a throttle. Raises ClientError if one of them is unreachable."""
    resources = [Resource(ResourceType.TOPIC, name) for name in topics] + [
        Resource(ResourceType.BROKER, str(broker)) for broker in brokers
    ]
    found = await admin.describe_configs(
        resources, [LEADER_RATE, FOLLOWER_RATE, LEADER_REPLICAS, FOLLOWER_REPLICAS]
    )
    throttled: list[Resource] = []
    for resource, entries in found.items():
        if isinstance(entries, ClientError):
            raise entries
        if any(map(_is_set, entries)):
            throttled.append(resource)
    return Throttled(
        tuple(each.name for each in throttled if each.type is ResourceType.TOPIC),
        tuple(int(each.name) for each in throttled if each.type is ResourceType.BROKER),
    )


async def clear_throttle(admin: Admin, throttled: Throttled) -> Errors:
    """Take the throttle away from topics and brokers; returns what went wrong."""
    changes: Changes = {}
    for name in throttled.topics:
        changes[Resource(ResourceType.TOPIC, name)] = [
            ConfigChange(key, ConfigOperation.DELETE)
            for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        ]
    for broker in throttled.brokers:
        changes[Resource(ResourceType.BROKER, str(broker))] = [
            ConfigChange(key, ConfigOperation.DELETE) for key in (LEADER_RATE, FOLLOWER_RATE)
        ]
    return _errors(await admin.alter_configs(changes))


def _is_set(entry: ConfigEntry) -> bool:
    return bool(entry.value) and entry.source in (
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
    )


def _errors(results: Mapping[Resource, ClientError | None]) -> Errors:
    return {resource: error for resource, error in results.items() if error is not None}
