"""The bound on the memory of producer states, over all partitions of a node. Pure.

A client may use a new producer id for each batch. Apache Kafka remembers every id for
`producer.id.expiration.ms`, without a bound. Here a node forgets the least recently used ids when
there are too many. It begins with the partitions that have the most, so that a flood in one
partition does not affect the others.

A forgotten producer continues: an unknown producer id may begin with any sequence number. But a
retry of a batch that was sent before may be appended twice.
"""

from __future__ import annotations

from collections.abc import Iterable

FORGET_DOWN_TO = 0.9
"""Share of the bound that is used afterwards, so that a flood does not make every check forget."""


def kept_per_partition(counts: Iterable[int], most: int) -> int | None:
    """The number of producers that each partition may keep, so that all partitions together stay
    within `most`. None: nothing to forget.

    `counts`: producers of each partition.
    """
    ascending = sorted(counts)
    if sum(ascending) <= most:
        return None
    left = int(most * FORGET_DOWN_TO)
    for position, count in enumerate(ascending):
        level = left // (len(ascending) - position)
        if count > level:
            return level
        left -= count
    raise AssertionError("unreachable: the sum is above the bound")
