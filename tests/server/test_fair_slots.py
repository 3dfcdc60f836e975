"""Slots for administrative requests: a client that sends little does not wait for those that send
much.
"""

from __future__ import annotations

import trio
import trio.testing

from mqd.server.fair_slots import FairSlots


async def repeat(slots: FairSlots, key: str, seconds: float, served: list[str]) -> None:
    while True:
        async with slots.slot(key):
            await trio.sleep(seconds)
            served.append(key)


async def test_a_new_key_goes_before_those_that_used_much(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots = FairSlots(2)
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(repeat, slots, f"attacker-{number}", 0.05, served)
        await trio.sleep(10)
        for _ in range(20):
            began = trio.current_time()
            async with slots.slot("good"):
                pass
            assert trio.current_time() - began <= 0.1
            await trio.sleep(0.3)
        nursery.cancel_scope.cancel()
    counts = [served.count(f"attacker-{number}") for number in range(50)]
    assert max(counts) - min(counts) <= 2


async def test_a_cancelled_task_leaves_no_slot_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots = FairSlots(1)
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat, slots, "a", 1.0, served)
        await trio.sleep(0.5)
        with trio.move_on_after(0.1):
            async with slots.slot("b"):
                raise AssertionError("the slot is taken")
        with trio.move_on_after(0.5):  # cancelled when its turn has come
            async with slots.slot("c"):
                await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    with trio.fail_after(1):
        async with slots.slot("d"):
            pass


async def test_keys_are_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    slots = FairSlots(1)
    for number in range(5000):
        async with slots.slot(f"key-{number}"):
            await trio.sleep(0.5)
    assert len(slots._used) < 1000
