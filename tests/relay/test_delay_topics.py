"""Delay topics in a cluster: each record reaches its target once, not early, and unless it was
cancelled, while nodes fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from mqd.client import ClusterClient, Record, open_consumer, open_producer
from mqd.client.admin import Admin
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.client.errors import ClientError
from mqd.relay.delay_progress import Counts, decode_metadata
from mqd.relay.names import delay_group
from mqd.relay.producer import RelayProducer
from mqd.relay.timer_table import TimerTable
from mqd.testing import Cluster, run, simulated
from mqd.types import TopicPartition
from tests.seeds import seeds

TARGET = TopicPartition("orders", 0)
DEAD = TopicPartition("orders.dlq", 0)
DELAY = TopicPartition("orders.delay", 0)
EACH_MINUTE = [("mqd-cron", b"* * * * *")]


async def make_topics(client: ClusterClient, replicas: int, **configs: str) -> None:
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    admin = Admin(client)
    await admin.create_topic("orders", 1, replicas)
    await admin.create_topic("orders.dlq", 1, replicas)
    await admin.create_topic("orders.delay", 1, replicas, {"mqd.delay.target": "orders", **dotted})
    await trio.sleep(1)


async def arrived(client: ClusterClient, place: TopicPartition, count: int) -> list[Record]:
    """The first `count` committed records."""
    found: list[Record] = []
    async with open_consumer(client, {place: "beginning"}, read_committed=True) as consumer:
        async for batch in consumer:
            found += batch.records
            if len(found) >= count:
                break
    return found


async def counts(client: ClusterClient) -> Counts:
    """What the relay of partition 0 has committed."""
    admin, group = Admin(client), delay_group(DELAY.topic)
    found = (await admin.list_group_offsets([group], stable=True))[group]
    assert not isinstance(found, ClientError)
    [topic] = (await admin.describe_topics([DELAY.topic])).values()
    assert not isinstance(topic, ClientError)
    decoded = decode_metadata(found[DELAY].metadata, topic.topic_id)
    assert decoded is not None
    return decoded[1]


def header(record: Record, name: str) -> int:
    return int(dict(record.headers)[name] or b"-1")


@simulated(seed=4)
async def test_records_leave_in_the_order_of_time_unless_they_are_cancelled() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1, mqd_dlq_topic="orders.dlq")
        async with open_producer(client) as producer:
            for number, delay_ms in enumerate((3_000, 1_000, 2_000, 2_500, 0)):
                headers = [("mqd-delay", b"%d" % delay_ms)]
                key = b"k%d" % number
                await producer.send("orders.delay", b"v", key=key, headers=headers)
            await producer.send("orders.delay", None, key=b"k3")
            expired = [("mqd-delay", b"1500"), ("mqd-ttl", b"1000")]
            await producer.send("orders.delay", b"late", headers=expired)
        with trio.fail_after(30):
            found = await arrived(client, TARGET, 4)
            [dead] = await arrived(client, DEAD, 1)
        assert await counts(client) == Counts(relayed=4, cancelled=1, expired=1)
        assert [record.key for record in found] == [b"k4", b"k1", b"k2", b"k0"]
        assert dead.value == b"late"
        assert dict(dead.headers)["__dlq.errors.message"] == b"expired"


@simulated(seed=5)
async def test_a_schedule_repeats_until_its_key_is_deleted() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        async with open_producer(client) as producer:
            await producer.send("orders.delay", b"tick", key=b"clock", headers=EACH_MINUTE)
            with trio.fail_after(300):
                found = await arrived(client, TARGET, 3)
            await producer.send("orders.delay", None, key=b"clock")
            await producer.send("orders.delay", b"end", headers=[("mqd-delay", b"130000")])
            with trio.fail_after(300):
                found = await arrived(client, TARGET, 4)
        assert [record.value for record in found] == [b"tick"] * 3 + [b"end"]
        first = header(found[0], "mqd-due")
        assert [header(one, "mqd-due") - first for one in found[:3]] == [0, 60_000, 120_000]


def send_before_the_next_occurrence(
    monkeypatch: pytest.MonkeyPatch, send: Callable[[], Awaitable[object]]
) -> trio.Event:
    """Call `send` once the relay has decided to write a second occurrence. Set then."""
    write, sent = RelayProducer.write, trio.Event()

    async def write_late(
        producer: RelayProducer, records: Any, progress: Any, build: Any = None
    ) -> None:
        if DELAY in records and not sent.is_set():
            sent.set()
            await send()
        await write(producer, records, progress, build)

    monkeypatch.setattr(RelayProducer, "write", write_late)
    return sent


@simulated(seed=9)
async def test_a_schedule_that_is_cancelled_while_it_repeats_stays_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if retention has deleted the tombstone when the node restarts."""
    monkeypatch.setattr(TimerTable, "is_full", lambda table, most, end: end > table.start)
    options = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "0"}
    async with Cluster(nodes=1, options=options) as cluster:
        client = await cluster.client()
        await make_topics(client, 1, segment_ms="500", retention_ms="1")
        async with open_producer(client) as producer:

            async def cancel() -> None:
                await producer.send("orders.delay", None, key=b"clock")
                await trio.sleep(1)
                # begins a segment, so that retention may delete the one of the tombstone
                await producer.send("orders.delay", None, key=b"other")

            sent = send_before_the_next_occurrence(monkeypatch, cancel)
            await producer.send("orders.delay", b"tick", key=b"clock", headers=EACH_MINUTE)
            with trio.fail_after(100):
                await sent.wait()
            await trio.sleep(5)
            await cluster.nodes[1].stop()
            await cluster.nodes[1].start()
            await trio.sleep(20)
            [first, *_] = await arrived(client, DELAY, 1)
            assert first.key == b"other", "retention has deleted the tombstone"
            await producer.send("orders.delay", b"end", headers=[("mqd-delay", b"70000")])
            with trio.fail_after(100):
                found = await arrived(client, TARGET, 2)
        assert [record.value for record in found] == [b"tick", b"end"]


