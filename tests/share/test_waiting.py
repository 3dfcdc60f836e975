"""Records that become available wake as many fetches as they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from mqd.share.waiting import Waiter, Waiters

SECONDS = 100.0


@dataclass
class Queue:
    """A share partition with a number of available records, and fetches that want one each."""

    available: int = 0
    fetches: dict[Any, None] = field(default_factory=dict)
    """As those of a partition of the log."""
    attempts: int = 0
    acquired: int = 0

    def __post_init__(self) -> None:
        self.waiters = Waiters(self, lambda: self.available > 0)  # type: ignore[arg-type]

    async def fetch(self) -> None:
        waiter = Waiter()
        try:
            with trio.move_on_after(SECONDS):
                while True:
                    waiter.begin_attempt([self.waiters])
                    self.attempts += 1
                    if self.available:
                        self.available -= 1
                        self.acquired += 1
                        return
                    await waiter.wait(SECONDS)
        finally:
            waiter.leave()

    def log_grows(self, records: int) -> None:
        self.available += records
        for one in list(self.fetches):
            one.free()


async def started(queue: Queue, nursery: trio.Nursery, fetches: int) -> None:
    for _ in range(fetches):
        nursery.start_soon(queue.fetch)
    await trio.testing.wait_all_tasks_blocked()
    assert queue.attempts == fetches == len(queue.waiters)
    queue.attempts = 0


async def test_records_wake_as_many_fetches_as_get_some(autojump_clock: object) -> None:
    queue = Queue()
    async with trio.open_nursery() as nursery:
        await started(queue, nursery, 50)
        for records in (1, 3):
            queue.log_grows(records)
            await trio.testing.wait_all_tasks_blocked()
            assert queue.attempts == records
            queue.attempts = 0
        queue.available += 2  # such as a lock that ends
        queue.waiters.wake_one()
        await trio.testing.wait_all_tasks_blocked()
        assert (queue.acquired, queue.attempts) == (6, 2)
        assert len(queue.waiters) == 44
    assert trio.current_time() >= SECONDS and queue.attempts == 2, "the others have ended"


async def test_a_fetch_that_is_woken_and_ends_wakes_another(autojump_clock: object) -> None:
    queue = Queue()
    scope = trio.CancelScope()

    async def ends_early() -> None:
        with scope:
            await queue.fetch()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends_early)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(queue.fetch)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        queue.log_grows(1)  # wakes the first one
    assert queue.acquired == 1
    assert trio.current_time() < SECONDS


async def test_what_happens_during_an_attempt_is_not_missed() -> None:
    queue = Queue()
    waiter = Waiter()
    waiter.begin_attempt([queue.waiters])
    queue.log_grows(1)
    with trio.fail_after(1):
        await waiter.wait(SECONDS)
    assert waiter.is_woken


async def test_an_attempt_in_vain_wakes_nobody() -> None:
    """Or two fetches would wake each other for ever, for a record that neither may acquire."""
    queue = Queue(available=1)
    first, second = Waiter(), Waiter()
    for one in (first, second):
        one.begin_attempt([queue.waiters])
    with trio.move_on_after(0):
        await first.wait(SECONDS)
    first.leave()
    assert not second.is_woken
