"""Ends the acquisition locks and the delays of all share partitions at their time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final

import trio

from mqd.io.clock import Clock
from mqd.protocol.slices import Slices
from mqd.share import endings
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.ports import InSlices
from mqd.share.share_partition import SharePartition
from mqd.share.values import Update

logger = logging.getLogger(__name__)

DELAY_CHECK_SECONDS: Final = 10.0
"""A node with delayed records compares their times with its wall clock at least so often."""

WriteUpdate = Callable[[LedSharePartition, Update], Any]


class EndingTimer:
    def __init__(self, partitions: LedSharePartitions, clock: Clock, in_slices: InSlices) -> None:
        self._partitions = partitions
        self._clock = clock
        self._in_slices = in_slices
        self._earlier_deadline = trio.Event()
        self._due_at = math.inf

    async def run(self, write: WriteUpdate) -> None:
        """Until cancelled. `write(led, update)`: begins to store what has changed."""
        while True:
            earlier = self._earlier_deadline = trio.Event()
            self._due_at = math.inf  # a lock that begins meanwhile wakes this task
            self._due_at = await self._in_slices(self._end_due(write))
            with trio.move_on_after(max(0.0, self._due_at - self._clock.monotonic())):
                await earlier.wait()

    def expect(self, core: SharePartition) -> None:
        """Locks or delays have begun."""
        if self._next_deadline(core) < self._due_at:
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

    def _end_due(self, write: WriteUpdate) -> Slices[float]:
        """End the locks and delays whose time is over, and find the next deadline."""
        now, next_deadline = self._clock.monotonic(), math.inf
        wall_ms = self._clock.wall_ms()
        for led in self._partitions:
            yield 1
            if led.loaded_core is None or led.is_dropped:
                continue
            core = led.loaded_core
            try:
                endings.end_delays(core, wall_ms)
                update = yield from endings.expire(core, now, wall_ms=wall_ms)
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
            next_deadline = min(next_deadline, self._next_deadline(core))
        return next_deadline
