"""The part of a topic's configuration that its partitions use."""

from __future__ import annotations

from dataclasses import dataclass

from mqd.log.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class TopicSettings:
    log: LogConfig
    min_insync_replicas: int
    leader_throttled: tuple[str, ...] = ()
    """`leader.replication.throttled.replicas`."""
    follower_throttled: tuple[str, ...] = ()
    """`follower.replication.throttled.replicas`."""
    is_shared: bool = True
    """`mqd.producer.access=shared`."""
