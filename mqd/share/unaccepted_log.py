"""Counts and logs the records of share groups that no member accepted."""

from __future__ import annotations

import logging

from mqd.io.clock import Clock
from mqd.resource_configs import GROUP_DEAD_LETTERS
from mqd.share.led_partitions import LedSharePartition
from mqd.share.unaccepted_counts import UnacceptedCounts
from mqd.share.values import Update

logger = logging.getLogger(__name__)


class UnacceptedLog:
    def __init__(self, clock: Clock) -> None:
        self.counts = UnacceptedCounts()
        self._clock = clock

    def expired(self, led: LedSharePartition, count: int) -> None:
        self.counts.add(led.key, expired=count)
        if count := led.expired_line.due(count, self._clock.monotonic()):
            logger.info(
                "records expired group=%s partition=%s count=%d effect='not delivered'",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                count,
            )

    def given_up(self, led: LedSharePartition, update: Update) -> None:
        """Rejected records are not logged: a member wanted that."""
        if not update.given_up:
            return
        self.counts.add(led.key, given_up=update.given_up)
        if not update.spent:
            return
        if count := led.given_up_line.due(update.spent, self._clock.monotonic()):
            logger.warning(
                "records given up without dead letters group=%s partition=%s count=%d "
                "reason='delivered as often as share.delivery.count.limit allows' "
                "remedy='set %s of the group, or raise the limit'",
                led.key.group_id,
                led.partition.assignment.topic_partition,
                count,
                GROUP_DEAD_LETTERS,
            )
