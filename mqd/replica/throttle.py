"""Replication throttles: the bound and the measured rate of one side, as in Apache Kafka (KIP-73).
Pure: `now` is in seconds.

The rate is bytes divided by time. The bytes are those of the last `WINDOWS` windows of
`WINDOW_SECONDS`. The time is that since the oldest window began (at least one window). While it is
above the bound, no more bytes are fetched or sent. Bytes are counted after they were transferred,
so one response may exceed the bound, and a longer pause follows.

A node has two throttles. `leader.replication.throttled.rate` bounds the bytes that it sends to
followers that are not in sync. `follower.replication.throttled.rate` bounds the bytes that it
fetches for replicas that are not in sync. Both apply only to the replicas that the topic's
`*.replication.throttled.replicas` names.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from mqd.types import NodeId, TopicPartition

WINDOWS = 11
"""Kafka's `replication.quota.window.num`."""
WINDOW_SECONDS = 1.0
"""Kafka's `replication.quota.window.size.seconds`."""

EVERY_PARTITION = None
"""The result of `throttled_partitions` for a topic whose replicas are all throttled."""


def throttled_partitions(entries: Iterable[str], node_id: NodeId) -> frozenset[int] | None:
    """The partitions whose replica on `node_id` is in a list of `partition:node` entries.
    EVERY_PARTITION for `*`.

    Raises ValueError for any other entry.
    """
    partitions = set()
    for entry in entries:
        if entry.strip() == "*":
            return EVERY_PARTITION
        partition, separator, node = entry.strip().partition(":")
        if not separator:
            raise ValueError(f"{entry!r} is not partition:node")
        if int(node) == node_id:
            partitions.add(int(partition))
    return frozenset(partitions)


class Throttle:
    """The throttle of one side, leader or follower, of a node."""

    __slots__ = ("_bytes_per_second", "_partitions", "_windows")

    def __init__(self) -> None:
        self._bytes_per_second: int | None = None
        self._partitions: dict[str, frozenset[int] | None] = {}
        self._windows: deque[tuple[float, int]] = deque()
        """(start, bytes) of windows in which something was recorded, oldest first."""

    def set_rate(self, bytes_per_second: int | None) -> None:
        """Set the maximum rate. None: no limit."""
        self._bytes_per_second = bytes_per_second

    def set_partitions(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Set the throttled partitions of a topic: the result of `throttled_partitions`."""
        if partitions is EVERY_PARTITION or partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the rate applies to this replica while it is not in sync."""
        if topic_partition.topic not in self._partitions:
            return False
        partitions = self._partitions[topic_partition.topic]
        return partitions is EVERY_PARTITION or topic_partition.partition in partitions

    def record(self, size: int, now: float) -> None:
        """Count transferred bytes of throttled replicas."""
        windows = self._windows
        start, before = windows[-1] if windows else (-math.inf, 0)
        if now - start < WINDOW_SECONDS:
            windows[-1] = (start, before + size)
        else:
            windows.append((now, size))
            self._purge(now)

    def rate(self, now: float) -> float:
        """The measured rate, in bytes a second."""
        self._purge(now)
        if not self._windows:
            return 0.0
        oldest_start, _ = self._windows[0]
        return sum(size for _, size in self._windows) / max(now - oldest_start, WINDOW_SECONDS)

    def allows(self, now: float) -> bool:
        """Whether more bytes may be transferred now."""
        return self._bytes_per_second is None or self.rate(now) <= self._bytes_per_second

    def _purge(self, now: float) -> None:
        while self._windows:
            start, _ = self._windows[0]
            if now - start < WINDOWS * WINDOW_SECONDS:
                break
            self._windows.popleft()
