"""A defect in a task of the client fails a simulated run, although its programs catch
ClientError and carry on.
"""

from __future__ import annotations

import pytest

from mqd.client.producer import Producer
from mqd.testing.runner import run_seed
from mqd.testing.settings import Settings


def test_a_crash_of_a_client_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    sends = 0
    intact = Producer._send_batches

    async def broken(*args: object) -> None:
        nonlocal sends
        sends += 1
        if sends == 20:
            raise ZeroDivisionError("a defect")
        await intact(*args)  # type: ignore[arg-type]  # the arguments of any call

    monkeypatch.setattr(Producer, "_send_batches", broken)
    violations = run_seed(Settings(0, seconds=4.0)).violations
    assert any("a client crashed: ZeroDivisionError" in each for each in violations), violations
