"""The timer index of a delay topic with ten million pending records: time to add them, memory, size
of the files, time of a restart, and pops per second.

    python -m tests.relay.measure_timer_index [--entries N] [--keys]
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import trio

from mqd.io.disk import ArgumentsT, OsDisk, ResultT
from mqd.io.garbage import Garbage
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.timer_index import TimerIndex

POPPED = 1_000_000
LOOKED_UP = 2_000
PER_SLICE = 50
"""Records that are added, taken or looked up in one step of the event loop."""
PER_COMMIT = 500
LONG_STEP_S = 0.02
NOW = 1_760_000_000_000
MONTH_MS = 30 * 24 * 3_600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--keys", action="store_true", help="the index of mqd.delay.replace=true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mqd-delay-index-"))
    try:
        trio.run(measure_as_a_node, directory, options.entries, options.keys)
    finally:
        shutil.rmtree(directory)


def new_index(directory: Path, keys: bool, disk: OsDisk | None = None) -> TimerIndex:
    return TimerIndex(disk or OsDisk(), directory, UUID(int=1), 0, lambda _: 0, keeps_keys=keys)


class LongestSteps(trio.abc.Instrument):
    """The most CPU time that a step of a task, or a call in a worker thread, has taken since the
    last report. Other processes of the machine do not change it much.
    """

    def __init__(self) -> None:
        self.began = time.thread_time()  # the first step has begun already
        self.steps: dict[str, tuple[int, float, int]] = {}
        """Number of steps, the longest, and how many were longer than LONG_STEP_S."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        whose = "index" if task.name.endswith("TimerIndex.run") else "caller"
        self.note(whose, time.thread_time() - self.began)

    def note(self, whose: str, seconds: float) -> None:
        number, longest, long = self.steps.get(whose, (0, 0.0, 0))
        self.steps[whose] = number + 1, max(longest, seconds), long + (seconds > LONG_STEP_S)

    def report(self) -> None:
        """Event loop: the task of the index, and its caller. Then the worker threads."""
        for whose, (number, longest, long) in sorted(self.steps.items()):
            print(
                f"    longest of {number} steps, {whose}: {longest * 1000:.1f} ms of CPU; {long} "
                f"took more than {LONG_STEP_S * 1000:.0f} ms"
            )
        self.steps.clear()


class MeasuredDisk(OsDisk):
    def __init__(self, steps: LongestSteps) -> None:
        super().__init__()
        self.steps = steps

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        return await super().offload(self._measured, call, args, limiter=limiter)

    def _measured(self, call: Callable[..., ResultT], args: tuple[object, ...]) -> ResultT:
        began = time.thread_time()
        try:
            return call(*args)
        finally:
            self.steps.note("worker threads", time.thread_time() - began)


async def measure_as_a_node(directory: Path, count: int, keys: bool) -> None:
    with Garbage().begun():
        await measure(directory, count, keys)


async def measure(directory: Path, count: int, keys: bool) -> None:
    dice = random.Random(1)
    before = resident_bytes()
    print(f"entries {count}, due within 30 days, {'all keys' if keys else 'no keys'}")
    steps = LongestSteps()
    trio.lowlevel.add_instrument(steps)
    index = new_index(directory, keys, MeasuredDisk(steps))
    await index.load(TimerProgress(), 0, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.run)
        began, cpu = time.perf_counter(), time.process_time()
        for offset in range(count):
            key = dice.getrandbits(64) if keys else 0
            index.add(NOW + dice.randrange(MONTH_MS), offset, key)
            if not offset % PER_SLICE:
                await index.wait_for_room()
                await trio.lowlevel.checkpoint()
        report("add", count, began, cpu)
        steps.report()
        peak = resident_bytes() - before
        print(f"  memory: {peak / 2**20:.1f} MiB; {sizes(index, directory)}")
        began, cpu = time.perf_counter(), time.process_time()
        while True:
            await trio.sleep(0.1)
            if not index.is_busy:
                break
        late, used = time.perf_counter() - began, time.process_time() - cpu
        print(f"  merges end {late:.1f} s later (CPU {used:.1f} s)")
        steps.report()
        now = resident_bytes() - before
        print(f"  memory: {now / 2**20:.1f} MiB; {sizes(index, directory)}")
        await look_up(index, count, dice)
        steps.report()
        await pop(index)
        steps.report()
        nursery.cancel_scope.cancel()
    progress, pending, known = index.progress(), len(index), index.next_offset
    del index
    began, cpu = time.perf_counter(), time.process_time()
    index = new_index(directory, keys, MeasuredDisk(steps))
    await index.load(progress, 0, known)
    report("restart", pending, began, cpu)
    steps.report()
    print(f"  {known - index.next_offset} records of the log are read again")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.run)
        await pop(index)
        steps.report()
        nursery.cancel_scope.cancel()


async def look_up(index: TimerIndex, count: int, dice: random.Random) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(LOOKED_UP):
        assert next(index.cancelled_by(dice.getrandbits(64) | 1, number * count // LOOKED_UP), 1)
        if not number % PER_SLICE:
            await trio.lowlevel.checkpoint()
    report("look up tombstones", LOOKED_UP, began, cpu)
    if not index.keeps_keys:
        return
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(LOOKED_UP):
        offset = number * count // LOOKED_UP
        assert next(index.replaced_by(dice.getrandbits(64) | 1, offset), None) is None
        if not number % PER_SLICE:
            await trio.lowlevel.checkpoint()
    report("look up later records", LOOKED_UP, began, cpu)


async def pop(index: TimerIndex) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    count = min(POPPED, len(index) // 2)
    last = -1
    for number in range(count):
        due, _, _ = index.pop()
        assert due >= last
        last = due
        if not number % PER_COMMIT:
            index.confirm(index.progress())
        if not number % PER_SLICE:
            await trio.lowlevel.checkpoint()
    index.confirm(index.progress())
    report("pop", count, began, cpu)


def report(what: str, count: int, began: float, cpu: float) -> None:
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    print(f"  {what}: {count} in {seconds:.2f} s (CPU {used:.2f} s), {count / used:,.0f}/CPU s")


def sizes(index: TimerIndex, directory: Path) -> str:
    megabytes = sum(file.stat().st_size for file in directory.glob("*.timers")) / 1e6
    return f"{index.statistics()}; {megabytes:.1f} MB of files"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
