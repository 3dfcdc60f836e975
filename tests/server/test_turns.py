"""Turns by address."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.server.turns import TurnsByAddress


async def in_turn(turns: TurnsByAddress, address: str, begun: list[str], end: trio.Event) -> None:
    async with turns.turn(address):
        begun.append(address)
        await end.wait()


async def order_of(addresses: Sequence[str], cancelled: Sequence[int] = ()) -> list[str]:
    """Tasks of these addresses wait in this order. The addresses in the order of their turns."""
    turns, ends = TurnsByAddress(), [trio.Event() for _ in addresses]
    begun: list[str] = []
    end = trio.Event()
    scopes = [trio.CancelScope() for _ in addresses]

    async def task(number: int) -> None:
        with scopes[number]:
            await in_turn(turns, addresses[number], begun, end)
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
async def test_a_cancelled_task_passes_its_turn(cancelled: Sequence[int]) -> None:
    begun = await order_of("AAAAAB", cancelled)
    expected = [one for number, one in enumerate("AAAAAB") if number not in cancelled or not number]
    assert sorted(begun) == sorted(expected)


async def test_a_task_that_is_cancelled_as_its_turn_begins() -> None:
    turns, end = TurnsByAddress(), trio.Event()
    begun: list[str] = []
    first, second = trio.Event(), trio.CancelScope()

    async def cancelled() -> None:
        with second:
            await in_turn(turns, "A", begun, end)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_turn, turns, "A", begun, first)
        await wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await wait_all_tasks_blocked()
        nursery.start_soon(in_turn, turns, "B", begun, end)
        await wait_all_tasks_blocked()
        first.set()
        second.cancel()
        await wait_all_tasks_blocked()
        assert begun == ["A", "B"]
        end.set()
    async with turns.turn("C"):
        pass
