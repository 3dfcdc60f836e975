"""One seed, one history; time is virtual; and the real world is never accessed."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from typing import Any

import pytest
import trio
import trio.testing
from trio._core import _run as trio_run

import mqd.testing
from mqd.client.admin import Admin
from mqd.client.producer import open_producer
from mqd.testing import Cluster, current_world, run, simulated
from mqd.testing.scheduler import NothingLeft


async def nap(seconds: float) -> float:
    before = trio.current_time()
    await trio.sleep(seconds)
    return trio.current_time() - before


def test_a_day_passes_in_no_time() -> None:
    began = time.monotonic()
    assert run(nap, 86_400.0) == pytest.approx(86_400, abs=1e-3)
    assert time.monotonic() - began < 5


def test_a_task_that_never_waits_does_not_stop_the_clock() -> None:
    async def spin() -> None:
        with trio.move_on_after(0.01):
            while True:
                await trio.lowlevel.checkpoint()

    run(spin)


def test_waiting_for_an_impossible_event_is_an_error() -> None:
    with pytest.raises(NothingLeft):
        run(trio.Event().wait)


def test_wait_all_tasks_blocked_comes_before_any_time_passes() -> None:
    async def main() -> float:
        before = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            return trio.current_time() - before

    assert run(main) < 0.01


def test_an_event_that_raises_ends_the_run_with_its_exception_and_the_seed() -> None:
    def explode() -> None:
        raise ValueError("boom")

    async def main() -> None:
        current_world().clock.after(1, explode)
        await trio.sleep(5)

    with pytest.raises(ValueError, match="boom") as caught:
        run(main, seed=77)
    assert any("seed 77, at 1.0" in note for note in caught.value.__notes__)
    assert any(
        note.startswith("again: python -m pytest 'tests/testing/test_world.py::")
        for note in caught.value.__notes__
    )


def test_the_scheduler_is_given_back() -> None:
    before = trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    run(nap, 1.0)
    assert (trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING) == before


def test_a_cluster_outside_of_run_names_the_remedy() -> None:
    with pytest.raises(RuntimeError, match=r"mqd\.testing\.run"):
        Cluster(nodes=1)


@simulated(seed=3)
async def test_a_test_can_be_decorated_and_gets_its_fixtures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    assert current_world().seed == 3


def test_the_example_in_the_documentation_runs() -> None:
    assert mqd.testing.__doc__ is not None
    example = mqd.testing.__doc__.partition("there:\n")[2].partition("`run` is")[0]
    exec(textwrap.dedent(example), {})


async def busy_cluster() -> str:
    """A cluster with load and faults: the same seed must give the same result."""
    async with Cluster(nodes=3) as cluster:
        chance = cluster.world.random("faults")
        client = await cluster.client(request_timeout_s=2)
        await Admin(client).create_topic("t", 3, 1)

        async def produce() -> None:
            async with open_producer(client, delivery_timeout_s=4) as producer:
                while True:
                    try:
                        await producer.send(
                            "t", b"v" * chance.randrange(1000), partition=chance.randrange(3)
                        )
                    except mqd.errors.MqError:
                        pass
                    await trio.sleep(0.02)

        with trio.move_on_after(6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                for what in (
                    "kill",
                    "power_cut",
                    "pause",
                    "isolate",
                    "kill_in_write",
                    "power_cut_in_write",
                ):
                    node = cluster.nodes[chance.randrange(3) + 1]
                    match what:
                        case "pause":
                            node.pause(0.5)
                        case "isolate":
                            cluster.network.isolate(node.id)
                        case _:
                            getattr(node, what)()
                    await trio.sleep(chance.random())
                    cluster.network.heal()
                    for one in cluster.nodes.values():
                        await one.start(wait=False)
        return f"{cluster.trace.digest} {cluster.world.steps.steps} {cluster.time!r}"


def test_the_same_seed_gives_the_same_history_with_any_hash_seed() -> None:
    script = (
        "from tests.testing.test_world import busy_cluster; from mqd.testing import "
        "run; print(run(busy_cluster, seed=5))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert elsewhere.stdout == run(busy_cluster, seed=5) + "\n"


def test_another_seed_gives_another_history() -> None:
    assert run(busy_cluster, seed=1) != run(busy_cluster, seed=2)


def test_the_real_world_is_not_accessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(module: Any, name: str) -> Any:
        real = getattr(module, name)

        def refuse(*args: Any, **keywords: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"] == "logging":
                return real(*args, **keywords)  # the time of a log record, which no code reads
            raise AssertionError(f"the real world was reached: {name}{args}")

        return refuse

    async def main() -> None:
        with monkeypatch.context() as patched:
            for module, name in (
                (threading.Thread, "start"),
                (socket, "socket"),
                (select, "epoll"),
                (time, "time"),
                (time, "time_ns"),
                (time, "monotonic"),
                (time, "perf_counter"),
                (time, "sleep"),
                (os, "urandom"),
                (os, "open"),
                (uuid, "uuid4"),
                (random, "_urandom"),
                (random, "random"),
                (trio.to_thread, "run_sync"),
            ):
                patched.setattr(module, name, refusing(module, name))
            await busy_cluster()

    run(main, seed=4)
