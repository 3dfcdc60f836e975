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
from pathlib import Path
from uuid import UUID

import trio

from mqd.io.disk import OsDisk
from mqd.relay.delay_progress import Progress
from mqd.relay.timer_index import TimerIndex

POPPED = 1_000_000
LOOKED_UP = 20_000
PER_SLICE = 1_000
NOW = 1_760_000_000_000
MONTH_MS = 30 * 24 * 3_600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--keys", action="store_true", help="the index of mqd.delay.replace=true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mqd-delay-index-"))
    try:
        trio.run(measure, directory, options.entries, options.keys)
    finally:
        shutil.rmtree(directory)


def new_index(directory: Path, keys: bool) -> TimerIndex:
    return TimerIndex(OsDisk(), directory, UUID(int=1), 0, lambda _: 0, keeps_keys=keys)


class Lateness:
    """How late another task of the event loop runs, by a timer of a millisecond."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        while True:
            began = time.perf_counter()
            await trio.sleep(0.001)
            self.seconds.append(time.perf_counter() - began - 0.001)

    def report(self) -> None:
        found = sorted(self.seconds)
        middle, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
        print(
            f"  other tasks: late by {middle * 1000:.1f} ms (median), {p99 * 1000:.1f} ms (p99),"
            f" {found[-1] * 1000:.1f} ms (most)"
        )


async def measure(directory: Path, count: int, keys: bool) -> None:
    dice = random.Random(1)
    before = resident_bytes()
    print(f"entries {count}, due within 30 days, {'all keys' if keys else 'no keys'}")
    index = new_index(directory, keys)
    await index.load(Progress(), 0, 0)
    async with trio.open_nursery() as nursery:
        late = Lateness()
        nursery.start_soon(index.run)
        nursery.start_soon(late.watch)
        began, cpu = time.perf_counter(), time.process_time()
        for offset in range(count):
            key = dice.getrandbits(64) if keys else 0
            index.add(NOW + dice.randrange(MONTH_MS), offset, key)
            if not offset % PER_SLICE:
                await index.wait_for_room()
                await trio.lowlevel.checkpoint()
        report("add", count, began, cpu)
        peak = resident_bytes() - before
        began = time.perf_counter()
        while True:
            await trio.sleep(0.1)
            if not index.is_busy:
                break
        print(f"  merges end {time.perf_counter() - began:.1f} s later")
        now = resident_bytes() - before
        print(f"  memory: peak {peak / 2**20:.1f} MiB, then {now / 2**20:.1f} MiB")
        print(f"  {index.statistics()}")
        await look_up(index, count, dice)
        await pop(index)
        late.report()
        nursery.cancel_scope.cancel()
    progress, pending, known = index.progress(), len(index), index.next_offset
    del index
    began, cpu = time.perf_counter(), time.process_time()
    index = new_index(directory, keys)
    await index.load(progress, 0, known)
    report("restart", pending, began, cpu)
    print(f"  {known - index.next_offset} records of the log are read again")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.run)
        await pop(index)
        nursery.cancel_scope.cancel()


async def look_up(index: TimerIndex, count: int, dice: random.Random) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(LOOKED_UP):
        assert next(index.cancelled_by(dice.getrandbits(64) | 1, number * count // LOOKED_UP), 1)
    report("look up tombstones", LOOKED_UP, began, cpu)
    if not index.keeps_keys:
        return
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(LOOKED_UP):
        offset = number * count // LOOKED_UP
        assert next(index.replaced_by(dice.getrandbits(64) | 1, offset), None) is None
    report("look up later records", LOOKED_UP, began, cpu)


async def pop(index: TimerIndex) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    count = min(POPPED, len(index) // 2)
    last = -1
    for number in range(count):
        due, _, _ = index.pop()
        assert due >= last
        last = due
        if not number % PER_SLICE:
            index.confirm(index.progress())
            await trio.lowlevel.checkpoint()
    index.confirm(index.progress())
    report("pop", count, began, cpu)


def report(what: str, count: int, began: float, cpu: float) -> None:
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    print(f"  {what}: {count} in {seconds:.2f} s (CPU {used:.2f} s), {count / used:,.0f}/CPU s")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
