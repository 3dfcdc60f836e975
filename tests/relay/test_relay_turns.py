"""The relays of one partition use its timer files one after another."""

from __future__ import annotations

import trio
import trio.testing

from mqd.relay.service import Turns
from mqd.types import TopicPartition

PLACE = TopicPartition("orders.delay", 0)


async def test_a_relay_begins_when_the_one_before_has_ended() -> None:
    turns = Turns()
    seen: list[str] = []
    thread_ends = trio.Event()

    async def cancelled(scope: trio.CancelScope) -> None:
        async with turns.turn(PLACE):
            with scope:
                seen.append("first begins")
                with trio.CancelScope(shield=True):  # as a call in a worker thread
                    await thread_ends.wait()
                await trio.sleep_forever()
            seen.append("first ends")

    async def following(name: str) -> None:
        async with turns.turn(PLACE):
            seen.append(name)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(cancelled, scope)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            nursery.start_soon(following, "second")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(following, "third")
            async with turns.turn(TopicPartition("orders.delay", 1)):
                seen.append("another partition")
            await trio.testing.wait_all_tasks_blocked()
            thread_ends.set()
    assert seen == ["first begins", "another partition", "first ends", "second", "third"]
    assert not turns.ends
