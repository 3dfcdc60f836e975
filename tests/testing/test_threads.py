"""Work in a thread pauses at calls of its disk; the event loop runs meanwhile."""

from __future__ import annotations

import random
from _thread import LockType
from pathlib import Path
from typing import cast

import pytest
import trio

from mqd.testing import current_world, run
from mqd.testing.disk import MemoryDisk
from mqd.testing.inodes import Directory
from mqd.testing.process import Killed, Process
from mqd.testing.process_disk import ProcessDisk
from mqd.testing.threads import Work

FILE = Path("/f")


class Machine:
    """Inside a world."""

    def __init__(self) -> None:
        world = current_world()
        self.clock = world.clock
        self.process = Process(1, "node 1", world.clock)
        self.disk = MemoryDisk(1, world.clock, world.random("disk"))
        self.seen = ProcessDisk(self.disk, self.process)

    def write_two(self) -> None:
        """Work: its two writes are adjacent when nothing runs between them."""
        file = self.seen.open(FILE, create=True)
        file.append([b"1"])
        file.append([b"2"])

    def written(self) -> bytes:
        found = self.disk.find(FILE)
        assert not isinstance(found, Directory)
        return b"" if found is None else bytes(found.data)


async def seen_by_the_loop() -> tuple[bytes, bool, bool]:
    """What a task observes while work writes: partial results; whether all of it was done at once;
    whether it was done at the end.
    """
    machine = Machine()
    done = half = b""
    at_once = late = False

    async def look() -> None:
        nonlocal half, late
        while not done:
            if machine.written() == b"1":
                half = b"1"
            late = machine.written() == b""
            await trio.sleep(0.00001)

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        machine.clock.after(0.000001, lambda: None)
        nursery.start_soon(look)
        await machine.seen.offload(machine.write_two)
        done = machine.written()
        at_once = trio.current_time() == began
    assert done == b"12" and not at_once
    return half, late, at_once


def test_some_seeds_let_the_loop_see_partial_work() -> None:
    found = [run(seen_by_the_loop, seed=seed) for seed in range(40)]
    assert {half for half, *_ in found} == {b"", b"1"}
    assert {late for _, late, _ in found} == {False, True}, (
        "the work may be done when it begins, or only when it ends"
    )
    assert found == [run(seen_by_the_loop, seed=seed) for seed in range(40)], (
        "the same seed gives the same order"
    )


async def killed_at_work() -> bytes:
    machine = Machine()
    machine.clock.after(machine.clock.now % 1 + 0.0005, machine.process.end)
    with pytest.raises(Killed):
        while True:
            machine.disk.root.names.clear()
            await machine.seen.offload(machine.write_two)
    left = machine.written()
    await trio.sleep(1.0)
    assert machine.written() == left, "a dead process writes nothing more"
    return left


def test_death_ends_work_at_its_next_call() -> None:
    assert {run(killed_at_work, seed=seed) for seed in range(80)} == {b"", b"1", b"12"}


async def killed_in_a_write() -> bool:
    """The end of a process cancels tasks, which only the loop's thread may do.

    Returns whether another thread was in the write.
    """
    machine = Machine()
    loop = trio.lowlevel.current_trio_token()
    scope = trio.CancelScope()

    def die() -> None:
        assert trio.lowlevel.current_trio_token() is loop
        machine.process.end()
        scope.cancel()

    machine.disk.cut_in_write(1, die)
    with scope, pytest.raises(Killed):
        await machine.seen.offload(machine.write_two)
    return machine.process.alive


def test_a_process_dies_in_the_middle_of_a_write_of_its_work() -> None:
    assert not any(run(killed_in_a_write, seed=seed) for seed in range(40))


async def fails() -> None:
    machine = Machine()

    def work() -> None:
        machine.seen.exists(FILE)
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await machine.seen.offload(work)


def test_an_exception_of_the_work_reaches_its_caller() -> None:
    for seed in range(20):
        run(fails, seed=seed)


class _TimesOut:
    """A baton whose taking a timeout of a test interrupts."""

    def acquire(self) -> None:
        raise TimeoutError

    def release(self) -> None: ...


def test_work_that_a_time_out_interrupts_does_not_stop_later_work() -> None:
    interrupted: Work[int] = Work(lambda: 1, random.Random(1))
    interrupted._thread.back = cast(LockType, _TimesOut())
    with pytest.raises(TimeoutError):
        interrupted.resume()
    interrupted.finish()
    later = Work(lambda: 2, random.Random(1))
    later.finish()
    assert later.result() == 2
