"""Ends the acquisition locks and the delays of all share partitions at their time."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from typing import Any, Final

import trio

from mqd.io.clock import Clock
from mqd.protocol.slices import Slices
from mqd.share import endings
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.ports import InSlices, ShareKey
from mqd.share.share_partition import SharePartition
from mqd.share.values import Update

logger = logging.getLogger(__name__)

DELAY_CHECK_SECONDS: Final = 10.0
"""A node with delayed records compares their times with its wall clock at least so often."""

WriteUpdate = Callable[[LedSharePartition, Update], Any]


class EndingTimer:
    """It visits a share partition when its first lock or delay ends; with delayed records, also
    every DELAY_CHECK_SECONDS. A lock whose records are acknowledged ends, too. So there is at most
    one visit for each acquisition, however many share partitions there are."""

    def __init__(self, partitions: LedSharePartitions, clock: Clock, in_slices: InSlices) -> None:
        self._partitions = partitions
        self._clock = clock
        self._in_slices = in_slices
        self._endings: list[tuple[float, ShareKey]] = []
        """A heap of (monotonic seconds, share partition). An entry is out of date unless the share
        partition `ends_at` that time."""
        self._earlier_deadline = trio.Event()

    async def run(self, write: WriteUpdate) -> None:
        """Until cancelled. `write(led, update)`: begins to store what has changed."""
        while True:
            earlier = self._earlier_deadline = trio.Event()
            await self._in_slices(self._end_due(write))
            due_at = self._endings[0][0] if self._endings else math.inf
            with trio.move_on_after(max(0.0, due_at - self._clock.monotonic())):
                await earlier.wait()

    def expect(self, led: LedSharePartition) -> None:
        """Locks or delays have begun."""
        deadline = self._next_deadline(led.core)
        if deadline < led.ends_at:
            led.ends_at = deadline
            heapq.heappush(self._endings, (deadline, led.key))
            if self._endings[0][0] == deadline:
                self._earlier_deadline.set()

    def _next_deadline(self, core: SharePartition) -> float:
        """Monotonic seconds at which a lock or a delay ends. A wall clock that jumps is noticed
        after DELAY_CHECK_SECONDS."""
        lock, due = endings.next_deadline(core), endings.next_due(core)
        deadline = math.inf if lock is None else lock
        if due is not None:
            seconds = (due - self._clock.wall_ms()) / 1000
            deadline = min(
                deadline, self._clock.monotonic() + min(max(0.0, seconds), DELAY_CHECK_SECONDS)
            )
        return deadline

    def _end_due(self, write: WriteUpdate) -> Slices[None]:
        """End the locks and delays whose time is over."""
        while self._endings and self._endings[0][0] <= self._clock.monotonic():
            yield 1
            deadline, key = heapq.heappop(self._endings)
            led = self._partitions.get(key)
            if led is None or led.ends_at != deadline:
                continue
            led.ends_at = math.inf
            core = led.core
            try:
                endings.end_delays(core, self._clock.wall_ms())
                update = yield from endings.expire(
                    core, self._clock.monotonic(), wall_ms=self._clock.wall_ms()
                )
            except Exception:
                self._partitions.bug(led)
                continue
            if update is not None:
                logger.debug(
                    "acquisition locks expired group=%s partition=%s batches=%d",
                    led.key.group_id,
                    led.partition.assignment.topic_partition,
                    len(update.batches),
                )
                write(led, update)
            led.waiters.wake_one()
            self.expect(led)
