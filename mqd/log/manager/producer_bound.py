"""Keeps the number of producer ids of a node within its bound (producer_memory.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio

from mqd.io.clock import Clock
from mqd.log.partition_log import PartitionLog
from mqd.log.producer_expiry import forget_oldest
from mqd.log.producer_memory import kept_per_partition
from mqd.types import TopicPartition

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""A flood adds about 20,000 producer ids in this time, 25 MB."""
WARN_SECONDS = 60.0


class ProducerBound:
    """See the head of this file. `logs`: those of the node, which may change at any time."""

    def __init__(
        self, clock: Clock, logs: Mapping[TopicPartition, PartitionLog], producers_max: int
    ) -> None:
        self._clock = clock
        self._logs = logs
        self.producers_max = producers_max
        self.forgotten = 0
        """Producer ids that were removed because there were too many."""

    async def run(self) -> None:
        """Remove excess producers until cancelled."""
        warn_at = self._clock.monotonic()
        before = 0
        while True:
            await trio.sleep(CHECK_SECONDS)
            await self.forget_excess()
            now = self._clock.monotonic()
            if self.forgotten > before and now >= warn_at:
                logger.warning(
                    "too many producer ids, forgetting the least recently used ones forgotten=%d "
                    "max=%d effect='their retries may be appended twice' remedy='find the client "
                    "that opens a producer for each batch, or raise producer.state.memory.bytes'",
                    self.forgotten - before,
                    self.producers_max,
                )
                before, warn_at = self.forgotten, now + WARN_SECONDS

    async def forget_excess(self) -> None:
        """Remove the least recently used producer ids above the bound. Followers do the same on
        their own: the memory of producers is not replicated.
        """
        logs = list(self._logs.values())
        keep = kept_per_partition((len(log.producers) for log in logs), self.producers_max)
        if keep is None:
            return
        for log in logs:
            count = len(log.producers)
            if count > keep:
                for _ in forget_oldest(log.producers, keep):
                    await trio.lowlevel.checkpoint()
                self.forgotten += max(0, count - len(log.producers))
                await trio.lowlevel.checkpoint()
