"""When a relay that writes nothing is logged."""

from __future__ import annotations

import pytest
import trio

from mqd.client import open_producer
from mqd.client.admin import Admin
from mqd.relay import delay_relay
from mqd.relay.stall import PATIENCE_SECONDS, WARN_EVERY_SECONDS, Stall
from mqd.testing import Cluster, simulated
from tests.relay.test_delay_topics import TARGET, arrived, make_topics


def test_failures_are_logged_after_some_time_and_seldom() -> None:
    stall = Stall()
    assert stall.failed(100.0) is None and stall.failed(100.0 + PATIENCE_SECONDS / 2) is None
    warned_at = 100.0 + PATIENCE_SECONDS
    assert stall.failed(warned_at) == PATIENCE_SECONDS
    assert stall.failed(warned_at + WARN_EVERY_SECONDS - 1) is None
    assert stall.failed(warned_at + WARN_EVERY_SECONDS) is not None
    assert stall.ended() and not stall.ended()
    assert stall.failed(warned_at + WARN_EVERY_SECONDS) is None, "begins again"
    assert not stall.ended(), "was not logged"


@simulated(seed=3)
async def test_a_deleted_target_is_logged_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(
            delay_relay.logger, level, lambda text, *args: lines.append(text % args)
        )
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        admin = Admin(client)
        await admin.delete_topics(["orders"])
        async with open_producer(client) as producer:
            await producer.send("orders.delay", b"v", delay=0.1)
        await trio.sleep(20)
        [line] = [each for each in lines if "relay is stuck" in each]
        assert "'orders' does not exist" in line and "create the topic" in line, line
        await admin.create_topic("orders", 1, 1)
        with trio.fail_after(30):
            assert len(await arrived(client, TARGET, 1)) == 1
        await trio.sleep(1)
        assert lines[-1] == "relay resumes partition=orders.delay-0"
