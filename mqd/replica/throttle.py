"""How fast replicas may be copied: one side's rate, measured as Apache Kafka does (KIP-73). Pure;
`now` in seconds comes in.

The rate is what was recorded within the last `WINDOWS` windows of `WINDOW_SECONDS`, over the time
since the oldest of them began (at least one window). Above the bound nothing more is asked for or
given until it has fallen: bytes are counted after they were moved, so one answer may overshoot, and
the pause after it is as long as that takes.

A node has two of these: `leader.replication.throttled.rate` bounds what it gives to followers that
are not in sync, `follower.replication.throttled.rate` what it fetches for replicas that are not in
sync. Both apply only to replicas that the topic's `*.replication.throttled.replicas` names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mqd.types import NodeId, TopicPartition

WINDOWS = 11
"""Kafka's `replication.quota.window.num`."""
WINDOW_SECONDS = 1.0
"""Kafka's `replication.quota.window.size.seconds`."""

EVERY_PARTITION = None
"""`throttled_partitions` of a topic whose replicas are all throttled."""


def throttled_partitions(entries: Iterable[str], node_id: NodeId) -> frozenset[int] | None:
    """The partitions whose replica on `node_id` a list of `partition:node` names; EVERY_PARTITION
    for `*`.

    ValueError for an entry that is neither.
    """
    partitions = set()
    for entry in entries:
        if entry.strip() == "*":
            return EVERY_PARTITION
        partition, separator, node = entry.strip().partition(":")
        if not separator:
            raise ValueError(f"{entry!r} is no partition:node")
        if int(node) == node_id:
            partitions.add(int(partition))
    return frozenset(partitions)


class Throttle:
    """One side of one node."""

    __slots__ = ("_bytes_per_second", "_partitions", "_windows")

    def __init__(self) -> None:
        self._bytes_per_second: int | None = None
        self._partitions: dict[str, frozenset[int] | None] = {}
        self._windows: deque[tuple[float, int]] = deque()
        """(start, bytes) of windows in which something was recorded, oldest first."""

    def set_rate(self, bytes_per_second: int | None) -> None:
        """None: without a bound."""
        self._bytes_per_second = bytes_per_second

    def set_partitions(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Which partitions of a topic are throttled here, as `throttled_partitions` tells;
        an empty set: none.
        """
        if partitions is EVERY_PARTITION or partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the rate applies to this replica at all, once it is not in sync."""
        if topic_partition.topic not in self._partitions:
            return False
        partitions = self._partitions[topic_partition.topic]
        return partitions is EVERY_PARTITION or topic_partition.partition in partitions

    def record(self, size: int, now: float) -> None:
        """So many bytes of throttled replicas were moved."""
        windows = self._windows
        if windows and now - windows[-1][0] < WINDOW_SECONDS:
            start, before = windows[-1]
            windows[-1] = (start, before + size)
        else:
            windows.append((now, size))
            self._purge(now)

    def rate(self, now: float) -> float:
        """Bytes a second, as measured now."""
        self._purge(now)
        if not self._windows:
            return 0.0
        return sum(size for _, size in self._windows) / max(
            now - self._windows[0][0], WINDOW_SECONDS
        )

    def allows(self, now: float) -> bool:
        """Whether more may be moved now."""
        return self._bytes_per_second is None or self.rate(now) <= self._bytes_per_second

    def _purge(self, now: float) -> None:
        while self._windows and now - self._windows[0][0] >= WINDOWS * WINDOW_SECONDS:
            self._windows.popleft()
