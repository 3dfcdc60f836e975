"""The share consumer with real nodes in a simulated cluster: delivery, locks, failover."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.errors import AcknowledgementFailed
from mqd.client.producer import open_producer
from mqd.client.share_consumer import ShareConsumer, open_share_consumer
from mqd.client.share_records import ShareRecord
from mqd.errors import ErrorCode
from mqd.testing import Cluster, simulated
from mqd.types import TopicPartition
from tests.server.test_share_groups import GROUP, OPTIONS, TOPIC, configure

REPLICATED = OPTIONS | {
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


async def prepare(
    cluster: Cluster, *, partitions: int = 1, records: int = 0, **configs: str
) -> Any:
    """A topic, a share group that reads it from its begin, and a client."""
    connection = await cluster.connect(1)
    client = await cluster.client()
    replicas = min(3, len(cluster.nodes))
    await Admin(client).create_topic(TOPIC, partitions=partitions, replication_factor=replicas)
    await configure(connection, share_auto_offset_reset="earliest", **configs)
    await produce(client, 0, records)
    return client


async def produce(client: ClusterClient, first: int, count: int) -> None:
    async with open_producer(client) as producer:
        for number in range(first, first + count):
            await producer.enqueue(TOPIC, b"%d" % number)


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    with trio.fail_after(60):
        return [await consumer.next() for _ in range(count)]


async def nothing(consumer: ShareConsumer, seconds: float = 2.0) -> None:
    with trio.move_on_after(seconds):
        raise AssertionError(await consumer.next())


@simulated(seed=1)
async def test_each_record_is_delivered_once() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, partitions=3, records=100)
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            found = await take(consumer, 100)
            assert sorted(int(record.value or b"") for record in found) == list(range(100))
            assert {record.delivery_count for record in found} == {1}
            assert len(consumer.assignment()) == 3
            await nothing(consumer)
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            await nothing(consumer)


@simulated(seed=2)
async def test_a_record_is_accepted_when_the_next_one_is_taken() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=10)
        with pytest.raises(KeyError):
            async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
                await take(consumer, 4)
                raise KeyError
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            [record] = await take(consumer, 1)
            assert record.offset == 3
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            assert [one.offset for one in await take(consumer, 6)] == [4, 5, 6, 7, 8, 9]


@simulated(seed=3)
async def test_explicit_acknowledgements() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=4)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second, third, fourth = await take(consumer, 4)
            await first.accept()
            await second.release()
            await third.reject()
            [again] = await take(consumer, 1)
            assert (again.offset, again.delivery_count) == (1, 2)
            again.accept_soon()
            await consumer.flush()
            with pytest.raises(AcknowledgementFailed, match="has been acknowledged"):
                await again.release()
            assert fourth.is_acknowledged is False
        async with open_share_consumer(client, GROUP, [TOPIC]) as consumer:
            assert [one.offset for one in await take(consumer, 1)] == [3]
            await nothing(consumer)


@simulated(seed=4)
async def test_a_lock_that_ended_and_a_renewed_one() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=3, share_record_lock_duration_ms="1000")
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            records = await take(consumer, 3)
            await trio.sleep(0.7)
            await records[0].renew()
            await trio.sleep(0.7)
            accepted = [record.accept_soon() for record in records]
            with pytest.raises(AcknowledgementFailed) as failed:
                await consumer.flush()
            assert failed.value.code is ErrorCode.INVALID_RECORD_STATE
            # One that is late does not take the others with it.
            assert [one.error is None for one in accepted] == [True, False, False]
            again = await take(consumer, 2)
            assert [(one.offset, one.delivery_count) for one in again] == [(1, 2), (2, 2)]


@simulated(seed=5)
async def test_members_share_the_records() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster)
        seen: Counter[int] = Counter()
        by_member: Counter[int] = Counter()

        async def work(number: int) -> None:
            async with open_share_consumer(
                client, GROUP, [TOPIC], acquire_mode="record_limit", max_records=3
            ) as consumer:
                async for record in consumer:
                    await trio.sleep(0.001)
                    seen[record.offset] += 1
                    by_member[number] += 1

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(work, number)
            await trio.sleep(2)
            await produce(client, 0, 300)
            with trio.fail_after(60):
                while len(seen) < 300:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert set(seen.values()) == {1}
        assert min(by_member.values()) > 50, by_member


@pytest.mark.slow
@simulated(seed=6)
async def test_nodes_crash() -> None:
    """A stored acceptance is final, and each record has one."""
    async with Cluster(nodes=3, options=REPLICATED) as cluster:
        client = await prepare(cluster, partitions=3)
        accepted: Counter[bytes | None] = Counter()
        unknown: set[bytes | None] = set()
        """Records whose response was lost."""

        async def work() -> None:
            async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
                async for record in consumer:
                    try:
                        await record.accept()
                    except AcknowledgementFailed:
                        unknown.add(record.value)
                    else:
                        accepted[record.value] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            for node_id in (1, 2, 3):
                await produce(client, 100 * node_id, 100)
                cluster.nodes[node_id].kill()
                await trio.sleep(3)
                await cluster.nodes[node_id].start()
                await trio.sleep(3)
            with trio.fail_after(120):
                while len(accepted.keys() | unknown) < 300:  # noqa: ASYNC110
                    await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        assert set(accepted.values()) == {1}
        assert len(accepted) > 200


@simulated(seed=7)
async def test_a_release_with_a_delay() -> None:
    """By the client, and by the group's table; others go on meanwhile."""
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await prepare(cluster, records=3, mqd_share_retry_backoff="2s,30s")
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second, third = await take(consumer, 3)
            released = trio.current_time()
            await first.release(delay=5)
            await second.release()
            await third.release(delay=0)
            found: dict[int, float] = {}
            while len(found) < 3:
                [record] = await take(consumer, 1)
                found[record.offset] = trio.current_time() - released
                assert record.delivery_count == 2
                if record.offset == 0:
                    await record.release()
                else:
                    await record.accept()
            assert found[2] < 0.5 and 2 <= found[1] < 2.2 and 5 <= found[0] < 5.2
            [record] = await take(consumer, 1)
            assert trio.current_time() - released > 35 and record.delivery_count == 3


@pytest.mark.slow
@simulated(seed=8)
async def test_a_delay_survives_the_leader() -> None:
    async with Cluster(nodes=3, options=REPLICATED) as cluster:
        client = await prepare(cluster, records=2)
        async with open_share_consumer(client, GROUP, [TOPIC], mode="explicit") as consumer:
            first, second = await take(consumer, 2)
            released = trio.current_time()
            await first.release(delay=20)
            await second.accept()
            leader = client.view.leader_of(TopicPartition(TOPIC, 0))
            assert leader is not None
            cluster.nodes[leader.node_id].kill()
            [again] = await take(consumer, 1)
            assert (again.offset, again.delivery_count) == (0, 2)
            assert 20 <= trio.current_time() - released < 25
