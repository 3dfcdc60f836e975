"""Dead letters of share groups with real nodes in a simulated cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.descriptions import (
    ConfigChange,
    ConfigOperation,
    NewTopic,
    Resource,
    ResourceType,
)
from mqd.client.errors import AcknowledgementFailed, ClientError
from mqd.client.producer import open_producer
from mqd.client.share_consumer import open_share_consumer
from mqd.errors import ErrorCode
from mqd.protocol.record_reader import Record
from mqd.share import acquiring
from mqd.testing import Cluster, run, simulated
from mqd.types import TopicPartition
from tests.client.test_share_consumer_node import REPLICATED, nothing, prepare, produce, take
from tests.seeds import seeds
from tests.server.test_share_groups import GROUP, OPTIONS, TOPIC, configure

DLQ = "orders.dlq"
NAMED: dict[str, Any] = {
    "errors_deadletterqueue_topic_name": DLQ,
    "errors_deadletterqueue_copy_record_enable": "true",
}

GIVEN_UP = f"records given up without dead letters group={GROUP} partition={TOPIC}-0"


async def letters(client: ClusterClient, partition: int = 0) -> list[Record]:
    """All committed records of the dead letter topic."""
    found: list[Record] = []
    async with open_consumer(
        client, {TopicPartition(DLQ, partition): "beginning"}, end="end", read_committed=True
    ) as consumer:
        async for batch in consumer:
            found += batch.records
    return found


async def wait_letters(client: ClusterClient, count: int) -> list[Record]:
    with trio.fail_after(120):
        while len(found := await letters(client)) < count:  # noqa: ASYNC110
            await trio.sleep(0.1)
    return found


async def set_ttl(admin: Admin, ttl_ms: int) -> None:
    topic = Resource(ResourceType.TOPIC, TOPIC)
    change = ConfigChange("mqd.message.ttl.ms", ConfigOperation.SET, str(ttl_ms))
    assert (await admin.alter_configs({topic: [change]}))[topic] is None


def header(record: Record, name: str) -> Any:
    return dict(record.headers).get(f"__dlq.errors.{name}")


@simulated(seed=1)
async def test_rejected_records_and_those_delivered_too_often() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=4, share_delivery_count_limit="2", **NAMED)
        await Admin(client).create_topic(DLQ)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second, third, fourth = await take(consumer, 4)
            await first.reject()
            await second.release()
            await third.accept()
            [again] = await take(consumer, 1)
            await again.release()
            found = await wait_letters(client, 2)
            await nothing(consumer)
            await fourth.accept()
        assert [(one.value, header(one, "offset"), header(one, "message")) for one in found] == [
            (b"0", b"0", b"Offset rejected by client."),
            (b"1", b"1", b"Offset delivery count exceeded the threshold."),
        ]
        assert [header(one, "delivery.count") for one in found] == [b"1", b"2"]
        assert {header(one, "topic") for one in found} == {TOPIC.encode()}
        assert {header(one, "group") for one in found} == {GROUP.encode()}
        await trio.sleep(1)
        [lag] = await Admin(client).group_lag(GROUP)
        assert lag.lag == 0, "given up records are done"


async def delivered_three_times(cluster: Cluster, **configs: Any) -> ClusterClient:
    """The group has returned record 0 three times. Then its limit becomes 2."""
    client: ClusterClient = await prepare(cluster, records=1, **configs)
    for _ in range(3):
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            await take(consumer, 1)
    await configure(await cluster.connect(1), share_delivery_count_limit="2")
    await produce(client, 1, 1)
    return client


@simulated(seed=17)
async def test_delivery_counts_stay_when_the_limit_of_the_group_becomes_lower() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await delivered_three_times(cluster, **NAMED)
        await Admin(client).create_topic(DLQ)
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            [record] = await take(consumer, 1)
            assert record.value == b"1"
            [found] = await wait_letters(client, 1)
        assert found.value == b"0" and header(found, "delivery.count") == b"3"
        assert header(found, "message") == b"Offset delivery count exceeded the threshold."


@simulated(seed=18)
async def test_records_that_are_given_up_without_dead_letters_are_counted_and_logged() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=2, share_delivery_count_limit="2")
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second = await take(consumer, 2)
            await first.reject()
            await second.release()
            await (await consumer.next()).release()
            [lag] = await Admin(client).group_lag(GROUP)
        assert (lag.lag, lag.expired, lag.given_up) == (0, 0, 2)
        [line] = [one for one in cluster.world.logs.lines if "given up" in one]
        assert f"WARNING mqd.share.unaccepted_log {GIVEN_UP} count=1 " in line


@simulated(seed=19)
async def test_a_lower_limit_without_dead_letters_is_logged() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await delivered_three_times(cluster)
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            [record] = await take(consumer, 1)
            assert record.value == b"1"
            [lag] = await Admin(client).group_lag(GROUP)
        assert lag.given_up == 1
        assert any(GIVEN_UP in one for one in cluster.world.logs.lines)


@simulated(seed=20, log_level="INFO")
async def test_a_missing_topic_is_created_and_logged() -> None:
    """Its name may be mistyped."""
    options = OPTIONS | {"auto.create.topics.enable": "true"}
    async with Cluster(nodes=1, options=options) as cluster:
        client = await prepare(cluster, records=1, **NAMED)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            await (await consumer.next()).reject()
            await wait_letters(client, 1)
        [line] = [one for one in cluster.world.logs.lines if "dead-letter topic created" in one]
        assert f"group={GROUP} topic={DLQ} " in line


@simulated(seed=2)
async def test_the_topic_names_the_topic_and_it_comes_later() -> None:
    """`mqd.dlq.topic`. Other records go on meanwhile."""
    options = OPTIONS | {"auto.create.topics.enable": "false"}
    async with Cluster(nodes=1, options=options) as cluster:
        client = await prepare(cluster, records=3)
        admin = Admin(client)
        topic = Resource(ResourceType.TOPIC, TOPIC)

        async def configure(value: str) -> ClientError | None:
            change = ConfigChange("mqd.dlq.topic", ConfigOperation.SET, value)
            return (await admin.alter_configs({topic: [change]}))[topic]

        for wrong in ("__consumer_offsets", "a b"):
            error = await configure(wrong)
            assert error is not None and error.code is ErrorCode.INVALID_CONFIG
        assert await configure(DLQ) is None
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second, third = await take(consumer, 3)
            await first.reject()
            await second.accept()
            await third.accept()
        await trio.sleep(5)
        [lag] = await admin.group_lag(GROUP)
        assert lag.committed is not None and (lag.committed.offset, lag.lag) == (0, 1)
        await admin.create_topic(DLQ)
        [found] = await wait_letters(client, 1)
        assert found.value == b"0"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2, range(3, 16)))
def test_nodes_crash(seed: int) -> None:
    """Each rejected record has one dead letter."""

    @simulated(seed=seed)
    async def one_run() -> None:
        async with Cluster(nodes=3, options=REPLICATED) as cluster:
            client = await prepare(cluster, records=60, **NAMED)
            await Admin(client).create_topic(DLQ, replication_factor=3)

            async def work() -> None:
                async with open_share_consumer(
                    client,
                    GROUP,
                    [TOPIC],
                    mode="explicit",
                    acquire_mode="record_limit",
                    max_records=5,
                ) as consumer:
                    async for record in consumer:
                        await trio.sleep(0.05)
                        try:
                            await record.reject()
                        except AcknowledgementFailed:
                            continue

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                for number in range(3):
                    await trio.sleep(1 + 0.37 * number)
                    leader = client.view.leader_of(TopicPartition(TOPIC, 0))
                    if leader is not None and cluster.nodes[leader.node_id].running:
                        cluster.nodes[leader.node_id].kill()
                        await trio.sleep(2)
                        await cluster.nodes[leader.node_id].start()
                found = await wait_letters(client, 60)
                await trio.sleep(5)
                found = await letters(client)
                nursery.cancel_scope.cancel()
            assert sorted(int(header(one, "offset")) for one in found) == list(range(60))

    one_run()


@simulated(seed=50)
async def test_expired_records() -> None:
    """By the topic and by the header; a plain fetch returns all of them."""
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, **NAMED)
        admin = Admin(client)
        await admin.create_topic(DLQ)
        await set_ttl(admin, 60_000)
        async with open_producer(client) as producer:
            await producer.send(TOPIC, b"short", headers=[("mqd-ttl", b"1000")])
            await producer.send(TOPIC, b"long")
        await trio.sleep(5)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            [record] = await take(consumer, 1)
            assert record.value == b"long"
            await record.release(delay=60)
            await nothing(consumer, 70)
            found = await wait_letters(client, 2)
        assert [(one.value, header(one, "message")) for one in found] == [
            (b"short", b"Record expired before it was acknowledged."),
            (b"long", b"Record expired before it was acknowledged."),
        ]
        assert [header(one, "delivery.count") for one in found] == [b"0", b"1"]
        start = {TopicPartition(TOPIC, 0): "beginning"}
        async with open_consumer(client, start, end="end") as plain:  # type: ignore[arg-type]
            values = [record.value async for batch in plain for record in batch.records]
        assert values == [b"short", b"long"]
        await trio.sleep(1)
        [lag] = await admin.group_lag(GROUP)
        assert (lag.lag, lag.expired) == (0, 2)


@simulated(seed=51)
async def test_the_clock_goes_back_while_expired_records_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, **NAMED)
        admin = Admin(client)
        await admin.create_topic(DLQ)
        await set_ttl(admin, 1000)
        async with open_producer(client) as producer:
            await producer.send(TOPIC, b"old")
        await trio.sleep(2)
        read_part = acquiring._read_part

        def read(*arguments: Any) -> Any:
            cluster.nodes[1].clock.skew(-10)
            return read_part(*arguments)

        monkeypatch.setattr(acquiring, "_read_part", read)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            await nothing(consumer)
            [letter] = await wait_letters(client, 1)
        assert header(letter, "message") == b"Record expired before it was acknowledged."


@simulated(seed=5)
async def test_all_leaders_count_the_expired_records() -> None:
    """Each of three nodes leads a partition; the coordinator of the group is one of them."""
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await prepare(cluster, partitions=3)
        admin = Admin(client)
        await set_ttl(admin, 1000)
        async with open_producer(client) as producer:
            for partition in range(3):
                for _ in range(partition + 1):
                    await producer.send(TOPIC, b"", partition=partition)
        await trio.sleep(2)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            with trio.fail_after(30):
                lags = await admin.group_lag(GROUP)
                while [(lag.lag, lag.expired) for lag in lags] != [(0, 1), (0, 2), (0, 3)]:
                    await nothing(consumer, 1)
                    lags = await admin.group_lag(GROUP)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["no leader", "open transaction"])
def test_a_dead_letter_topic_without_a_leader_is_logged_with_the_cause(first: str) -> None:
    async def check() -> None:
        async with Cluster(nodes=3, options=REPLICATED) as cluster:
            client = await prepare(cluster, records=2, **NAMED)
            await Admin(client).create_topics([NewTopic(DLQ, assignments={0: [3]})])
            async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
                one, other = await take(consumer, 2)
                if first == "open transaction":
                    await one.reject()
                    await wait_letters(client, 1)
                cluster.nodes[3].kill()
                await trio.sleep(8)
                await other.reject()
                await trio.sleep(80)
                lines = [one for one in cluster.world.logs.lines if "cannot write dead" in one]
                assert lines and all(f"{DLQ}-0 has no leader" in line for line in lines), lines
                await cluster.nodes[3].start()
                assert len(await wait_letters(client, 1)) >= 1

    run(check, seed=20)
