"""The garbage collector of a node: pauses are in proportion to new objects, and cycles are found
anyway.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
import trio.testing

from mqd.io.garbage import Garbage

OLD_MAX = 60_000
"""Objects that a collection may have to visit: a few young generations, and the objects of one
step.
"""


class Node:
    """An object that can refer to itself."""


@pytest.fixture(autouse=True)
def thresholds_of_cpython() -> object:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def collect() -> None:
    garbage = Garbage()
    with garbage.begun():
        await garbage.run()


async def test_no_collection_visits_long_lived_objects(nursery: trio.Nursery) -> None:
    nursery.start_soon(collect)
    await trio.testing.wait_all_tasks_blocked()
    held = []
    longest = 0
    for _ in range(30):
        held.append([[number] for number in range(20_000)])
        await trio.lowlevel.checkpoint()
        longest = max(longest, len(gc.get_objects(generation=2)))
    assert gc.get_freeze_count() > 400_000
    assert longest < OLD_MAX, "a full collection would have visited them"
    nursery.cancel_scope.cancel()


async def test_the_objects_of_a_start_are_collected_in_small_steps() -> None:
    """Before `run`: a node that starts loads its logs and opens its partitions."""
    held = []
    longest = 0
    with Garbage().begun():
        for _ in range(30):
            held.append([[number] for number in range(20_000)])
            await trio.lowlevel.checkpoint()
            longest = max(longest, len(gc.get_objects(generation=2)))
    assert longest < OLD_MAX


async def test_a_cycle_that_survived_is_found(nursery: trio.Nursery) -> None:
    nursery.start_soon(collect)
    await trio.testing.wait_all_tasks_blocked()
    node: Any = Node()
    node.itself = node
    found = weakref.ref(node)
    gc.collect(1)  # it survives: it is in the oldest generation
    del node
    held = []
    for _ in range(10):
        held.append([[number] for number in range(20_000)])
        await trio.lowlevel.checkpoint()
    assert found() is None
    nursery.cancel_scope.cancel()


async def test_frozen_cycles_are_found_when_the_frozen_objects_are_many(
    nursery: trio.Nursery, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqd.io.garbage._FROZEN_GROWTH_MIN", 0)
    monkeypatch.setattr("mqd.io.garbage._FROZEN_GROWTH_FACTOR", 1)
    nursery.start_soon(collect)
    await trio.testing.wait_all_tasks_blocked()
    node: Any = Node()
    node.itself = node
    found = weakref.ref(node)
    held = []
    for _ in range(10):
        held.append([[number] for number in range(20_000)])
        await trio.lowlevel.checkpoint()
    del node
    assert found() is not None, "frozen"
    await trio.sleep(61)
    assert found() is None
    nursery.cancel_scope.cancel()


async def test_it_restores_its_changes(nursery: trio.Nursery) -> None:
    nursery.start_soon(collect)
    await trio.testing.wait_all_tasks_blocked()
    assert gc.get_threshold()[2] > 10
    nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert gc.get_threshold() == (700, 10, 10)
