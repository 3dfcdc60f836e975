"""The timer visits a share partition when a lock or a delay of it ends, and no other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import trio
import trio.testing

from mqd.protocol.slices import Slices, all_slices
from mqd.share.ending_timer import DELAY_CHECK_SECONDS, EndingTimer
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import Limits
from tests.share.support import acquire

LIMITS = Limits(delivery_count=5, record_locks=40, lock_seconds=10.0, state_bytes=1 << 20)


class Node:
    """Share partitions, and their visits by group."""

    def __init__(self) -> None:
        self.led: dict[ShareKey, Any] = {}
        self.visits: Counter[str] = Counter()
        self.stored: list[str] = []
        self.wall_skew_ms = 0
        clock = SimpleNamespace(
            monotonic=trio.current_time,
            wall_ms=lambda: self.wall_skew_ms + int(trio.current_time() * 1000),
        )
        self.timer = EndingTimer(cast(Any, self.led), cast(Any, clock), self._in_slices)

    async def _in_slices(self, work: Slices[Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return all_slices(work)

    def add(self, group: str, core: SharePartition) -> Any:
        def visited() -> None:
            self.visits[group] += 1

        key = ShareKey(group, UUID(int=1), 0)
        self.led[key] = SimpleNamespace(
            key=key,
            core=core,
            ends_at=math.inf,
            waiters=SimpleNamespace(wake_one=visited),
            partition=SimpleNamespace(assignment=SimpleNamespace(topic_partition="t-0")),
        )
        self.timer.expect(self.led[key])
        return self.led[key]

    def acquired(self, group: str) -> Any:
        """A share partition with one acquired record."""
        core = SharePartition.loaded(0, (), LIMITS)
        acquire(core, "m", (0, 0), now=trio.current_time())
        return self.add(group, core)

    async def run(self) -> None:
        await self.timer.run(lambda led, update: self.stored.append(led.key.group_id))


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        node = Node()
        nursery.start_soon(node.run)
        yield node
        nursery.cancel_scope.cancel()


async def test_only_share_partitions_whose_lock_ends_are_visited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as node:
        node.acquired("first")
        await trio.sleep(5)
        second, dropped = node.acquired("second"), node.acquired("dropped")
        await trio.sleep(5.5)
        assert node.stored == ["first"] and node.visits == {"first": 1}
        del node.led[dropped.key]
        acquire(second.core, "n", (1, 1), now=trio.current_time())
        node.timer.expect(second)
        await trio.sleep(5)
        assert node.stored == ["first", "second"] and node.visits == {"first": 1, "second": 1}
        await trio.sleep(10)
        assert node.stored == ["first", "second", "second"]
        assert not node.timer._endings


async def test_an_earlier_lock_wakes_the_timer(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as node:
        node.acquired("late")
        core = SharePartition.loaded(0, (), LIMITS._replace(lock_seconds=1.0))
        acquire(core, "m", (0, 0), now=trio.current_time())
        await trio.sleep(0.5)
        node.add("early", core)
        await trio.sleep(1)
        assert node.stored == ["early"]


async def test_a_wall_clock_that_jumps_ends_delays(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as node:
        due_ms = int(trio.current_time() * 1000) + 3_600_000
        stored = Batch(0, 0, RecordState.AVAILABLE, 1, due_ms)
        led = node.add("delayed", SharePartition.loaded(0, (stored,), LIMITS))
        await trio.sleep(60)
        assert node.visits["delayed"] <= 60 / DELAY_CHECK_SECONDS
        assert led.core.states.state_of(0) is RecordState.DELAYED
        node.wall_skew_ms = 3_600_000
        await trio.sleep(DELAY_CHECK_SECONDS + 1)
        assert led.core.states.state_of(0) is RecordState.AVAILABLE
        assert led.ends_at == math.inf
