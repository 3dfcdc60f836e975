"""Which partition a record goes to.

By default, a record with a key goes where Java's default partitioner sends it (murmur2), and
records without a key are sticky. `send(..., partition=3)` names a partition. Any callable of the
type `Partitioner` replaces the default, for example a `RoundRobinPartitioner`. Pure.

The hash must equal Kafka's bit for bit: records with one key go to one partition, whichever client
wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = Struct("<I").iter_unpack

Partitioner = Callable[[str, bytes | None, Sequence[int], Sequence[int]], int]
"""(topic, key, all partitions, those with a leader) -> one of the partitions. Called once for each
record that names no partition. Neither list is empty."""


def murmur2(data: bytes | memoryview) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with Kafka's seed; unsigned. O(len(data))."""
    size = len(data)
    h = (_SEED ^ size) & _MASK
    whole = size & ~3
    for (k,) in _WORDS(data[:whole]):
        k = (k * _M) & _MASK
        h = ((h * _M) ^ ((k ^ (k >> 24)) * _M)) & _MASK
    if size != whole:
        h ^= int.from_bytes(data[whole:], "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes | memoryview, partition_count: int) -> int:
    """The partition of a keyed record; every Java client agrees."""
    assert partition_count > 0
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Keyless records of one topic stay on one partition for `sticky_bytes`, then move (KIP-794).

    Batches are fuller than with round robin, and over time every partition gets the same share.
    """

    def __init__(self, sticky_bytes: int, below: Callable[[int], int]) -> None:
        """`below(n)` draws an int in [0, n): Entropy.below."""
        assert sticky_bytes > 0
        self._sticky_bytes = sticky_bytes
        self._below = below
        self._current = -1
        self._sent_bytes = 0

    def partition(self, record_bytes: int, available: Sequence[int]) -> int:
        """The partition for a record of that size. `available`: those with a leader, not empty."""
        assert available
        if self._current not in available or self._sent_bytes >= self._sticky_bytes:
            others = [each for each in available if each != self._current] or list(available)
            self._current = others[self._below(len(others))]
            self._sent_bytes = 0
        self._sent_bytes += record_bytes
        return self._current


class RoundRobinPartitioner:
    """Each record of a topic goes to the next partition that has a leader, whatever its key is, as
    with Kafka's RoundRobinPartitioner. Give each producer its own."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(
        self, topic: str, key: bytes | None, partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        return available[count % len(available)]
