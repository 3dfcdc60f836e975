"""`mqctl retry setup`: what is refused leaves no topic behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqd.client import connect, open_producer
from tests.nodes import node
from tests.ran import Ran

from .real import Mqctl


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--back-off", ""], "no delay"),
        (["--back-off", " , "], "is not a time"),
        (["--back-off", "5x"], "'5x' is not a time"),
        (["--back-off", "1s", "--dlq", "orders"], "three different topics"),
        (["--back-off", "1s", "--retry-topic", "orders"], "three different topics"),
        (["--back-off", "1s", "--retry-topic", "a", "--dlq", "a"], "three different topics"),
    ],
)
def test_refused_without_a_request(
    mqctl: Callable[..., Ran], arguments: list[str], problem: str
) -> None:
    ran = mqctl("retry", "setup", "orders", *arguments)
    assert ran.code == 2 and problem in ran.err


@pytest.mark.slow
@pytest.mark.timeout(180)  # many processes
async def test_a_refused_setup_creates_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        mqctl = Mqctl(f"127.0.0.1:{running.port}")
        for name in ("orders", "taken"):
            await mqctl("topic", "create", name)
        await mqctl("group", "config", "set", "g", "share.auto.offset.reset=earliest")
        async with connect(mqctl.address) as client, open_producer(client) as producer:
            await producer.send("orders", b"v")
        await mqctl("consume", "orders", "--share-group", "g", "-n1")
        internal = "__share_group_state"
        setup = ["--back-off", "1s"]
        found = await mqctl("retry", "setup", internal, *setup, fails=True)
        assert f"topic '{internal}' is internal" in found
        refused = ["retry", "setup", "orders", *setup, "--retry-topic", "not a name"]
        assert "not a name" in await mqctl(*refused, fails=True)
        taken = await mqctl(
            "retry", "setup", "orders", *setup, "--retry-topic", "taken", fails=True
        )
        assert "mqd.retry.backoff cannot be changed" in taken and "--retry-topic" in taken
        assert "nowhere" in await mqctl("retry", "setup", "nowhere", *setup, fails=True)
        topics = await mqctl.rows("topic", "list")
        assert sorted(row["topic"] for row in topics) == ["orders", "taken"]
