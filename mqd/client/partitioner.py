"""Which partition a record goes to: by key as Java's default partitioner does, or stickily when there is no key.

The hash must equal Kafka's bit for bit: records with one key go to one partition whichever client wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = Struct("<I").iter_unpack


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
    """Keyless records of one topic stay on one partition until `sticky_bytes` went there, then move (KIP-794).

    Fuller batches than round robin, and the same share for every partition over time.
    """

    def __init__(self, sticky_bytes: int, below: Callable[[int], int]) -> None:
        """`below(n)` draws an int in [0, n): Entropy.below."""
        assert sticky_bytes > 0
        self._sticky_bytes = sticky_bytes
        self._below = below
        self._current = -1
        self._sent_bytes = 0

    def partition(self, record_bytes: int, available: Sequence[int]) -> int:
        """The partition for a record of that size. `available`: the partitions that have a leader, not empty."""
        assert available
        if self._current not in available or self._sent_bytes >= self._sticky_bytes:
            others = [each for each in available if each != self._current] or list(available)
            self._current = others[self._below(len(others))]
            self._sent_bytes = 0
        self._sent_bytes += record_bytes
        return self._current
