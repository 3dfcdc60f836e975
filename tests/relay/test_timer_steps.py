"""The longest steps of a timer index: in the event loop, and in a worker thread.

The unit is a bytecode instruction of Python, which no other process of the machine changes. Most of
the time of the index is a loop of Python over entries, keys or counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from mqd.io.disk import ArgumentsT, ResultT
from mqd.relay import timer_files, timer_format
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.timer_index import TimerIndex
from tests.relay.test_timer_index import TOPIC_ID, StepDisk, finish

SIZE = 256
"""Entries of a table, and those that a step of a merge reads."""
BUCKETS = 64
IN_THREAD = 44 * SIZE * 3 // 2
"""A step splits, chooses, counts and writes at most so many entries. One that wrote a whole table
took 70 instructions for each."""
IN_LOOP = 6_000
"""A loop over all entries of a table, or over all buckets of eight files, takes more."""


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(timer_files, "TIMERS_PER_MERGE_STEP", SIZE)
    monkeypatch.setattr(timer_format, "TIMER_BUCKETS", BUCKETS)
    yield
    sys.settrace(None)


class CountingDisk(StepDisk):
    """Counts the instructions of the index, apart from those that it offloads."""

    def __init__(self) -> None:
        self.executed = 0
        self.in_thread: list[int] = []
        self.in_loop: list[int] = []

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if "relay" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.executed += event == "opcode"
        return self.trace

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        result: list[ResultT] = []

        def measured() -> None:
            before = self.executed
            result.append(call(*args))
            self.in_thread.append(self.executed - before)

        await super().offload(measured)
        return result[0]

    def step(self, work: Coroutine[Any, Any, None]) -> bool:
        """Up to the next call that is offloaded. Returns whether the work has ended."""
        before, calls = self.executed, len(self.in_thread)
        sys.settrace(self.trace)
        try:
            work.send(None)
            ended = False
        except StopIteration:
            ended = True
        finally:
            sys.settrace(None)
        offloaded = sum(self.in_thread[calls:])
        self.in_loop.append(self.executed - before - offloaded)
        return ended


@pytest.mark.parametrize("keeps_keys", [False, True])
def test_no_step_is_long(tmp_path: Path, keeps_keys: bool) -> None:
    """Files of one table each are merged, while entries leave them."""
    disk = CountingDisk()
    index = TimerIndex(
        disk, tmp_path, TOPIC_ID, 0, lambda _: 1, keeps_keys=keeps_keys, entries_in_memory=SIZE
    )
    finish(index.load(TimerProgress(), 0, 0))
    work = index.work()
    for offset in range(12 * SIZE):
        index.add(7_919 * offset % 100_003, offset, 1 + offset * 31 % 1_009)
        if offset % 16 == 0:
            index.pop()
        if offset % 64 == 0:
            index.confirm(index.progress())
            if disk.step(work):
                work = index.work()
    while not disk.step(work):
        pass
    assert index.statistics().runs < 12
    assert max(disk.in_thread) <= IN_THREAD, sorted(disk.in_thread)[-5:]
    assert max(disk.in_loop) <= IN_LOOP, sorted(disk.in_loop)[-5:]
