"""The garbage collector of a node: pauses are in proportion to new objects, and cycles are found
anyway.

The scenarios run in one process of their own, as a node does. In the process of the suite, each of
them would visit the objects of all collected tests several times.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import traceback
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mqd.io import garbage
from mqd.io.garbage import Garbage

OLD_MAX = 60_000
"""Objects that a collection may have to visit: a few young generations, and the objects of one
step.
"""
THRESHOLDS = (700, 10, 10)
"""The defaults of CPython."""


class Node:
    """An object that can refer to itself."""


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    async def collect() -> None:
        collector = Garbage()
        with collector.begun():
            await collector.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def no_collection_visits_long_lived_objects() -> None:
    async with collecting():
        held = []
        longest = 0
        for _ in range(30):
            held.append([[number] for number in range(20_000)])
            await trio.lowlevel.checkpoint()
            longest = max(longest, len(gc.get_objects(generation=2)))
        assert gc.get_freeze_count() > 400_000
        assert longest < OLD_MAX, "a full collection would have visited them"


async def the_objects_of_a_start_are_collected_in_small_steps() -> None:
    """Before `run`: a node that starts loads its logs and opens its partitions."""
    held = []
    longest = 0
    with Garbage().begun():
        for _ in range(30):
            held.append([[number] for number in range(20_000)])
            await trio.lowlevel.checkpoint()
            longest = max(longest, len(gc.get_objects(generation=2)))
    assert longest < OLD_MAX, longest


async def a_cycle_that_survived_is_found() -> None:
    async with collecting():
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


async def frozen_cycles_are_found_when_the_frozen_objects_are_many() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage, "_FROZEN_GROWTH_MIN", 0)
        patch.setattr(garbage, "_FROZEN_GROWTH_FACTOR", 1)
        async with collecting():
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


async def it_restores_its_changes() -> None:
    async with collecting():
        assert gc.get_threshold()[2] > THRESHOLDS[2]
    assert gc.get_threshold() == THRESHOLDS


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        no_collection_visits_long_lived_objects,
        the_objects_of_a_start_are_collected_in_small_steps,
        a_cycle_that_survived_is_found,
        frozen_cycles_are_found_when_the_frozen_objects_are_many,
        it_restores_its_changes,
    )
}


def run_all() -> dict[str, str]:
    """Scenario -> the traceback of its failure, or nothing."""
    failures = {}
    gc.set_threshold(*THRESHOLDS)  # those of Python 3.13 are others
    for name, scenario in SCENARIOS.items():
        assert gc.get_threshold() == THRESHOLDS
        try:
            trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
            failures[name] = ""
        except Exception:
            failures[name] = traceback.format_exc()
    return failures


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_garbage_collection"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_a_process_of_its_own(scenario: str, failures: dict[str, str]) -> None:
    assert failures[scenario] == ""


if __name__ == "__main__":
    print(json.dumps(run_all()))
