"""The time of a task counts against the request quota of its client (KIP-124)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from mqd.server.charged import charged
from tests.nodes import ask, connected, create_topic, node

TOPICS = 40
REQUESTS_MAX = 200


async def test_only_the_steps_of_the_task_are_charged() -> None:
    now = 0.0
    steps: list[float] = []

    async def work() -> str:
        nonlocal now
        now += 1
        await trio.lowlevel.checkpoint()
        now += 2
        with trio.move_on_after(0):
            await trio.sleep_forever()
        now += 4
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
        return "done"

    async def others() -> None:
        nonlocal now
        now += 100

    assert await charged(work, steps.append, lambda: now) == "done"
    assert sum(steps) == 7


async def test_an_exception_passes_and_its_step_is_charged() -> None:
    steps: list[float] = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await charged(work, steps.append, time.monotonic)
    assert len(steps) == 2
    with trio.move_on_after(0) as scope:
        await charged(trio.sleep_forever, steps.append, time.monotonic)
    assert scope.cancelled_caught


async def test_requests_that_run_in_tasks_are_throttled(tmp_path: Path) -> None:
    async with node(tmp_path) as running, connected(running) as client:
        for number in range(TOPICS):
            await create_topic(client, f"topic-{number}")
        entry = {
            "entity": [{"entity_type": "user", "entity_name": "ANONYMOUS"}],
            "ops": [{"key": "request_percentage", "value": 1.0, "remove": False}],
        }
        await ask(client, "alter_client_quotas", 1, {"entries": [entry], "validate_only": False})
        resources = [
            {"resource_type": 2, "resource_name": f"topic-{number}", "configuration_keys": None}
            for number in range(TOPICS)
        ]
        for _ in range(REQUESTS_MAX):
            answer = await ask(client, "describe_configs", 4, {"resources": resources})
            if answer.throttle_time_ms:
                return
        raise AssertionError("no request was throttled")
