"""When a relay that writes nothing is logged."""

from __future__ import annotations

import re

import pytest
import trio

from mqd.client import open_producer
from mqd.client.admin import Admin
from mqd.client.descriptions import NewTopic
from mqd.errors import ErrorCode, MqError
from mqd.relay import delay_relay
from mqd.relay.stall import PATIENCE_SECONDS, WARN_EVERY_SECONDS, Stall, remedy_of
from mqd.testing import Cluster, run, simulated
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
    assert stall.note() and not stall.note(), "only the first failure is logged"
    stall.ended()
    stall.failed(0.0)
    assert stall.failed(PATIENCE_SECONDS) and not stall.note(), "the warning was logged"


def test_each_cause_has_a_remedy() -> None:
    for code, remedy in {
        ErrorCode.LEADER_NOT_AVAILABLE: "start the brokers",
        ErrorCode.NOT_ENOUGH_REPLICAS: "min.insync.replicas",
        ErrorCode.KAFKA_STORAGE_ERROR: "free disk space",
        ErrorCode.CONCURRENT_TRANSACTIONS: "an earlier transaction cannot end",
        ErrorCode.UNKNOWN_SERVER_ERROR: "see `mqctl cluster health`",
    }.items():
        assert remedy in remedy_of(MqError(code))


def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(
            delay_relay.logger, level, lambda text, *args: lines.append(text % args)
        )
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 6))
@pytest.mark.parametrize(
    ("replicas", "cause"), [([3], "LEADER_NOT_AVAILABLE"), ([1, 3], "NOT_ENOUGH_REPLICAS")]
)
def test_a_target_without_its_brokers_is_logged_with_cause_and_remedy(
    monkeypatch: pytest.MonkeyPatch, replicas: list[int], cause: str, seed: int
) -> None:
    lines = log_lines(monkeypatch)

    async def check() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            admin = Admin(client)
            few = {"min.insync.replicas": str(len(replicas))}
            await admin.create_topics([NewTopic("orders", configs=few, assignments={0: replicas})])
            delays = {"mqd.delay.target": "orders"}
            await admin.create_topics(
                [NewTopic("orders.delay", configs=delays, assignments={0: [1, 2]})]
            )
            async with open_producer(client) as producer:
                with trio.fail_after(30):
                    await producer.send("orders.delay", b"v")
                    await arrived(client, TARGET, 1)
                cluster.nodes[3].kill()
                await trio.sleep(10)
                await producer.send("orders.delay", b"v")
            await trio.sleep(60)
            [line] = [each for each in lines if "relay is stuck" in each]
            assert "partition=orders.delay-0 target=orders seconds=" in line
            _, reason, remedy = re.split("reason=|remedy=", line)
            assert cause in reason and "orders-0" in reason and "start the brokers" in remedy, line
            lines.clear()
            await cluster.nodes[3].start()
            with trio.fail_after(30):
                assert len(await arrived(client, TARGET, 2)) == 2
            await trio.sleep(1)
            assert lines == ["relay resumes partition=orders.delay-0"]

    run(check, seed=seed)


@simulated(seed=3)
async def test_a_deleted_target_is_logged_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = log_lines(monkeypatch)
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        admin = Admin(client)
        await admin.delete_topics(["orders"])
        async with open_producer(client) as producer:
            await producer.send("orders.delay", b"v", delay=0.1)
        await trio.sleep(20)
        again, line = lines
        assert "relay begins again" in again and "relay is stuck" in line
        assert "'orders' does not exist" in line and "create the topic" in line, line
        await admin.create_topic("orders", 1, 1)
        with trio.fail_after(30):
            assert len(await arrived(client, TARGET, 1)) == 1
        await trio.sleep(1)
        assert lines[-1] == "relay resumes partition=orders.delay-0"
