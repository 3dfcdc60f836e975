"""`mqctl retry`, `delay` and `dlq` on a real node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.client import connect, open_producer
from mqd.coordinator.txn.marker_sender import MarkerSender
from mqd.coordinator.txn.operations import WriteMarkers
from tests.nodes import node

from .real import Mqctl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # many processes


async def test_commands(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        address = f"127.0.0.1:{running.port}"

        messages: list[str] = []

        async def mqctl(*arguments: str, fails: bool = False) -> Any:
            """The output, from JSON if there is any."""
            command = [sys.executable, "-m", "mqctl", *arguments, "-b", address, "-o", "json"]
            ran = await trio.run_process(
                command, capture_stdout=True, stderr=subprocess.STDOUT, check=False
            )
            text = ran.stdout.decode()
            assert bool(ran.returncode) == fails, text
            message, _, rows = text.partition("\n[")  # after a message
            messages.append(message)
            text = f"[{rows}" if rows.strip(" ]\n") else text
            return json.loads(text) if text[:1] in "[{" else text

        async def listed(count: int, *arguments: str) -> Any:
            with trio.fail_after(30):
                while True:
                    found = await mqctl(*arguments)
                    if isinstance(found, list) and len(found) == count:
                        return found
                    await trio.sleep(0.05)

        await mqctl("topic", "create", "orders")
        remedy = "mqctl topic create orders.delay -c mqd.delay.target=orders"
        assert remedy in await mqctl("delay", "list", "orders", fails=True)
        await mqctl("retry", "setup", "orders", "--back-off", "1s,1m")
        await mqctl("topic", "create", "orders.delay", "-p3", "-c", "mqd.delay.target=orders")
        async with connect(address) as client, open_producer(client) as producer:
            for partition in range(3):  # as producers with another partitioner
                await producer.send("orders.delay", b"v", key=b"a", delay=3600, partition=partition)
            await producer.send("orders.delay", b"v", key=b"b", delay=3600)
            failed = [("mqd-attempts", b"2"), ("mqd-due", b"1"), ("mqd-cron-since", b"7")]
            await producer.send("orders.retry", b"v", key=b"c", headers=failed)
        pending = await listed(4, "delay", "list", "orders.delay")
        assert [row["key"] for row in pending] == ["a", "a", "a", "b"]
        done = await mqctl("delay", "cancel", "orders.delay", "--key", "a")
        assert "each of 3 partitions" in done
        [row] = await listed(1, "delay", "list", "orders.delay")
        assert row["key"] == "b"
        assert (row["schedule"], row["expires"]) == (None, False)
        unset = ("topic", "config", "unset", "orders.delay", "mqd.delay.target")
        await mqctl(*unset)
        assert "warning: 1 records of orders.delay are pending" in messages[-1]
        assert "mqctl topic config set orders.delay mqd.delay.target=orders" in messages[-1]
        await mqctl(*unset)
        assert "warning: pending records were not counted" not in messages[-1]
        await mqctl("topic", "create", "plans", "-c", "mqd.delay.target=orders")
        async with connect(address) as client, open_producer(client) as producer:
            january = [("mqd-cron", b"0 0 1 1 *"), ("mqd-ttl", b"5")]
            await producer.send("plans", b"v", key=b"c", headers=january)
            await producer.send("plans", b"v", headers=[("mqd-delay", b"90000"), ("mqd-ttl", b"1")])
        short, yearly = await listed(2, "delay", "list", "plans")
        assert (short["schedule"], short["expires"]) == (None, True)
        assert (yearly["schedule"], yearly["expires"]) == ("0 0 1 1 *", False)
        [letter] = await listed(1, "dlq", "list", "orders.dlq")
        assert letter["cause"] == "no attempts left" and letter["from"] == "orders.retry-0@0"
        [row] = await mqctl("delay", "describe", "orders.retry")
        assert row.pop("first_pending") in (0, 1), "committed every few seconds"
        assert row == {
            "partition": 0,
            "relayed": 0,
            "cancelled": 0,
            "expired": 0,
            "failed": 1,
            "overdue": 0,
        }
        await mqctl("group", "config", "set", "g", "errors.deadletterqueue.topic.name=nope")
        await mqctl("consume", "orders", "--share-group", "g", "--idle", "1")
        await mqctl("topic", "create", "gone")
        await mqctl("topic", "create", "gone.delay", "-c", "mqd.delay.target=gone")
        await mqctl("topic", "delete", "gone", "--yes")
        async with connect(address) as client, open_producer(client) as producer:
            await producer.send("gone.delay", b"v", deliver_at=10**12)
            await producer.send("gone.delay", b"v", delay=3600)
        [row] = await listed(1, "delay", "describe", "gone.delay")
        assert (row["overdue"], row["relayed"]) == (1, 0)
        health = await mqctl("cluster", "health", fails=True)
        [finding] = [each for each in health["findings"] if each["check"] == "delay"]
        assert "'gone', its mqd.delay.target, does not exist" in finding["what"]
        [note] = [each for each in health["findings"] if each["check"] == "dead letters"]
        assert "'nope', errors.deadletterqueue.topic.name of group g, does not" in note["what"]
        shown = await mqctl("dlq", "show", "orders.dlq", "0", "0")
        assert shown["headers"]["mqd-dlq-target"] == "orders"
        assert "Wrote 1 records" in await mqctl("dlq", "redrive", "orders.dlq", "--yes")
        assert "Wrote 0 records" in await mqctl("dlq", "redrive", "orders.dlq", "--yes")
        [again] = await mqctl("consume", "orders", "--from", "beginning", "--read-committed", "-n1")
        assert again["key"] == "c" and again["headers"] == []
        await mqctl("dlq", "purge", "orders.dlq", "--yes")
        assert "no dead letters" in await mqctl("dlq", "list", "orders.dlq")


async def test_while_a_transaction_of_a_relay_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never gets its markers, as if the target had no leader."""
    async with node(tmp_path) as running:
        mqctl = Mqctl(f"127.0.0.1:{running.port}")
        await mqctl("topic", "create", "orders")
        await mqctl("topic", "create", "later", "-c", "mqd.delay.target=orders")
        async with connect(mqctl.address) as client, open_producer(client) as producer:
            await producer.send("later", b"first", key=b"a")
            with trio.fail_after(30):
                while not await mqctl.rows("delay", "describe", "later"):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            open_ids: list[str] = []
            perform = MarkerSender.perform

            def hold(sender: MarkerSender, index: int, leader_epoch: int, effect: Any) -> None:
                if isinstance(effect, WriteMarkers):
                    open_ids.append(effect.transactional_id)
                else:
                    perform(sender, index, leader_epoch, effect)

            monkeypatch.setattr(MarkerSender, "perform", hold)
            await producer.send("later", b"second", key=b"b")
            await producer.send("later", b"third", key=b"c", delay=3600)
            with trio.fail_after(30):
                while not open_ids:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        [row] = await mqctl.rows("delay", "describe", "later")
        assert row["relayed"] == 1
        listed = await mqctl.rows("delay", "list", "later")
        assert [row["key"] for row in listed] == ["b", "c"]
        for command in ("describe", "list"):
            printed = await mqctl("delay", command, "later")
            assert "relay of later-0 is open (PrepareCommit), and waits for orders-0." in printed, (
                printed
            )
            assert "mqctl partition list --leaderless" in printed
