"""`mqctl dlq` on a real node: letters with and without a copy, and letters that are left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from mqd.client import Admin, connect, open_producer
from mqd.client.cluster import ClusterClient
from tests.nodes import node

from .real import Mqctl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # many processes


def letter_headers(topic: str, offset: int, timestamp: int) -> list[tuple[str, bytes]]:
    return [
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.timestamp", b"%d" % timestamp),
    ]


async def send_letters(client: ClusterClient) -> None:
    """To `dead`: the letter of a record that exists, of one of another time stamp, of one that
    never existed, of a topic that does not exist; and a record that is not a letter."""
    async with open_producer(client) as producer:
        own = [("own", b"1"), ("mqd-delay", b"5")]
        sent = await producer.send("orders", b"v", key=b"k", headers=own, timestamp=1000)
        assert sent.offset == 0
        await producer.send("dead", None, headers=letter_headers("orders", 0, 1000))
        await producer.send("dead", None, headers=letter_headers("orders", 0, 999))
        await producer.send("dead", None, headers=letter_headers("orders", 70, 1000))
        await producer.send("dead", b"copy", headers=letter_headers("gone", 0, 1000))
        await producer.send("dead", b"plain")


async def test_letters_without_a_copy(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        mqctl = Mqctl(f"127.0.0.1:{running.port}")
        await mqctl("topic", "create", "orders")
        await mqctl("topic", "create", "dead")
        async with connect(mqctl.address) as client:
            await send_letters(client)
            listed = await mqctl.rows("dlq", "list", "dead")
            assert [row["offset"] for row in listed] == [0, 1, 2, 3]
            assert not any(row["redriven"] for row in listed)
            refused = await mqctl("dlq", "purge", "orders", "--yes", fails=True)
            assert "is not a dead letter" in refused and "mqctl topic trim orders" in refused
            missing = await mqctl("dlq", "redrive", "dead", "--to", "typo", "--yes", fails=True)
            assert "typo" in missing
            plan = await mqctl("dlq", "redrive", "dead", fails=True)
            assert "'gone': 1" in plan and "'orders': 3" in plan and "left: 1" in plan, plan
            assert "re-run with --yes" in plan
            done = await mqctl("dlq", "redrive", "dead", "--yes")
            assert "Wrote 1 records again." in done and "1 to topic 'orders'." in done, done
            assert "Left 2 records: they have no copy" in done
            assert "Left 1 records: topic 'gone' does not exist" in done
            assert "Left 1 records: they name no original topic. Use --to." in done
            found = await mqctl.rows("consume", "orders", "-e", "--from", "1")
            assert [(one["key"], one["value"]) for one in found] == [("k", "v")]
            assert [header["name"] for header in found[0]["headers"]] == ["own"]
            listed = await mqctl.rows("dlq", "list", "dead")
            assert [row["redriven"] for row in listed] == [True, False, False, False]
            listed = await mqctl.rows("dlq", "list", "dead", "--group", "other")
            assert not any(row["redriven"] for row in listed)
            topics = [one.name for one in await Admin(client).list_topics()]
            assert sorted(topics) == ["dead", "orders"]
            [lag] = await mqctl.rows("group", "lag", "mqctl-redrive-dead")
            assert lag["lag"] == 0
            # those that were left are redriven by the next run that can
            await mqctl("topic", "create", "other")
            again = await mqctl("dlq", "redrive", "dead", "--to", "other", "--yes")
            assert "Wrote 2 records again." in again and "Left 2 records" in again, again
            found = await mqctl.rows("consume", "other", "-e")
            assert [one["value"] for one in found] == ["copy", "plain"]
            last = await mqctl("dlq", "redrive", "dead", "--to", "other", "--yes")
            assert "Wrote 0 records again." in last and "Left 2 records" in last, last


async def test_letters_of_a_share_group(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        mqctl = Mqctl(f"127.0.0.1:{running.port}")
        await mqctl("topic", "create", "orders")
        await mqctl("topic", "create", "dead")
        options = ["share.auto.offset.reset=earliest", "errors.deadletterqueue.topic.name=dead"]
        await mqctl("group", "config", "set", "billing", *options)
        async with connect(mqctl.address) as client, open_producer(client) as producer:
            await producer.send("orders", b"v", key=b"k")
        await mqctl("consume", "orders", "--share-group", "billing", "-n1", "--reject")
        with trio.fail_after(30):
            while not await mqctl.rows("dlq", "list", "dead"):  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert "Wrote 1 records again." in await mqctl("dlq", "redrive", "dead", "--yes")
        found = await mqctl.rows("consume", "orders", "-e", "--from", "1")
        assert [(one["key"], one["value"]) for one in found] == [("k", "v")]
        [lag] = await mqctl.rows("group", "lag", "mqctl-redrive-dead")
        assert lag["lag"] == 0
        assert "has no partition 9" in await mqctl("dlq", "show", "dead", "9", "0", fails=True)


async def test_letters_of_a_relay_without_a_copy(tmp_path: Path) -> None:
    """The dead-letter topic refused the record, too: the original is in the delay topic."""
    async with node(tmp_path) as running:
        mqctl = Mqctl(f"127.0.0.1:{running.port}")
        small = ["-c", "max.message.bytes=1500"]
        await mqctl("topic", "create", "orders", *small)
        await mqctl("topic", "create", "dead", *small)
        relays = ["-c", "mqd.delay.target=orders", "-c", "mqd.dlq.topic=dead"]
        await mqctl("topic", "create", "later", *relays)
        append_time = ["-c", "mqd.retry.backoff=50ms", "-c", "message.timestamp.type=LogAppendTime"]
        await mqctl("topic", "create", "retries", *relays, *append_time)
        async with connect(mqctl.address) as client, open_producer(client) as producer:
            own = [("own", b"1"), ("mqd-delay", b"5")]
            large = os.urandom(2000).hex()  # no compression makes it small enough
            await producer.send("later", large.encode(), key=b"k1", headers=own)
            origin = [(f"mqd-origin-{name}", b"0") for name in ("partition", "offset", "timestamp")]
            first = [*own, ("mqd-origin-topic", b"gone"), *origin]
            await producer.send("retries", large.encode(), key=b"k2", headers=first)
        with trio.fail_after(30):
            while len(listed := await mqctl.rows("dlq", "list", "dead")) < 2:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert {row["from"] for row in listed} == {"later-0@0", "retries-0@0"}
        assert [row["key"] for row in listed] == [None, None]
        await mqctl("topic", "config", "set", "orders", "max.message.bytes=100000")
        await mqctl("topic", "trim", "retries", "--keep", "0", "--yes")
        done = await mqctl("dlq", "redrive", "dead", "--yes")
        assert "Wrote 1 records again." in done, done
        assert "Left 1 records: they have no copy of the record, and the original no longer" in done
        [found] = await mqctl.rows("consume", "orders", "-e")
        assert (found["key"], found["value"]) == ("k1", large)
        assert [header["name"] for header in found["headers"]] == ["own"]
        again = await mqctl("dlq", "redrive", "dead", "--yes")
        assert "Wrote 0 records again." in again and "Left 1 records" in again, again
