"""What the relays of a node share: the time of the event loop, and the memory for records that they
read. So a relay of hostile records delays others, and never uses more because it is one of many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from mqd.limits import RELAY_BEGINS_AT_ONCE, RELAY_READS_AT_ONCE, TASK_SLICE_SECONDS_MAX
from mqd.types import NodeId

ItemT = TypeVar("ItemT")

_STEPS_AT_ONCE = 200
"""Also where time stands still."""


class LoopTime:
    """`async with` it around work on the event loop. One relay works in each pass of the loop."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._ends_at = 0.0
        self._steps = 0

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self._ends_at = trio.current_time() + TASK_SLICE_SECONDS_MAX
        self._steps = 0

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    async def pause(self) -> None:
        """After each step: let others go first if this slice is over."""
        self._steps += 1
        if self._steps >= _STEPS_AT_ONCE or trio.current_time() >= self._ends_at:
            async with self.outside():
                pass

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[None]:
        """Around a wait."""
        self._lock.release()
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):  # others have it for one slice
                await self.__aenter__()

    async def each(self, handle: Callable[[ItemT], None], items: Iterable[ItemT]) -> None:
        """Handle the items in slices."""
        async with self:
            for item in items:
                handle(item)
                await self.pause()


class Shared:
    """Built once a node."""

    def __init__(self) -> None:
        self.loop = LoopTime()
        self.reads = trio.Semaphore(RELAY_READS_AT_ONCE)
        """Relays that have records which they take into their index."""
        self.large_reads = trio.Semaphore(1)
        """Large batches that are read."""
        self.large_writes = trio.Semaphore(1)
        """Large records that are written."""
        self.begins = defaultdict[NodeId | None, trio.Semaphore](
            lambda: trio.Semaphore(RELAY_BEGINS_AT_ONCE)
        )
        """Requests that begin a producer epoch, by their coordinator."""