@pytest.mark.parametrize("replaces", [True, False])
def test_a_schedule_that_begins_while_another_one_of_its_key_repeats(
    monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    async def check() -> None:
        async with Cluster(nodes=1) as cluster:
            client = await cluster.client()
            await make_topics(client, 1, mqd_delay_replace=str(replaces).lower())
            async with open_producer(client) as producer:

                async def begin() -> None:
                    if not replaces:
                        await producer.send("orders.delay", None, key=b"clock")
                    await producer.send("orders.delay", b"tock", key=b"clock", headers=EACH_MINUTE)

                send_before_the_next_occurrence(monkeypatch, begin)
                await producer.send("orders.delay", b"tick", key=b"clock", headers=EACH_MINUTE)
                with trio.fail_after(200):
                    found = await arrived(client, TARGET, 3)
        assert [record.value for record in found] == [b"tick", b"tock", b"tock"]

    run(check, seed=10)


@simulated(seed=6)
async def test_a_retry_topic_ends_in_dead_letters() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await make_topics(client, 1)
        configs = {
            "mqd.delay.target": "orders",
            "mqd.dlq.topic": "orders.dlq",
            "mqd.retry.backoff": "1s,5s",
            "message.timestamp.type": "LogAppendTime",
        }
        await Admin(client).create_topic("orders.retry", 1, 1, configs)
        async with open_producer(client) as producer:
            await producer.send("orders.retry", b"v", key=b"k")
            with trio.fail_after(60):
                for attempt in (1, 2):
                    failed = (await arrived(client, TARGET, attempt))[-1]
                    assert header(failed, "mqd-attempts") == attempt
                    await producer.send(
                        "orders.retry", failed.value, key=failed.key, headers=failed.headers
                    )
                [dead] = await arrived(client, DEAD, 1)
        assert header(dead, "__dlq.errors.delivery.count") == 3
        assert header(dead, "mqd-first-failure") <= failed.timestamp


def nodes_with_timers(cluster: Cluster) -> set[int]:
    return {
        node_id
        for node_id in cluster.nodes
        if any(one.suffix == ".timers" for one in cluster.disk(node_id).files("orders.delay"))
    }


async def timers_are_on(cluster: Cluster, count: int) -> None:
    """Wait until so many nodes have timers."""
    with trio.fail_after(60):
        while len(nodes_with_timers(cluster)) != count:  # noqa: ASYNC110
            await trio.sleep(0.1)


async def change_target(client: ClusterClient, change: ConfigChange) -> None:
    resource = Resource(ResourceType.TOPIC, "orders.delay")
    assert await Admin(client).alter_configs({resource: [change]}) == {resource: None}


@pytest.mark.slow
@pytest.mark.timeout(300)
@simulated(seed=8)
async def test_all_nodes_remove_the_timers_of_a_topic_that_delays_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TimerTable, "is_full", lambda table, most, end: end - table.start >= 4)
    headers = [("mqd-delay", b"3600000")]
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await make_topics(client, 3)
        async with open_producer(client, delivery_timeout_s=120) as producer:
            for number in range(8):
                await producer.send("orders.delay", b"%d" % number, headers=headers)
            await timers_are_on(cluster, 1)
            [leader] = nodes_with_timers(cluster)
            cluster.nodes[leader].kill()
            await timers_are_on(cluster, 2)
            await cluster.nodes[leader].start()
            for number in range(8):
                await producer.send("orders.delay", b"%d" % number, headers=headers)
        assert len(nodes_with_timers(cluster)) == 2
        target = "mqd.delay.target"
        await change_target(client, ConfigChange(target, ConfigOperation.DELETE))
        await timers_are_on(cluster, 0)
        await change_target(client, ConfigChange(target, ConfigOperation.SET, "orders"))
        await timers_are_on(cluster, 1)


async def exactly_once() -> None:
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await make_topics(client, 3)
        chance = cluster.world.random("delay")
        count = 40

        async def faults() -> None:
            while True:
                await trio.sleep(chance.uniform(0.5, 4))
                node = cluster.nodes[chance.randrange(3) + 1]
                match chance.choice(["kill", "pause", "cut off", "stop"]):
                    case "kill":
                        node.kill()
                    case "stop":
                        await node.stop()
                    case "pause":
                        node.pause(chance.uniform(1, 12))
                    case "cut off":
                        cluster.network.isolate(node.id)
                await trio.sleep(chance.uniform(0.5, 10))
                cluster.network.heal()
                node.resume()
                await node.start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(faults)
            async with open_producer(client, delivery_timeout_s=120) as producer:
                for number in range(count):
                    delay = b"%d" % chance.randrange(8_000)
                    headers = [("mqd-delay", delay)]
                    await producer.send("orders.delay", b"%d" % number, headers=headers)
                    await trio.sleep(chance.uniform(0, 0.5))
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        cluster.network.heal()
        for node in cluster.nodes.values():
            node.resume()
            await node.start()
        with trio.fail_after(120):
            await arrived(client, TARGET, count)
        await trio.sleep(15)
        found = await arrived(client, TARGET, count)
        assert sorted(int(one.value or b"-1") for one in found) == [*range(count)]
        for one in found:
            assert header(one, "mqd-due") == one.timestamp
            assert one.timestamp == header(one, "mqd-delay-timestamp") + header(one, "mqd-delay")


@pytest.mark.parametrize("seed", seeds(1, range(10)))
def test_each_record_arrives_once_whatever_fails(seed: int) -> None:
    run(exactly_once, seed=seed)
