"""The bound on the memory of all share partitions that a node leads:
`group.share.partition.memory.bytes`. Pure.

Unfinished records between finished ones cost memory. Each share partition may have a part of the
bound for them. While all of them take less than a quarter of the bound, the part of each is a
quarter. Above it, the parts are equal. A share partition above its part acquires no new records,
and above twice its part it acknowledges only whole ranges (share_partition.py). So a group with
many unfinished records stops before others do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from mqd.errors import ErrorCode, MqError
from mqd.limits import MIB, SHARE_STATE_RANGES_MAX
from mqd.share.record_states import RANGE_BYTES
from mqd.usage import Usage, UsageWatch

logger = logging.getLogger(__name__)

STATE_BYTES_MAX: Final = MIB
"""The largest part: about 5,000 unfinished records between finished ones."""
assert 2 * STATE_BYTES_MAX // RANGE_BYTES < SHARE_STATE_RANGES_MAX
LED_BYTES: Final = 4_000
"""Memory of a share partition with a few ranges."""
_PART_BYTES_MIN: Final = 2 * RANGE_BYTES
"""So that a share partition without unfinished records can acquire some."""
_GROWTH: Final = 3
"""Parts that one may take: two for acknowledgements, one for the order by key."""
_COUNT_SECONDS: Final = 0.25
"""A count takes 10 ms for 30,000 share partitions."""


class Sized(Protocol):
    @property
    def size(self) -> int: ...


class ShareMemory:
    """The memory of the share partitions of one node."""

    def __init__(self, bytes_max: int, partitions: Callable[[], Collection[Sized]]) -> None:
        """`partitions()`: all that the node leads."""
        self.bytes_max = bytes_max
        self._partitions = partitions
        self._used = 0
        """At the last count, with what was loaded since."""
        self._counted_at = -_COUNT_SECONDS
        self._watch = UsageWatch()

    def part(self, now: float) -> int:
        """Bytes that the states of one share partition may take, which changes with the others.
        `now`: monotonic seconds."""
        part = self.bytes_max // 4
        used = self._count(now)
        if used >= part:
            count = max(1, len(self._partitions()))
            part = min(part, (self.bytes_max - used) // _GROWTH) // count
        return max(_PART_BYTES_MIN, min(STATE_BYTES_MAX, part))

    def load(self, size: int, now: float) -> None:
        """Reserve memory for a state that is loaded. Raises MqError KAFKA_STORAGE_ERROR, which
        clients retry."""
        if self._count(now) + size > self.bytes_max:
            raise MqError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "The share partitions of this node use group.share.partition.memory.bytes "
                f"({self.bytes_max}). Retry later, or raise that option.",
            )
        self._used += size

    def _count(self, now: float) -> int:
        if now - self._counted_at >= _COUNT_SECONDS:
            self._used = sum(one.size for one in self._partitions())
            self._counted_at = now
            if self._watch.passed(Usage(self._used, self.bytes_max)) is not None:
                logger.warning(
                    "the memory of share partitions is near its bound bytes=%d "
                    "group.share.partition.memory.bytes=%d partitions=%d "
                    "effect='those with many unfinished records acquire no new ones'",
                    self._used,
                    self.bytes_max,
                    len(self._partitions()),
                )
        return self._used
