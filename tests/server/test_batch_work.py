"""The order in which batches are decompressed and compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from mqd.io.disk import ArgumentsT, OsDisk, ResultT
from mqd.limits import KIB, MIB
from mqd.server.batch_work import BatchWork
from tests.server.rig import run_until_idle

Log = list[str]


class InLine(OsDisk):
    """`offload` in the event loop, after other tasks."""

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        await trio.lowlevel.checkpoint()
        return call(*args)


class FakeWork:
    def __init__(self, name: str, size: int, slices: int, log: Log) -> None:
        self.name = name
        self.size = size
        self.log = log
        self.given_up = False
        self.slices = self._run(slices)

    def _run(self, count: int) -> Iterator[None]:
        for number in range(count):
            self.log.append(self.name)
            if number < count - 1:
                yield

    def give_up(self) -> None:
        self.given_up = True


async def carry_out(
    batch_work: BatchWork,
    work: FakeWork,
    is_wanted: Callable[[], bool] = lambda: True,
    client: str = "",
) -> None:
    async with batch_work.done(work, client or f"10.0.0.1:{work.name}", is_wanted):
        work.log.append(f"{work.name} ends")


async def run_all(*works: FakeWork) -> None:
    batch_work = BatchWork(InLine())
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(carry_out, batch_work, work)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()


async def test_a_small_batch_waits_for_one_slice_of_a_large_one() -> None:
    log: Log = []
    await run_all(
        FakeWork("large", 16 * MIB, 20, log),
        FakeWork("other", 16 * MIB, 1, log),
        FakeWork("small", 20 * KIB, 1, log),
    )
    assert log.index("small ends") < 8
    assert log[-4:] == ["large", "large ends", "other", "other ends"]


async def test_small_batches_do_not_stop_a_large_one() -> None:
    log: Log = []
    smalls = [FakeWork(f"small {number}", KIB, 1, log) for number in range(40)]
    await run_all(FakeWork("large", MIB, 6, log), *smalls)
    assert log.index("large ends") < len(log) - 20


async def test_one_batch_of_each_class_has_begun() -> None:
    log: Log = []
    works = [FakeWork(f"{number}", 16 * MIB, 3, log) for number in range(3)]
    await run_all(*works)
    assert log == [name for work in works for name in (*[work.name] * 3, f"{work.name} ends")]


async def test_a_batch_that_grows_waits_for_others_of_its_new_size() -> None:
    log: Log = []
    grown = FakeWork("grown", KIB, 2, log)
    slices = grown.slices

    def growing() -> Iterator[None]:
        next(slices)
        grown.size = 16 * MIB
        yield
        yield from slices

    grown.slices = growing()
    await run_all(FakeWork("large", 16 * MIB, 10, log), grown)
    assert log.index("grown") < log.index("large ends") < log.index("grown ends")


async def test_nothing_is_done_for_closed_connections() -> None:
    log: Log = []
    batch_work = BatchWork(InLine())
    is_open = True
    begun = FakeWork("begun", MIB, 1000, log)
    waiting = [FakeWork("waiting", MIB, 10, log) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for work in (begun, *waiting):
            nursery.start_soon(carry_out, batch_work, work, lambda: is_open)
            await trio.lowlevel.checkpoint()
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        is_open = False
    assert all(work.given_up for work in (begun, *waiting))
    assert "waiting" not in log and log.count("begun") < 50


async def test_a_cancelled_batch_leaves_its_place_to_others() -> None:
    log: Log = []
    batch_work = BatchWork(InLine())
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as cancelled:
                for _ in range(2):
                    cancelled.start_soon(carry_out, batch_work, FakeWork("a", MIB, 100, log))
                await run_until_idle()
                nursery.start_soon(carry_out, batch_work, FakeWork("b", MIB, 3, log))
                scope.cancel()
    assert log[-4:] == ["b", "b", "b", "b ends"]


class Timed(InLine):
    """Each slice takes a second."""

    def __init__(self, clock: MockClock) -> None:
        super().__init__()
        self._clock = clock

    async def offload(
        self,
        call: Callable[[*ArgumentsT], ResultT],
        *args: *ArgumentsT,
        limiter: trio.CapacityLimiter | None = None,
    ) -> ResultT:
        await trio.lowlevel.checkpoint()
        self._clock.jump(1.0)
        return call(*args)


async def send_all(batch_work: BatchWork, client: str, count: int, log: Log) -> None:
    """A connection with one batch of four slices after the other."""
    for _ in range(count):
        await carry_out(batch_work, FakeWork(client, 4 * MIB, 4, log), client=client)


def places_of(log: Log, client: str) -> list[int]:
    """Which of all batches are those of one connection."""
    ends = [name for name in log if name.endswith("ends")]
    return [place for place, name in enumerate(ends) if name == f"{client} ends"]


@pytest.mark.parametrize(
    ("good", "first", "last"), [("10.0.0.2:1", 27, 34), ("10.0.0.1:1", 36, 63)]
)
async def test_a_client_with_few_batches_waits_for_few_others(
    mock_clock: MockClock, good: str, first: int, last: int
) -> None:
    """At another address than the flood, each batch waits for one or two. At the same address, it
    waits until each connection has used as much time.
    """
    log: Log = []
    batch_work = BatchWork(Timed(mock_clock))
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(send_all, batch_work, f"10.0.0.1:{100 + number}", 6, log)
        while len(log) < 5 * 25 + 1:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(send_all, batch_work, good, 4, log)
    places = places_of(log, good)
    assert places[0] <= first and places[-1] <= last
    assert not batch_work._of_clients.used and not batch_work._of_addresses.used


async def test_new_connections_do_not_stop_others(mock_clock: MockClock) -> None:
    """Each batch of the flood comes on a connection of its own."""
    log: Log = []
    batch_work = BatchWork(Timed(mock_clock))

    async def flood(number: int) -> None:
        for batch in range(10):
            await send_all(batch_work, f"10.0.0.1:{number}0{batch}", 1, log)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, batch_work, "10.0.0.1:1", 8, log)
        for number in range(10):
            nursery.start_soon(flood, number)
    assert places_of(log, "10.0.0.1:1")[-1] < 95, "each new connection goes first"
    assert not batch_work._of_clients.used
