"""The fair lock: which address gets it next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.server.address_fair_lock import AddressFairLock


async def holding(lock: AddressFairLock, address: str, begun: list[str], end: trio.Event) -> None:
    async with lock.held(address):
        begun.append(address)
        await end.wait()


async def order_of(addresses: Sequence[str], cancelled: Sequence[int] = ()) -> list[str]:
    """Tasks of these addresses wait in this order. Returns the order in which they got the lock."""
    lock, ends = AddressFairLock(), [trio.Event() for _ in addresses]
    begun: list[str] = []
    end = trio.Event()
    scopes = [trio.CancelScope() for _ in addresses]

    async def task(number: int) -> None:
        with scopes[number]:
            await holding(lock, addresses[number], begun, end)
        ends[number].set()

    async with trio.open_nursery() as nursery:
        for number in range(len(addresses)):
            nursery.start_soon(task, number)
            await wait_all_tasks_blocked()
        assert begun == [addresses[0]]
        for number in cancelled:
            scopes[number].cancel()
        await wait_all_tasks_blocked()
        end.set()
    assert all(one.is_set() for one in ends)
    return begun


async def test_a_client_waits_for_one_task_of_each_other_address() -> None:
    assert await order_of("AAAAABAAC") == list("AABCAAAAA")


@pytest.mark.parametrize("cancelled", [(0,), (1,), (5,), (0, 1, 5), (1, 2, 3, 4)])
async def test_a_cancelled_task_leaves_the_lock_to_others(cancelled: Sequence[int]) -> None:
    begun = await order_of("AAAAAB", cancelled)
    expected = [one for number, one in enumerate("AAAAAB") if number not in cancelled or not number]
    assert sorted(begun) == sorted(expected)


async def test_a_task_that_is_cancelled_as_it_gets_the_lock() -> None:
    lock, end = AddressFairLock(), trio.Event()
    begun: list[str] = []
    first, second = trio.Event(), trio.CancelScope()

    async def cancelled() -> None:
        with second:
            await holding(lock, "A", begun, end)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(holding, lock, "A", begun, first)
        await wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await wait_all_tasks_blocked()
        nursery.start_soon(holding, lock, "B", begun, end)
        await wait_all_tasks_blocked()
        first.set()
        second.cancel()
        await wait_all_tasks_blocked()
        assert begun == ["A", "B"]
        end.set()
    async with lock.held("C"):
        pass
