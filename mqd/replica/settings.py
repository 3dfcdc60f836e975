"""What partitions are told of their topics, and what the replicas of a node tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from mqd.log.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a partition needs to know of its topic's configuration."""

    log: LogConfig
    min_insync_replicas: int
    leader_throttled: tuple[str, ...] = ()
    """`leader.replication.throttled.replicas`."""
    follower_throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    partitions: int
    leaders: int
    parked_produces: int
    parked_fetches: int
    fetch_sessions: int
    offline: int
